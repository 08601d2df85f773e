"""Settings of TRL's GRPO that `onthejob train` has no option for, as a user's own losses: `--loss trl_losses.py:two_sided`."""

from __future__ import annotations

import torch
from torch import Tensor

from onthejob.learn.own import LossTerms

DELTA = 1.3
"""`delta`: ratios are capped here too where the advantage is negative."""
BETA = 0.04
"""`beta` of `corrected_kl`."""


def clipped(ratio: Tensor, advantage: Tensor) -> Tensor:
    return torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)


def two_sided(terms: LossTerms) -> Tensor:
    """`delta`."""
    ratio = torch.exp(terms.logprobs - terms.old)
    return -torch.min(ratio.clamp(max=DELTA) * terms.advantage, ratio.clamp(0.8, 1.2) * terms.advantage)


def by_sequence(terms: LossTerms) -> Tensor:
    """`importance_sampling_level` "sequence": one ratio per trajectory, from the mean log-ratio."""
    changes = terms.logprobs - terms.old
    sums = changes.new_zeros(int(terms.trajectory.max()) + 1).index_add(0, terms.trajectory, changes)
    return -clipped(torch.exp(sums[terms.trajectory] / terms.length), terms.advantage)


def corrected_kl(terms: LossTerms) -> Tensor:
    """`use_bias_correction_kl`: the KL term times the ratio."""
    assert terms.reference is not None
    ratio, gap = torch.exp(terms.logprobs - terms.old), terms.reference - terms.logprobs
    return -clipped(ratio, terms.advantage) + BETA * (torch.exp(gap) - gap - 1) * ratio
