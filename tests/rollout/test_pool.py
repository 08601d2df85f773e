"""The task pool refuses held-out tasks, samples by key, and notices when nothing is left to learn."""

from __future__ import annotations

import dataclasses
import json

import pytest

from onthejob.errors import ConfigError
from onthejob.rollout.pool import TaskPool
from onthejob.testing import toy_tasks
from onthejob.types import Completion, Group, Split, StopReason, Task, Trajectory, Turn


def group(task_id: str, rewards: tuple[float, ...]) -> Group:
    turn = Turn(prompt_ids=(1,), completion=Completion(text="x"), policy_version="v")
    rows = tuple(
        Trajectory(task_id=task_id, actor="a", turns=(turn,), rewards=(reward,), stop=StopReason.BRANCH) for reward in rewards
    )
    return Group(key=task_id, actor="a", trajectories=rows)


@pytest.mark.parametrize("split", [Split.DEV, Split.TEST])
def test_held_out_tasks_are_refused(split: Split):
    with pytest.raises(ConfigError, match="refuses held-out tasks: toy-"):
        TaskPool([*toy_tasks(2), *toy_tasks(1, split=split, first_seed=7)], seed=0)


def test_empty_and_repeated_tasks_are_refused():
    with pytest.raises(ConfigError, match="empty"):
        TaskPool([], seed=0)
    with pytest.raises(ConfigError, match="unique"):
        TaskPool(toy_tasks(2) + toy_tasks(1), seed=0)


def test_sampling_is_keyed_and_uses_every_task_before_repeating():
    pool, same = TaskPool(toy_tasks(5), seed=1), TaskPool(toy_tasks(5), seed=1)
    assert pool.sample(12, iteration=3) == same.sample(12, iteration=3)
    assert pool.sample(12, iteration=3) != pool.sample(12, iteration=4)
    ids = [task.id for task in pool.sample(10, iteration=0)]
    assert sorted(ids[:5]) == sorted(ids[5:]) == sorted(task.id for task in toy_tasks(5))


def test_families_whose_groups_differ_are_drawn_more_often_and_no_family_is_dropped():
    tasks = [*toy_tasks(20), *toy_tasks(20, days=9, first_seed=500)]
    pool = TaskPool(tasks, seed=0, prefer_spread=True)
    even = TaskPool(tasks, seed=0)
    assert pool.sample(8, iteration=0) == even.sample(8, iteration=0)
    # By hand: 0.5, then 0.5 + 0.7 (0.5 - 0.5) = 0.5 in one family, 0 in the other; average 0.25, floor 0.05.
    mixed, alike = group("toy-train-500", (0.0, 1.0)), group("toy-train-100000", (1.0, 1.0))
    pool.observe([(mixed, True), (alike, False), (mixed, True)])
    assert pool.statistics()["days9"].spread == pytest.approx(0.5)
    assert pool.statistics()["days5"].spread == 0.0
    drawn = [task for iteration in range(400) for task in pool.sample(1, iteration=iteration)]
    share = sum(task.payload["days"] == 9 for task in drawn) / len(drawn)
    # Weights 0.05 + 0.8 x 0.5 = 0.45 and 0.05: nine in ten, with a standard error of 0.015.
    assert share == pytest.approx(0.9, abs=0.05)
    assert len({task.id for task in pool.sample(40, iteration=1)}) == 40
    pool.observe([(alike, False), (group("toy-train-500", (1.0, 1.0)), False)])
    assert pool.statistics()["days9"].spread == pytest.approx(0.35)
    again = TaskPool(tasks, seed=0, prefer_spread=True)
    again.load_state(json.loads(json.dumps(pool.state())))
    assert again.sample(9, iteration=7) == pool.sample(9, iteration=7) != even.sample(9, iteration=7)


