"""The economy: books that balance, a value without luck in it, chances that move the right way, flows with the stated lags."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onthejob.envs.office.company_state import FEATURE_INDEX, PAINS, Account, CompanyState, Piece, Stage
from onthejob.envs.office.fast_play import run
from onthejob.envs.office.handlers.ceo import CHUNK
from onthejob.envs.office.luck import mix
from onthejob.envs.office.market import (
    allocate,
    churn_hazard,
    close_logit,
    close_probability,
    company_value,
    efficacy,
    liabilities,
    okr_progress,
    retained_value,
    spend,
    touchpoints,
)
from onthejob.envs.office.names import NAMES
from onthejob.envs.office.new_company import MEAN_PRICE, arrive, draw_unseen, usual_price
from onthejob.envs.office.overnight import LEAD_WORTH, SIGNUP_TO_LEAD
from onthejob.envs.office.policies.heuristic import heuristic
from onthejob.envs.office.scenarios import SHIPPED
from onthejob.envs.office.snapshot import dumps


def published(s: CompanyState, pain: str, *, kind: int = 0, quality: float = 1.0) -> Piece:
    piece = Piece(day=s.day, id=5_000 + len(s.pieces), kind=kind, left=0, quality=quality, topic=PAINS.index(pain), vapor=False)
    s.pieces.append(piece)
    return piece


# Books


@settings(max_examples=6)
@given(seed=st.integers(0, 10**9), scenario=st.sampled_from(SHIPPED))
def test_the_ledger_balances_to_the_cent_after_every_turn(playing, seed: int, scenario: str) -> None:
    kinds: set[str] = set()
    for _, s, *_ in playing("random", scenario, seed, days=15):
        assert type(s.cash) is int
        assert s.cash == sum(s.ledger.values())
        assert all(type(cents) is int for cents in s.ledger.values())
        assert all(cents >= 0 for cents in s.envelopes.values())
        assert s.board_pool >= 0
        kinds |= set(s.ledger)
    assert {"capital", "payroll", "hosting", "marketing"} <= kinds


def test_every_payment_of_a_night_is_named(office) -> None:
    company = office("churn")
    before, traffic_base = dict(company.state.ledger), company.state.payroll
    company.sleep()
    s = company.state
    changed = {kind: cents - before.get(kind, 0) for kind, cents in s.ledger.items() if cents != before.get(kind, 0)}
    assert changed["payroll"] == -traffic_base == -100_000
    assert changed["hosting"] == -int(200 * len(s.customers()) + sum(s.traffic))
    assert set(changed) <= {"payroll", "hosting", "subscriptions", "refunds", "dev"}


def test_an_envelope_pays_no_more_than_it_holds(office) -> None:
    s = office().state
    s.envelopes["hr"] = 100_000
    cash = s.cash
    assert spend(s, "hr", 999)
    assert not spend(s, "hr", 2)
    assert s.envelopes["hr"] == 100
    assert s.cash == cash - 99_900 == sum(s.ledger.values())


def test_allocation_moves_released_money_only(office) -> None:
    s = office().state
    s.board_pool, envelope = CHUNK + 1, s.envelopes["marketing"]
    assert allocate(s, "marketing", CHUNK)
    assert not allocate(s, "marketing", CHUNK)
    assert not allocate(s, "ceo", 1)
    assert not allocate(s, "hr", -5)
    assert (s.board_pool, s.envelopes["marketing"]) == (1, envelope + CHUNK)


def test_the_board_releases_its_rate_every_night(office) -> None:
    company = office("series_a")
    before = company.state.board_pool
    company.sleep(3)
    assert company.state.board_pool == before + 3 * 150_000


def test_a_company_without_money_is_bankrupt(office) -> None:
    company = office(cash=1_000)
    company.sleep(2)
    assert company.state.done == "bankrupt"
    assert company.state.cash < 0


# Value


def test_company_value_by_hand(office) -> None:
    company = office(seed=3, leads=0, hazard=0.0)
    s = company.state
    assert company_value(s) == 10_000_000
    customer = company.account(Stage.WON, size=1, tier=0, sat=0.9)
    customer.paid_until = s.day + 30
    # No hazard: eleven further months at the list price are certain.
    assert retained_value(s) == 180_000 * 11
    customer.tier, customer.paid_until = 2, s.day + 360
    assert retained_value(s) == 0
    customer.tier, customer.paid_until = 1, s.day + 180
    assert retained_value(s) == pytest.approx(180_000 * 0.92 * 6, abs=1)
    s.turn = 14 * 9 + 3  # on any day of a week: wages are paid every night, so none are owed
    assert liabilities(s) == 0
    assert company_value(s) == s.cash + retained_value(s)


def test_expected_refunds_and_hazard_lower_the_value(office) -> None:
    company = office(seed=3, leads=0)
    s = company.state
    customer = company.account(Stage.WON, size=2, tier=2, sat=0.2)
    customer.paid_until = s.day + 360
    unhappy = company_value(s)
    assert liabilities(s) > 0
    customer.sat = 0.9
    assert company_value(s) > unhappy
    customer.tier, customer.paid_until = 0, s.day + 30
    happy = company_value(s)
    customer.sat = 0.3
    assert company_value(s) < happy


def test_company_value_is_not_random(playing) -> None:
    for _, s, *_ in playing("heuristic", "churn", 5, days=6):
        before = dumps(s)
        twin = s.copy()
        twin.world, twin.seed = 99, 12345
        assert company_value(s) == company_value(s) == company_value(twin)
        assert dumps(s) == before


# Closing


def middling(office: Callable[..., Any]) -> tuple[CompanyState, Account]:
    company = office()
    deal = company.account(Stage.PROPOSAL, pain="reports", size=1, quality=0.5)
    company.account(Stage.WON, sat=0.5)
    published(company.state, "reports", quality=0.5)
    return company.state, deal


RAISES: dict[str, Callable[[CompanyState, Account], None]] = {
    "matching feature": lambda s, a: s.feature_shipped.__setitem__(FEATURE_INDEX["Dashboard"], 0),
    "other feature": lambda s, a: s.feature_shipped.__setitem__(FEATURE_INDEX["SSO"], 0),
    "content": lambda s, a: setattr(published(s, "reports"), "day", 0),
    "satisfied references": lambda s, a: setattr(s.customers()[0], "sat", 0.9),
    "stability": lambda s, a: setattr(s, "bug_major", 0),
    "quality": lambda s, a: setattr(a, "quality", 0.9),
    "demo": lambda s, a: setattr(a, "demo", 0.5),
    "warmth": lambda s, a: setattr(a, "warmth", 0.5),
    "brand": lambda s, a: setattr(s, "brand", 60.0),
    "morale": lambda s, a: setattr(s, "morale", 0.9),
    "alignment": lambda s, a: setattr(s, "alignment", 0.9),
    "analysis": lambda s, a: setattr(s, "intel", 3),
    "smaller deal": lambda s, a: setattr(a, "size", 0),
}
LOWERS: dict[str, Callable[[CompanyState, Account], None]] = {
    "objection": lambda s, a: setattr(a, "objections", 1),
    "six months": lambda s, a: setattr(a, "tier", 1),
    "annual": lambda s, a: setattr(a, "tier", 2),
    "competitor": lambda s, a: setattr(s, "competitor", 0.9),
    "blocked": lambda s, a: s.blockers.__setitem__("sales", 0),
    "large without approval": lambda s, a: setattr(a, "size", 2),
    "critical bug": lambda s, a: setattr(s, "bug_critical", 2),
    "vaporware": lambda s, a: setattr(s.pieces[0], "vapor", True),
}


@pytest.mark.parametrize("cause", RAISES)
def test_what_makes_closing_likelier(office, cause: str) -> None:
    s, deal = middling(office)
    before = close_probability(s, deal)
    RAISES[cause](s, deal)
    assert 0.05 <= before < close_probability(s, deal) <= 0.95


@pytest.mark.parametrize("cause", LOWERS)
def test_what_makes_closing_unlikelier(office, cause: str) -> None:
    s, deal = middling(office)
    before = close_probability(s, deal)
    LOWERS[cause](s, deal)
    assert 0.95 >= before > close_probability(s, deal) >= 0.05


def test_the_seeds_coefficients_as_log_odds(office) -> None:
    s, deal = middling(office)
    base = close_logit(s, deal)
    deal.objections = 1
    assert close_logit(s, deal) - base == pytest.approx(4 * -0.15)
    deal.objections = 0
    s.customers()[0].sat = 0.75
    assert close_logit(s, deal) - base == pytest.approx(4 * 0.2 * 0.25)
    s.customers()[0].sat = 0.5
    bugs, s.bug_major = s.bug_major, 0
    assert close_logit(s, deal) - base == pytest.approx(4 * 0.1 * 4 * 0.035 * bugs, abs=0.06)


def test_three_features_count_at_most_and_approval_matters_for_large_deals(office) -> None:
    s, deal = middling(office)
    for index in range(len(s.feature_shipped)):
        s.feature_shipped[index] = 0
    full = close_logit(s, deal)
    assert s.fit(deal.pain) == 1.0
    deal.size = 2
    alone = close_logit(s, deal)
    deal.approved = True
    assert close_logit(s, deal) == pytest.approx(alone + 1.6)
    assert full > close_logit(s, deal)


@given(extreme=st.floats(-50, 50))
def test_closing_is_never_certain(office, extreme: float) -> None:
    s, deal = middling(office)
    deal.quality = extreme
    assert 0.05 <= close_probability(s, deal) <= 0.95
    s.feature_shipped = [0] * len(s.feature_shipped)
    assert 0.05 <= close_probability(s, deal) <= 0.95


def test_touchpoints_have_diminishing_returns_and_age(office) -> None:
    s = office().state
    published(s, "sync")
    one = touchpoints(s, PAINS.index("sync"))
    published(s, "sync")
    assert touchpoints(s, PAINS.index("sync")) == pytest.approx(one * math.sqrt(2))
    assert 0 < touchpoints(s, PAINS.index("billing")) < one
    s.turn += 14 * 20
    assert touchpoints(s, PAINS.index("sync")) == pytest.approx(one * math.sqrt(2) * 0.97**10)


# Efficacy


@pytest.mark.parametrize(
    ("change", "factor"),
    [
        (lambda s: setattr(s, "directive_left", 2), 1.4),
        (lambda s: s.blockers.__setitem__("dev", 0), 0.55),
        (lambda s: setattr(s, "focus_left", 3), 1.15),
        (lambda s: (setattr(s, "focus_left", 3), setattr(s, "tracked", 0)), 1.35),
        (lambda s: (setattr(s, "focus_left", 3), setattr(s, "focus", 0)), 0.85),
        (lambda s: setattr(s, "morale", 1.0), 1.25),
    ],
    ids=["directive", "blocked", "aligned", "aligned and tracked", "misaligned", "morale"],
)
def test_efficacy_factors(office, change, factor: float) -> None:
    s = office().state
    s.morale, s.alignment, s.focus, s.directive_role = 0.5, 0.5, 1, "dev"
    assert efficacy(s, "dev", 1) == pytest.approx(1.0)
    change(s)
    assert efficacy(s, "dev", 1) == pytest.approx(factor)


def test_key_results_are_two_deals_one_feature_or_six_points(office) -> None:
    company = office()
    s = company.state
    assert okr_progress(s) == 0.0
    company.act("ceo", "SET_OKRS", "growth")
    s.won += 1
    assert okr_progress(s) == pytest.approx(0.5)
    company.act("ceo", "SET_OKRS", "product")
    assert okr_progress(s) == 0.0
    s.feature_shipped[0] = s.day
    assert okr_progress(s) == 1.0
    company.act("ceo", "SET_OKRS", "retention")
    s.base_sat += 0.03
    assert 0.4 < okr_progress(s) < 0.51


# Churn


def test_hazard_rises_with_discontent_bugs_silence_and_scenario(office) -> None:
    company = office()
    s = company.state
    customer = company.account(Stage.WON, sat=0.55)
    base = churn_hazard(s, customer)
    assert base == pytest.approx(0.002 + 0.055 * 0.04)
    s.bug_critical = 4
    assert churn_hazard(s, customer) == pytest.approx(1.6 * base)
    s.bug_critical, s.turn = 0, 140
    assert churn_hazard(s, customer) == pytest.approx(1.2 * base)
    s.hazard = 2.2
    assert churn_hazard(s, customer) == pytest.approx(2.2 * 1.2 * base)
    customer.sat, s.hazard = 0.0, 10_000.0
    assert churn_hazard(s, customer) == 0.5


def test_churned_customers_take_their_refund(office) -> None:
    company = office(seed=2, leads=0)
    s = company.state
    customer = company.account(Stage.WON, size=1, tier=2, sat=0.0)
    customer.paid_until = s.day + 301
    s.hazard = 10_000.0
    while s.customers():
        company.sleep()
    left = 301 - s.day
    assert s.churned == 1
    assert 0 < s.day < 29
    assert s.ledger["refunds"] == -int(180_000 * 0.85 * left / 30 * 0.5)


def test_longer_contracts_churn_less(office) -> None:
    stay = []
    for tier in (0, 1, 2):
        company = office(leads=0, hazard=4.0)
        for _ in range(80):
            company.account(Stage.WON, tier=tier, sat=0.3, paid_until=400)
        company.sleep(6)
        stay.append(len(company.state.customers()))
    assert stay[0] + 5 < stay[1] < stay[2]


def test_contracts_renew_when_what_was_paid_runs_out(office) -> None:
    company = office(seed=4, leads=0, hazard=0.0)
    s = company.state
    customer = company.account(Stage.WON, size=0, tier=0, sat=0.9)
    customer.paid_until = 2
    company.sleep(2)
    assert s.ledger["subscriptions"] == 70_000
    assert customer.paid_until == 32


# Flows


def test_a_campaign_arrives_after_two_to_four_days_and_halves_in_three(office) -> None:
    lags = set()
    for seed in range(12):
        company = office(seed=seed)
        s = company.state
        company.act("marketing", "LAUNCH_CAMPAIGN", "sync")
        due = {int(entry[0]) for entry in s.campaigns}
        assert len(due) == 1
        lags.add(due.pop())
        quiet = sum(s.traffic)
        company.sleep(4)
        assert not s.campaigns
        assert sum(s.traffic) > quiet
    assert lags == {2, 3, 4}
    company = office()
    company.state.adstock = [100.0, 0.0, 0.0]
    company.sleep(3)
    assert company.state.adstock[0] == pytest.approx(50, abs=1)


def test_word_of_mouth_brand_and_content_bring_visits(office) -> None:
    plain, liked, known, read = (office(seed=1, leads=0, hazard=0.0) for _ in range(4))
    for company, sat in ((plain, 0.5), (liked, 1.0), (known, 0.5), (read, 0.5)):
        for _ in range(5):
            company.account(Stage.WON, sat=sat)
    known.state.brand = 40.0
    read.state.content_stock = 300.0
    for company in (plain, liked, known, read):
        company.sleep()
    base = sum(plain.state.traffic)
    assert all(sum(company.state.traffic) > base for company in (liked, known, read))
    assert sum(read.state.traffic) - base == pytest.approx(300.0)


def test_visitors_become_leads_at_the_stated_rate(office) -> None:
    arrived, expected = 0, 0.0
    for seed in range(150):
        company = office("viral", seed=seed, leads=0, customers=0, bugs={"critical": 0, "major": 0, "minor": 0})
        s = company.state
        speed = 0.6 + 0.5 * s.stability
        logs = company.sleep()
        expected += sum(s.traffic) * s.conversion * SIGNUP_TO_LEAD * speed
        arrived += round(sum(log.parts()["marketing"]["stage"] for log in logs) / 1.5)
    assert abs(arrived - expected) < 3 * math.sqrt(expected)


def test_conversion_falls_back_when_nobody_works_on_it_and_a_slow_site_converts_less(office) -> None:
    fast, slow = office(), office()
    for company in (fast, slow):
        company.state.conversion = 0.05
    slow.state.bug_critical = 6
    for company in (fast, slow):
        company.sleep(5)
    assert 0.02 < slow.state.conversion < fast.state.conversion < 0.05


def test_hosting_above_the_capacity_is_bought_or_becomes_load(office) -> None:
    rich, poor = office(traffic=6_000), office(traffic=6_000)
    rich.state.envelopes["dev"], poor.state.envelopes["dev"] = 1_000_000, 0
    for company in (rich, poor):
        company.sleep()
    assert rich.state.load == 0.0
    assert rich.state.envelopes["dev"] == 1_000_000 - 100 * int((sum(rich.state.traffic) - 2200) / 10)
    assert poor.state.load == pytest.approx(0.08)
    assert poor.state.stability < rich.state.stability


def test_leads_are_lost_after_ten_days_without_contact(office) -> None:
    company = office(traffic=1)
    s = company.state
    lead = company.account(Stage.QUALIFIED)
    company.sleep(9)
    assert lead in s.accounts
    company.sleep(1)
    assert lead not in s.accounts
    assert s.lost >= 1


def test_names_are_not_given_twice_while_the_pool_lasts(office) -> None:
    s = office(leads=0).state
    names = []
    for slot in range(len(NAMES)):
        names.append(arrive(s, mix(1, 1), slot % 12).name)
        s.accounts.pop(0)
    assert sorted(names) == sorted(NAMES)
    s.names_used = 0
    for slot in range(len(NAMES) + 1):
        arrive(s, mix(1, 1), slot % 12)
    assert len({a.name for a in s.accounts}) == len(NAMES) + 1


def test_a_lead_is_the_same_in_every_branch_of_the_same_luck(office) -> None:
    one, other = office(seed=6), office(seed=6)
    other.act("dev", "BUILD_FEATURE", "SSO")
    other.act("hr", "TEAM_SYNC")
    one.sleep(8)
    other.sleep(8)
    traits = [{a.id: (a.pain, a.size, a.quality, a.segment) for a in company.state.accounts} for company in (one, other)]
    shared = traits[0].keys() & traits[1].keys()
    assert len(shared) >= 2
    assert all(traits[0][key] == traits[1][key] for key in shared)


def test_sizes_and_prices_have_their_mean(office) -> None:
    s = office(leads=0).state
    prices = []
    for index in range(3000):
        s.turn = 14 * (index // 12)
        prices.append(arrive(s, mix(9, 1), index % 12).price)
        s.accounts.clear()
    assert statistics.mean(prices) == pytest.approx(MEAN_PRICE, rel=0.05)


def test_larger_leads_of_a_campaign_on_a_researched_pain_are_no_luck(office) -> None:
    s = office(leads=0).state
    s.researched[:] = [2] * len(s.researched)
    prices, luck = [], []
    for index in range(3000):
        s.turn = 14 * (index // 12)
        lead = arrive(s, mix(s.seed, 1 + s.world), index % 12, theme=2)
        prices.append(lead.price)
        luck.append(lead.price / usual_price(s, lead) - 1.0)
        s.accounts.clear()
    assert statistics.mean(prices) > 1.1 * MEAN_PRICE
    assert abs(statistics.mean(luck)) < 3.0 * statistics.stdev(luck) / math.sqrt(len(luck))


# Luck account


def luck_over_worlds(office: Callable[..., Any], scenario: str, worlds: int, days: int) -> list[float]:
    company = office(scenario, seed=5, quiet=False)
    seats = dict.fromkeys(("ceo", "dev", "marketing", "sales", "content", "hr"), heuristic)
    found = []
    for world in range(1, worlds + 1):
        s = company.state.copy()
        s.world = world
        draw_unseen(s, 0)
        run(company.simulator, s, seats, turns=14 * days)
        found.append(s.luck)
    return found


@pytest.mark.parametrize("scenario", ["baseline", "churn"])
def test_luck_has_mean_zero_and_explains_part_of_the_outcome(office, scenario: str) -> None:
    luck = luck_over_worlds(office, scenario, 60, 10)
    error = statistics.stdev(luck) / math.sqrt(len(luck))
    assert error > 100.0
    assert abs(statistics.mean(luck)) < 3 * error


def test_luck_counts_closes_by_their_chance(office) -> None:
    wins, luck = [], []
    for seed in range(250):
        company = office(seed=seed)
        deal = company.account(Stage.PROPOSAL, pain="reports")
        company.wait("sales")
        chance, before = close_probability(company.state, deal), company.state.luck
        company.act("sales", "CLOSE_DEAL", deal.name)
        wins.append((deal.stage == Stage.WON) - chance)
        luck.append(company.state.luck - before)
    assert abs(statistics.mean(wins)) < 3 * statistics.stdev(wins) / math.sqrt(len(wins))
    assert abs(statistics.mean(luck)) < 3 * statistics.stdev(luck) / math.sqrt(len(luck))
    assert all((gain > 0) == (won > 0) for gain, won in zip(luck, wins, strict=True))


def test_luck_has_mean_zero_where_leads_are_turned_away(office) -> None:
    luck = luck_over_worlds(office, "viral", 40, 12)
    assert abs(statistics.mean(luck)) < 4 * statistics.stdev(luck) / math.sqrt(len(luck))
    assert LEAD_WORTH > 0
