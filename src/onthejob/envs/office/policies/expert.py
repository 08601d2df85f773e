"""The expert: the best rules we know that read only what the embedded prompt renders. The warm start clones it (with noise).

`expert-explained` (`reasons`) decides the same and says why, for warm starts of models that read the full prompt. With other
thresholds the rules play the held-out partners, and the scenario-tuned experts of `checks/`.
"""

from __future__ import annotations

from dataclasses import dataclass

from onthejob.envs.office.actions import Action
from onthejob.envs.office.company_state import PAINS
from onthejob.envs.office.handlers.content import VERB_OF
from onthejob.envs.office.handlers.sales import NEXT_STEP
from onthejob.envs.office.policies import Legal, View
from onthejob.envs.office.policies.heuristic import PAIN_OF, going_on, needs

Decision = tuple[Action, str]
"""An action, and the name of the rule that fired; `reasons` has a sentence for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Thresholds of the rules. Percentages are as views show them."""

    # ceo
    calm: int = 42
    """Satisfaction below which the focus is retention, with three customers or more."""
    sound: int = 45
    """Stability below which the focus is retention."""
    products: int = 2
    """Shipped features until which the focus is product."""
    product_until: int = 15
    """Last day on which the focus may be product."""
    hosting_from: int = 2200
    """Visits above which Dev's envelope pays for hosting."""
    directs: str = "sales"
    """Who is directed when nothing else presses."""
    directs_early: str = "dev"
    """Who is directed while there are few leads, the focus is product, or the product is unsound."""
    # dev
    review_below: int = 85
    """Stability below which a finished feature is reviewed before it ships."""
    critical_below: int = 80
    """Stability below which a single critical bug is fixed first."""
    majors: int = 3
    """Major bugs from which they are fixed first."""
    debt: int = 35
    """Debt from which it is paid back first."""
    docs_below: int = 40
    """Documentation below which it is written when nothing is to build."""
    docs_first: int = 0
    """Documentation below which it is written before anything is built."""
    # marketing
    campaign_leads: int = 6
    """Open leads below which campaigns are launched."""
    researched: int = 2
    """Segments to research."""
    conversion: int = 40
    """Conversion (per mille) up to which the funnel is worked on first."""
    rival: int = 25
    """Competitor pressure from which it is analysed."""
    # sales
    tier: str = "monthly"
    """Contract that is offered when a shipped feature serves the lead."""
    tier_unserved: str = "monthly"
    """And when none does."""
    moody: int = 5
    """Mood (of 10) up to which a customer is called."""
    silent: int = 3
    """Days of silence from which."""
    unserved: float = 0.45
    """Worth of a lead whose need nothing serves, to that of one that is served."""
    objected: int = 1
    """Objections from which a lead is followed up before the next try."""
    asks_again: bool = True
    """Tell a colleague what a lead needs with every step from the demo on; else with the demo only."""
    # content
    docs_calm: int = 55
    """Satisfaction below which Content writes documentation."""
    proof: float = 1.0
    """Evidence below which a customer's pain gets a case study."""
    mail: float = 1.2
    """Evidence below which a pain that was asked for gets an email sequence."""
    proof_from: int = 5
    """First day of case studies."""
    # hr
    hires: int = 24
    """Last day on which a contractor is hired."""
    hire_for: str = "dev"
    """Whom the contractor helps."""
    plan_first: bool = True
    """Plan the sprint before anything but blockers and contractors."""
    track: int = 3
    """Days since OKRs were tracked from which they are tracked again."""


EXPERT = Tuning(asks_again=False)
"""Thresholds of the expert."""


def expert(view: View, legal: Legal, luck: float) -> Action | None:
    """One rule list per role."""
    return decide(view)[0]


class TunedExpert:
    """The expert with other thresholds."""

    __slots__ = ("tuning",)

    def __init__(self, tuning: Tuning) -> None:
        self.tuning = tuning

    def __call__(self, view: View, legal: Legal, luck: float) -> Action | None:
        return decide(view, self.tuning)[0]


def decide(view: View, tuning: Tuning = EXPERT) -> Decision:
    """What the rules choose with these thresholds, and the rule that fired, by its name within the role."""
    return _RULES[view["role"]](view, tuning)


