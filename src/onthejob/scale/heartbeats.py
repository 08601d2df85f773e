"""Heartbeats: how a driver notices a worker that neither answers nor ends, because it is stopped, hangs or cannot be reached.

Every worker reports from a thread of its own, so that a long job silences nothing and a stopped process is silent. Python code
lets that thread run every few milliseconds. Native code that keeps Python's lock (the GIL) does not, and looks like a stopped
process while it does: `PATIENCE_S` is far above what imports, pickling and well-behaved libraries need.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

BEAT_S = 2.0
"""Seconds between two reports of a worker."""
PATIENCE_S = 60.0
"""Seconds of silence after which a worker counts as lost: thirty reports."""
GAP_S = 2.0
"""Seconds that count at most between two looks of the driver at its clock."""


def beats(over: threading.Event) -> Iterator[None]:
    """A report at once, and one every `BEAT_S` seconds until `over`."""
    yield
    while not over.wait(BEAT_S):
        yield


class DriverClock:
    """Seconds in which the driver was looking.

    A driver that was stopped itself, as by Ctrl-Z or with its whole machine, has heard nothing meanwhile. That time is not the
    silence of its workers, nor a part of their deadlines.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock()
        self.now = 0.0
        """At the last look."""

    def look(self) -> None:
        """Let time pass, at most `GAP_S`."""
        at = self._clock()
        self.now += min(at - self._at, GAP_S)
        self._at = at
