"""Numbers that describe a role's groups, for progress lines and the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from onthejob.types import Group


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

    @property
    def alive_share(self) -> float:
        """In [0, 1]."""
        return self.alive / self.groups if self.groups else 0.0


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
    )


def sampled_tokens(groups: Sequence[Group]) -> int:
    """Tokens of all replies in `groups`."""
    return sum(len(turn.completion.token_ids) for group in groups for row in group.trajectories for turn in row.turns)
