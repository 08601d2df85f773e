"""The oracle looks ahead and cannot see its own luck; tuned experts are rules that know their scenario; partners differ."""

from __future__ import annotations

from statistics import fmean

import pytest

from onthejob.envs.office import scenarios
from onthejob.envs.office.episode import run
from onthejob.envs.office.gates.matches import Match
from onthejob.envs.office.gates.oracle import EVALUATION_WORLD, PLANNING_WORLD, Oracle, Planning
from onthejob.envs.office.gates.teams import SEATS
from onthejob.envs.office.market import company_value
from onthejob.envs.office.policies import do_nothing
from onthejob.envs.office.policies.expert import expert
from onthejob.envs.office.policies.heuristic import heuristic
from onthejob.envs.office.policies.partners import ABSENT_EVERY, HELD_OUT_PARTNERS, refuse_partner
from onthejob.envs.office.policies.picking import INERT
from onthejob.envs.office.policies.tuned import TUNINGS, TunedExpert, Tuning, tuned_experts
from onthejob.envs.office.scenarios import SHIPPED
from onthejob.envs.office.simulator import Simulator
from onthejob.envs.office.snapshot import dumps
from onthejob.envs.office.state import State
from onthejob.errors import ConfigError, ContractError
from onthejob.players import training_team

SMALL = Planning(candidates=3, screening=1, finalists=1, worlds=3, turns=28)


def start(scenario: str = "viral", seed: int = 5, *, days: int = 10, skip: int = 0) -> tuple[Simulator, State]:
    simulator = Simulator(scenarios.load(scenario))
    s = simulator.found(seed, days)
    run(simulator, s, dict.fromkeys(SEATS, heuristic), turns=skip)
    return simulator, s


def asked(simulator: Simulator, s: State, role: str) -> State:
    while simulator.actor(s.turn) != role:
        run(simulator, s, dict.fromkeys(SEATS, heuristic), turns=1)
    return s


def test_the_oracle_improves_players_who_do_nothing() -> None:
    simulator, s = start(days=4)
    lazy = s.copy()
    seats = dict.fromkeys(SEATS, do_nothing)
    run(simulator, lazy, seats, turns=56)
    Oracle(simulator, seats, SMALL).play(s, turns=56)
    assert s.done == lazy.done == "horizon"
    assert company_value(s) > company_value(lazy)


def test_the_oracle_changes_nothing_by_choosing_and_chooses_the_same_again() -> None:
    simulator, s = start(skip=28)
    asked(simulator, s, "sales")
    before = dumps(s)
    oracle = Oracle(simulator, dict.fromkeys(SEATS, heuristic), SMALL)
    first = oracle.choose(s, "sales")
    assert dumps(s) == before
    assert oracle.choose(s, "sales") == first
    assert first in [*simulator.legal(s, "sales"), first]
    assert simulator.why_illegal(s, "sales", first) == ""


def test_what_the_oracle_chooses_does_not_depend_on_the_luck_that_comes() -> None:
    """The same company in five worlds of different luck: one choice; and the worlds do differ."""
    simulator, s = start("churn", skip=42)
    seats = dict.fromkeys(SEATS, heuristic)
    choices, ends = set(), set()
    for role in ("sales", "dev"):
        asked(simulator, s, role)
        for world in (0, 1, 77, EVALUATION_WORLD, EVALUATION_WORLD + 9):
            copy = s.copy()
            copy.world = world
            choices.add((role, Oracle(simulator, seats, SMALL).choose(copy, role)))
            run(simulator, copy, seats, turns=56)
            ends.add(company_value(copy))
    assert len(choices) == 2
    assert len(ends) > 5


def test_the_oracle_refuses_to_play_where_it_plans() -> None:
    simulator, s = start()
    oracle = Oracle(simulator, dict.fromkeys(SEATS, heuristic), SMALL)
    for world in (PLANNING_WORLD, EVALUATION_WORLD - 1):
        s.world = world
        with pytest.raises(ContractError, match="must not play in one"):
            oracle.choose(s, "ceo")
    with pytest.raises(ConfigError, match="worlds >= 2"):
        Planning(worlds=1)
    with pytest.raises(ConfigError, match="planning worlds"):
        Planning(worlds=6_000)


def test_the_oracle_keeps_a_colleague_informed() -> None:
    """An alternative to an action with a message carries the same message: it is compared on its work alone."""
    simulator, s = start("viral", skip=30)
    asked(simulator, s, "sales")
    oracle = Oracle(simulator, dict.fromkeys(SEATS, expert), SMALL)
    own = expert({**_view(s, "sales")}, list, 0.5)
    others = oracle._candidates(s, "sales", own)
    assert len(others) == SMALL.candidates
    assert own not in others
    assert {(a.message_to, a.message) for a in others} == {(own.message_to, own.message)}
    assert len({a.action_type for a in others}) == len(others)  # different types first


def _view(s: State, role: str) -> dict:
    from onthejob.envs.office.views import view

    return view(s, role)


def test_the_untuned_tuning_is_the_expert_but_for_what_it_says(playing) -> None:
    """With the default thresholds the tuned expert does what the expert does; it only tells colleagues more."""
    same = TunedExpert(Tuning())
    for _, s, role, _, _ in playing(expert, "series_a", 7, days=8):
        if s.done or role == "customer":
            continue
        seen = _view(s, role)
        a, b = expert(seen, list, 0.5), same(seen, list, 0.5)
        assert (a.action_type, a.target) == (b.action_type, b.target)


def test_every_scenario_has_a_tuning_that_changes_what_is_done() -> None:
    assert set(TUNINGS) == set(SHIPPED)
    assert len(set(TUNINGS.values())) == len(SHIPPED)
    for scenario in SHIPPED:
        tuned = Match(scenario=scenario, team=f"tuned-{scenario}", seed=3).run()
        plain = Match(scenario=scenario, team="expert", seed=3).run()
        assert tuned.value != plain.value


@pytest.mark.slow
def test_tuned_experts_beat_the_expert_at_home() -> None:
    for scenario in SHIPPED:
        gains = [
            Match(scenario=scenario, team=f"tuned-{scenario}", seed=seed).run().value
            - Match(scenario=scenario, team="expert", seed=seed).run().value
            for seed in range(40_000, 40_012)
        ]
        assert fmean(gains) > 0.0, scenario


@pytest.mark.parametrize("role", SEATS)
def test_a_role_that_does_nothing_does_nothing(role: str) -> None:
    """The no-op of one role: its reward parts are those that others earn for it, and it never acts."""
    team = Match(scenario="churn", team=f"expert-no-{role}", seed=3, days=6).table()[f"expert-no-{role}"]
    assert team.seats[role] is do_nothing
    assert {seat for seat, player in team.seats.items() if player is not do_nothing} == set(SEATS) - {role}


def test_partners_are_colleagues_of_other_kinds(playing) -> None:
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
    view = _view(start()[1], "ceo")
    clumsy = [HELD_OUT_PARTNERS["clumsy"](view, lambda: start()[0].legal(start()[1], "ceo"), i / 20) for i in range(20)]
    assert len(set(clumsy)) >= 4
    assert clumsy.count(heuristic(view, list, 0.5)) >= 13


def test_training_refuses_held_out_partners() -> None:
    for name in HELD_OUT_PARTNERS:
        with pytest.raises(ConfigError, match=f"held-out partner '{name}'"):
            refuse_partner(name)
        with pytest.raises(ConfigError, match="for evaluation"):
            training_team(name)
    assert set(training_team("random")) == set(SEATS)
    assert set(tuned_experts()) == set(SHIPPED)
