"""The expert: the best rules we know that read only what the embedded prompt renders. The warm start clones it (with noise).

`expert-explained` (`reasons`) decides the same and says why, for warm starts of models that read the full prompt.
"""

from __future__ import annotations

from onthejob.envs.office.actions import Action
from onthejob.envs.office.company_state import PAINS
from onthejob.envs.office.handlers.content import VERB_OF
from onthejob.envs.office.handlers.sales import NEXT_STEP
from onthejob.envs.office.policies import Legal, View
from onthejob.envs.office.policies.heuristic import PAIN_OF, going_on, needs

Decision = tuple[Action, str]
"""An action, and the name of the rule that fired; `reasons` has a sentence for each."""


def expert(view: View, legal: Legal, luck: float) -> Action | None:
    """One rule list per role."""
    return decide(view)[0]


def decide(view: View) -> Decision:
    """What the expert does, and the rule that fired, by its name within the role."""
    return _RULES[view["role"]](view)


def _ceo(v: View) -> Decision:
    if v["approve"]:
        return Action("APPROVE_INITIATIVE", v["approve"][0]), "approve"
    if v["focus"] == "none" or v["okr_left"] <= 1:
        if (v["customers"] >= 3 and v["satisfaction"] < 42) or v["stability"] < 45:
            focus = "retention"
        elif len(v["shipped"]) < 2 and v["day"] <= 15:
            focus = "product"
        else:
            focus = "growth"
        if focus != v["focus"] or v["okr_left"] == 0:
            return Action("SET_OKRS", focus), focus
    if v["funded"]:
        wants = v["envelopes"]
        if v["traffic"] > 2200 and wants["dev"] < 5:
            return Action("ALLOCATE_BUDGET", "dev"), "fund dev"
        if wants["hr"] < 10 and v["day"] <= 24:
            return Action("ALLOCATE_BUDGET", "hr"), "fund hr"
        if wants["marketing"] < 10 and v["day"] <= 26:
            return Action("ALLOCATE_BUDGET", "marketing"), "fund marketing"
    if not v["directed"]:
        target = "dev" if v["leads"] < 2 or v["focus"] == "product" or v["stability"] < 60 else "sales"
        return Action("SEND_DIRECTIVE", target), f"direct {target}"
    return Action("REVIEW_STRATEGY"), "review"


def _dev(v: View) -> Decision:
    if v["ready"]:
        if v["ready"][0] in v["unreviewed"] and v["stability"] < 85:
            return Action("REVIEW_PR", v["ready"][0]), "review"
        return Action("SHIP_RELEASE", v["ready"][0]), "ship"
    if v["bugs"]["critical"] and (v["stability"] < 80 or v["bugs"]["critical"] > 1):
        return Action("FIX_BUG", "critical"), "critical"
    if v["bugs"]["major"] >= 3:
        return Action("FIX_BUG", "major"), "majors"
    if v["debt"] >= 35:
        return Action("REFACTOR"), "debt"
    wanted = [name for pain in needs(v) for name in v["build"] if PAIN_OF[name] == pain and v["build"][name] <= 5]
    by_size = sorted(v["build"], key=lambda name: v["build"][name])
    todo = v["started"] or wanted or by_size
    left = v["days"] - v["day"]
    if todo and left * 2 > v["build"][todo[0]]:
        return Action("BUILD_FEATURE", todo[0]), "begun" if v["started"] else "asked" if wanted else "smallest"
    if v["docs"] < 40:
        return Action("WRITE_DOCS"), "docs"
    return (Action("FIX_BUG", "major"), "late bugs") if v["bugs"]["major"] else (Action("REFACTOR"), "late debt")


def _marketing(v: View) -> Decision:
    new = [PAIN_OF[name] for name in v["new"] if PAIN_OF[name] not in v["tired"]]
    if v["envelope"] >= 5 and new:
        return Action("LAUNCH_CAMPAIGN", new[0]), "new"
    if v["competitor"] >= 25 and not v["intel"]:
        return Action("ANALYZE_COMPETITOR"), "rival"
    if len(v["research"]) < 2 and v["day"] > 2:
        segment = max((s for s in v["traffic"] if s not in v["research"]), key=lambda s: v["traffic"][s])
        return Action("RESEARCH_MARKET", segment), "research"
    if v["envelope"] >= 5 and v["leads"] < 6 and len(v["tired"]) < 2:
        rested = [pain for pain in v["research"].values() if pain not in v["tired"]]
        if rested:
            return Action("LAUNCH_CAMPAIGN", rested[0]), "researched"
        served = [PAIN_OF[name] for name in v["shipped"] if PAIN_OF[name] not in v["tired"]]
        if served and v["day"] % 2:
            return Action("LAUNCH_CAMPAIGN", served[v["day"] % len(served)]), "served"
    if v["envelope"] >= 12 and v["leads"] < 5 and v["conversion"] < 35 and v["day"] % 2:
        return Action("A_B_TEST"), "test"
    if v["conversion"] < 40:
        return Action("OPTIMIZE_FUNNEL"), "funnel"
    return (Action("ANALYZE_COMPETITOR"), "late rival") if not v["intel"] else (Action("OPTIMIZE_FUNNEL"), "late funnel")


