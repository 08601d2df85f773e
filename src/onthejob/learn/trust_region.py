"""How far an update moved the policy, and the share of its way that stays within a bound.

Trust region with backtracking (Schulman et al. 2015, 1502.05477): along a line between two adapters the divergence grows with the
square of the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from onthejob.learn.batch import Batch

_TRIES = 6
"""Shares that are tried; each takes one forward pass over the live groups."""
_MOST = 20.0
"""A larger change of a log-probability counts as this one: the number stays finite."""


def trajectory_changes(batches: Sequence[Batch], old: Sequence[Tensor], new: Sequence[Tensor]) -> list[float]:
    """By how much the log-probability of each trajectory of one collation changed, from `old` to `new`, nats.

    Args:
        batches: The collation's rows; a trajectory may be spread over several.
        old: Log-probabilities of each row's terms, shape (N,) each.
        new: The same under the other policy.
    """
    changes: dict[int, float] = {}
    for batch, first, second in zip(batches, old, new, strict=True):
        by_term = (second.double() - first.double()).tolist()
        for number, amount in zip(batch.trajectory.tolist(), by_term, strict=True):
            changes[number] = changes.get(number, 0.0) + amount
    return list(changes.values())


def policy_kl(changes: Sequence[float]) -> float:
    """KL divergence of a policy from a later one, nats per trajectory, by trajectories that the former sampled; 0 without any.

    Mean of exp(d) - 1 - d with d the change of a trajectory's log-probability: never negative, and unbiased (estimator k3 of
    Schulman 2020, Approximating KL Divergence), up to a bound that keeps it finite.
    """
    return sum(math.expm1(min(d, _MOST)) - d for d in changes) / len(changes) if changes else 0.0


def share_within(bound: float, kl_at: Callable[[float], float]) -> tuple[float, float]:
    """(share of the way, divergence there), with the divergence at most `bound`; the whole way when that is within it.

    Args:
        bound: nats, > 0.
        kl_at: goes to a share of the way, in [0, 1], and says how far the policy is from where it began. The last call is
            at the share that is returned; 0, the beginning, when no other is found.
    """
    share = 1.0
    for _ in range(_TRIES):
        kl = kl_at(share)
        if kl <= bound:
            return share, kl
        # A little less than the square says, so that one correction is enough; `max` takes 0.1 where kl is no number.
        share *= max(0.1, 0.9 * math.sqrt(bound / kl))
    return 0.0, kl_at(0.0)
