"""TaskPool: which training tasks are played, and whether any of them still teaches anything."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import pstdev
from typing import Any, Protocol

from onthejob.errors import ConfigError
from onthejob.keys import keyed_sample
from onthejob.types import Group, Split, StopReason, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyStatistics:
    """What groups of one task family have shown so far."""

    groups: int
    alive: int
    """Groups whose rewards differed, so that they taught something."""
    mean_return: float
    spread: float = 0.0
    """Standard deviation of the returns within a group, mean over its groups, later ones counting more."""

    @property
    def alive_share(self) -> float:
        """In [0, 1]; 0 before the first group."""
        return self.alive / self.groups if self.groups else 0.0


Grow = Callable[[int], Sequence[Task]]
"""Round of growth, from 1 -> new training tasks; a pure function, because a resumed run asks again. Empty: there are no more."""


class Curriculum(Protocol):
    """Turns a sampled task into the one that is played, e.g. at another difficulty."""

    def __call__(self, task: Task, iteration: int, statistics: Mapping[str, FamilyStatistics], /) -> Task:
        """A pure function, because a resumed run asks again; the split stays, the id differs when the task does."""
        ...


_RECENT = 0.3
"""Weight of a family's newest group in its spread."""
_FLOOR = 0.2
"""Of the average spread, what every family weighs at least: the mastered may be forgotten, the hopeless may not stay so."""


def family_of(task: Task) -> str:
    """`family` or `scenario` of the task's payload, or the environment's name."""
    return str(task.payload.get("family", task.payload.get("scenario", task.env)))


