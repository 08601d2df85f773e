"""Sends what is new in a run's record to one tracker, once or for as long as the run is under way.

The record is opened read-only, read, and closed before anything is sent. After a failure the tracker is closed and opened again,
so that it states what it holds, and the rest is sent after a pause that grows.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onthejob.errors import ConfigError, TrackError
from onthejob.record import Run
from onthejob.record.database import FILE
from onthejob.record.lock import is_written
from onthejob.track.rows import read_packet
from onthejob.track.sent_state import State, noted, read_state, said, write_state
from onthejob.track.tracker import RunInfo, Tracker
from onthejob.types import Adapter

log = logging.getLogger(__name__)

AT_ONCE = 50
"""Iterations that are handed over before the tracker has to confirm them."""
POLL_S = 1.0
"""Seconds between two looks at the record."""
LONGEST_PAUSE_S = 60.0
"""Seconds between two tries after many failures."""
TRIES = 5
"""Of an attempt for which a caller waits."""
KEPT_EVERY = 10
"""Adapters of every tenth iteration are sent, as its checkpoint is kept, and those of the last one."""


@dataclass(slots=True, kw_only=True)
class Sync:
    """One tracker and what it has of one run."""

    folder: Path
    """Of the run."""
    name: str
    """Of the tracker, as it was given."""
    make: Callable[[], Tracker]
    adapters: bool = False
    """Send adapters too."""
    transcripts: int = 4
    """Episodes per iteration of which the turns are sent to trackers with a place for them."""
    sent: int = 0
    """Iterations that were sent since this object was made."""
    _state: State | None = None
    _tracker: Tracker | None = None
    _held: int | None = None
    """Newest iteration that the open tracker holds."""
    _seen: tuple[Any, ...] = ()
    """Sizes and times of the record's files when all of it had been sent."""

    def bring_up_to_date(self, *, last: bool) -> None:
        """Send all committed iterations that the tracker does not hold.

        Args:
            last: no iteration follows; the newest adapters are sent too.

        Raises:
            Exception: whatever the tracker raises; it is closed, and the next call opens it again.
        """
        try:
            files = _files(self.folder)
            if files != self._seen or self._tracker is None:
                while self._send_some():
                    pass
                self._seen = files
            if last:
                self._send_newest_adapters()
        except Exception as error:
            self.close()
            self._note(noted(self._known(), error))
            raise
        if self._known().error:
            self._note(replace(self._known(), error=""))

    def close(self) -> None:
        """Close the tracker; what it does not hold yet is sent when it is opened again."""
        tracker, self._tracker, self._seen = self._tracker, None, ()
        if tracker is not None:
            try:
                tracker.finish()
            except Exception as error:
                log.debug("closing %s: %s", self.name, said(error))

    def finish(self) -> None:
        """Close the tracker for good.

        Raises:
            Exception: it could not keep what it had confirmed.
        """
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            tracker.finish()

    def _send_some(self) -> bool:
        """Send up to AT_ONCE iterations; False when nothing is left."""
        with Run.open(self.folder, readonly=True, skip_damaged=True) as run:
            info = RunInfo(name=run.name, path=self.folder, created_at=run.created_at, config=run.config)
            iterations = run.iterations()
        tracker = self._opened(info)
        after = -1 if self._held is None else self._held
        steps = [step for step in iterations if step > after][:AT_ONCE]
        for step in steps:
            with Run.open(self.folder, readonly=True, skip_damaged=True) as run:
                packet = read_packet(run, step, id=info.id, transcripts=self.transcripts, tables=tracker.tables)
                kept = self._newest(run, step) if self.adapters and step % KEPT_EVERY == 0 else []
            if packet.metrics:
                tracker.metrics(step, packet.metrics)
            if packet.transcripts:
                tracker.transcripts(step, packet.transcripts)
            if tracker.tables:
                tracker.episodes(step, packet.episodes)
                tracker.turns(step, packet.turns)
            self._hand_over(tracker, step, kept)
        if not steps:
            return False
        tracker.flush()
        self._held = steps[-1]
        self.sent += len(steps)
        self._note(replace(self._known(), sent=self._held, error="", confirmed_at=time.time()))
        return steps[-1] != iterations[-1]

    def _opened(self, info: RunInfo) -> Tracker:
        if self._tracker is None:
            tracker = self.make()
            self._held = tracker.start(info, self._known().sent)
            self._tracker = tracker
            self._note(replace(self._known(), sent=self._held))
        return self._tracker

    def _send_newest_adapters(self) -> None:
        if not self.adapters or self._tracker is None or self._held is None:
            return
        with Run.open(self.folder, readonly=True, skip_damaged=True) as run:
            newest = self._newest(run, self._held)
        if self._hand_over(self._tracker, self._held, newest):
            self._tracker.flush()
            self._note(self._known())

    def _newest(self, run: Run, step: int) -> list[Adapter]:
        """The adapter of each role as it was after iteration `step`, when it has not been sent."""
        newest = {adapter.role: adapter for adapter in run.adapters(through=step)}
        return [adapter for adapter in newest.values() if adapter.name not in self._known().adapters]

    def _hand_over(self, tracker: Tracker, step: int, adapters: list[Adapter]) -> bool:
        for adapter in adapters:
            tracker.adapter(step, adapter)
            known = self._known()
            self._state = replace(known, adapters=(*known.adapters, adapter.name))
        return bool(adapters)

    def _known(self) -> State:
        if self._state is None:
            self._state = read_state(self.folder, self.name)
        return self._state

    def _note(self, state: State) -> None:
        self._state = state
        write_state(self.folder, state)


