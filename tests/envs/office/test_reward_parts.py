"""The reward vector: six parts that sum exactly, numbers of the seed's table, nothing for going round in circles."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onthejob.envs.office.actions import Action
from onthejob.envs.office.company_state import FEATURE_INDEX, PAINS, Piece, Stage
from onthejob.envs.office.env import OfficeEnvironment
from onthejob.envs.office.market import company_value
from onthejob.envs.office.policies import Player, players
from onthejob.envs.office.reward_parts import (
    BASE,
    COLLAB_CAP,
    CRISIS_TABLE,
    KPI_NAMES,
    KPI_WEIGHTS,
    ORDER,
    PARTS,
    STAGE_TABLE,
    TurnLog,
    focus_name,
)
from onthejob.envs.office.roles import ROLES, TRAINED_ROLES, Role
from onthejob.envs.office.scenarios import SHIPPED
from onthejob.envs.office.simulator import kpis
from onthejob.office_players import as_policy
from onthejob.types import Context, Sampling

PLAYERS = ("random", "heuristic", "expert", "message-spammer", "qualify-never-close", "post-flooder")


def blundering(view, legal, luck):
    """Every third action is an unusable reply."""
    return None if luck < 0.33 else players()["random"](view, legal, (luck - 0.33) / 0.67)


# Sums


@settings(max_examples=8)
@given(
    seed=st.integers(0, 10**9),
    scenario=st.sampled_from(SHIPPED),
    player=st.sampled_from((*PLAYERS, blundering)),
    world=st.integers(0, 2),
)
def test_parts_sum_exactly_for_every_role_and_turn(playing, seed: int, scenario: str, player: str | Player, world: int) -> None:
    total = dict.fromkeys(ORDER, 0.0)
    for _, s, _, _, log in playing(player, scenario, seed, world=world, days=12):
        rewards, parts = log.rewards(), log.parts()
        assert list(rewards) == list(parts) == [str(role) for role in Role]
        for role, named in parts.items():
            assert tuple(named) == PARTS
            assert sum(named.values()) == rewards[role]
            assert named["penalty"] <= 0.0 <= named["base"] <= BASE[0]
            assert named["collaboration"] >= 0.0
            total[role] += rewards[role]
        assert s.reward_total == total


def test_nothing_is_lost_between_the_simulator_and_the_environment(task) -> None:
    """Sums of the steps' rewards are the episode's totals, the customer's turns included."""
    env = OfficeEnvironment()
    observation, seen, before = env.reset(task("churn", days=12)), 0, 0
    random = as_policy(players()["random"], version="random")
    total = dict.fromkeys(ORDER, 0.0)
    while observation is not None:
        turn = env.state()["turn"]
        reply = random.act([Context(observation=observation, seed=turn)], Sampling())[0].text
        step = env.step(reply if turn % 5 else "{")
        assert set(step.rewards) == set(step.parts) == set(ORDER)
        for role, reward in step.rewards.items():
            assert sum(step.parts[role].values()) == reward
            total[role] += reward
        seen += env.state()["turn"] - turn - 1
        observation, before = step.observation, turn
    assert seen == 24  # turns that the customer had
    metrics = env.state()["metrics"]
    assert {role: metrics[f"reward_{role}"] for role in ORDER} == pytest.approx(total, abs=1e-9)
    assert metrics["team_reward"] == pytest.approx(sum(total[str(role)] for role in TRAINED_ROLES), abs=1e-9)
    assert before >= 160


# The seed's table

SEED_TABLE = {
    "lead": {"marketing": 1.5, "content": 1.0},
    "qualified": {"sales": 1.0, "hr": 0.3},
    "demo": {"sales": 1.5, "dev": 1.0},
    "proposal": {"sales": 2.0},
    "closed_won": {"sales": 10.0, "marketing": 3.0, "dev": 2.0, "content": 2.0, "ceo": 5.0, "hr": 1.0, "customer": 2.0},
    "closed_lost": {"sales": -3.0, "marketing": -1.0, "content": -0.5, "ceo": -2.0, "hr": -0.5},
    "churned": {"sales": -3.0, "marketing": -1.0, "dev": -5.0, "content": -2.0, "ceo": -3.0, "hr": -1.0, "customer": -5.0},
}


