"""The SQLite file of one run: schema, connection, transactions, and SQLite's errors in words.

One connection writes and checkpoints (SQLite before 3.51.3 can corrupt a WAL that two connections reset at once); viewers
open read-only connections, which never checkpoint. All statements of a connection pass one lock, so that a progress thread
may record live events while the loop works.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from onthejob.errors import DamagedRecord, RecordError
from onthejob.files import connected

FILE = "run.sqlite"
APPLICATION_ID = 0x6F746A31  # "otj1": tells our files from other SQLite files
SCHEMA_VERSION = 2
_BUSY_S = 10.0

_SCHEMA = """
CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE iterations (
    n INTEGER PRIMARY KEY,
    committed_at TEXT NOT NULL
);
CREATE TABLE contexts (
    id INTEGER PRIMARY KEY,
    hash BLOB NOT NULL UNIQUE,
    parent INTEGER REFERENCES contexts (id),
    tokens INTEGER NOT NULL,
    tail BLOB NOT NULL
);
CREATE TABLE groups (
    id INTEGER PRIMARY KEY,
    iteration INTEGER NOT NULL REFERENCES iterations (n) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    key TEXT NOT NULL UNIQUE,
    actor TEXT NOT NULL,
    facts TEXT NOT NULL,
    advantages BLOB,
    UNIQUE (iteration, position)
);
CREATE TABLE episodes (
    id INTEGER PRIMARY KEY,
    iteration INTEGER NOT NULL REFERENCES iterations (n) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    name TEXT NOT NULL,
    policies TEXT NOT NULL,
    facts TEXT NOT NULL,
    timeline BLOB NOT NULL,
    UNIQUE (iteration, name)
);
CREATE TABLE episode_metrics (
    episode_id INTEGER NOT NULL REFERENCES episodes (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    value REAL,
    is_nan INTEGER NOT NULL,
    is_clock INTEGER NOT NULL,
    PRIMARY KEY (episode_id, name)
) WITHOUT ROWID;
CREATE TABLE trajectories (
    id INTEGER PRIMARY KEY,
    group_id INTEGER REFERENCES groups (id) ON DELETE CASCADE,
    episode_id INTEGER REFERENCES episodes (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    task_id TEXT NOT NULL,
    actor TEXT NOT NULL,
    stop TEXT NOT NULL,
    ret REAL,
    rewards BLOB NOT NULL,
    metrics TEXT NOT NULL,
    CHECK ((group_id IS NULL) <> (episode_id IS NULL)),
    UNIQUE (group_id, position),
    UNIQUE (episode_id, position)
);
CREATE TABLE turns (
    id INTEGER PRIMARY KEY,
    trajectory_id INTEGER NOT NULL REFERENCES trajectories (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    context_id INTEGER NOT NULL REFERENCES contexts (id),
    text TEXT NOT NULL,
    finish TEXT NOT NULL,
    policy TEXT NOT NULL,
    kind TEXT NOT NULL,
    temperature REAL NOT NULL,
    valid INTEGER NOT NULL,
    reward REAL,
    ids BLOB NOT NULL,
    logprobs BLOB NOT NULL,
    UNIQUE (trajectory_id, position)
);
CREATE INDEX turns_context ON turns (context_id);
CREATE INDEX contexts_parent ON contexts (parent);
CREATE TABLE metrics (
    iteration INTEGER NOT NULL REFERENCES iterations (n) ON DELETE CASCADE,
    scope TEXT NOT NULL,
    name TEXT NOT NULL,
    value REAL,
    is_nan INTEGER NOT NULL,
    is_clock INTEGER NOT NULL,
    PRIMARY KEY (iteration, scope, name)
) WITHOUT ROWID;
CREATE TABLE events (
    iteration INTEGER NOT NULL REFERENCES iterations (n) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    kind TEXT NOT NULL,
    payload TEXT NOT NULL,
    PRIMARY KEY (iteration, position)
) WITHOUT ROWID;
CREATE TABLE adapters (
    role TEXT NOT NULL,
    version INTEGER NOT NULL,
    iteration INTEGER NOT NULL REFERENCES iterations (n) ON DELETE CASCADE,
    parent TEXT,
    digest TEXT NOT NULL,
    path TEXT NOT NULL,
    PRIMARY KEY (role, version)
) WITHOUT ROWID;
CREATE TABLE blobs (
    hash BLOB PRIMARY KEY,
    data BLOB NOT NULL
);
CREATE TABLE blob_keys (
    key TEXT NOT NULL,
    iteration INTEGER NOT NULL REFERENCES iterations (n) ON DELETE CASCADE,
    hash BLOB NOT NULL REFERENCES blobs (hash),
    PRIMARY KEY (key, iteration)
) WITHOUT ROWID;
CREATE INDEX blob_keys_hash ON blob_keys (hash);
CREATE TABLE live (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at TEXT NOT NULL,
    kind TEXT NOT NULL,
    payload TEXT NOT NULL,
    checksum TEXT
);
"""
_CHECKSUMS = """
CREATE TABLE checksums (
    iteration INTEGER PRIMARY KEY REFERENCES iterations (n) ON DELETE CASCADE,
    checksum TEXT NOT NULL,
    previous TEXT NOT NULL,
    "groups" TEXT NOT NULL,
    episodes TEXT NOT NULL,
    rest TEXT NOT NULL
)
"""

_REMEDIES = {
    sqlite3.SQLITE_FULL: "Free disk space and resume the run; what was committed before is intact.",
    sqlite3.SQLITE_IOERR: "Check the disk, its free space and the file size limit, then resume; what was committed is intact.",
    sqlite3.SQLITE_READONLY: "Give this user write permission on the run's folder, or only read it with `onthejob runs show`.",
    sqlite3.SQLITE_PERM: "Give this user read and write permission on the run's folder.",
    sqlite3.SQLITE_CANTOPEN: "Check the path and that this user may read and write the run's folder.",
    sqlite3.SQLITE_CORRUPT: "Restore run.sqlite from a copy, or save what is left with `sqlite3 run.sqlite .recover`.",
    sqlite3.SQLITE_ERROR: "Its tables are not those of a record. Restore run.sqlite from a copy.",
    sqlite3.SQLITE_NOTADB: "This is not a run's record; give the folder that `onthejob runs ls` shows.",
    sqlite3.SQLITE_BUSY: "Another process holds the file; close other writers and database browsers.",
    sqlite3.SQLITE_CONSTRAINT: "Group keys, episode names, metrics and adapter versions may be recorded only once.",
}

_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
"""Codes of what a changed file causes: its pages, its header, or the names of its tables and columns."""


def explain(error: sqlite3.Error | OSError, doing: str, path: Path) -> RecordError:
    """`error` as a RecordError that says what was being done, to which file, and what helps."""
    if isinstance(error, OSError):
        remedy = "Check free disk space and this user's permissions on the folder."
        return RecordError(f"cannot {doing} {path}: {error.strerror or error}. {remedy}")
    # The python layer raises a few errors of its own, without a code; only those of the library carry one.
    code = getattr(error, "sqlite_errorcode", None)
    remedy = _REMEDIES.get(code & 0xFF, "") if code is not None else ""
    # Text that is not UTF-8 is such an error of the python layer; a closed file (ProgrammingError) is another.
    damaged = isinstance(error, sqlite3.OperationalError) if code is None else code & 0xFF in _DAMAGE
    kind = DamagedRecord if damaged else RecordError
    return kind(f"cannot {doing} {path}: {error}. {remedy}".rstrip())


@contextmanager
def explained(doing: str, path: Path) -> Iterator[None]:
    """Turns errors of SQLite and of the file system inside the block into RecordError."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise explain(error, doing, path) from error
    except UnicodeDecodeError as error:  # in text of the file, or in a message of SQLite that quotes it
        raise DamagedRecord(f"cannot {doing} {path}: {error}. {_REMEDIES[sqlite3.SQLITE_CORRUPT]}") from error


class Database:
    """An open run file. `rows` reads, `transaction` writes all or nothing."""

    def __init__(self, path: Path, connection: sqlite3.Connection, *, readonly: bool, version: int) -> None:
        self.path = path
        self.readonly = readonly
        self.version = version
        """Of the schema."""
        self._connection = connection
        self._lock = threading.RLock()

    @classmethod
    def create(cls, path: Path, meta: dict[str, str]) -> None:
        """Write an empty record with `meta`; `path` must not exist."""
        with explained("create", path):
            connection = sqlite3.connect(path, isolation_level=None)
            try:
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                _set_pragmas(connection, path)
                connection.execute("BEGIN IMMEDIATE")
                for statement in (*_SCHEMA.split(";\n"), _CHECKSUMS):
                    connection.execute(statement)
                connection.executemany("INSERT INTO meta VALUES (?, ?)", sorted(meta.items()))
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                connection.execute("COMMIT")
            finally:
                connection.close()

    @classmethod
    def open(cls, path: Path, *, readonly: bool) -> Self:
        """Open an existing record and check that it is one this version understands.

        Raises:
            RecordError: missing, damaged, not a record, or written by a newer version.
        """
        if not path.is_file():
            raise RecordError(f"no run at {path.parent}: it has no {FILE}. `onthejob runs ls` shows the runs of a folder.")
        with explained("open", path):
            connection = _connect(path, readonly=readonly)
            try:
                version = _check_schema(connection, path)
                if not readonly:
                    _set_pragmas(connection, path)
                    _check_integrity(connection, path)
            except BaseException:
                connection.close()
                raise
        return cls(path, connection, readonly=readonly, version=version)

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        with self._lock, explained("read", self.path):
            return self._connection.execute(sql, parameters).fetchall()

    @contextmanager
    def transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        """One durable transaction: committed and on disk when the block ends, undone when it raises."""
        if self.readonly:
            raise RecordError(f"cannot {doing} {self.path}: it was opened with readonly=True. Open the run for writing.")
        with self._lock, explained(doing, self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                # SQLite has already rolled back by itself after some errors, e.g. a full disk.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def upgrade(self, meta: dict[str, str]) -> None:
        """Give a record of schema version 1 the tables of this version, and `meta` in addition."""
        with self.transaction("upgrade") as connection:
            connection.execute(_CHECKSUMS)
            connection.execute("ALTER TABLE live ADD COLUMN checksum TEXT")
            connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", sorted(meta.items()))
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        self.version = SCHEMA_VERSION

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Every read inside the block sees the same state, whatever the writer commits meanwhile. May be nested."""
        with self._lock:
            with explained("read", self.path):
                nested = self._connection.in_transaction
            if nested:
                yield
                return
            self.rows("BEGIN")
            try:
                yield
            finally:
                if self._connection.in_transaction:
                    self.rows("COMMIT")

    def close(self) -> None:
        """Close; the writer's close also moves the WAL into the main file."""
        with self._lock, explained("close", self.path):
            self._connection.close()


def _connect(path: Path, *, readonly: bool) -> sqlite3.Connection:
    if not readonly:
        return _connection(path, "mode=rw")
    # A reader needs the WAL's index next to the file; where it may not create one and no WAL is pending, nothing can change
    # under it either.
    if not os.access(path.parent, os.W_OK, effective_ids=True) and not _pending(path):
        return _connection(path, "mode=ro&immutable=1")
    connection = _connection(path, "mode=ro")
    try:
        connection.execute("PRAGMA schema_version")
    except sqlite3.Error as error:
        connection.close()
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_IOERR:
            raise
    else:
        return connection
    # The disk has no room for the index, so no process writes. A connection that is alone keeps it in memory.
    if not _pending(path):
        return _connection(path, "mode=ro&immutable=1")
    return _connection(path, "mode=rw", "PRAGMA locking_mode = EXCLUSIVE")


def _connection(path: Path, mode: str, setup: str = "") -> sqlite3.Connection:
    uri = f"file:{quote(str(path.absolute()))}?{mode}"
    setup = f"PRAGMA foreign_keys = ON; {setup}"
    return connected(uri, setup, uri=True, isolation_level=None, timeout=_BUSY_S, check_same_thread=False)


def _pending(path: Path) -> bool:
    """Whether a write-ahead log lies next to the file, whose commits may not be in it yet."""
    return path.with_name(path.name + "-wal").exists()


def _set_pragmas(connection: sqlite3.Connection, path: Path) -> None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise RecordError(f"cannot keep a write-ahead log for {path}: the file system allows {mode!r} only. Use a local disk.")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA journal_size_limit = 67108864")


def _check_schema(connection: sqlite3.Connection, path: Path) -> int:
    """The schema's version, when this program reads it."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION_ID:
        raise RecordError(
            f"{path} is an SQLite file but not a run's record: application id {application:#x}, expected {APPLICATION_ID:#x}. "
            "Give the folder that `onthejob runs ls` shows."
        )
    if version < 1:
        raise RecordError(
            f"{path} has schema version {version}, so its creation was interrupted; versions begin with 1. Restore run.sqlite "
            "from a copy, or delete the run."
        )
    if version > SCHEMA_VERSION:
        raise RecordError(
            f"{path} has schema version {version}, this onthejob reads up to {SCHEMA_VERSION}. Upgrade onthejob to open it."
        )
    return version


def _check_integrity(connection: sqlite3.Connection, path: Path) -> None:
    """Before writing on: a damaged page must not be built upon."""
    verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise RecordError(f"{path} is damaged: {verdict}. {_REMEDIES[sqlite3.SQLITE_CORRUPT]}")