def _ceo(v: View, t: Tuning) -> Decision:
    if v["approve"]:
        return Action("APPROVE_INITIATIVE", v["approve"][0]), "approve"
    if v["focus"] == "none" or v["okr_left"] <= 1:
        if (v["customers"] >= 3 and v["satisfaction"] < t.calm) or v["stability"] < t.sound:
            focus = "retention"
        elif len(v["shipped"]) < t.products and v["day"] <= t.product_until:
            focus = "product"
        else:
            focus = "growth"
        if focus != v["focus"] or v["okr_left"] == 0:
            return Action("SET_OKRS", focus), focus
    if v["funded"]:
        held = v["envelopes"]
        if v["traffic"] > t.hosting_from and held["dev"] < 5:
            return Action("ALLOCATE_BUDGET", "dev"), "fund dev"
        if held["hr"] < 10 and v["day"] <= t.hires:
            return Action("ALLOCATE_BUDGET", "hr"), "fund hr"
        if held["marketing"] < 10 and v["day"] <= 26:
            return Action("ALLOCATE_BUDGET", "marketing"), "fund marketing"
    if not v["directed"]:
        early = v["leads"] < 2 or v["focus"] == "product" or v["stability"] < 60
        target = t.directs_early if early else t.directs
        return Action("SEND_DIRECTIVE", target), f"direct {target}"
    return Action("REVIEW_STRATEGY"), "review"


def _dev(v: View, t: Tuning) -> Decision:
    if v["ready"]:
        if v["ready"][0] in v["unreviewed"] and v["stability"] < t.review_below:
            return Action("REVIEW_PR", v["ready"][0]), "review"
        return Action("SHIP_RELEASE", v["ready"][0]), "ship"
    if v["bugs"]["critical"] and (v["stability"] < t.critical_below or v["bugs"]["critical"] > 1):
        return Action("FIX_BUG", "critical"), "critical"
    if v["bugs"]["major"] >= t.majors:
        return Action("FIX_BUG", "major"), "majors"
    if v["debt"] >= t.debt:
        return Action("REFACTOR"), "debt"
    if v["docs"] < t.docs_first:
        return Action("WRITE_DOCS"), "docs"
    wanted = [name for pain in needs(v) for name in v["build"] if PAIN_OF[name] == pain and v["build"][name] <= 5]
    by_size = sorted(v["build"], key=lambda name: v["build"][name])
    todo = v["started"] or wanted or by_size
    left = v["days"] - v["day"]
    if todo and left * 2 > v["build"][todo[0]]:
        return Action("BUILD_FEATURE", todo[0]), "begun" if v["started"] else "asked" if wanted else "smallest"
    if v["docs"] < t.docs_below:
        return Action("WRITE_DOCS"), "docs"
    return (Action("FIX_BUG", "major"), "late bugs") if v["bugs"]["major"] else (Action("REFACTOR"), "late debt")


def _marketing(v: View, t: Tuning) -> Decision:
    new = [PAIN_OF[name] for name in v["new"] if PAIN_OF[name] not in v["tired"]]
    if v["envelope"] >= 5 and new:
        return Action("LAUNCH_CAMPAIGN", new[0]), "new"
    if v["competitor"] >= t.rival and not v["intel"]:
        return Action("ANALYZE_COMPETITOR"), "rival"
    if len(v["research"]) < t.researched and v["day"] > 2:
        segment = max((s for s in v["traffic"] if s not in v["research"]), key=lambda s: v["traffic"][s])
        return Action("RESEARCH_MARKET", segment), "research"
    if v["envelope"] >= 5 and v["leads"] < t.campaign_leads and len(v["tired"]) < 2:
        rested = [pain for pain in v["research"].values() if pain not in v["tired"]]
        if rested:
            return Action("LAUNCH_CAMPAIGN", rested[0]), "researched"
        served = [PAIN_OF[name] for name in v["shipped"] if PAIN_OF[name] not in v["tired"]]
        if served and v["day"] % 2:
            return Action("LAUNCH_CAMPAIGN", served[v["day"] % len(served)]), "served"
    if v["envelope"] >= 12 and v["leads"] < 5 and v["conversion"] < 35 and v["day"] % 2:
        return Action("A_B_TEST"), "test"
    if v["conversion"] < t.conversion:
        return Action("OPTIMIZE_FUNNEL"), "funnel"
    return (Action("ANALYZE_COMPETITOR"), "late rival") if not v["intel"] else (Action("OPTIMIZE_FUNNEL"), "late funnel")


