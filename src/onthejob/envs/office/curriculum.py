"""A curriculum for `TaskPool`: episodes grow harder with the iterations, and a scenario that teaches nothing gets easier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Protocol

from annotated_types import Ge, Interval

from onthejob.setting_ranges import check_ranges
from onthejob.types import Task


class Alive(Protocol):
    """What is known of a task family: `rollout.pool.FamilyStatistics`."""

    @property
    def groups(self) -> int: ...
    @property
    def alive_share(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rising:
    """Difficulty from `start` to `end` over `iterations`; a family with too few alive groups is eased back towards `start`."""

    start: Annotated[float, Interval(ge=0, le=1)] = 0.2
    """Difficulty in [0, 1] of the first iteration."""
    end: Annotated[float, Interval(ge=0, le=1)] = 0.8
    """Difficulty in [0, 1] from iteration `iterations` on."""
    iterations: Annotated[int, Ge(1)] = 50
    floor: Annotated[float, Interval(ge=0, le=1)] = 0.25
    """Share of alive groups below which a scenario is eased, in [0, 1]; only once `enough` groups were seen."""
    enough: Annotated[int, Ge(1)] = 16

    def __post_init__(self) -> None:
        check_ranges(self)

    def __call__(self, task: Task, iteration: int, statistics: Mapping[str, Alive]) -> Task:
        """`task` at the difficulty of this iteration; a pure function, because a resumed run asks again."""
        difficulty = self.difficulty(iteration, statistics.get(str(task.payload.get("scenario", "baseline"))))
        payload = {**task.payload, "difficulty": difficulty}
        return replace(task, id=f"{task.id}-x{difficulty:.2f}", payload=payload)

    def difficulty(self, iteration: int, seen: Alive | None) -> float:
        """In [0, 1], to two decimals."""
        wanted = self.start + (self.end - self.start) * min(1.0, max(0, iteration) / self.iterations)
        if seen is not None and seen.groups >= self.enough and seen.alive_share < self.floor:
            wanted = self.start + (wanted - self.start) * seen.alive_share / self.floor
        return round(wanted, 2)