def once(sync: Sync, *, wait: Callable[[float], Any]) -> None:
    """Send everything that is recorded, with a few tries.

    Raises:
        TrackError: the tracker does not take it.
    """
    for number in range(TRIES):
        try:
            sync.bring_up_to_date(last=True)
            sync.finish()
            return
        except (ConfigError, TrackError):
            raise  # not a matter of time
        except Exception as error:
            sync.close()
            if number == TRIES - 1:
                raise TrackError(_refused(sync, error)) from error
            log.info("%s: %s; trying again", sync.name, said(error))
            wait(2.0**number)


def follow(sync: Sync, *, ended: Callable[[], bool], wait: Callable[[float], Any]) -> None:
    """Send what is committed until the run has ended and everything is sent.

    Args:
        sync: the run and the tracker.
        ended: True when no iteration will follow.
        wait: seconds; may return early, e.g. when the run has ended.

    Raises:
        TrackError: the run has ended, and the tracker does not take the rest.
    """
    failures = after_the_end = 0
    while True:
        last = ended()  # before the record is read: what was committed until then is seen
        try:
            sync.bring_up_to_date(last=last)
            failures = 0
            if last:
                sync.finish()
                return
        except Exception as error:
            failures += 1
            after_the_end += last
            if after_the_end >= TRIES:
                raise TrackError(_refused(sync, error)) from error
            log.info("%s: %s; trying again", sync.name, said(error))
        wait(min(LONGEST_PAUSE_S, 2.0 ** (after_the_end or failures)) if failures else POLL_S)


def left_over(folder: Path, name: str) -> str:
    """A line about what a tracker does not hold of a run, and how it gets the rest; empty when it has everything."""
    left, count = missing(folder, name)
    if not left:
        return ""
    error = read_state(folder, name).error
    why = f" ({error})" if error else ""
    return f"{left} of {count} iterations are not sent to {name} yet{why}: {remedy(folder, name)}"


def missing(folder: Path, name: str) -> tuple[int, int]:
    """How many iterations of a run a tracker does not hold, and how many the run has."""
    sent = read_state(folder, name).sent
    with Run.open(folder, readonly=True, skip_damaged=True) as run:
        iterations = run.iterations()
    return sum(sent is None or step > sent for step in iterations), len(iterations)


def remedy(folder: Path, name: str) -> str:
    """The command that sends what is missing."""
    return f"`onthejob runs sync {folder} --track {name}` sends them"


def is_over(folder: Path) -> bool:
    """Whether no process writes the run."""
    return not is_written(folder)


def _refused(sync: Sync, error: Exception) -> str:
    with contextlib.suppress(Exception):
        if left := left_over(sync.folder, sync.name):
            return f"{sync.name} does not take the record: {said(error)}. {left}"
    return f"{sync.name} does not take the record: {said(error)}. Repeat the command; what it holds is not sent again."


def _files(folder: Path) -> tuple[Any, ...]:
    """What changes when something is committed."""
    found: list[Any] = []
    for path in (folder / FILE, folder / f"{FILE}-wal"):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)