@pytest.mark.parametrize("transition", SEED_TABLE)
def test_transitions_pay_as_in_the_seed(office, transition: str) -> None:
    company = office()
    log = TurnLog(company.state)
    log.stage(transition, company.account(Stage.QUALIFIED))
    assert {role: parts["stage"] for role, parts in log.parts().items() if parts["stage"]} == SEED_TABLE[transition]
    assert set(STAGE_TABLE) == set(SEED_TABLE)


def test_arriving_leads_and_lost_ones_are_credited_when_it_happens(office) -> None:
    company = office(seed=4, traffic=100_000)
    company.state.accounts.clear()
    logs = company.sleep()
    arrived = len(company.state.accounts)
    assert arrived > 0
    assert logs[-1].parts()["marketing"]["stage"] == 1.5 * arrived
    assert all(log.parts()["marketing"]["stage"] == 0.0 for log in logs[:-1])


def test_a_lead_that_nobody_worked_on_gives_its_credit_back(office) -> None:
    company = office(traffic=1, leads=0)
    company.account(Stage.LEAD)
    logs = company.sleep(10)
    assert company.state.lost == 1
    assert logs[-1].parts()["marketing"]["stage"] == -1.5
    assert logs[-1].parts()["sales"]["stage"] == 0.0


def test_a_lead_of_the_first_morning_has_no_credit_to_give_back(office) -> None:
    company = office(traffic=1, leads=1)
    logs = company.sleep(10)
    assert company.state.lost == 1
    assert logs[-1].parts()["marketing"]["stage"] == 0.0
    assert logs[-1].parts()["sales"]["penalty"] < 0.0


def test_a_neglected_deal_gives_its_advances_back_and_is_lost(office) -> None:
    company = office(traffic=1, leads=0)
    company.account(Stage.PROPOSAL)
    logs = company.sleep(10)
    assert logs[-1].parts()["sales"]["stage"] == pytest.approx(-3.0 - (1.0 + 1.5 + 2.0))
    assert logs[-1].parts()["ceo"]["stage"] == -2.0


def test_a_deal_refused_three_times_gives_its_advances_back(office) -> None:
    """Or hurrying leads that cannot be won into refusals would earn 4.5 - 3 each."""
    company = office(leads=0, traffic=1)
    deal = company.account(Stage.PROPOSAL, quality=-9.0)
    paid = []
    for _ in range(3):
        company.wait("sales")
        paid.append(company.act("sales", "CLOSE_DEAL", deal.name).parts())
    assert company.state.lost == 1
    assert [parts["sales"]["stage"] for parts in paid] == pytest.approx([0.0, 0.0, -3.0 - (1.0 + 1.5 + 2.0)])
    assert paid[-1]["dev"]["stage"] == -1.0
    assert paid[-1]["hr"]["stage"] == pytest.approx(-0.5 - 0.3)


@pytest.mark.parametrize("days", [0, 4])
def test_a_customer_that_leaves_takes_the_advances_of_its_deal_back(office, days: int) -> None:
    company, deal, log = won_deal(office, 0)
    total = log.parts()["sales"]["stage"]
    for later in company.sleep(days) if days else []:
        total += later.parts()["sales"]["stage"]
    company.state.hazard = 10**6
    while deal in company.state.accounts:
        deal.sat = 0.0
        for later in company.sleep():
            total += later.parts()["sales"]["stage"]
    assert total == pytest.approx(-3.0 - (1.0 + 1.5 + 2.0))


# Vesting


def won_deal(office, tier: int):
    for seed in range(40):
        company = office(seed=seed, leads=0, hazard=0.0, traffic=1)
        company.wait("sales")
        deal = company.account(Stage.PROPOSAL, quality=1.0, warmth=1.0, demo=1.0, tier=tier)
        log = company.act("sales", "CLOSE_DEAL", deal.name)
        if deal.stage == Stage.WON:
            return company, deal, log
    raise AssertionError("no deal was won in forty companies")


