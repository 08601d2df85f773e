"""The lock that keeps a second writer out of a run."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from pathlib import Path
from typing import Self

from onthejob.errors import RecordError
from onthejob.files import is_running

LOCK_FILE = "writer.lock"


class WriterLock:
    """Exclusive right to write one run, held by this process until `release` or its death.

    The kernel's `flock` decides; the file's text (pid, host) tells people who holds it. When the holder is dead but a forked
    child of it still has the file open, the lock is taken over.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    @classmethod
    def acquire(cls, folder: Path) -> Self:
        """Lock the run in `folder`.

        Raises:
            RecordError: another living process writes this run; names its pid.
            OSError: the folder cannot be written.
        """
        path = folder / LOCK_FILE
        guard = os.open(folder, os.O_RDONLY)
        try:
            # Acquisitions take turns, so that two processes cannot both replace a dead owner's file.
            fcntl.flock(guard, fcntl.LOCK_EX)
            descriptor = _try_lock(path)
            if descriptor is None:
                owner = _owner(path)
                if _is_alive(owner):
                    raise RecordError(
                        f"{folder} is being written by process {owner[0] or '?'} on {owner[1] or 'an unknown host'}. "
                        "Wait until it ends or stop it; `onthejob runs show` and `view` can be used meanwhile."
                    )
                path.unlink()
                descriptor = _try_lock(path)
                if descriptor is None:
                    raise RecordError(f"cannot take over the stale lock {path}. Remove the file and try again.")
            text = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
            try:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, text.encode(), 0)
            except OSError:  # A full disk: a process that cannot name itself must not lock others out.
                os.close(descriptor)
                raise
            return cls(path, descriptor)
        finally:
            os.close(guard)

    def release(self) -> None:
        """Give the right back. Safe to call twice."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


def is_written(folder: Path) -> bool:
    """Whether a living process writes the run in `folder`; a look, which takes no lock."""
    pid, host = _owner(folder / LOCK_FILE)
    return pid is not None and _is_alive((pid, host))


def was_killed(folder: Path) -> bool:
    """Whether the last writer of the run in `folder` died without giving its right back; a look, which takes no lock."""
    pid, host = _owner(folder / LOCK_FILE)
    return pid is not None and not _is_alive((pid, host))


def _try_lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _owner(path: Path) -> tuple[int | None, str | None]:
    try:
        owner = json.loads(path.read_text())
        return int(owner["pid"]), str(owner["host"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, None


def _is_alive(owner: tuple[int | None, str | None]) -> bool:
    """False only when it is certain: a process of this host that is gone."""
    pid, host = owner
    return pid is None or host != socket.gethostname() or is_running(pid)
