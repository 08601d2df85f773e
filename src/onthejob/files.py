"""Files and folders that are complete or absent; their digests, lines of JSON, and SQLite connections.

Files and folders are written under a temporary name, flushed, renamed, and the folder that holds them is flushed: a process
killed anywhere leaves the whole or a temporary one, which `remove_abandoned` removes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TEMPORARY = ".tmp-"
_WRITER = re.compile(r"-(\d+)(?:\.\d+)?(?:-old)?$")
"""The process in the name of a temporary file or folder, and the thread where several may write at once."""


def cache_dir() -> Path:
    """Where models, images and compiled code are kept: $ONTHEJOB_CACHE, or `onthejob` in the user's cache directory."""
    chosen = os.environ.get("ONTHEJOB_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "onthejob"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "onthejob" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onthejob"


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


def json_lines(path: Path) -> list[tuple[int, str]]:
    """The lines of a JSONL file that are not empty, each with its number from 1.

    A line ends at a line feed and nowhere else: JSON may hold U+2028 and its like as they are, where `str.splitlines` cuts.

    Raises:
        OSError, UnicodeDecodeError: it cannot be read.
    """
    lines = path.read_text(encoding="utf-8").split("\n")
    return [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]


@contextmanager
def _naming(final: Path) -> Iterator[None]:
    """Give an OSError inside the block the name of what is being written: that of a full disk has none."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(final)
        raise


@contextmanager
def published_file(final: Path) -> Iterator[Path]:
    """Where to write a file that becomes `final`, which it replaces, when the block ends and vanishes when it raises.

    The parent of `final` must exist.

    Raises:
        OSError: it cannot be written; names `final` where the system names no file.
    """
    temporary = final.with_name(f"{TEMPORARY}{final.name}-{os.getpid()}.{threading.get_ident()}")
    try:
        with _naming(final):
            yield temporary
            fsync(temporary)
            temporary.replace(final)
            fsync(final.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def published(final: Path) -> Iterator[Path]:
    """A temporary folder that becomes `final` when the block ends and vanishes when it raises.

    `final` must not exist; its parent must.

    Raises:
        OSError: it cannot be written; names `final` where the system names no file.
    """
    temporary = final.with_name(f"{TEMPORARY}{final.name}-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        with _naming(final):
            yield temporary
            for path in sorted(temporary.rglob("*")):
                fsync(path)
            fsync(temporary)
            temporary.rename(final)
            fsync(final.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def remove_abandoned(folder: Path, name: str = "") -> None:
    """Remove what writers that are no longer running left half written in `folder`: all of it, or drafts of `name`."""
    for path in folder.glob(f"{TEMPORARY}{name or '*'}-*"):
        writer = _WRITER.search(path.name)
        if writer is None or is_running(int(writer[1])):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def remove_folder(path: Path) -> None:
    """Remove a folder so that no half of it is ever seen under its name."""
    doomed = path if path.name.startswith(TEMPORARY) else path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}-old")
    if doomed != path:
        path.rename(doomed)
    shutil.rmtree(doomed)


def is_running(pid: int) -> bool:
    """Whether a process of this host has that id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def where_kept(path: Path | str) -> str:
    """A sentence about a path that the project's documents name and an installed package lacks; empty for every other path.

    The wheel holds the package alone, the source archive everything but `adapters/`, the repository all of it.
    """
    place = Path(path).as_posix().removeprefix("./").split("/")[0]
    if place == "adapters":
        return (
            "The adapters that the documents name are only in the project's repository: clone it, and name the folder in the "
            "clone. Your own are in the folder that you gave to `sft --out`."
        )
    if place in ("recipes", "benchmarks", "checks", "spaces"):
        return f"{place}/ is in the project's repository and source archive, not in the wheel: name it in one of these."
    return ""


def connected(path: str | Path, setup: str, **options: Any) -> sqlite3.Connection:
    """An SQLite connection on which a script was run; closed when the script fails, as on a file that is no database.

    Args:
        path: of the file; ":memory:" for none.
        setup: SQL statements separated by semicolons.
        options: of `sqlite3.connect`.

    Raises:
        sqlite3.Error: the file cannot be opened, is no database, or refuses a statement.
    """
    connection = sqlite3.connect(path, **options)
    try:
        connection.executescript(setup)
    except BaseException:
        connection.close()
        raise
    return connection
