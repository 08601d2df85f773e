"""Keyed randomness: every draw of the loop is a pure function of the root seed and a name.

Nothing random has to be saved for a resume, and the order in which episodes, groups or workers are handled cannot change a
result. Python's `hash` is not used because it differs between processes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def keyed_seed(root: int, *keys: int | str) -> int:
    """A seed in [0, 2^63) named by `keys` below `root`; `1` and `"1"` are different keys."""
    text = "\x1f".join(f"{'i' if isinstance(key, int) else 's'}{key}" for key in (root, *keys))
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") >> 1


def keyed_uniform(root: int, *keys: int | str) -> float:
    """A number in [0, 1) named by `keys` below `root`."""
    return (keyed_seed(root, *keys) >> 10) / float(1 << 53)


def keyed_choice(options: Sequence[T], root: int, *keys: int | str) -> T:
    """One of `options`, each with equal probability."""
    return options[keyed_seed(root, *keys) % len(options)]


def keyed_sample(
    options: Sequence[T], count: int, root: int, *keys: int | str, weights: Sequence[float] | None = None
) -> list[T]:
    """`count` options in keyed order; all are used once before any is used again.

    With `weights` (one > 0 for each option) the next one is always drawn in proportion to the weights of those that are left.
    """
    if not options:
        return []

    def place(lap: int, index: int) -> tuple[float, int]:
        if weights is None:
            return keyed_seed(root, *keys, lap, index), index
        # Of clocks that tick at rates in proportion to the weights, the first to tick (Efraimidis and Spirakis 2006).
        return -math.log1p(-keyed_uniform(root, *keys, lap, index)) / weights[index], index

    chosen: list[T] = []
    for lap in range(-(-count // len(options))):
        chosen += [options[index] for _, index in sorted(place(lap, index) for index in range(len(options)))]
    return chosen[:count]
