"""The linear policy's mathematics and the regret map's bookkeeping; the experiments themselves are run by hand."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from onthejob.envs.office.actions import Action, render
from onthejob.envs.office.env import SEATS, OfficeEnvironment
from onthejob.envs.office.policies.expert import expert
from onthejob.envs.office.policies.stand_in import StandIn
from onthejob.envs.office.scenarios import SHIPPED
from onthejob.office_players import scripted
from onthejob.record import Run
from onthejob.rollout.origin import FACT
from onthejob.types import Group, Sampling, Split, StopReason, Task, Trajectory


@pytest.fixture
def linear(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(repository / "benchmarks")
    return importlib.import_module("linear_policy")


@pytest.fixture
def regret(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(repository / "benchmarks")
    return importlib.import_module("regret_map")


def task(days: int = 3) -> Task:
    return Task(id="t", env="office", split=Split.TRAIN, seed=100_001, payload={"scenario": "viral", "days": days})


def test_gradient_equals_finite_differences(linear: ModuleType):
    decisions = [linear.Decision([[0, 3], [1, 3], [2]], [0.7, 0.3, 0.0]), linear.Decision([[1], [0, 2]], [-0.4, 0.9])]
    data, weights = linear.Flat(decisions), np.zeros(linear.DIMENSIONS)
    weights[:4] = (0.3, -0.8, 0.5, 0.2)

    def loss(w: np.ndarray) -> float:
        return -sum(
            target * math.log(chance)
            for decision in decisions
            for target, chance in zip(decision.targets, linear.probabilities(w, decision.rows), strict=True)
        ) / len(decisions)

    gradient = data.gradient(weights)
    for index in range(4):
        step = np.zeros(linear.DIMENSIONS)
        step[index] = 1e-5
        assert gradient[index] == pytest.approx((loss(weights + step) - loss(weights - step)) / 2e-5, abs=1e-8)


def test_advantages_are_z_scores_and_dead_groups_are_dropped(linear: ModuleType):
    scale = linear.Scale(outcome=100.0, ret=2.0)
    group = linear.Sampled("dev", [[0], [1], [2]], [0, 0, 1, 1], [300.0, 300.0, 100.0, 100.0], [0.0] * 4)
    # Values 3, 3, 1, 1: mean 2, sample deviation sqrt(4 / 3).
    z = 1.0 / math.sqrt(4.0 / 3.0)
    assert linear.advantages(group, scale).targets == pytest.approx([2 * z / 4, -2 * z / 4, 0.0])
    assert linear.advantages(group._replace(outcomes=[5.0] * 4), scale) is None


def test_the_clone_learns_the_teachers_probabilities(linear: ModuleType):
    decisions = [linear.Decision([[0, 5], [1, 5], [2, 5]], [0.8, 0.1, 0.1]), linear.Decision([[0, 6], [1, 6]], [0.5, 0.5])]
    weights = linear.fit_clone(decisions[:1] * 5, steps=400)
    assert linear.probabilities(weights, decisions[0].rows) == pytest.approx([0.8, 0.1, 0.1], abs=0.02)


def test_teacher_and_random_chances_are_distributions_over_what_is_offered(linear: ModuleType, regret: ModuleType):
    env = OfficeEnvironment()
    observation = env.reset(task())
    messages = 0
    while observation is not None:
        legal = env.legal_actions()
        actions = linear.candidates(observation.view, legal)
        messages += len(actions) - len(legal)
        own = expert(observation.view, list, 0.5)
        assert own is not None
        chances = linear.teacher_chances(own, actions, legal)
        assert sum(chances) == pytest.approx(1.0)
        assert chances[[render(a) for a in actions].index(render(own))] >= 0.7
        assert sum(regret.random_chances(legal).values()) == pytest.approx(1.0)
        assert all(env.canonical(render(action)) != "invalid" for action in actions)
        assert linear.features(observation.view, actions) == linear.features(observation.view, actions)
        observation = env.step(render(own)).observation
    assert messages > 0


def test_one_iteration_of_training_is_reproducible_and_moves_only_towards_better_samples(linear: ModuleType):
    weights = {role: np.zeros(linear.DIMENSIONS) for role in SEATS}
    job = linear.Segment(task=task(2), weights=weights, states=1, samples=4, worlds=1, turns=3, key=5)
    groups = linear.branch_segment(job)
    assert groups == linear.branch_segment(job)
    assert {group.role for group in groups} <= set(SEATS)
    for group in groups:
        decision = linear.advantages(group, linear.Scale(1.0, 1.0))
        if decision is None:
            continue
        moved = -0.1 * linear.Flat([decision]).gradient(np.zeros(linear.DIMENSIONS))
        chances = linear.probabilities(moved, group.rows)
        best = max(range(len(group.rows)), key=lambda i: decision.targets[i])
        worst = min(range(len(group.rows)), key=lambda i: decision.targets[i])
        assert chances[best] > chances[worst]


def test_standard_errors_are_clustered(regret: ModuleType):
    def row(episode: str) -> object:
        return regret.Regret(
            role="dev",
            episode=episode,
            regret=0.0,
            regret_ones=0.0,
            over_expert=0.0,
            spread=0.0,
            noise=0.0,
            replies=1,
            best="A",
            own="A",
        )

    apart, together = [row(str(i)) for i in range(4)], [row(str(i // 2)) for i in range(4)]
    values = [1.0, 1.0, 3.0, 3.0]
    assert regret.clustered(apart, values) == (2.0, pytest.approx(math.sqrt(4 / 3 * 4) / 4))
    assert regret.clustered(together, values) == (2.0, pytest.approx(math.sqrt(2 * 8) / 4))


def test_replies_that_are_all_worth_the_same_are_no_signal(regret: ModuleType):
    def row(episode: str, value: float) -> object:
        known = {"regret_ones": value, "over_expert": value, "spread": 0.0, "noise": 0.0, "replies": 2, "best": "A", "own": "A"}
        return regret.Regret(role="dev", episode=episode, regret=value, **known)

    assert regret.summary("dev", [row("a", 0.0), row("b", 0.0)])["ratio"] == 0.0
    assert regret.summary("dev", [row("a", 2.0), row("b", 2.0)])["ratio"] == math.inf


def test_the_best_is_never_valued_on_the_worlds_that_chose_it(regret: ModuleType):
    # B looks best only because of its first world; the expert plays A; a random player plays both alike.
    values, chance = {"A": [1.0, 1.0, 1.0, 1.0], "B": [9.0, 0.0, 0.0, 0.0]}, {"A": 0.5, "B": 0.5}
    clone = [0.7 * 1.0 + 0.3 * (1.0 + b) / 2.0 for b in values["B"]]
    # Without world 0, A is best; without any other, B is.
    singles = ((1.0 - clone[0]) + sum(0.0 - c for c in clone[1:])) / 4.0
    over = ((1.0 - 1.0) + 3 * (0.0 - 1.0)) / 4.0
    assert regret.cross_fitted(values, "A", chance, [[0], [1], [2], [3]]) == (pytest.approx(singles), pytest.approx(over))
    # Halves: worlds 2, 3 choose A, valued on 0, 1; worlds 0, 1 choose B, valued on 2, 3.
    halves = ((1.0 - (clone[0] + clone[1]) / 2.0) + (0.0 - (clone[2] + clone[3]) / 2.0)) / 2.0
    assert regret.cross_fitted(values, "A", chance, [[0, 1], [2, 3]]) == (pytest.approx(halves), pytest.approx(-0.5))


def test_a_state_is_valued_with_the_expert_among_the_replies(regret: ModuleType):
    states = regret.states_of(task(2))
    role, episode, snapshot = next(state for state in states if state[0] == "sales")
    found = regret.value(regret.Job(role=role, episode=episode, snapshot=snapshot, worlds=2, turns=4))
    assert found.replies >= 2
    assert math.isfinite(found.regret)
    assert found.own in {
        Action("QUALIFY_LEAD").action_type,
        "RUN_DEMO",
        "SEND_PROPOSAL",
        "CLOSE_DEAL",
        "FOLLOW_UP",
        "UPDATE_PIPELINE",
    }


@pytest.fixture
def speed(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(repository / "benchmarks")
    return importlib.import_module("office_sim")


def test_snapshots_are_measured_in_every_scenario_with_both_players(speed: ModuleType):
    found = speed.sizes("compact")
    assert list(found) == [f"{scenario}, {player}" for scenario in SHIPPED for player in ("expert", "heuristic")]
    rows = speed.snapshots("compact", 1)
    ratio = max(late / early for early, late in found.values())
    assert [row.value for row in rows if row.unit == "ratio"] == [ratio]
    assert [row.passed for row in rows if row.unit in ("kB", "ratio")] == [None, True, True]
    assert {row.target for row in rows if row.unit == "us"} == {150.0, 200.0, None}


def test_what_is_beyond_a_bound_fails_the_benchmark(speed: ModuleType):
    within = [speed.Row("a", 3.0, "us", 3.0, True), speed.Row("b", 2.0, "turns/s", 2.0), speed.Row("c", 9.0, "us")]
    assert speed.verdict(within) == 0
    assert speed.verdict([*within, speed.Row("d", 1.51, "ratio", 1.5, True)]) == 1
    assert speed.verdict([*within, speed.Row("d", 1.99, "turns/s", 2.0)]) == 1
    assert "| d | 1.51 | ratio | <= 1.5 | NO |" in speed.table([speed.Row("d", 1.51, "ratio", 1.5, True)])


def test_the_expert_in_a_seat_of_the_experts_team_adds_nothing(repository: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(repository / "benchmarks")
    teams = importlib.import_module("stand_in_teams")
    tasks = [task(), task(5)]
    experts = dict.fromkeys(SEATS, expert)
    lazy = {**experts, "sales": StandIn({"invalid": 0.999})}
    values, without = teams.values(tasks, experts), teams.values(tasks, lazy)
    assert teams.values(tasks, {**lazy, "sales": expert}) == values
    assert sum(without) < sum(values)
    assert teams.estimate([1.0, 3.0]) == (2.0, pytest.approx(1.0))


def test_every_iteration_with_recorded_habits_has_a_row(repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.syspath_prepend(repository / "benchmarks")
    teams = importlib.import_module("stand_in_teams")
    habits = {role: {"expert": 0.9, "invalid": 0.05} for role in SEATS}
    with Run.create(tmp_path, name="run", config={}) as run:
        for stand_ins in ({}, habits):
            with run.iteration((run.last_iteration() or 0) + 1) as record:
                facts = {FACT: {"task": task().row(), "start": None, "stand_ins": stand_ins}}
                record.episode("s00", policies={}, metrics={}, timeline=[], facts=facts)
    (row,) = teams.rows_of(tmp_path / "run", [task(), task(2)], ())
    assert (row.iteration, row.run, set(row.gains)) == (2, "run", set(SEATS))
    assert row.team.mean == pytest.approx(sum(teams.values([task(), task(2)], {r: StandIn(h) for r, h in habits.items()})) / 2)


def test_branches_played_turn_by_turn_are_the_branches(repository: Path, monkeypatch: pytest.MonkeyPatch):
    """With the heuristic in the learned team's place both ways of playing a branch on are the same, to the cent."""
    monkeypatch.syspath_prepend(repository / "benchmarks")
    agreement = importlib.import_module("partner_agreement")
    heuristic = scripted("heuristic")
    states = [state for state in agreement.states_for(6, 0) if state.turn < 400]
    replies = [agreement.replies_in(state, 4, 0) for state in states]
    assert len(states) == 6
    assert {state.actor for state in states} == set(SEATS)
    assert all(len(texts) == len(set(texts)) > 2 for texts in replies)
    expected = [agreement.scripted_values(s, r, [3, 77], 40, None) for s, r in zip(states, replies, strict=True)]
    found = agreement.learned_values(
        states,
        replies,
        [3, 77],
        40,
        policies=dict.fromkeys(SEATS, heuristic),
        encode=lambda _: (),
        sampling=Sampling(),
        rows=5,
    )
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=0.005)