class TaskPool:
    """Seeded sampling of training tasks with difficulty statistics per family."""

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        seed: int,
        patience: int = 3,
        family: Callable[[Task], str] = family_of,
        grow: Grow | None = None,
        curriculum: Curriculum | None = None,
        prefer_spread: bool = False,
    ) -> None:
        """Take the tasks.

        Args:
            tasks: of split TRAIN, with unique ids.
            seed: keys the order.
            patience: iterations in a row without one alive group after which the pool counts as converged.
            family: task -> the name under which its statistics are kept.
            grow: makes more training tasks when these have nothing more to teach; without it the pool converges then.
            curriculum: changes each sampled task by iteration and by what its family has shown so far.
            prefer_spread: draw tasks in proportion to the spread of returns in their family's groups, instead of evenly: where
                all episodes of a group end alike, nothing is learned. A family that was not met yet counts as the average, and
                none counts less than a fifth of that.

        Raises:
            ConfigError: no tasks, a held-out task, a repeated id, or `patience` < 1.

        Source: sampling for learnability (Rutherford et al. 2024, arXiv 2408.15099), there with p(1 - p) of binary rewards.
        """
        if not tasks:
            raise ConfigError("the task pool is empty. Give at least one training task.")
        if patience < 1:
            raise ConfigError(f"patience must be >= 1, got {patience}.")
        self.tasks: tuple[Task, ...] = ()
        self._seed = seed
        self._patience = patience
        self._family_of = family
        self._family: dict[str, str] = {}
        self._grow = grow
        self._curriculum = curriculum
        self._prefer_spread = prefer_spread
        self._rounds = 0
        self._given = tuple(tasks)
        self._identity: dict[str, Any] = {}
        self._add(tasks)
        self._groups: dict[str, int] = {}
        self._alive: dict[str, int] = {}
        self._returns: dict[str, float] = {}
        self._spreads: dict[str, float] = {}
        self._dead_iterations = 0
        self._changed: dict[str, str] = {}
        """Family of what the curriculum made: play continues from its states in later iterations."""

    def sample(self, count: int, *, iteration: int) -> list[Task]:
        """`count` tasks, keyed by the seed and the iteration; none twice before all were used once.

        Raises:
            ConfigError: the curriculum made a held-out task of a training task.
        """
        drawn = keyed_sample(self.tasks, count, self._seed, "pool", iteration, weights=self._weights())
        if self._curriculum is None:
            return drawn
        statistics = self.statistics()
        changed = [self._curriculum(task, iteration, statistics) for task in drawn]
        _refuse_held_out(changed)
        self._changed |= {new.id: self._family[old.id] for old, new in zip(drawn, changed, strict=True)}
        return changed

    def _weights(self) -> list[float] | None:
        """Of each task, or None when all are equally likely."""
        total = sum(self._spreads.values())
        if not self._prefer_spread or total == 0.0:
            return None
        average = total / len(self._spreads)
        spreads = [self._spreads.get(self._family[task.id], average) for task in self.tasks]
        return [_FLOOR * average + (1.0 - _FLOOR) * spread for spread in spreads]

    def meet(self, tasks: Sequence[Task]) -> None:
        """Count groups of these tasks under their families, although they are not drawn from this pool.

        Raises:
            ConfigError: a held-out task.
        """
        _refuse_held_out(tasks)
        self._changed |= {task.id: self._family_of(task) for task in tasks if task.id not in self._family}

    def observe(self, groups: Sequence[tuple[Group, bool]]) -> None:
        """Record one iteration's (group, is alive)."""
        for group, alive in groups:
            task_id = group.trajectories[0].task_id
            family = self._family.get(task_id) or self._changed.get(task_id, "other")
            mean = sum(trajectory.ret for trajectory in group.trajectories) / len(group)
            self._groups[family] = self._groups.get(family, 0) + 1
            self._alive[family] = self._alive.get(family, 0) + int(alive)
            self._returns[family] = self._returns.get(family, 0.0) + mean
            spread = _spread(group)
            self._spreads[family] = spread + (1.0 - _RECENT) * (self._spreads.get(family, spread) - spread)
        # An iteration without any group or valid reply measured nothing: what the tasks could teach is not known.
        if any(alive for _, alive in groups):
            self._dead_iterations = 0
        elif any(turn.valid for group, _ in groups for row in group.trajectories for turn in row.turns):
            self._dead_iterations += 1
        if self.converged:
            self._grow_once()

    @property
    def rounds(self) -> int:
        """How often the pool has grown."""
        return self._rounds

    @property
    def converged(self) -> bool:
        """True when no group was alive in `patience` iterations in a row: the tasks have nothing more to teach.

        Iterations without a group, or without a valid reply, count for neither side.
        """
        return self._dead_iterations >= self._patience

    def statistics(self) -> dict[str, FamilyStatistics]:
        """Per family, in order of name."""
        return {
            family: FamilyStatistics(
                groups=count,
                alive=self._alive[family],
                mean_return=self._returns[family] / count,
                spread=self._spreads.get(family, 0.0),
            )
            for family, count in sorted(self._groups.items())
        }

    def identity(self) -> dict[str, Any]:
        """What a resumed run must have again, JSON-serialisable: the seed, and the number and digest of the given tasks.

        Raises:
            ConfigError: a task's payload is not JSON.
        """
        if not self._identity:
            digest = hashlib.sha256()
            for task in self._given:
                try:
                    digest.update(json.dumps(task.row(), sort_keys=True).encode() + b"\n")
                except (TypeError, ValueError) as error:
                    raise ConfigError(
                        f"the payload of task {task.id} must be JSON: {error}. Use text, numbers and lists."
                    ) from error
            settings = {"seed": self._seed, "patience": self._patience, "tasks": len(self._given)}
            self._identity = {**settings, "tasks_digest": digest.hexdigest()[:16]}
        return self._identity

    def state(self) -> dict[str, Any]:
        """JSON-serialisable counters, for a checkpoint."""
        return {
            "groups": dict(self._groups),
            "alive": dict(self._alive),
            "returns": dict(self._returns),
            "spreads": dict(self._spreads),
            "dead_iterations": self._dead_iterations,
            "changed": dict(self._changed),
            "rounds": self._rounds,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned; the pool grows again as it had grown.

        Raises:
            ConfigError: it had grown, and `grow` is missing or gives other tasks.
        """
        for _ in range(int(state.get("rounds", 0)) - self._rounds):
            if not self._grow_once():
                raise ConfigError(f"the pool had grown {state['rounds']} times. Give it the `grow` that it had.")
        self._groups = {str(key): int(value) for key, value in state["groups"].items()}
        self._alive = {str(key): int(value) for key, value in state["alive"].items()}
        self._returns = {str(key): float(value) for key, value in state["returns"].items()}
        # Checkpoints of before there were spreads have none; their runs draw evenly.
        self._spreads = {str(key): float(value) for key, value in state.get("spreads", {}).items()}
        self._dead_iterations = int(state["dead_iterations"])
        self._changed = {str(key): str(value) for key, value in state.get("changed", {}).items()}

    def _grow_once(self) -> bool:
        """One round of growth; False when there are no more tasks."""
        new = self._grow(self._rounds + 1) if self._grow is not None else ()
        if not new:
            return False
        self._add(new)
        self._rounds += 1
        self._dead_iterations = 0
        return True

    def _add(self, tasks: Sequence[Task]) -> None:
        _refuse_held_out(tasks)
        ids = [task.id for task in (*self.tasks, *tasks)]
        if len(set(ids)) != len(ids):
            raise ConfigError(f"task ids must be unique, got {len(ids)} tasks with repeated ids.")
        self.tasks = (*self.tasks, *tasks)
        self._family |= {task.id: self._family_of(task) for task in tasks}


def _spread(group: Group) -> float:
    """Standard deviation of the returns; episodes that ended in an error have none."""
    returns = [trajectory.ret for trajectory in group.trajectories if trajectory.stop is not StopReason.ERROR]
    return pstdev(returns) if returns else 0.0


def _refuse_held_out(tasks: Sequence[Task]) -> None:
    held_out = [task for task in tasks if task.split is not Split.TRAIN]
    if held_out:
        raise ConfigError(
            f"training refuses held-out tasks: {held_out[0].id} is of split {held_out[0].split} "
            f"({len(held_out)} of {len(tasks)}). Use tasks of split train."
        )