@pytest.mark.parametrize(("tier", "multiplier", "days"), [(0, 1.0, 10), (1, 2.0, 30), (2, 3.0, 90)])
def test_a_third_at_signing_and_the_rest_while_the_customer_lives(office, tier: int, multiplier: float, days: int) -> None:
    """A longer contract pays more in all and less a day, so that it is worth its reward only if the customer stays."""
    company, _, log = won_deal(office, tier)
    paid = [log.parts()["sales"]["stage"]]
    for _ in range(12):
        paid.append(company.sleep()[-1].parts()["sales"]["stage"])
    assert paid[0] == pytest.approx(10 / 3)
    daily = (10 * multiplier - 10 / 3) / days
    assert paid[1:11] == pytest.approx([daily] * 10)
    assert paid[11:] == pytest.approx([0.0 if days == 10 else daily] * 2)


@pytest.mark.parametrize("days", [0, 4, 12])
def test_what_has_vested_is_clawed_back_at_churn(office, days: int) -> None:
    company, deal, log = won_deal(office, 2)
    total = log.parts()["ceo"]["stage"]
    for later in company.sleep(days) if days else []:
        total += later.parts()["ceo"]["stage"]
    company.state.hazard = 10**6
    while deal in company.state.accounts:
        deal.sat = 0.0
        for later in company.sleep():
            total += later.parts()["ceo"]["stage"]
    assert total == pytest.approx(-3.0)  # of the closing nothing is left, the churn itself costs


def test_a_customer_pays_its_closing_reward_once(office) -> None:
    company, deal, _ = won_deal(office, 0)
    company.sleep(11)
    deal.stage = int(Stage.PROPOSAL)
    while deal.stage != Stage.WON:
        company.wait("sales")
        deal.failed, deal.objections, deal.quality = 0, 0, 9.0
        log = company.act("sales", "CLOSE_DEAL", deal.name)
        assert log.parts()["sales"]["stage"] == 0.0
    assert sum(log.parts()["sales"]["stage"] for log in company.sleep(12)) == 0.0


def test_first_customers_of_a_scenario_pay_no_closing_reward(office) -> None:
    company = office("churn", hazard=10.0)
    for _ in range(6):
        for a in company.state.customers():
            a.sat = 0.0
        before = company.state.churned
        logs = company.sleep()
        churned = company.state.churned - before
        assert logs[-1].parts()["customer"]["stage"] == pytest.approx(-5.0 * churned)
    assert company.state.churned > 0


# Potentials


@pytest.mark.parametrize(("player", "scenario"), [("random", "churn"), ("expert", "viral"), ("heuristic", "series_a")])
def test_kpi_pay_is_the_change_of_a_potential(playing, player: str, scenario: str) -> None:
    """Whatever happened in between, an episode pays the difference of its ends: no cycle earns anything."""
    episode = playing(player, scenario, 12, days=10)
    simulator, s, *_ = next(episode)
    start = kpis(s)
    paid = dict.fromkeys(ORDER, 0.0)
    for turn in episode:
        s = turn[1]
        for role, parts in turn[4].parts().items():
            paid[role] += parts["kpi"]
    end = kpis(s)
    for index, role in enumerate(ORDER):
        expected = sum(KPI_WEIGHTS[name][index] * (b - a) for name, a, b in zip(KPI_NAMES, start, end, strict=True))
        assert paid[role] == pytest.approx(expected, abs=1e-9)
    assert simulator.scenario.name == scenario


def test_falls_cost_what_rises_pay(office) -> None:
    state = office().state
    low, high = (0.1,) * len(KPI_NAMES), (0.7,) * len(KPI_NAMES)
    up, down = TurnLog(state), TurnLog(state)
    up.kpis(low, high)
    down.kpis(high, low)
    for role in ORDER:
        assert up.rewards()[role] == -down.rewards()[role]
    assert up.rewards()["dev"] > 0