def _lead_value(lead: dict, shipped: set[str]) -> float:
    size = {"S": 1.0, "M": 2.4, "L": 5.0, "?": 2.0}[lead["size"]]
    served = 1.0 if lead["pain"] in shipped else 0.8 if lead["pain"] == "?" else 0.45
    odds = 0.6 if lead["size"] == "L" and not lead["approved"] and lead["stage"] in ("proposal", "negotiation") else 1.0
    steps = {"lead": 4.5, "qualified": 3.5, "demo": 2.5, "proposal": 1.4, "negotiation": 1.4}[lead["stage"]]
    return size * served * odds * 0.75 ** lead["objections"] / steps


def _sales(v: View) -> Decision:
    shipped = {PAIN_OF[name] for name in v["shipped"]}
    leads = sorted(v["leads"], key=lambda lead: -_lead_value(lead, shipped))
    unhappy = [c for c in v["customers"] if c["mood"] <= 5 and c["silent"] >= 3]
    if unhappy and (not leads or (len(v["customers"]) >= 2 and v["day"] % 2 == 0)):
        return Action("COLLECT_FEEDBACK", unhappy[0]["name"]), "unhappy"
    for lead in leads:
        name, step = lead["name"], NEXT_STEP[lead["stage"]]
        if step == "CLOSE_DEAL":
            if lead["size"] == "L" and not lead["approved"] and lead["idle"] < 2:
                continue
            if lead["objections"] >= 1 and lead["idle"] >= 1:
                return Action("FOLLOW_UP", name), "doubts"
            return Action(step, name), "close"
        if step == "SEND_PROPOSAL":
            if lead["size"] == "L":
                return Action(step, name, message_to="ceo", message=f"approve {name}"), "large"
            return Action(step, name), "offer"
        if step == "RUN_DEMO":
            to = "content" if lead["pain"] in shipped else "dev"
            rule = "served" if lead["pain"] in shipped else "unserved"
            return Action(step, name, message_to=to, message=f"need {lead['pain']}"), rule
        return Action(step, name), "qualify"
    if v["customers"]:
        return Action("COLLECT_FEEDBACK", v["customers"][0]["name"]), "care"
    return Action("UPDATE_PIPELINE"), "sheet"


def _content(v: View) -> Decision:
    draft = going_on(v)
    if draft:
        return Action(VERB_OF[draft["kind"]], draft["topic"]), "draft"
    if v["revise"]:
        return Action("REVISE_CONTENT", v["revise"][0].split(" ")[0]), "revise"
    wanted = needs(v)
    if v["satisfaction"] < 55 and v["served"]:
        return Action("WRITE_DOCS", v["served"][0]), "docs"
    weak = sorted(v["served"], key=lambda pain: v["evidence"][pain])
    if weak and v["evidence"][weak[0]] < 1.0 and v["day"] > 5:
        return Action("WRITE_CASE_STUDY", weak[0]), "case"
    if wanted and v["evidence"][wanted[0]] < 1.2:
        return Action("WRITE_EMAIL_SEQUENCE", wanted[0]), "asked"
    shipped = [PAIN_OF[name] for name in v["shipped"]]
    topic = min(shipped or PAINS, key=lambda pain: v["evidence"][pain])
    return Action("WRITE_BLOG", topic), "shipped" if shipped else "weakest"


def _hr(v: View) -> Decision:
    if v["blockers"]:
        order = ("dev", "sales", "content", "marketing")
        return Action("RESOLVE_BLOCKER", min(v["blockers"], key=order.index)), "blocker"
    if v["envelope"] >= 10 and "dev" not in v["contractors"] and v["day"] <= 24:
        return Action("HIRE_CONTRACTOR", "dev"), "hire"
    if not v["planned"]:
        return Action("PLAN_SPRINT"), "plan"
    if v["okr_left"] >= 2 and v["tracked"] >= 3:
        return Action("TRACK_OKRS"), "track"
    return (Action("TEAM_SYNC"), "sync") if v["aligned"] < v["morale"] else (Action("PERFORMANCE_REVIEW"), "talk")


_RULES = {"ceo": _ceo, "dev": _dev, "marketing": _marketing, "sales": _sales, "content": _content, "hr": _hr}
