"""Numbers that describe a role's groups, for progress lines and the record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev, stdev

from onthejob.types import Group, StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """One role's groups of one iteration; all zero when there are none."""

    groups: int = 0
    alive: int = 0
    """Groups that teach something: their rewards differ, or some reply was invalid."""
    mean_return: float = 0.0
    return_std: float = 0.0
    """Mean over groups of the standard deviation inside the group."""
    valid_rate: float = 0.0
    """Share of sampled replies that were parsed and legal, in [0, 1]."""
    mean_length: float = 0.0
    """Tokens per reply."""
    clipped_ratio: float = 0.0
    """Share of replies that were cut at the token limit, in [0, 1]."""

    @property
    def alive_share(self) -> float:
        """In [0, 1]."""
        return self.alive / self.groups if self.groups else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpread:
    """Whether one group can teach, in figures that fit a line."""

    key: str
    returns: tuple[float, ...]
    std: float
    """Sample standard deviation of the returns (ddof 1): what advantages are divided by; 0 for a single return."""
    stops: Mapping[StopReason, int]
    """How the trajectories ended."""


def spreads(groups: Sequence[Group]) -> list[GroupSpread]:
    """One line per group: the smoke test before a run, and what a dead group looked like afterwards."""
    found = []
    for group in groups:
        returns = tuple(row.ret for row in group.trajectories)
        std = stdev(returns) if len(returns) > 1 else 0.0
        stops = dict(Counter(row.stop for row in group.trajectories))
        found.append(GroupSpread(key=group.key, returns=returns, std=std, stops=stops))
    return found


def stop_mix(groups: Sequence[Group]) -> dict[StopReason, float]:
    """Share of the trajectories that ended in each way, in [0, 1]; ways that did not occur are omitted."""
    counts = Counter(row.stop for group in groups for row in group.trajectories)
    total = sum(counts.values())
    return {stop: count / total for stop, count in sorted(counts.items())}


def summarise(groups: Sequence[Group], *, alive: int) -> GroupSummary:
    """Describe `groups`, of which `alive` teach something."""
    if not groups:
        return GroupSummary()
    rows = [row for group in groups for row in group.trajectories]
    turns = [turn for row in rows for turn in row.turns]
    return GroupSummary(
        groups=len(groups),
        alive=alive,
        mean_return=fmean(row.ret for row in rows),
        return_std=fmean(pstdev(row.ret for row in group.trajectories) for group in groups),
        valid_rate=fmean(turn.valid for turn in turns),
        mean_length=fmean(len(turn.completion.token_ids) for turn in turns),
        clipped_ratio=fmean(turn.completion.finish_reason == "length" for turn in turns),
    )


def sampled_tokens(groups: Sequence[Group]) -> int:
    """Tokens of all replies in `groups`."""
    return sum(len(turn.completion.token_ids) for group in groups for row in group.trajectories for turn in row.turns)