def test_every_role_has_its_drivers() -> None:
    driven = {role: {name for name in KPI_NAMES if KPI_WEIGHTS[name][index]} for index, role in enumerate(ORDER)}
    for role, drivers in {
        "ceo": {"efficiency"},
        "dev": {"stability"},
        "marketing": {"reach", "conversion"},
        "sales": {"deals"},
        "hr": {"velocity", "okr"},
        "customer": {"satisfaction", "expansion"},
    }.items():
        assert drivers <= driven[role]
    assert all(weight >= 0 for weights in KPI_WEIGHTS.values() for weight in weights)


def test_escalating_and_evaluating_in_turn_earns_nothing(office) -> None:
    """The seed's money pump: its customer earned by moving satisfaction up and down."""
    company = office("churn")
    earned = 0.0
    for _ in range(3):
        for name in ("ESCALATE_ISSUE", "EVALUATE_PRODUCT"):
            log = company.act("customer", name)
            if company.state.turn % 14:
                earned += log.parts()["customer"]["action"] + log.parts()["customer"]["kpi"]
    assert earned <= 1e-9


# Base


def test_the_base_decays_over_identical_repeats_and_recovers_overnight(office) -> None:
    company = office()
    company.state.turn = 14 * 2 + 1
    paid = []
    for _ in range(4):
        log = TurnLog(company.state)
        log.base("hr", "hr TEAM_SYNC ")
        paid.append(log.parts()["hr"]["base"])
    assert paid == [0.1, 0.05, 0.0, 0.0]
    company.sleep()
    log = TurnLog(company.state)
    log.base("hr", "hr TEAM_SYNC ")
    assert log.parts()["hr"]["base"] == 0.1


def test_an_action_that_achieves_nothing_earns_no_base(office) -> None:
    company = office()
    assert company.act("marketing", "RESEARCH_MARKET", "retail").parts()["marketing"]["base"] == 0.1
    assert company.act("marketing", "RESEARCH_MARKET", "retail").parts()["marketing"]["base"] == 0.0
    company.act("ceo", "SET_OKRS", "growth")
    assert company.act("ceo", "SET_OKRS", "growth").parts()["ceo"]["base"] == 0.0


# Collaboration


def test_both_sides_are_paid_once_per_pair_and_three_times_a_day(office) -> None:
    s = office().state
    first = TurnLog(s)
    first.collaboration("content", "sales", 1, "content helps a demo", "a blog")
    assert (first.parts()["content"]["collaboration"], first.parts()["sales"]["collaboration"]) == (0.5, 0.5)
    again = TurnLog(s)
    again.collaboration("content", "sales", 1, "content helps a demo", "a blog")
    again.collaboration("sales", "sales", 2, "content helps a demo", "a blog")
    assert all(parts["collaboration"] == 0.0 for parts in again.parts().values())
    more = TurnLog(s)
    for artefact in range(10, 16):
        more.collaboration("content", "sales", artefact, "content helps a demo", "a blog")
    assert more.parts()["content"]["collaboration"] == (COLLAB_CAP - 1) * 0.5
    assert len(s.collab_seen) == 7


def test_no_pair_is_forgotten_and_the_cap_ends_with_the_day(office) -> None:
    company = office()
    for artefact in range(200):
        TurnLog(company.state).collaboration("dev", "content", artefact, "feature written about", "SSO")
    company.sleep()
    old = TurnLog(company.state)
    old.collaboration("dev", "content", 0, "feature written about", "SSO")
    assert old.parts()["dev"]["collaboration"] == 0.0
    log = TurnLog(company.state)
    log.collaboration("dev", "content", 999, "feature written about", "SSO")
    assert log.parts()["dev"]["collaboration"] == 1.0


