"""What happens to the company: eight random kinds (one roll a day) and the scenarios' scheduled kinds.

An event is a function on the state, registered under the name it is shown by. All roles see it for the next 24 hours of turns.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from onthejob.envs.office.company_state import TURNS_PER_DAY, State
from onthejob.envs.office.luck import Sub, draw
from onthejob.envs.office.market import pay

Effect = Callable[[State], None]
TRANCHE = 6_000_000
"""Cents that the investors of Series A wire at a check-in, at most."""
TRANCHE_DEBT = 2.5
"""Share of a tranche that they keep back per unit of technical debt: at 0.4 all of it."""
OVERLOAD = 0.3
"""Satisfaction that a support overload costs where there is no documentation."""


def _everyone_satisfied(state: State, delta: float) -> None:
    for account in state.customers():
        account.sat = min(1.0, max(0.0, account.sat + delta))
    state.base_sat = min(1.0, max(0.0, state.base_sat + delta))


def _morale(state: State, delta: float) -> None:
    state.morale = min(1.0, max(0.0, state.morale + delta))


def _adstock(state: State, visits: float) -> None:
    total = sum(state.segment_base)
    for index, base in enumerate(state.segment_base):
        state.adstock[index] += visits * base / total


def competitor_launch(state: State) -> None:
    """A rival launches: its pressure on closes rises by 0.2."""
    state.competitor = min(1.0, state.competitor + 0.2)


def viral_moment(state: State) -> None:
    """Many visits for a few days, and people remember the name."""
    _adstock(state, 900.0)
    state.brand = min(100.0, state.brand + 4)


def pr_crisis(state: State) -> None:
    """Customers, team, brand and traffic all suffer."""
    _everyone_satisfied(state, -0.1)
    _morale(state, -0.1)
    state.brand = max(0.0, state.brand - 5)
    _adstock(state, -0.25 * sum(state.segment_base))


def algorithm_change(state: State) -> None:
    """Search finds half of the published content."""
    state.content_stock *= 0.5
    state.brand = max(0.0, state.brand - 2)


def budget_cut(state: State) -> None:
    """The board takes back up to 2,000 dollars that it released and that are not allocated."""
    state.board_pool -= min(state.board_pool, 200_000)


def big_customer_inquiry(state: State) -> None:
    """A large company will call: the next arrival is of size L and of high quality."""
    state.inquiry += 1


def feature_request_wave(state: State) -> None:
    """Customers whose pain is not fully served grow impatient."""
    for account in state.customers():
        if state.fit(account.pain) < 1:
            account.sat = max(0.0, account.sat - 0.08)


def customer_success_story(state: State) -> None:
    """A satisfied customer speaks in public; nothing happens when there is none."""
    if any(customer.sat > 0.5 for customer in state.customers()):
        state.brand = min(100.0, state.brand + 4)
        _morale(state, 0.05)
        _adstock(state, 250.0)


def funding_news(state: State) -> None:
    """The rival has raised money: more pressure, less attention for us."""
    state.competitor = min(1.0, state.competitor + 0.15)
    _adstock(state, -0.15 * sum(state.segment_base))


def feature_parity(state: State) -> None:
    """The rival copies what we have: customers look around."""
    state.competitor = min(1.0, state.competitor + 0.15)
    _everyone_satisfied(state, -0.05)


def poaching(state: State) -> None:
    """The rival calls our people: morale falls, and velocity with it when morale is low."""
    _morale(state, -0.15)
    if state.morale < 0.5:
        state.velocity = max(0.4, state.velocity - 0.25)


def board_meeting(state: State) -> None:
    """The board sets the goal and releases a first sum."""
    state.board_pool += 400_000


def board_checkin(state: State) -> None:
    """The investors wire a tranche for growth to 1.5 times the first MRR, less for technical debt; without growth they press."""
    wired = _tranche(state, 1.5)
    if wired >= 0.5:
        state.board_pool += 600_000
    _morale(state, 0.05 if wired >= 0.5 else -0.1)


def final_stretch(state: State) -> None:
    """The last money, and a second tranche for twice the first MRR; without growth the team feels the pressure."""
    if _tranche(state, 2.0) < 0.5:
        _morale(state, -0.05)
    state.board_pool += 200_000


def _tranche(state: State, goal: float) -> float:
    """Pay what growth and sound code have earned of a tranche; returns the share of the growth to `goal` times the first MRR."""
    start = max(state.start_mrr, 1)
    growth = min(1.0, max(0.0, (state.mrr() / start - 1.0) / (goal - 1.0)))
    pay(state, "capital", int(TRANCHE * growth * max(0.0, 1.0 - TRANCHE_DEBT * state.debt)))
    return growth


def churn_warning(state: State) -> None:
    """Customers begin to doubt."""
    _everyone_satisfied(state, -0.03)


def churn_escalation(state: State) -> None:
    """Doubts spread: satisfaction falls and the churn hazard rises by a fifth."""
    state.hazard *= 1.2
    _everyone_satisfied(state, -0.03)


def churn_begins(state: State) -> None:
    """The first contracts are cancelled around us: the churn hazard rises by a quarter."""
    state.hazard *= 1.25


def churn_recovery(state: State) -> None:
    """The mood turns: the churn hazard falls by a third."""
    state.hazard /= 1.5
    _morale(state, 0.05)


def viral_tweet(state: State) -> None:
    """A post about the product goes round: a flood of visits."""
    _adstock(state, 2500.0)
    state.brand = min(100.0, state.brand + 6)


def lead_flood(state: State) -> None:
    """A second flood of visits."""
    _adstock(state, 2500.0)


def infra_strain(state: State) -> None:
    """Servers buckle: load that is not served, and a critical bug."""
    state.load = min(1.0, state.load + 0.3)
    state.bug_critical += 1


def support_overload(state: State) -> None:
    """Support drowns: bugs pile up, and the less documentation there is, the less satisfied customers are."""
    state.bug_major += 2
    _everyone_satisfied(state, -OVERLOAD * (1.0 - state.docs_level))


def market_slump(state: State) -> None:
    """Companies buy less: a fifth of the market's visits stays away for good, and contracts end sooner."""
    state.segment_base = [0.8 * base for base in state.segment_base]
    state.hazard *= 1.15


