"""Trackers of a run that is under way: one process each, which reads the record from outside and cannot disturb the loop.

The processes run at the lowest priority, in sessions of their own, and end with this one, also when it is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from onthejob.errors import RecordError
from onthejob.track.place import anchored, check_trackers
from onthejob.track.send_record import left_over, missing, remedy
from onthejob.track.sent_state import read_state

WAIT_S = 5.0
"""Seconds that the end of a run waits for all trackers together."""
STUCK_S = 10.0
"""Training does not wait for a tracker that has confirmed nothing for this long and lacks more than the last iteration."""
NICEST = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """The process of one tracker."""

    name: str
    process: subprocess.Popen[bytes]
    started: float
    """In seconds since the epoch."""


class Trackers:
    """The processes of a run's trackers. Use it as a context manager, or call `close`; close it before the run's record."""

    def __init__(self, run: Path, followers: Sequence[Follower]) -> None:
        self._run, self._followers = run, list(followers)
        self.left: tuple[str, ...] = ()
        """After `close`: a line for each tracker that has not received everything, and how it gets the rest."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def close(self, *, wait_s: float = WAIT_S) -> tuple[str, ...]:
        """Let the trackers send the rest for at most `wait_s` seconds, end them, and return the lines of `left`.

        Safe to call twice.
        """
        followers, self._followers = self._followers, []
        if not followers:
            return self.left
        for one in followers:
            with contextlib.suppress(ProcessLookupError):
                one.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + wait_s
        waiting = list(followers)
        while waiting and time.monotonic() < until:
            waiting = [one for one in waiting if one.process.poll() is None and not self._is_stuck(one)]
            if waiting:
                time.sleep(0.05)
        closed = {one.name for one in followers if one.process.poll() == 0}
        for one in followers:
            _end(one.process)
        self.left = tuple(line for one in followers if (line := self._lacking(one.name, closed=one.name in closed)))
        return self.left

    def _lacking(self, name: str, *, closed: bool) -> str:
        """A line about what a tracker lacks, or may lack; empty when it has everything."""
        try:
            left = left_over(self._run, name)
        except RecordError as error:
            return f"{name}: {error}"
        if left or closed:
            return left
        return f"{name} was ended before it had closed and may lack the last rows: {remedy(self._run, name)}"

    def _is_stuck(self, one: Follower) -> bool:
        """Whether it has confirmed nothing for a while although it lacks more than the last iteration."""
        if time.time() - max(one.started, read_state(self._run, one.name).confirmed_at) < STUCK_S:
            return False
        try:
            return missing(self._run, one.name)[0] > 1
        except RecordError:
            return True


def start_trackers(
    names: Sequence[str], run: Path, *, adapters: bool = False, environ: Mapping[str, str] | None = None
) -> Trackers:
    """Start one process per tracker, which follows the run in the folder `run` until `close`.

    Args:
        names: as `--track` takes them.
        run: the run's folder, in which its record exists.
        adapters: also send the adapters of kept checkpoints.
        environ: of the processes; None takes that of this one.

    Raises:
        ConfigError, MissingDependency: a name cannot work; no process is started then.
    """
    check_trackers(names)
    followers: list[Follower] = []
    try:
        for name in map(anchored, names):
            followers.append(Follower(name=name, process=_started(name, run, adapters, environ), started=time.time()))
    except BaseException:
        for one in followers:
            _end(one.process)
        raise
    return Trackers(run, followers)


def _started(name: str, run: Path, adapters: bool, environ: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "onthejob", "runs", "sync", str(run), "--track", name, "--follow", "--with-parent", "--quiet"]
    return subprocess.Popen(
        words + ["--adapters"] * adapters,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**(os.environ if environ is None else environ), "OMP_NUM_THREADS": "1"},
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process with all that it has started, and wait until it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