def test_content_that_a_demo_uses_pays_both(office) -> None:
    company = office(leads=0)
    s = company.state
    s.pieces.append(Piece(day=0, id=5, kind=0, left=0, quality=0.5, topic=PAINS.index("sync"), vapor=False))
    one, two = company.account(Stage.QUALIFIED, pain="sync"), company.account(Stage.QUALIFIED, pain="sync")
    other = company.account(Stage.QUALIFIED, pain="speed")
    for lead, paid in ((other, 0.0), (one, 0.5), (two, 0.0)):
        parts = company.act("sales", "RUN_DEMO", lead.name).parts()
        assert parts["content"]["collaboration"] == parts["sales"]["collaboration"] == paid


def test_dev_and_who_asked_share_the_credit_of_a_release(office) -> None:
    company = office()
    company.act("sales", "UPDATE_PIPELINE", message="need security", to="dev")
    company.act("hr", "TEAM_SYNC", message="need speed", to="dev")
    company.wait("dev")
    company.state.feature_left[FEATURE_INDEX["SSO"]] = 0.0
    parts = company.act("dev", "SHIP_RELEASE", "SSO").parts()
    assert (parts["sales"]["collaboration"], parts["dev"]["collaboration"], parts["hr"]["collaboration"]) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize(("age", "paid"), [(14, 1.0), (15, 0.0)])
def test_a_request_counts_for_a_release_within_fourteen_turns(office, age: int, paid: float) -> None:
    company = office()
    s = company.state
    s.turn = 14 * 5
    company.wait("dev")
    s.inbox["dev"] = [[s.turn - age, "sales", "need security", "dev"]]
    s.feature_left[FEATURE_INDEX["SSO"]] = 0.0
    parts = company.act("dev", "SHIP_RELEASE", "SSO").parts()
    assert parts["sales"]["collaboration"] == parts["dev"]["collaboration"] == paid


@pytest.mark.parametrize(("age", "paid"), [(14, 0.5), (15, 0.0), (42, 0.0)])
def test_an_approval_may_come_while_the_request_is_shown_and_counts_within_fourteen_turns(office, age: int, paid: float) -> None:
    company = office()
    s = company.state
    s.turn = 14 * 5
    company.wait("ceo")
    deal = company.account(Stage.PROPOSAL, size=2)
    s.inbox["ceo"] = [[s.turn - age, "sales", f"approve {deal.name}", "ceo"]]
    parts = company.act("ceo", "APPROVE_INITIATIVE", deal.name).parts()
    assert deal.approved
    assert parts["sales"]["collaboration"] == parts["ceo"]["collaboration"] == paid


def test_content_on_a_shipped_feature_and_a_campaign_on_content_pay(office) -> None:
    company = office()
    s = company.state
    s.feature_shipped[FEATURE_INDEX["API"]] = 0
    s.pieces.append(Piece(day=0, id=5, kind=4, left=1, quality=0.0, topic=PAINS.index("sync"), vapor=False))
    parts = company.act("content", "WRITE_DOCS", "sync").parts()
    assert parts["dev"]["collaboration"] == parts["content"]["collaboration"] == 1.0
    s.envelopes["marketing"] = 100_000
    parts = company.act("marketing", "LAUNCH_CAMPAIGN", "sync").parts()
    assert parts["content"]["collaboration"] == parts["marketing"]["collaboration"] == 0.5


def test_mentioning_everybody_earns_nothing(office) -> None:
    company = office()
    for _ in range(5):
        parts = company.act("hr", "TEAM_SYNC", message="need security sync SSO dev sales content ceo", to="all").parts()
        assert all(named["collaboration"] == 0.0 for named in parts.values())


# Crisis


@pytest.mark.parametrize(("role", "action"), CRISIS_TABLE)
def test_churn_prevention_pays_in_proportion_to_the_gap(office, role: str, action: str) -> None:
    s = office().state
    bonus = CRISIS_TABLE[role, action]
    for satisfaction, share in ((0.0, 1.0), (0.2, 0.5), (0.4, 0.0), (0.9, 0.0)):
        log = TurnLog(s)
        log.crisis(role, action, satisfaction)
        assert log.parts()[role]["action"] == pytest.approx(bonus * share)
    assert action in ROLES[Role(role)].actions


