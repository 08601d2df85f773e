"""The value of a branch: what training compares, evaluation judges and the viewer shows again."""

from __future__ import annotations

from typing import Protocol


class Weights(Protocol):
    """Weights of the two terms."""

    @property
    def outcome_weight(self) -> float: ...
    @property
    def return_weight(self) -> float: ...


class Measured(Protocol):
    """One role's scales, see `onthejob.rollout.branch.Scales`."""

    @property
    def outcome(self) -> float: ...
    @property
    def ret(self) -> float: ...


def branch_value(outcome: float, ret: float, *, turns: int, weights: Weights, scales: Measured) -> float:
    """Outcome and the role's return, each per turn and in units of its scale, weighted.

    Args:
        outcome: change of the environment's objective.
        ret: what the role was paid over the branch.
        turns: length of the longest branch of its group.
        weights: of the two terms.
        scales: of the role.
    """
    return weights.outcome_weight * outcome / turns / scales.outcome + weights.return_weight * ret / turns / scales.ret
