"""The oracle looks ahead and cannot see its own luck; tuned experts are rules that know their scenario."""

from __future__ import annotations

from statistics import fmean

import pytest

from checks.office.gates.matches import Match
from checks.office.gates.oracle import EVALUATION_WORLD, PLANNING_WORLD, Oracle, Planning
from checks.office.gates.teams import SEATS
from checks.office.players.tuned import TUNINGS
from onthejob.envs.office import scenarios
from onthejob.envs.office.company_state import State
from onthejob.envs.office.fast_play import run
from onthejob.envs.office.market import company_value
from onthejob.envs.office.policies import do_nothing
from onthejob.envs.office.policies.expert import expert
from onthejob.envs.office.policies.heuristic import heuristic
from onthejob.envs.office.scenarios import SHIPPED
from onthejob.envs.office.simulator import Simulator
from onthejob.envs.office.snapshot import dumps
from onthejob.errors import ConfigError, ContractError

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