def _lead_value(lead: dict, shipped: set[str], unserved: float) -> float:
    size = {"S": 1.0, "M": 2.4, "L": 5.0, "?": 2.0}[lead["size"]]
    served = 1.0 if lead["pain"] in shipped else 0.8 if lead["pain"] == "?" else unserved
    odds = 0.6 if lead["size"] == "L" and not lead["approved"] and lead["stage"] in ("proposal", "negotiation") else 1.0
    steps = {"lead": 4.5, "qualified": 3.5, "demo": 2.5, "proposal": 1.4, "negotiation": 1.4}[lead["stage"]]
    return size * served * odds * 0.75 ** lead["objections"] / steps


def _sales(v: View, t: Tuning) -> Decision:
    shipped = {PAIN_OF[name] for name in v["shipped"]}
    leads = sorted(v["leads"], key=lambda lead: -_lead_value(lead, shipped, t.unserved))
    unhappy = [c for c in v["customers"] if c["mood"] <= t.moody and c["silent"] >= t.silent]
    if unhappy and (not leads or (len(v["customers"]) >= 2 and v["day"] % 2 == 0)):
        return Action("COLLECT_FEEDBACK", unhappy[0]["name"]), "unhappy"
    for lead in leads:
        decision = _advance(lead, lead["pain"] in shipped, t)
        if decision is not None:
            return decision
    if v["customers"]:
        return Action("COLLECT_FEEDBACK", v["customers"][0]["name"]), "care"
    return Action("UPDATE_PIPELINE"), "sheet"


def _advance(lead: dict, served: bool, t: Tuning) -> Decision | None:
    """The lead's next step, with what colleagues should know of it; None to wait."""
    name, step = lead["name"], NEXT_STEP[lead["stage"]]
    to, text = None, ""
    if t.asks_again or step == "RUN_DEMO":
        to, text = "content" if served else "dev", f"need {lead['pain']}"
    if step == "CLOSE_DEAL":
        if lead["size"] == "L" and not lead["approved"] and lead["idle"] < 2:
            return None
        if lead["objections"] >= t.objected and lead["idle"] >= 1:
            return Action("FOLLOW_UP", name, message_to=to, message=text), "doubts"
        return Action(step, name, message_to=to, message=text), "close"
    if step == "SEND_PROPOSAL":
        tier = t.tier if served else t.tier_unserved
        terms = {} if tier == "monthly" else {"tier": tier}
        if lead["size"] == "L":
            return Action(step, name, terms, message_to="ceo", message=f"approve {name}"), "large"
        return Action(step, name, terms, message_to=to, message=text), "offer"
    if step == "RUN_DEMO":
        return Action(step, name, message_to=to, message=text), "served" if served else "unserved"
    return Action(step, name), "qualify"


def _content(v: View, t: Tuning) -> Decision:
    draft = going_on(v)
    if draft:
        return Action(VERB_OF[draft["kind"]], draft["topic"]), "draft"
    if v["revise"]:
        return Action("REVISE_CONTENT", v["revise"][0].split(" ")[0]), "revise"
    wanted = needs(v)
    if v["satisfaction"] < t.docs_calm and v["served"]:
        return Action("WRITE_DOCS", v["served"][0]), "docs"
    weak = sorted(v["served"], key=lambda pain: v["evidence"][pain])
    if weak and v["evidence"][weak[0]] < t.proof and v["day"] > t.proof_from:
        return Action("WRITE_CASE_STUDY", weak[0]), "case"
    if wanted and v["evidence"][wanted[0]] < t.mail:
        return Action("WRITE_EMAIL_SEQUENCE", wanted[0]), "asked"
    shipped = [PAIN_OF[name] for name in v["shipped"]]
    topic = min(shipped or PAINS, key=lambda pain: v["evidence"][pain])
    return Action("WRITE_BLOG", topic), "shipped" if shipped else "weakest"


def _hr(v: View, t: Tuning) -> Decision:
    if v["blockers"]:
        order = ("dev", "sales", "content", "marketing")
        return Action("RESOLVE_BLOCKER", min(v["blockers"], key=order.index)), "blocker"
    if v["envelope"] >= 10 and t.hire_for not in v["contractors"] and v["day"] <= t.hires:
        return Action("HIRE_CONTRACTOR", t.hire_for), "hire"
    if t.plan_first and not v["planned"]:
        return Action("PLAN_SPRINT"), "plan"
    if v["okr_left"] >= 2 and v["tracked"] >= t.track:
        return Action("TRACK_OKRS"), "track"
    return (Action("TEAM_SYNC"), "sync") if v["aligned"] < v["morale"] else (Action("PERFORMANCE_REVIEW"), "talk")


_RULES = {"ceo": _ceo, "dev": _dev, "marketing": _marketing, "sales": _sales, "content": _content, "hr": _hr}
