"""The time of a run: its limit, the pace of its iterations, and what each of them took."""

from __future__ import annotations

import math
import time
from statistics import median


class Clock:
    """Says whether another iteration ends in time, and how long the last one took."""

    def __init__(self, minutes: float) -> None:
        """Start it; `minutes` is the limit, 0 for none."""
        self.until = time.monotonic() + 60.0 * minutes if minutes else math.inf
        """`time.monotonic()` at which the time is up."""
        self._paces: list[float] = []
        self._begun = self._started = self._played = 0.0

    def allows_another(self) -> bool:
        """Whether an iteration that begins now ends in time at the median pace; the first one always begins."""
        return not self._paces or time.monotonic() + median(self._paces) <= self.until

    def start(self) -> None:
        """An iteration begins."""
        self._begun, self._started = time.monotonic(), time.perf_counter()

    def played(self) -> None:
        """Its episodes were played and scored."""
        self._played = time.perf_counter()

    def stop(self) -> None:
        """It is over."""
        self._paces.append(time.monotonic() - self._begun)

    @property
    def pace(self) -> float:
        """Seconds of the last iteration."""
        return self._paces[-1]

    def left(self, iterations: int) -> float:
        """Seconds that so many iterations take at the median pace, at most until the time is up."""
        return max(0.0, min(iterations * median(self._paces), self.until - time.monotonic()))

    def metrics(self, tokens: int) -> dict[str, float]:
        """Times of the iteration under way, in which `tokens` were sampled."""
        collect_s = self._played - self._started
        return {
            "collect_s": collect_s,
            "iteration_s": time.perf_counter() - self._started,
            "tokens_per_s": tokens / max(collect_s, 1e-9),
        }