def test_crisis_actions_pay_only_when_they_help(office) -> None:
    company = office("churn")
    company.state.base_sat = 0.1
    for a in company.state.customers():
        a.sat = 0.1
    assert company.act("marketing", "RESEARCH_MARKET", "retail").parts()["marketing"]["action"] == pytest.approx(
        0.3 + 0.2 * 0.75, abs=0.02
    )
    assert company.act("marketing", "RESEARCH_MARKET", "retail").parts()["marketing"]["action"] == 0.0
    log = TurnLog(company.state)
    log.crisis("sales", "RUN_DEMO", 0.0)
    assert log.parts()["sales"]["action"] == 0.0


# Penalties


def test_an_unusable_reply_costs_one(office) -> None:
    company = office()
    for role in ROLES:
        company.wait(str(role))
        log = company.simulator.step(company.state, None)
        assert log.parts()[str(role)]["penalty"] <= -1.0
    assert company.state.invalid == 7


def test_a_stale_lead_costs_half_a_point_a_day_after_five(office) -> None:
    company = office(traffic=1, leads=0)
    company.account(Stage.QUALIFIED)
    company.account(Stage.DEMO)
    paid = []
    for _ in range(7):
        company.act("sales", "UPDATE_PIPELINE")
        paid.append(sum(log.parts()["sales"]["penalty"] for log in company.sleep()))
    assert paid == [0.0, 0.0, 0.0, 0.0, -1.0, -1.0, -1.0]


def test_a_day_without_a_pipeline_update_costs_one(office) -> None:
    company = office(traffic=1, leads=0)
    assert company.sleep()[-1].parts()["sales"]["penalty"] == -1.0
    company.act("sales", "UPDATE_PIPELINE")
    assert company.sleep()[-1].parts()["sales"]["penalty"] == 0.0
    lead = company.account(Stage.LEAD)
    company.act("sales", "QUALIFY_LEAD", lead.name)  # moving a deal is an update
    assert company.sleep()[-1].parts()["sales"]["penalty"] == 0.0


# Key results


def test_reached_key_results_pay_once(office) -> None:
    company = office()
    company.act("ceo", "SET_OKRS", "product")
    company.state.feature_shipped[0] = 0
    paid = [company.sleep()[-1].parts() for _ in range(3)]
    assert [parts["ceo"]["action"] for parts in paid] == [1.5, 0.0, 0.0]
    assert [parts["hr"]["action"] for parts in paid] == [1.0, 0.0, 0.0]


def test_setting_okrs_again_and_again_pays_nothing(office) -> None:
    company = office()
    company.state.feature_shipped[0] = 0
    total = 0.0
    for day in range(6):
        total += company.act("ceo", "SET_OKRS", ("growth", "retention")[day % 2]).parts()["ceo"]["action"]
        total += sum(log.parts()["ceo"]["action"] for log in company.sleep())
    assert total == 0.0


def test_the_focus_has_a_name_while_it_lasts(office) -> None:
    company = office()
    assert focus_name(company.state) == "none"
    company.act("ceo", "SET_OKRS", "retention")
    assert focus_name(company.state) == "retention"
    company.sleep(5)
    assert focus_name(company.state) == "none"


def test_reward_follows_value(playing) -> None:
    """The order of teams by reward is their order by company value (the gates test this in full)."""
    rows = []
    for name in ("do-nothing", "inert-farmer", "message-spammer", "heuristic", "expert"):
        *_, (_, s, _, _, _) = playing(name, "baseline", 7)
        rows.append((company_value(s), sum(s.reward_total[str(role)] for role in TRAINED_ROLES)))
    worst = max(rows[:3])
    assert rows[3] > worst
    assert rows[4] > worst
    assert all(row[1] < min(rows[3][1], rows[4][1]) for row in rows[:3])


def test_an_action_out_of_turn_cannot_be_smuggled_in(office) -> None:
    company = office()
    company.wait("dev")
    with pytest.raises(KeyError):
        company.simulator.step(company.state, Action("CLOSE_DEAL", "Acme"))
