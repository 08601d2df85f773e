"""Files and folders that are complete or absent, and the lock that keeps a second writer out.

A folder is published by writing it under a temporary name, flushing every file and the folder, renaming it, and flushing the
parent; a process killed anywhere leaves the whole folder or a temporary one, which the next writer removes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from onthejob.errors import RecordError

TEMPORARY = ".tmp-"
LOCK_FILE = "writer.lock"


def fsync(path: Path) -> None:
    """Flush a file or a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def published(final: Path) -> Iterator[Path]:
    """A temporary folder that becomes `final` when the block ends and vanishes when it raises.

    `final` must not exist; its parent must.
    """
    temporary = final.with_name(f"{TEMPORARY}{final.name}-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        for path in sorted(temporary.rglob("*")):
            fsync(path)
        fsync(temporary)
        temporary.rename(final)
        fsync(final.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def remove_abandoned(final: Path) -> None:
    """Remove temporary folders of `final` whose writers are no longer running."""
    for folder in final.parent.glob(f"{TEMPORARY}{final.name}-*"):
        pid = folder.name.removeprefix(f"{TEMPORARY}{final.name}-")
        if pid.isdigit() and not _is_running(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Remove a folder so that no half of it is ever seen under its name."""
    doomed = path if path.name.startswith(TEMPORARY) else path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}-old")
    if doomed != path:
        path.rename(doomed)
    shutil.rmtree(doomed)


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
                        "Wait until it ends or stop it; to look at the run meanwhile open it with readonly=True."
                    )
                path.unlink()
                descriptor = _try_lock(path)
                if descriptor is None:
                    raise RecordError(f"cannot take over the stale lock {path}. Remove the file and try again.")
            text = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, text.encode(), 0)
            return cls(path, descriptor)
        finally:
            os.close(guard)

    def release(self) -> None:
        """Give the right back. Safe to call twice."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


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
    except (ValueError, KeyError, TypeError):
        return None, None


def _is_alive(owner: tuple[int | None, str | None]) -> bool:
    """False only when it is certain: a process of this host that is gone."""
    pid, host = owner
    return pid is None or host != socket.gethostname() or _is_running(pid)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
