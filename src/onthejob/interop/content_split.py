"""Which split a content belongs to: drawn from the content alone, so that equal ones are never on both sides."""

from __future__ import annotations

from collections.abc import Mapping

from onthejob.keys import keyed_uniform
from onthejob.types import Split

SHARES: Mapping[Split, float] = {Split.TRAIN: 0.8, Split.DEV: 0.9, Split.TEST: 1.0}
"""Up to which draw a content belongs to a split."""


def drawn(content: str) -> float:
    """The draw of a content, in [0, 1)."""
    return keyed_uniform(0, "split", content)


def drawn_split(content: str, shares: Mapping[Split, float] = SHARES) -> Split:
    """The split of a content."""
    draw = drawn(content)
    return next(split for split, most in shares.items() if draw < most)
