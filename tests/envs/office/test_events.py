"""Every event has its effect; the calendar is kept; random events come at their rate and are seen for a day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from scipy import stats

from onthejob.envs.office.company_state import Stage, State
from onthejob.envs.office.events import EVENTS, HELD_OUT_EVENTS, RANDOM_EVENTS, SCHEDULED_EVENTS, tick
from onthejob.envs.office.luck import mix
from onthejob.envs.office.market import churn_hazard, close_probability
from onthejob.envs.office.roles import ROLES
from onthejob.envs.office.scenarios import SHIPPED, load
from onthejob.envs.office.simulator import Simulator
from onthejob.envs.office.snapshot import dumps
from onthejob.envs.office.views import view


@dataclass(frozen=True)
class Case:
    falls: tuple[Callable[[State], float], ...] = ()
    rises: tuple[Callable[[State], float], ...] = ()


def happiness(s: State) -> float:
    return sum(a.sat for a in s.customers())


def morale(s: State) -> float:
    return s.morale


def brand(s: State) -> float:
    return s.brand


def visits(s: State) -> float:
    return sum(s.adstock)


def pressure(s: State) -> float:
    return s.competitor


def odds(s: State) -> float:
    return close_probability(s, next(a for a in s.accounts if a.stage == Stage.PROPOSAL))


def pool(s: State) -> float:
    return s.board_pool


def hazard(s: State) -> float:
    return churn_hazard(s, s.customers()[0])


CASES: dict[str, Case] = {
    "competitor_launch": Case(rises=(pressure,), falls=(odds,)),
    "viral_moment": Case(rises=(visits, brand)),
    "pr_crisis": Case(falls=(happiness, morale, brand, visits)),
    "algorithm_change": Case(falls=(lambda s: s.content_stock, brand)),
    "budget_cut": Case(falls=(pool,)),
    "big_customer_inquiry": Case(rises=(lambda s: s.inquiry,)),
    "feature_request_wave": Case(falls=(happiness,)),
    "customer_success_story": Case(rises=(brand, morale, visits)),
    "funding_news": Case(rises=(pressure,), falls=(visits, odds)),
    "feature_parity": Case(rises=(pressure,), falls=(happiness,)),
    "poaching": Case(falls=(morale, lambda s: s.velocity)),
    "board_meeting": Case(rises=(pool,)),
    "board_checkin": Case(falls=(morale,)),
    "final_stretch": Case(rises=(pool,), falls=(morale,)),
    "churn_warning": Case(falls=(happiness,)),
    "churn_escalation": Case(falls=(happiness,), rises=(hazard,)),
    "churn_begins": Case(rises=(hazard,)),
    "churn_recovery": Case(falls=(hazard,), rises=(morale,)),
    "viral_tweet": Case(rises=(visits, brand)),
    "lead_flood": Case(rises=(visits,)),
    "infra_strain": Case(falls=(lambda s: s.stability,), rises=(lambda s: s.load, lambda s: s.bug_critical)),
    "support_overload": Case(falls=(happiness, lambda s: s.stability), rises=(lambda s: s.bug_major,)),
}


@pytest.fixture
def company(office):
    made = office("series_a")
    made.state.content_stock = 100.0
    made.state.adstock = [400.0, 300.0, 300.0]
    made.account(Stage.PROPOSAL, quality=0.6)
    return made


def test_the_seeds_kinds_are_all_there() -> None:
    assert len(RANDOM_EVENTS) == 8
    assert len(SCHEDULED_EVENTS) == 15
    assert set(EVENTS) - set(HELD_OUT_EVENTS) == set(CASES)  # those are in test_held_out
    assert {event.kind for name in SHIPPED for event in load(name).schedule} == set(SCHEDULED_EVENTS)


@pytest.mark.parametrize("kind", CASES)
def test_the_event_has_its_effect(company, kind: str) -> None:
    s, case = company.state, CASES[kind]
    watched = (*case.falls, *case.rises)
    before = [measure(s) for measure in watched]
    EVENTS[kind](s)
    after = [measure(s) for measure in watched]
    for measure, old, new in zip(watched, before, after, strict=True):
        assert (new < old) if measure in case.falls else (new > old)


@pytest.mark.parametrize("kind", CASES)
def test_no_event_leaves_the_ranges(company, kind: str) -> None:
    s = company.state
    for _ in range(30):
        EVENTS[kind](s)
    assert all(0.0 <= x <= 1.0 for x in (s.morale, s.competitor, s.load, s.stability, s.base_sat, *(a.sat for a in s.accounts)))
    assert 0.0 <= s.brand <= 100.0
    assert s.board_pool >= 0
    assert s.velocity >= 0.4
    dumps(s)


def test_a_large_company_that_announced_itself_arrives(office) -> None:
    company = office(traffic=1, leads=0)
    EVENTS["big_customer_inquiry"](company.state)
    company.sleep()
    (lead,) = company.state.accounts
    assert lead.size == 2
    assert lead.quality >= 0.5
    assert company.state.inquiry == 0


def test_a_success_story_needs_a_satisfied_customer_and_a_wave_an_unserved_one(office) -> None:
    company = office()
    before = dumps(company.state)
    EVENTS["customer_success_story"](company.state)
    EVENTS["feature_request_wave"](company.state)
    assert dumps(company.state) == before
    customer = company.account(Stage.WON, pain="security", sat=0.4)
    company.state.feature_shipped[0] = 0
    before = dumps(company.state)
    EVENTS["customer_success_story"](company.state)
    EVENTS["feature_request_wave"](company.state)
    assert dumps(company.state) == before
    company.state.feature_shipped[0] = -1
    EVENTS["feature_request_wave"](company.state)
    assert customer.sat == pytest.approx(0.32)


def test_the_board_rewards_progress(company) -> None:
    s = company.state
    pool, morale = s.board_pool, s.morale
    s.start_mrr = s.mrr() // 2
    EVENTS["board_checkin"](s)
    assert s.board_pool == pool + 600_000
    assert s.morale > morale
    morale = s.morale
    EVENTS["final_stretch"](s)
    assert s.morale == morale


@pytest.mark.parametrize(
    ("kind", "growth", "debt", "dollars"),
    [
        ("board_checkin", 1.0, 0.0, 0),
        ("board_checkin", 1.25, 0.0, 30_000),
        ("board_checkin", 3.0, 0.0, 60_000),
        ("board_checkin", 3.0, 0.1, 45_000),
        ("board_checkin", 3.0, 0.5, 0),
        ("final_stretch", 1.25, 0.0, 15_000),
        ("final_stretch", 1.5, 0.2, 15_000),
        ("final_stretch", 0.5, 0.2, 0),
    ],
)
def test_investors_pay_for_growth_and_keep_back_for_debt(office, kind: str, growth: float, debt: float, dollars: int) -> None:
    company = office()
    company.account(Stage.WON)
    s = company.state
    s.start_mrr, s.debt = round(s.mrr() / growth), debt
    before = s.cash
    EVENTS[kind](s)
    assert s.cash - before == pytest.approx(100 * dollars, abs=200)
    assert s.cash == sum(s.ledger.values())


def test_documentation_softens_support_overload(office) -> None:
    falls = []
    for docs in (0.0, 0.9):
        company = office()
        company.account(Stage.WON, sat=0.6)
        company.state.docs_level = docs
        EVENTS["support_overload"](company.state)
        falls.append(0.6 - company.state.customers()[0].sat)
    assert falls[1] == pytest.approx(0.1 * falls[0])


def fired(scenario: str, *, seed: int = 1, days: int = 30) -> list[tuple[int, str]]:
    """(day of firing counted from 1, kind) of the scheduled events of an idle company."""
    simulator = Simulator(load(scenario))
    s = simulator.found(seed, days)
    s.cash = 10**9
    found = [(1, kind) for _, kind in s.events]
    for day in range(1, days):
        s.turn = 14 * day
        found += [(day + 1, kind) for kind in tick(s, mix(seed, 1), 0.0)]
    assert s.schedule == []
    return found


@pytest.mark.parametrize("scenario", SHIPPED)
def test_the_calendar_is_kept(scenario: str) -> None:
    expected = [(event.day, event.kind) for event in load(scenario).schedule]
    assert fired(scenario) == expected


@pytest.mark.parametrize("scenario", ["series_a", "churn", "viral"])
def test_events_of_the_first_day_are_there_on_the_first_morning(scenario: str) -> None:
    s = Simulator(load(scenario)).found(1)
    assert [kind for _, kind in s.events] == [event.kind for event in load(scenario).schedule if event.day == 1]


def test_the_ninety_day_preset_and_other_lengths() -> None:
    assert fired("series_a", days=90) == [(1, "board_meeting"), (30, "board_checkin"), (60, "final_stretch")]
    assert fired("competitor", days=90) == [(9, "funding_news"), (21, "feature_parity"), (45, "poaching"), (75, "pr_crisis")]
    assert fired("competitor", days=10) == [(1, "funding_news"), (3, "feature_parity"), (5, "poaching"), (9, "pr_crisis")]


def test_random_events_come_at_the_rate_and_in_equal_shares() -> None:
    simulator = Simulator(load("baseline"))
    counts: Counter[str] = Counter()
    days = 0
    for seed in range(300):
        s = simulator.found(seed)
        for day in range(1, 30):
            s.turn = 14 * day
            found = tick(s, mix(seed, 1), 0.15)
            assert len(found) <= 1
            counts.update(found)
            days += 1
    assert set(counts) == set(RANDOM_EVENTS)
    assert stats.binomtest(counts.total(), days, 0.15).pvalue > 0.01
    assert stats.chisquare(list(counts.values())).pvalue > 0.01


def test_events_differ_between_worlds_and_seeds() -> None:
    simulator = Simulator(load("baseline"))

    def luck(seed: int, world: int) -> list[object]:
        s = simulator.found(seed)
        found: list[object] = []
        for day in range(1, 30):
            s.turn = 14 * day
            found.append(tick(s, mix(seed, 1 + world), 0.5))
        return found

    assert luck(1, 0) == luck(1, 0)
    assert luck(1, 0) != luck(1, 1)
    assert luck(1, 0) != luck(2, 0)


def test_everybody_sees_an_event_for_the_next_fourteen_turns(office) -> None:
    company = office("viral", quiet=False, event_rate=0.0)
    company.sleep(2)
    assert [kind for _, kind in company.state.events] == ["lead_flood"]
    for _ in range(14):
        for role in ROLES:
            assert view(company.state, str(role))["events"] == ["lead_flood"]
        company.simulator.step(company.state, None)
    assert all(view(company.state, str(role))["events"] == [] for role in ROLES)