def test_what_failed_on_our_side_has_no_part_in_the_spread():
    pool = TaskPool(toy_tasks(1), seed=0)
    rows = group("toy-train-100000", (0.0, 1.0, 1.0)).trajectories
    failed = dataclasses.replace(rows[0], stop=StopReason.ERROR)
    pool.observe([(Group(key="g", actor="a", trajectories=(failed, *rows[1:])), False)])
    assert pool.statistics()["days5"].spread == 0.0


def test_convergence_needs_patience_and_is_reset_by_life():
    pool = TaskPool([*toy_tasks(1), *toy_tasks(1, days=9, first_seed=5)], seed=0, patience=2)
    dead, alive = group("toy-train-100000", (1.0, 1.0)), group("toy-train-5", (0.0, 3.0))
    pool.observe([(dead, False)])
    assert not pool.converged
    pool.observe([(dead, False), (alive, True)])
    pool.observe([(dead, False)])
    assert not pool.converged
    restored = TaskPool(pool.tasks, seed=0, patience=2)
    restored.load_state(json.loads(json.dumps(pool.state())))
    restored.observe([(dead, False)])
    assert restored.converged
    statistics = restored.statistics()
    assert statistics["days5"].groups == 4
    assert statistics["days5"].alive_share == 0.0
    assert statistics["days9"].mean_return == 1.5
    assert statistics["days9"].alive_share == 1.0


def test_iterations_without_any_group_say_nothing():
    pool = TaskPool(toy_tasks(1), seed=0, patience=2)
    pool.observe([(group("toy-train-100000", (1.0, 1.0)), False)])
    for _ in range(5):
        pool.observe([])
    assert not pool.converged
    pool.observe([(group("toy-train-100000", (1.0, 1.0)), False)])
    assert pool.converged


def test_states_of_a_curriculums_tasks_keep_their_family_over_a_resume():
    def harder(task: Task, iteration: int, _: object) -> Task:
        return dataclasses.replace(task, id=f"{task.id}-x{iteration}")

    pool, again = (TaskPool(toy_tasks(3), seed=0, curriculum=harder) for _ in range(2))
    (early,) = pool.sample(1, iteration=1)
    again.load_state(json.loads(json.dumps(pool.state())))
    for one in (pool, again):
        one.observe([(group(early.id, (0.0, 1.0)), True)])
    assert again.statistics() == pool.statistics()
    assert set(again.statistics()) == {"days5"}


def test_a_dry_pool_grows_and_a_resumed_one_grows_alike():
    def grow(number: int) -> list[Task]:
        return toy_tasks(2, first_seed=100_000 + 10 * number) if number < 3 else []

    pool = TaskPool(toy_tasks(2), seed=0, patience=2, grow=grow)
    dead = group("toy-train-100000", (1.0, 1.0))
    for _ in range(4):
        pool.observe([(dead, False)])
    assert (pool.rounds, len(pool.tasks), pool.converged) == (2, 6, False)
    again = TaskPool(toy_tasks(2), seed=0, patience=2, grow=grow)
    again.load_state(json.loads(json.dumps(pool.state())))
    assert again.tasks == pool.tasks
    assert again.sample(5, iteration=3) == pool.sample(5, iteration=3)
    for _ in range(2):
        again.observe([(dead, False)])
    assert again.converged
    with pytest.raises(ConfigError, match="had grown 2 times"):
        TaskPool(toy_tasks(2), seed=0).load_state(pool.state())


def test_a_pool_refuses_to_grow_by_held_out_or_known_tasks():
    dead = group("toy-train-100000", (1.0, 1.0))
    held_out = TaskPool(toy_tasks(2), seed=0, patience=1, grow=lambda number: toy_tasks(1, split=Split.TEST, first_seed=7))
    with pytest.raises(ConfigError, match="refuses held-out tasks: toy-test-7"):
        held_out.observe([(dead, False)])
    known = TaskPool(toy_tasks(2), seed=0, patience=1, grow=lambda number: toy_tasks(1))
    with pytest.raises(ConfigError, match="unique"):
        known.observe([(dead, False)])
