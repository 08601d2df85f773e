"""Updates under way in a training worker: each has a thread of its own, can be cancelled, and ends with the worker."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from onthejob.errors import ServeError
from onthejob.learn.interrupt import Interrupt

POLL_S = 0.1
"""Seconds between two looks of an update that waits for its turn at whether it is cancelled."""

Event = dict[str, Any]


class Update:
    """One claimed job."""

    def __init__(self, key: str, role: str) -> None:
        self.key, self.role = key, role
        self.interrupt = Interrupt()
        self.ended = threading.Event()
        """Set once the job's outcome is recorded."""
        self._since = time.monotonic()
        self._answers: queue.Queue[Event] = queue.Queue()

    def told(self) -> dict[str, Any]:
        """How it is listed."""
        return {"key": self.key, "role": self.role, "seconds": round(time.monotonic() - self._since, 1)}

    def answer(self, event: Event) -> None:
        """Say what became of it; the first answer counts."""
        self._answers.put(event)

    def events(self, every_s: float) -> Iterator[Event]:
        """`running` every so many seconds, and finally the answer."""
        while True:
            try:
                yield self._answers.get(timeout=every_s)
                return
            except queue.Empty:
                yield {"event": "running", "key": self.key}


class Updates:
    """All that this worker has claimed and not ended; one of them computes at a time."""

    def __init__(self) -> None:
        self._one = threading.Lock()
        self._guard = threading.Lock()
        self._open: dict[str, Update] = {}
        self.ending = False
        """The worker ends: nothing more is begun."""

    @property
    def busy(self) -> bool:
        """True while something computes."""
        return self._one.locked()

    def listed(self) -> list[dict[str, Any]]:
        """Key, role and age of each, the oldest first."""
        with self._guard:
            return [update.told() for update in self._open.values()]

    def begin(self, key: str, role: str, work: Callable[[Update], Event]) -> Update:
        """Have `work` done in a thread of its own, whose result is the answer.

        Raises:
            ServeError: the worker ends.
        """
        update = Update(key, role)

        def run() -> None:
            try:
                update.answer(work(update))
            finally:
                with self._guard:
                    del self._open[key]
                update.ended.set()

        with self._guard:
            if self.ending:
                raise ServeError("this worker is about to end. Ask again when it was started anew.")
            self._open[key] = update
            threading.Thread(target=run, name="update", daemon=True).start()
        return update

    @contextmanager
    def turn(self, interrupt: Interrupt | None = None) -> Iterator[None]:
        """The model, for one `with` block at a time.

        Raises:
            Interrupted: `interrupt` was asked for before its turn came.
        """
        while not self._one.acquire(timeout=POLL_S):
            if interrupt is not None:
                interrupt.check()
        try:
            yield
        finally:
            self._one.release()

    def cancel(self, key: str, within_s: float) -> bool | None:
        """End one: whether it ended in time, None when it is not under way here."""
        with self._guard:
            update = self._open.get(key)
        if update is None:
            return None
        update.interrupt.ask()
        return update.ended.wait(within_s)

    def end(self, within_s: float) -> list[str]:
        """End all, and begin no more; keys of those that did not end in time."""
        with self._guard:
            self.ending = True
            left = list(self._open.values())
        for update in left:
            update.interrupt.ask()
            update.answer({"event": "stopped", "key": update.key})
        until = time.monotonic() + within_s
        return [update.key for update in left if not update.ended.wait(max(0.0, until - time.monotonic()))]
