"""Scripted players: always legal, blind to everything but the view, and each exploiter does what it is for."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from onthejob.envs.office.actions import IDLE, render
from onthejob.envs.office.env import OfficeEnvironment
from onthejob.envs.office.policies import Noisy, do_nothing, players, random_legal
from onthejob.envs.office.policies.expert import expert
from onthejob.envs.office.policies.exploiters import EXPLOITERS
from onthejob.envs.office.policies.heuristic import heuristic, needs
from onthejob.envs.office.policies.partners import HELD_OUT_PARTNERS
from onthejob.envs.office.policies.tuned import TunedExpert, Tuning
from onthejob.envs.office.prompt import messages
from onthejob.envs.office.scenarios import SHIPPED, load
from onthejob.envs.office.simulator import Simulator, actor_of
from onthejob.envs.office.state import PAINS, Piece, Stage
from onthejob.envs.office.views import view
from onthejob.types import Message


def refuse() -> list:
    raise AssertionError("a policy of the view asked for the legal actions")


@pytest.mark.parametrize("scenario", SHIPPED)
@pytest.mark.parametrize("name", ["heuristic", "expert", "tuned-churn", "tuned-viral"])
def test_rules_are_always_legal(playing, counts, name: str, scenario: str) -> None:
    for seed in range(1_001, 1_001 + counts(3, 40)):
        played = sum(1 for _ in playing(name, scenario, seed))  # `playing` asserts that every action is legal
        assert played == 420


@pytest.mark.parametrize("player", [expert, heuristic])
def test_rules_stay_legal_among_strange_colleagues(playing, player) -> None:
    for seed, scenario in enumerate(("churn", "viral", "series_a")):
        assert sum(1 for _ in playing(Noisy(player, 0.5), scenario, seed)) > 300


@pytest.mark.parametrize("name", ["random", *EXPLOITERS, *HELD_OUT_PARTNERS])
def test_random_and_exploiters_are_always_legal(playing, name: str) -> None:
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
    tuned = {f"tuned-{scenario}" for scenario in SHIPPED}
    rules = {"random", "do-nothing", "heuristic", "expert", "expert-explained"}
    assert set(players()) == {*rules, *tuned, *EXPLOITERS, *HELD_OUT_PARTNERS}
    assert set(players()) - set(players(held_out=False)) == set(HELD_OUT_PARTNERS)
    env = OfficeEnvironment()
    assert env.reset(task()).actor == "ceo"
    assert Simulator(load("baseline")).legal(Simulator(load("baseline")).found(1), "ceo")
