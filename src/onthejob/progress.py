"""progress: log lines for work that takes minutes, from any room; quick work stays silent."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

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


class Watch:
    """Warns about calls that do not return: a thread checks those in progress and names each slow one once."""

    def __init__(self, limit_s: float) -> None:
        """limit_s: seconds after which a call is said to take long, > 0. No thread runs before the first call."""
        self.limit_s = limit_s
        self._calls: dict[int, tuple[float, Callable[[], str]]] = {}
        self._numbers = count()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @contextmanager
    def over(self, said: Callable[[], str]) -> Iterator[None]:
        """Watch what runs in the context; `said` is called in another thread, and names it at the beginning of a sentence."""
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._look, name="watch", daemon=True)
                    self._thread.start()
        number = next(self._numbers)
        self._calls[number] = (time.monotonic(), said)
        try:
            yield
        finally:
            del self._calls[number]

    def _look(self) -> None:
        warned: set[int] = set()
        while True:
            time.sleep(min(5.0, self.limit_s / 2))
            calls = dict(self._calls)
            warned &= set(calls)
            for number, (began, said) in calls.items():
                if number not in warned and (lasts := time.monotonic() - began) > self.limit_s:
                    warned.add(number)
                    log.warning("%s has not returned for %.0f s", said(), lasts)
