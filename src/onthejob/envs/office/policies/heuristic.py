"""The heuristic: what a decent but unobservant team would do.

It continues branches in all seats, so it also reads and sends the few messages of the fixed vocabulary (`need PAIN`,
`approve NAME`); otherwise a message could never be worth anything in a branch.
"""

from __future__ import annotations

from typing import Any

from onthejob.envs.office.actions import Action
from onthejob.envs.office.company_state import CATALOGUE, FEATURE_INDEX, PAINS
from onthejob.envs.office.handlers.content import VERB_OF
from onthejob.envs.office.handlers.sales import NEXT_STEP
from onthejob.envs.office.policies import Legal, View

PAIN_OF = {name: PAINS[CATALOGUE[place].pain] for name, place in FEATURE_INDEX.items()}


def needs(view: View) -> list[str]:
    """Pains that messages in the inbox ask for, newest first."""
    words = (line.rpartition(" ")[2] for line in reversed(view["inbox"]) if ": need " in line)
    return [word for word in words if word in PAINS]  # a model may write anything


def heuristic(view: View, legal: Legal, luck: float) -> Action | None:
    """One rule list per role."""
    return _RULES[view["role"]](view)


def _ceo(v: View) -> Action:
    if v["approve"]:
        return Action("APPROVE_INITIATIVE", v["approve"][0])
    if v["focus"] == "none":
        return Action("SET_OKRS", "growth")
    if v["funded"]:
        return Action("ALLOCATE_BUDGET", "hr" if v["envelopes"]["hr"] < 10 and v["day"] % 3 == 0 else "marketing")
    return Action("SEND_DIRECTIVE", "sales") if not v["directed"] else Action("REVIEW_STRATEGY")


def _dev(v: View) -> Action:
    if v["ready"]:
        return Action("SHIP_RELEASE", v["ready"][0])
    if v["bugs"]["critical"]:
        return Action("FIX_BUG", "critical")
    wanted = [name for pain in needs(v) for name in v["build"] if PAIN_OF[name] == pain]
    todo = v["started"] or wanted or list(v["build"])
    if todo and v["bugs"]["major"] < 4:
        return Action("BUILD_FEATURE", todo[0])
    return Action("FIX_BUG", "major") if v["bugs"]["major"] else Action("REFACTOR")


def _marketing(v: View) -> Action:
    rested = [pain for pain in PAINS if pain not in v["tired"]]
    if v["envelope"] >= 5 and rested and v["day"] % 2:
        return Action("LAUNCH_CAMPAIGN", rested[v["day"] % len(rested)])
    return Action("OPTIMIZE_FUNNEL")


def _sales(v: View) -> Action:
    for lead in v["leads"]:
        step = NEXT_STEP[lead["stage"]]
        if step == "CLOSE_DEAL" and lead["size"] == "L" and not lead["approved"]:
            if lead["idle"] < 1 and lead["stage"] == "proposal":
                continue
            return Action(step, lead["name"])
        if step == "SEND_PROPOSAL":
            if lead["size"] == "L":
                return Action(step, lead["name"], message_to="ceo", message=f"approve {lead['name']}")
            return Action(step, lead["name"])
        if step == "RUN_DEMO":
            return Action(step, lead["name"], message_to="dev", message=f"need {lead['pain']}")
        return Action(step, lead["name"])
    if v["customers"]:
        return Action("COLLECT_FEEDBACK", v["customers"][0]["name"])
    return Action("UPDATE_PIPELINE")


def going_on(v: View) -> dict[str, Any] | None:
    """The draft to continue: a case study only while a customer has its pain."""
    return next((d for d in v["drafts"] if d["kind"] != "case_study" or d["topic"] in v["served"]), None)


def _content(v: View) -> Action:
    draft = going_on(v)
    if draft:
        return Action(VERB_OF[draft["kind"]], draft["topic"])
    wanted = needs(v)
    topic = wanted[0] if wanted else PAINS[v["day"] % len(PAINS)]
    return Action("WRITE_BLOG", topic)


def _hr(v: View) -> Action:
    if v["blockers"]:
        return Action("RESOLVE_BLOCKER", v["blockers"][0])
    if not v["planned"]:
        return Action("PLAN_SPRINT")
    return Action("PERFORMANCE_REVIEW") if v["morale"] < 50 else Action("TEAM_SYNC")


_RULES = {"ceo": _ceo, "dev": _dev, "marketing": _marketing, "sales": _sales, "content": _content, "hr": _hr}