def budget_freeze(state: State) -> None:
    """The board halves what it releases a day, and what is not allocated."""
    state.board_rate //= 2
    state.board_pool //= 2


def merger_rumours(state: State) -> None:
    """People fear for their jobs and stop talking."""
    _morale(state, -0.12)
    state.alignment *= 0.6


def integration(state: State) -> None:
    """Another company's systems are joined to ours: debt, major bugs, load."""
    state.debt = min(1.0, state.debt + 0.2)
    state.bug_major += 3
    state.load = min(1.0, state.load + 0.1)


def retention_bonus(state: State) -> None:
    """The buyer pays for staying: morale and money return."""
    _morale(state, 0.12)
    state.board_pool += 400_000


def data_centre_down(state: State) -> None:
    """The product is down for a day: critical bugs, load that is not served, angry customers."""
    state.bug_critical += 3
    state.load = min(1.0, state.load + 0.4)
    _everyone_satisfied(state, -0.12)


def post_mortem(state: State) -> None:
    """What went wrong is public: the unstable lose trust, the stable win some back."""
    _everyone_satisfied(state, 0.05 if state.stability >= 0.7 else -0.05)


def resignation(state: State) -> None:
    """The lead engineer leaves: velocity falls by 0.4, and Dev is blocked."""
    state.velocity = max(0.3, state.velocity - 0.4)
    state.blockers.setdefault("dev", state.day)
    _morale(state, -0.08)


def handover_gap(state: State) -> None:
    """What only one person knew is missing: half of the documentation is worthless."""
    state.docs_level *= 0.5
    state.debt = min(1.0, state.debt + 0.1)


def replacement(state: State) -> None:
    """A successor begins: some velocity returns."""
    state.velocity = min(2.0, state.velocity + 0.25)


def price_cut(state: State) -> None:
    """A rival halves its price: more pressure on closes, and customers compare."""
    state.competitor = min(1.0, state.competitor + 0.2)
    _everyone_satisfied(state, -0.04)


def discount_demands(state: State) -> None:
    """All who have not signed want to pay a tenth less."""
    for account in state.leads():
        account.price = account.price * 9 // 10


RANDOM_EVENTS: MappingProxyType[str, Effect] = MappingProxyType(
    {
        "competitor_launch": competitor_launch,
        "viral_moment": viral_moment,
        "pr_crisis": pr_crisis,
        "algorithm_change": algorithm_change,
        "budget_cut": budget_cut,
        "big_customer_inquiry": big_customer_inquiry,
        "feature_request_wave": feature_request_wave,
        "customer_success_story": customer_success_story,
    }
)
SCHEDULED_EVENTS: MappingProxyType[str, Effect] = MappingProxyType(
    {
        "funding_news": funding_news,
        "feature_parity": feature_parity,
        "poaching": poaching,
        "pr_crisis": pr_crisis,
        "board_meeting": board_meeting,
        "board_checkin": board_checkin,
        "final_stretch": final_stretch,
        "churn_warning": churn_warning,
        "churn_escalation": churn_escalation,
        "churn_begins": churn_begins,
        "churn_recovery": churn_recovery,
        "viral_tweet": viral_tweet,
        "lead_flood": lead_flood,
        "infra_strain": infra_strain,
        "support_overload": support_overload,
    }
)
HELD_OUT_EVENTS: MappingProxyType[str, Effect] = MappingProxyType(
    {
        "market_slump": market_slump,
        "budget_freeze": budget_freeze,
        "merger_rumours": merger_rumours,
        "integration": integration,
        "retention_bonus": retention_bonus,
        "data_centre_down": data_centre_down,
        "post_mortem": post_mortem,
        "resignation": resignation,
        "handover_gap": handover_gap,
        "replacement": replacement,
        "price_cut": price_cut,
        "discount_demands": discount_demands,
    }
)
"""Scheduled kinds that only held-out scenarios use."""
EVENTS: MappingProxyType[str, Effect] = MappingProxyType({**RANDOM_EVENTS, **SCHEDULED_EVENTS, **HELD_OUT_EVENTS})


def tick(state: State, key: int, rate: float) -> list[str]:
    """Fire what is due on the morning of `state.day`: scheduled kinds and at most one random kind; returns their names."""
    fired = fire_scheduled(state)
    random: list[str] = []
    if draw(key, Sub.EVENT, 0, state.day) < rate:
        names = tuple(RANDOM_EVENTS)
        random.append(names[int(draw(key, Sub.EVENT_KIND, 0, state.day) * len(names))])
    _fire(state, random)
    state.events = [event for event in state.events if event[0] > state.turn - TURNS_PER_DAY]
    return fired + random


def fire_scheduled(state: State) -> list[str]:
    """Fire what the calendar holds up to the morning of `state.day`; returns the names."""
    due: list[str] = []
    while state.schedule and state.schedule[0][0] <= state.day + 1:
        due.append(state.schedule.pop(0)[1])
    _fire(state, due)
    return due


def _fire(state: State, names: list[str]) -> None:
    for name in names:
        EVENTS[name](state)
        state.events.append([state.turn, name])
