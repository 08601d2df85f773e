"""Sampling of tokens from logits with keyed randomness, and their log-probabilities."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from onthejob.errors import ModelError

_BLOCK = 256
# Rows handled at a time: on a CPU so many that a large vocabulary's float32 copy stays in its cache; elsewhere as many as bound
# the copy's memory, because every part waits for the device (docs/log, 2026-11-26: 2.4 times the tokens/s at 128 rows).
_ROWS, _ROWS_ELSEWHERE = 8, 256


def uniforms(seed: int, count: int) -> np.ndarray:
    """`count` numbers in [0, 1), a function of the seed alone; a larger count begins with the same numbers. (count,) float64."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed))).random(count)


def draw(logits: Tensor, rows: Sequence[int], uniform: Tensor, *, temperature: float) -> tuple[list[int], list[float]]:
    """Draw token i from row rows[i] of the logits by inverting the distribution function at uniform[i].

    Args:
        logits: (R, vocab), any float dtype.
        rows: (M,) row of each draw, not decreasing; several draws may share a row.
        uniform: (M,) float64 in [0, 1); not used when the temperature is 0.
        temperature: 0 takes the most likely token.

    Returns:
        (M,) token ids, and their natural logs of probability under softmax(logits / temperature) in float32 (temperature 1 when
        greedy).

    Raises:
        ModelError: the logits are not finite.
    """
    tokens: list[int] = []
    logprobs: list[float] = []
    many = _ROWS if logits.device.type == "cpu" else _ROWS_ELSEWHERE
    for start in range(0, logits.shape[0], many):
        low, high = (bisect_left(rows, edge) for edge in (start, start + many))
        index = torch.tensor(rows[low:high], device=logits.device) - start
        found, logs = _draw(logits[start : start + many], index, uniform[low:high], temperature)
        tokens += found.tolist()
        logprobs += logs.tolist()
    return tokens, logprobs


def not_finite() -> ModelError:
    """What is raised when logits are not finite."""
    return ModelError("the model returned logits that are not finite. Its adapter has diverged: publish an earlier version.")


def _draw(logits: Tensor, index: Tensor, uniform: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    vocab = logits.shape[1]
    # Whole blocks: the distribution function is summed over blocks first, then inside one, which is faster and more accurate
    # than one running sum over the vocabulary.
    blocks = -(-vocab // _BLOCK)
    mass = torch.empty(logits.shape[0], blocks * _BLOCK, device=logits.device)
    mass[:, vocab:] = -torch.inf
    scaled = mass[:, :vocab]
    scaled.copy_(logits)
    if temperature not in (0.0, 1.0):
        scaled /= temperature
    top, best = scaled.max(-1)
    mass -= top[:, None]
    mass = mass.exp_().view(-1, blocks, _BLOCK)
    block_mass = mass.sum(-1)
    total = block_mass.sum(-1)
    if not torch.isfinite(total).all():
        raise not_finite()
    tokens = best[index] if temperature == 0.0 else _invert(mass, block_mass, index, uniform)
    chosen = logits[index, tokens].float() / (temperature or 1.0)
    return tokens, chosen - top[index] - total.log()[index]


def _invert(mass: Tensor, block_mass: Tensor, index: Tensor, uniform: Tensor) -> Tensor:
    """Tokens (M,) whose span of the distribution function holds uniform[i]; never one of zero mass."""
    sums = block_mass[index].double().cumsum(-1)
    target = uniform.to(sums)[:, None] * sums[:, -1:]
    block = _first_above(sums, target, block_mass[index])
    before = (sums - block_mass[index].double()).gather(1, block[:, None])
    inside = mass[index, block]
    return block * mass.shape[2] + _first_above(inside.double().cumsum(-1), target - before, inside)


def _first_above(sums: Tensor, target: Tensor, mass: Tensor) -> Tensor:
    """First index whose running sum exceeds the target, kept between the first and the last index of positive mass."""
    found = (sums <= target).sum(-1)
    positive = mass > 0
    last = mass.shape[1] - 1 - positive.flip(-1).int().argmax(-1)
    return torch.minimum(found, last).maximum(positive.int().argmax(-1))
