"""Jobs of `benchmarks/scale.py`, importable by every worker (this folder is on their path)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any


def paused(shelf: dict[str, Any], seconds: float) -> None:
    """Take so long."""
    time.sleep(seconds)


def loaded(shelf: dict[str, Any], seconds: float, tokens: int, sent: Sequence[Any]) -> tuple[tuple[float, ...], ...]:
    """Take so long in the place of loading adapters, and score the probe at 0."""
    time.sleep(seconds)
    return tuple((0.0,) * (tokens - 1) for _ in sent)
