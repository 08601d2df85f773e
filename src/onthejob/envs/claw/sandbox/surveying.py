"""What a workspace holds, cheaply and without following anything: so that a record can tell which files a command changed.

For showing, not for grading: large files are compared by size and time alone, and a workspace with very many files is
surveyed in part. The grader reads what it checks by itself.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from onthejob.envs.claw.sandbox.sandbox_interface import Entry

MOST_ENTRIES = 2_000
DEEPEST = 32
HASHED_BYTES = 1 << 16
"""Larger files are compared by size and time."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def survey(root: Path) -> dict[str, Entry]:
    """Path -> entry of every file, link and empty folder below `root`, at most `MOST_ENTRIES`, in order of name."""
    found: dict[str, Entry] = {}
    try:
        _walk(os.open(root, _FOLDER), "", 0, found)
    except OSError:
        # The agent may have removed or closed its own folder.
        return found
    return dict(sorted(found.items()))


def changes(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> list[dict[str, str | int | None]]:
    """What was created, changed and removed, in order of name; bytes are those afterwards."""
    rows: list[dict[str, str | int | None]] = []
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        if new is None:
            rows.append({"path": path, "what": "removed", "bytes": None})
        elif old is None or old.mark != new.mark:
            rows.append({"path": path, "what": "created" if old is None else "changed", "bytes": new.size})
    return rows


def _walk(folder: int, prefix: str, depth: int, found: dict[str, Entry]) -> None:
    """Takes over the descriptor `folder`."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries)
        if not names and prefix:
            found[prefix] = Entry("folder", None)
        for name in names:
            if len(found) >= MOST_ENTRIES:
                return
            path = prefix + os.fsencode(name).decode("utf-8", "backslashreplace")
            try:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode) and depth < DEEPEST:
                    _walk(os.open(name, _FOLDER, dir_fd=folder), f"{path}/", depth + 1, found)
                else:
                    found[path] = _entry(name, folder, status)
            except OSError:
                found[path] = Entry("unreadable", None)
    finally:
        os.close(folder)


def _entry(name: str, folder: int, status: os.stat_result) -> Entry:
    if stat.S_ISLNK(status.st_mode):
        return Entry(f"link {os.readlink(name, dir_fd=folder)!r}", None)
    if not stat.S_ISREG(status.st_mode):
        return Entry(f"special {stat.S_IFMT(status.st_mode)}", None)
    size = status.st_size
    if size > HASHED_BYTES:
        return Entry(f"{size} {status.st_mtime_ns}", size)
    descriptor = os.open(name, _FILE, dir_fd=folder)
    try:
        return Entry(hashlib.sha256(os.read(descriptor, HASHED_BYTES + 1)).hexdigest(), size)
    finally:
        os.close(descriptor)
