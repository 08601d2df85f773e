"""TaskPool: which training tasks are played, and whether any of them still teaches anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onthejob.errors import ConfigError
from onthejob.rollout.keys import keyed_sample
from onthejob.types import Group, Split, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyStatistics:
    """What groups of one task family have shown so far."""

    groups: int
    alive: int
    """Groups whose rewards differed, so that they taught something."""
    mean_return: float

    @property
    def alive_share(self) -> float:
        """In [0, 1]; 0 before the first group."""
        return self.alive / self.groups if self.groups else 0.0


def family_of(task: Task) -> str:
    """`family` or `scenario` of the task's payload, or the environment's name."""
    return str(task.payload.get("family", task.payload.get("scenario", task.env)))


class TaskPool:
    """Seeded sampling of training tasks with difficulty statistics per family."""

    def __init__(self, tasks: Sequence[Task], *, seed: int, patience: int = 3, family: Callable[[Task], str] = family_of) -> None:
        """Take the tasks.

        Args:
            tasks: of split TRAIN, with unique ids.
            seed: keys the order.
            patience: iterations in a row without one alive group after which the pool counts as converged.
            family: task -> the name under which its statistics are kept.

        Raises:
            ConfigError: no tasks, a held-out task, a repeated id, or `patience` < 1.
        """
        if not tasks:
            raise ConfigError("the task pool is empty. Give at least one training task.")
        held_out = [task for task in tasks if task.split is not Split.TRAIN]
        if held_out:
            raise ConfigError(
                f"training refuses held-out tasks: {held_out[0].id} is of split {held_out[0].split} "
                f"({len(held_out)} of {len(tasks)}). Use tasks of split train."
            )
        if len({task.id for task in tasks}) != len(tasks):
            raise ConfigError(f"task ids must be unique, got {len(tasks)} tasks with repeated ids.")
        if patience < 1:
            raise ConfigError(f"patience must be >= 1, got {patience}.")
        self.tasks = tuple(tasks)
        self._seed = seed
        self._patience = patience
        self._family = {task.id: family(task) for task in tasks}
        self._groups: dict[str, int] = {}
        self._alive: dict[str, int] = {}
        self._returns: dict[str, float] = {}
        self._dead_iterations = 0

    def sample(self, count: int, *, iteration: int) -> list[Task]:
        """`count` tasks, keyed by the seed and the iteration; none twice before all were used once."""
        return keyed_sample(self.tasks, count, self._seed, "pool", iteration)

    def observe(self, groups: Sequence[tuple[Group, bool]]) -> None:
        """Record one iteration's (group, is alive)."""
        for group, alive in groups:
            family = self._family.get(group.trajectories[0].task_id, "other")
            mean = sum(trajectory.ret for trajectory in group.trajectories) / len(group)
            self._groups[family] = self._groups.get(family, 0) + 1
            self._alive[family] = self._alive.get(family, 0) + int(alive)
            self._returns[family] = self._returns.get(family, 0.0) + mean
        self._dead_iterations = 0 if any(alive for _, alive in groups) else self._dead_iterations + 1

    @property
    def converged(self) -> bool:
        """True when no group was alive in `patience` iterations in a row: the tasks have nothing more to teach."""
        return self._dead_iterations >= self._patience

    def statistics(self) -> dict[str, FamilyStatistics]:
        """Per family, in order of name."""
        return {
            family: FamilyStatistics(groups=count, alive=self._alive[family], mean_return=self._returns[family] / count)
            for family, count in sorted(self._groups.items())
        }

    def state(self) -> dict[str, Any]:
        """JSON-serialisable counters, for a checkpoint."""
        return {
            "groups": dict(self._groups),
            "alive": dict(self._alive),
            "returns": dict(self._returns),
            "dead_iterations": self._dead_iterations,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self._groups = {str(key): int(value) for key, value in state["groups"].items()}
        self._alive = {str(key): int(value) for key, value in state["alive"].items()}
        self._returns = {str(key): float(value) for key, value in state["returns"].items()}
        self._dead_iterations = int(state["dead_iterations"])
