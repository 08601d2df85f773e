"""Keyed draws for the synthesizer: the same key gives the same choices on every machine and Python version."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """A stream of choices that belongs to one key (the numbers and words given)."""

    def __init__(self, *key: int | str) -> None:
        self._key = repr(key).encode()
        self._count = 0

    def below(self, limit: int) -> int:
        """A whole number in [0, limit); `limit` >= 1."""
        self._count += 1
        digest = hashlib.blake2b(self._key + b"#%d" % self._count, digest_size=8).digest()
        # 64 bits for limits of at most a few thousand: the modulo's bias is below 1e-15.
        return int.from_bytes(digest, "big") % limit

    def number(self, low: int, high: int) -> int:
        """A whole number in [low, high]."""
        return low + self.below(high - low + 1)

    def pick(self, values: Sequence[T]) -> T:
        """One of `values`."""
        return values[self.below(len(values))]

    def some(self, values: Sequence[T], count: int) -> list[T]:
        """`count` different positions of `values`, in drawn order; `count` <= len(values)."""
        left = list(values)
        return [left.pop(self.below(len(left))) for _ in range(count)]

    def shuffled(self, values: Sequence[T]) -> list[T]:
        """All of `values` in drawn order."""
        return self.some(values, len(values))
