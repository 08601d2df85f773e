"""Scripted players: always legal, blind to everything but the view; held-out partners differ from each other."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial

import pytest

from onthejob.checkout import PLAYERS
from onthejob.envs.office.actions import IDLE, render
from onthejob.envs.office.company_state import PAINS, Piece, Stage
from onthejob.envs.office.env import SEATS, OfficeEnvironment
from onthejob.envs.office.policies import Noisy, do_nothing, players, random_legal
from onthejob.envs.office.policies.expert import TunedExpert, Tuning, expert
from onthejob.envs.office.policies.heuristic import heuristic, needs
from onthejob.envs.office.policies.partners import ABSENT_EVERY, HELD_OUT_PARTNERS, refuse_partner
from onthejob.envs.office.policies.picking import INERT
from onthejob.envs.office.prompt import messages
from onthejob.envs.office.scenarios import SHIPPED, load
from onthejob.envs.office.simulator import Simulator, actor_of
from onthejob.envs.office.views import view
from onthejob.errors import ConfigError
from onthejob.office_players import training_team
from onthejob.types import Message


def refuse() -> list:
    raise AssertionError("a policy of the view asked for the legal actions")


@pytest.mark.parametrize("scenario", SHIPPED)
@pytest.mark.parametrize("name", ["heuristic", "expert"])
def test_rules_are_always_legal(playing, counts, name: str, scenario: str) -> None:
    for seed in range(1_001, 1_001 + counts(3, 40)):
        played = sum(1 for _ in playing(name, scenario, seed))  # `playing` asserts that every action is legal
        assert played == 420


@pytest.mark.parametrize("player", [expert, heuristic])
def test_rules_stay_legal_among_strange_colleagues(playing, player) -> None:
    for seed, scenario in enumerate(("churn", "viral", "series_a")):
        assert sum(1 for _ in playing(Noisy(player, 0.5), scenario, seed)) > 300


@pytest.mark.parametrize("name", ["random", *HELD_OUT_PARTNERS])
def test_random_and_partners_are_always_legal(playing, name: str) -> None:
    assert sum(1 for _ in playing(name, "churn", 5)) > 100


@pytest.mark.parametrize("player", [expert, heuristic, TunedExpert(Tuning(tier="annual", products=4))])
def test_rules_read_nothing_but_the_view(playing, player) -> None:
    """The same action from a view that went through JSON, without the list of legal actions and under any luck."""
    asked: Counter[str] = Counter()
    for _, s, *_ in playing(player, "viral", 11):
        if s.done:
            break
        role = actor_of(s.turn)
        if role != "customer":
            seen = view(s, role)
            copy = json.loads(json.dumps(seen))
            assert player(copy, refuse, 0.1) == player(seen, refuse, 0.9)
            assert copy == seen  # and the view is left as it was
            asked[role] += 1
    assert len(asked) == 6


@pytest.mark.parametrize("player", [expert, heuristic])
def test_rules_decide_by_what_the_prompt_shows(playing, player) -> None:
    """Two states with the same prompt get the same action: the view holds nothing of weight that is not rendered."""
    decided: dict[tuple[Message, ...], set[str]] = {}
    for seed in range(4):
        for _, s, *_ in playing(Noisy(player, 0.2), "baseline", seed):
            if s.done:
                break
            role = actor_of(s.turn)
            if role != "customer":
                seen = view(s, role)
                decided.setdefault(messages(seen), set()).add(render(player(seen, refuse, 0.0)))
    assert len(decided) > 1000
    assert all(len(actions) == 1 for actions in decided.values())


@pytest.mark.parametrize("player", [expert, heuristic])
def test_the_draft_that_is_gone_on_with_is_shown(office, player) -> None:
    company = office()
    for kind, pain in enumerate(("speed", "sync", "mobile")):
        company.state.pieces.append(
            Piece(day=0, id=kind, kind=(0, 3, 4)[kind], left=2, quality=0.0, topic=PAINS.index(pain), vapor=False)
        )
    seen = view(company.state, "content")
    action = player(seen, refuse, 0.0)
    assert f"Draft: {action.action_type} {action.target}" in messages(seen)[1].content


@pytest.mark.parametrize("player", [expert, heuristic])
def test_a_case_study_whose_customer_left_is_dropped(office, player) -> None:
    company = office()
    company.state.pieces.append(Piece(day=0, id=1, kind=2, left=2, quality=0.0, topic=PAINS.index("sync"), vapor=False))
    action = player(view(company.state, "content"), refuse, 0.0)
    assert company.legal("content", action.action_type, action.target)


def test_random_reaches_every_legal_action(office) -> None:
    company = office("churn")
    legal = company.simulator.legal(company.state, "sales")
    drawn = [random_legal({}, lambda: legal, (i + 0.5) / 5000) for i in range(5000)]
    assert {render(action) for action in drawn} == {render(action) for action in legal}
    types = Counter(action.action_type for action in drawn)
    assert max(types.values()) - min(types.values()) <= 2  # a type at random first, then its target
    assert random_legal({}, list, 0.5) is None


def test_doing_nothing_is_free_and_does_nothing(playing) -> None:
    for _, s, role, action, log in playing(do_nothing, "baseline", 1, days=3):
        assert action is IDLE or role == "customer"
        assert log.parts()[role]["base"] == 0.0 or role == "customer"
        assert s.invalid == 0


def test_requests_are_read_from_the_inbox_newest_first() -> None:
    inbox = ["sales: need sync", "customer: need speed", "hr: need coffee", "sales: approve Acme", "sales: I need billing"]
    assert needs({"inbox": inbox}) == ["speed", "sync"]


def test_the_expert_listens(office) -> None:
    company = office()
    company.wait("sales")
    company.act("sales", "UPDATE_PIPELINE", message="need billing", to="dev")
    action = expert(view(company.state, "dev"), refuse, 0.0)
    assert (action.action_type, action.target) == ("BUILD_FEATURE", "Invoices")


def test_sales_asks_for_approval_and_the_ceo_gives_it(office) -> None:
    for player in (expert, heuristic):
        company = office(leads=0)
        company.wait("sales")
        deal = company.account(Stage.DEMO, size=2)
        action = player(view(company.state, "sales"), refuse, 0.0)
        assert (action.action_type, action.message_to, action.message) == ("SEND_PROPOSAL", "ceo", f"approve {deal.name}")
        company.simulator.step(company.state, action)
        company.wait("ceo")
        answer = player(view(company.state, "ceo"), refuse, 0.0)
        assert (answer.action_type, answer.target) == ("APPROVE_INITIATIVE", deal.name)


def test_all_players_are_listed_by_name(task) -> None:
    rules = {"random", "do-nothing", "heuristic", "expert", "expert-explained"}
    assert set(players()) == {*rules, *PLAYERS, *HELD_OUT_PARTNERS}
    assert set(players()) - set(players(held_out=False)) == set(HELD_OUT_PARTNERS)
    env = OfficeEnvironment()
    assert env.reset(task()).actor == "ceo"
    assert Simulator(load("baseline")).legal(Simulator(load("baseline")).found(1), "ceo")


def test_the_untuned_tuning_is_the_expert_but_for_what_it_says(playing) -> None:
    """With the default thresholds the tuned expert does what the expert does; it only tells colleagues more."""
    same = TunedExpert(Tuning())
    for _, s, role, _, _ in playing(expert, "series_a", 7, days=8):
        if s.done or role == "customer":
            continue
        seen = view(s, role)
        a, b = expert(seen, list, 0.5), same(seen, list, 0.5)
        assert (a.action_type, a.target) == (b.action_type, b.target)


def test_partners_are_colleagues_of_other_kinds(playing, office) -> None:
    def spent(name: str) -> int:
        *_, (_, s, *_) = playing(HELD_OUT_PARTNERS[name], "baseline", 4, days=14)
        return -sum(s.ledger.get(kind, 0) for kind in ("marketing", "hr"))

    def done(name: str, *wanted: str) -> int:
        turns = list(playing(HELD_OUT_PARTNERS[name], "churn", 4, days=14))
        return sum(action is not None and action.action_type in wanted for _, _, _, action, _ in turns)

    assert spent("frugal") < 0.7 * min(spent("builder"), spent("carer"))
    build, care = ("BUILD_FEATURE", "SHIP_RELEASE"), ("FIX_BUG", "COLLECT_FEEDBACK", "WRITE_DOCS")
    assert done("builder", *build) > done("carer", *build)
    assert done("carer", *care) > 1.5 * done("builder", *care)
    off = [
        (role, action.action_type)
        for _, s, role, action, _ in playing(HELD_OUT_PARTNERS["part-timer"], "churn", 4, days=9)
        if role != "customer" and action is not None and ((s.turn - 1) // 14 + 1) % ABSENT_EVERY == 0
    ]
    assert off
    assert all(name in INERT[role] for role, name in off)
    company = office("viral", seed=5, days=10, quiet=False)
    seen = view(company.state, "ceo")
    legal = partial(company.simulator.legal, company.state, "ceo")
    clumsy = [HELD_OUT_PARTNERS["clumsy"](seen, legal, i / 20) for i in range(20)]
    assert len(set(clumsy)) >= 4
    assert clumsy.count(heuristic(seen, list, 0.5)) >= 13


def test_training_refuses_held_out_partners() -> None:
    for name in HELD_OUT_PARTNERS:
        with pytest.raises(ConfigError, match=f"held-out partner '{name}'"):
            refuse_partner(name)
        with pytest.raises(ConfigError, match="for evaluation"):
            training_team(name)
    assert set(training_team("random")) == set(SEATS)