def test_agreement_is_judged_in_worlds_that_were_not_seen(repository: Path, monkeypatch: pytest.MonkeyPatch):
    """Luck that a row shares with the learned team in the same worlds counts for nothing; what replies are worth does."""
    monkeypatch.syspath_prepend(repository / "benchmarks")
    benchmark = importlib.import_module("partner_agreement")
    rng = np.random.default_rng(0)
    tasks = [f"t{number}" for number in range(300)]
    luck = [rng.normal(size=(5, 4)) for _ in tasks]
    rank, best = benchmark.agreement(luck, luck, tasks, 0)
    assert rank.low < 0 < rank.high
    assert best.low < 0 < best.high
    worth = [values + 3.0 * np.arange(5)[:, None] for values in luck]
    rank, best = benchmark.agreement(worth, worth, tasks, 0)
    assert rank.low > 0.9
    assert best.mean == pytest.approx(6.0, abs=0.3)


def test_groups_valued_with_the_runs_own_weight_are_the_recorded_ones(repository: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(repository / "benchmarks")
    benchmark = importlib.import_module("losses_offline")
    scales = {"outcome": 50.0, "return": 0.2}
    worth = [(7_000.0, 4.0), (-2_000.0, 9.0), (500.0, -3.0)]
    members = tuple(
        Trajectory(
            task_id="t",
            actor="hr",
            turns=(),
            rewards=((outcome / 50.0 + 0.25 * ret / 0.2) / 140,),
            stop=StopReason.BRANCH,
            metrics={"outcome": outcome, "return": ret},
        )
        for outcome, ret in worth
    )
    group = Group(key="g", actor="hr", trajectories=members, facts={"turns": 140})
    again = benchmark.valued(group, 0.25, scales)
    assert [one.rewards[0] for one in again.trajectories] == pytest.approx([one.rewards[0] for one in members])
    other = [one.rewards[0] for one in benchmark.valued(group, 100.0, scales).trajectories]
    assert np.argsort(other).tolist() == [2, 0, 1]
    assert np.std(other) == pytest.approx(np.std([one.rewards[0] for one in members]))
