"""Reading what an agent left behind, without following it anywhere.

Every component of a path is opened below the folder before it, symbolic links are never followed, and what is read is proven
to be a regular file after it was opened, so that neither a link, a FIFO, a device nor a rename in between leads out of the
workspace or makes the reader wait. What cannot be read is said in words and never guessed.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_CHUNK = 1 << 16


class PathKind(StrEnum):
    """What is at a path."""

    NOTHING = "nothing"
    FILE = "file"
    FOLDER = "folder"
    OTHER = "other"
    """A symbolic link (dangling or not), FIFO, socket or device."""
    UNKNOWN = "unknown"
    """It is unknown, e.g. because the way leads through a symbolic link."""


class Unreadable(Exception):
    """Why a file could not be checked; the message is recorded with the verdict."""


@dataclass(frozen=True, slots=True)
class _Place:
    folder: int
    name: str


class Workspace:
    """The folder that a dead sandbox left. Close it, or use it as a context manager."""

    def __init__(self, root: Path) -> None:
        """Open the root.

        Raises:
            OSError: it is not a folder that this process can open: our failure, so nothing can be graded.
        """
        self._root = _enter(str(root), None)

    def close(self) -> None:
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def find(self, path: str) -> PathKind:
        """What is at `path`. Never raises because of what the workspace holds."""
        try:
            with self._place(path) as place:
                mode = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return PathKind.NOTHING
        except (OSError, Unreadable, ValueError):
            return PathKind.UNKNOWN
        return PathKind.FILE if stat.S_ISREG(mode) else PathKind.FOLDER if stat.S_ISDIR(mode) else PathKind.OTHER

    def read(self, path: str, *, limit: int) -> bytes:
        """The bytes of a regular file.

        Raises:
            Unreadable: it is missing, no regular file, larger than `limit` bytes, or cannot be read.
        """
        with self._opened(path) as (descriptor, size):
            if size > limit:
                raise Unreadable(f"has {size} bytes, more than the {limit} that are read")
            data = bytearray()
            while chunk := os.read(descriptor, min(_CHUNK, limit + 1 - len(data))):
                data += chunk
                if len(data) > limit:
                    raise Unreadable(f"has more than the {limit} bytes that are read")
            return bytes(data)

    def holds(self, path: str, *, size: int, sha256: bytes) -> bool:
        """True when a regular file has exactly this size and digest; reads at most `size` + 1 bytes.

        Raises:
            Unreadable: it is missing, no regular file, or cannot be read.
        """
        with self._opened(path) as (descriptor, found):
            if found != size:
                return False
            digest, left = hashlib.sha256(), size + 1
            while left and (chunk := os.read(descriptor, min(_CHUNK, left))):
                digest.update(chunk)
                left -= len(chunk)
            return left == 1 and digest.digest() == sha256

    @contextmanager
    def _opened(self, path: str) -> Iterator[tuple[int, int]]:
        """A descriptor of a regular file and its size."""
        descriptor = -1
        try:
            with self._place(path) as place:
                descriptor = _open(place.name, _FILE, place.folder)
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise Unreadable("is no regular file")
            yield descriptor, found.st_size
        except FileNotFoundError as error:
            raise Unreadable("is missing") from error
        except (OSError, ValueError) as error:
            raise Unreadable(f"cannot be read ({_reason(error)})") from error
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    @contextmanager
    def _place(self, path: str) -> Iterator[_Place]:
        """The folder that holds the last component of `path`, opened, and that component.

        Raises:
            FileNotFoundError: a component before the last is missing, or a regular file.
            Unreadable: the path leaves the workspace, or leads through something that is neither.
        """
        parts = path.split("/")
        if any(part in ("", ".", "..") for part in parts) or "\0" in path:
            raise Unreadable("is not a plain path inside the workspace")
        folder = os.dup(self._root)
        try:
            for part in parts[:-1]:
                mode = os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode
                if stat.S_ISREG(mode):
                    raise FileNotFoundError(part)
                if not stat.S_ISDIR(mode):
                    raise Unreadable("leads through a link or a special file")
                below = _enter(part, folder)
                os.close(folder)
                folder = below
            yield _Place(folder, parts[-1])
        finally:
            os.close(folder)


def _enter(name: str, folder: int | None) -> int:
    """Open a folder so that what is in it can be looked up."""
    descriptor = _open(name, _FOLDER, folder)
    found = os.fstat(descriptor)
    if found.st_uid == os.geteuid() and found.st_mode & 0o700 != 0o700:
        try:
            os.fchmod(descriptor, stat.S_IMODE(found.st_mode) | 0o700)
        except OSError:
            os.close(descriptor)
            raise
    return descriptor


def _open(name: str, flags: int, folder: int | None) -> int:
    """`openat`; where only the mode forbids it and the file is ours (the agent's `chmod 000`), the mode is repaired."""
    try:
        return os.open(name, flags, dir_fd=folder)
    except PermissionError:
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            mode = os.fstat(handle).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise
            Path(f"/proc/self/fd/{handle}").chmod(stat.S_IMODE(mode) | (0o700 if stat.S_ISDIR(mode) else 0o400))
            return os.open(name, flags, dir_fd=folder)
        finally:
            os.close(handle)


def _reason(error: Exception) -> str:
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
