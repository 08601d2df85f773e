"""Attention of rows that share prompts: prompts of similar length are computed together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

Prompt = tuple[int, Sequence[int], int]
"""Slot, ids, and where what is not loaded begins."""
TOGETHER = 4096
"""Tokens of prompts that are computed side by side; bounds memory."""
_NEAR = 0.75
"""A prompt shorter than this share of the longest in its bucket may begin another one."""
_WORTH = 2048
"""Padded tokens, over all prompts from there on, that another bucket must save: it costs some small operations per layer."""


def portions(prompts: Sequence[Prompt]) -> list[list[Prompt]]:
    """Prompts that are computed side by side: up to `TOGETHER` tokens, or one prompt."""
    found: list[list[Prompt]] = []
    size = 0
    for prompt in prompts:
        count = len(prompt[1]) - prompt[2]
        if not found or size + count > TOGETHER:
            found.append([])
            size = 0
        found[-1].append(prompt)
        size += count
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Prompts that attend together, with the rows that continue them."""

    cache: tuple[Tensor, Tensor]
    """Keys and values, of the prompts first; those behind have no row any more."""
    prompts: int
    length: int
    """Tokens of the longest prompt."""
    width: int
    """Rows of the prompt that has most of them."""
    gather: Tensor | None
    """Row of each place, prompt by prompt, (prompts * width,); None when that is every row in order."""
    mask: Tensor | None
    """-inf on padding.  # (prompts, 1, 1, length); None without padding"""

    def by_prompt(self, x: Tensor) -> Tensor:
        """(rows, kv, g, n) -> (prompts, kv, width * g, n): the rows of one prompt side by side, short ones padded."""
        kv, g, n = x.shape[1:]
        if self.gather is not None:
            x = x.index_select(0, self.gather)
        return x.view(-1, self.width, kv, g, n).transpose(1, 2).reshape(-1, kv, self.width * g, n)

    def by_row(self, x: Tensor) -> Tensor:
        """(prompts, kv, width * g, n) -> (prompts * width, kv, g, n)."""
        prompts, kv, _, n = x.shape
        return x.view(prompts, kv, self.width, -1, n).transpose(1, 2).reshape(prompts * self.width, kv, -1, n)


def edges(lengths: Sequence[int]) -> list[int]:
    """Where neighbouring prompts are parted, the ends included; prompts sorted by length give the best buckets."""
    edges, longest = [0], lengths[0]
    for slot, length in enumerate(lengths):
        if length < _NEAR * longest and sum(longest - other for other in lengths[slot:]) >= _WORTH:
            edges.append(slot)
            longest = length
        longest = max(longest, length)
    return [*edges, len(lengths)]


def scores_of(queries: Tensor, keys: Tensor) -> Tensor:
    """(..., m, dim) and (..., n, dim) -> (..., m, n); few queries on the right, as transposed keys would be copied first."""
    return (keys @ queries.transpose(-1, -2)).transpose(-1, -2)
