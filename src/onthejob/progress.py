"""progress: log lines for work that takes minutes, from any room; quick work stays silent."""

from __future__ import annotations

import logging
import time

log = logging.getLogger(__name__)

EVERY_S = 20.0
"""Seconds between two lines, and before the first one."""


class Progress:
    """Reports one piece of work to the log, at most every `EVERY_S` seconds."""

    def __init__(self, what: str) -> None:
        """`what` names the work and begins every line."""
        self._what = what
        self._begun = self._said = time.monotonic()

    @property
    def seconds(self) -> float:
        """Time since the work began."""
        return time.monotonic() - self._begun

    @property
    def due(self) -> bool:
        """True when the next line may be logged."""
        return time.monotonic() - self._said >= EVERY_S

    def say(self, text: str) -> None:
        """Log `text` when a line is due."""
        if self.due:
            self._said = time.monotonic()
            log.info("%s: %s", self._what, text)

    def count(self, done: int, total: int, unit: str) -> None:
        """Log `done` of `total` when a line is due, with the time that the rest takes at this pace."""
        if 0 < done < total:
            left = self.seconds / done * (total - done)
            self.say(f"{done:,} of {total:,} {unit}, about {left:,.0f} s left")
