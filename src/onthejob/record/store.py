"""A run on disk: `<root>/<name>/run.sqlite`, `adapters/<role>/<role>@0007/`, `checkpoints/000007/`.

Everything an iteration produced is committed in one transaction, so that a run killed at any moment is found at the end of a
whole iteration. Folders are written before the commit that names them; those that no commit names are removed when the run is
next opened for writing. Readers may open the run at any time, also while it is being written.
"""

from __future__ import annotations

import errno
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from onthejob.errors import ContractError, RecordError
from onthejob.files import TEMPORARY, fsync, published, remove_abandoned, remove_folder
from onthejob.record import checkpoints
from onthejob.record.checksums import CHECKSUM_KEY, FIRST_KEY, Checksums, checksum, meta_checksum
from onthejob.record.codec import dump_json
from onthejob.record.database import FILE, SCHEMA_VERSION, Database, explained
from onthejob.record.iteration import Iteration
from onthejob.record.lock import WriterLock
from onthejob.record.reader import RecordReader

log = logging.getLogger(__name__)

LIVE_KEPT = 5000
"""Live messages kept when an iteration is committed."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_UNREACHABLE_CONTEXTS = """
DELETE FROM contexts WHERE id NOT IN (
    WITH RECURSIVE used (id) AS (
        SELECT context_id FROM turns
        UNION SELECT parent FROM contexts JOIN used USING (id) WHERE parent IS NOT NULL
    ) SELECT id FROM used
)
"""


def check_name(name: str, what: str) -> str:
    """`name` when it is a plain file name.

    Raises:
        RecordError: it is empty, too long, hidden, or could leave its folder.
    """
    if not _NAME.fullmatch(name):
        raise RecordError(
            f"{what} must be 1 to 100 letters, digits, '.', '_' or '-' and start with a letter or digit, got {name!r}."
        )
    return name


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


class Run(RecordReader):
    """One run's record. Use `Run.create` or `Run.open`, as a context manager or with `close`."""

    def __init__(
        self, path: Path, database: Database, lock: WriterLock | None, clock: Callable[[], float], *, skip_damaged: bool = False
    ) -> None:
        super().__init__(path, database, skip_damaged=skip_damaged)
        self._lock = lock
        self._clock = clock
        self._current: Iteration | None = None

    @classmethod
    def create(
        cls,
        root: Path | str,
        *,
        config: Mapping[str, Any],
        name: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Self:
        """Create a run under `root` (made when missing) and open it for writing.

        Args:
            root: Folder of all runs.
            config: JSON; what reproduces the run. Part of `digest`, so leave the run's own place and name out.
            name: Folder name; None takes `YYYYMMDD-HHMMSS-NN` (UTC) from `clock`.
            clock: Seconds since the epoch; only labels are made of it.

        Raises:
            RecordError: the name is taken or not a plain name, or the folder cannot be written.
        """
        root, now = Path(root), clock()
        meta = _sealed({"config": dump_json(config, "config"), "created_at": _iso(now)}, first=0)
        with explained("create a run in", root):
            root.mkdir(parents=True, exist_ok=True)
            if name is not None:
                if not _create(root / check_name(name, "a run's name"), meta):
                    raise RecordError(f"a run named {name!r} exists in {root}. Choose another name or resume it.")
                return cls.open(root / name, clock=clock)
            stem = datetime.fromtimestamp(now, UTC).strftime("%Y%m%d-%H%M%S")
            for number in range(1, 100):
                if _create(path := root / f"{stem}-{number:02d}", meta):
                    return cls.open(path, clock=clock)
        raise RecordError(f"99 runs were started in {root} in one second ({stem}). Give a name.")

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        readonly: bool = False,
        skip_damaged: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> Self:
        """Open an existing run; for writing, one process at a time, and leftovers of a killed writer are removed.

        Args:
            path: Its folder.
            readonly: Only read; any number of processes may.
            skip_damaged: Pass over damaged parts and list them in `damage`, instead of raising; for reading only.
            clock: Seconds since the epoch; only labels are made of it.

        Raises:
            RecordError: missing, damaged, from a newer version, not permitted, or another process is writing it.
        """
        path = Path(path)
        if skip_damaged and not readonly:
            raise ContractError("skip_damaged needs readonly=True: nothing may be built upon a damaged record.")
        if readonly:
            database = Database.open(path / FILE, readonly=True)
            try:
                return cls(path, database, None, clock, skip_damaged=skip_damaged)
            except BaseException:
                database.close()
                raise
        if not (path / FILE).is_file():
            raise RecordError(f"no run at {path}: it has no {FILE}. `onthejob runs ls` shows the runs of a folder.")
        with explained("open", path):
            lock = WriterLock.acquire(path)
        database = None
        try:
            database = Database.open(path / FILE, readonly=False)
            if database.version < SCHEMA_VERSION:
                _upgrade(database)
            run = cls(path, database, lock, clock)
            run._remove_leftovers()
        except BaseException:
            if database is not None:
                database.close()
            lock.release()
            raise
        return run

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and let others write. Safe to call twice."""
        self._database.close()
        if self._lock is not None:
            self._lock.release()

    @contextmanager
    def iteration(self, n: int) -> Iterator[Iteration]:
        """Collect iteration `n`; everything is committed when the block ends and nothing when it raises.

        Raises:
            RecordError: `n` is not after the last iteration (see `rewind`), or the commit failed: nothing was recorded then.
            ContractError: another iteration is open.
        """
        self._require_writable()
        if self._current is not None:
            raise ContractError(f"iteration {self._current.n} is still open; end its `with` block before iteration {n}.")
        last = self.last_iteration()
        if n < 0 or (last is not None and n <= last):
            raise RecordError(
                f"iteration must be after {-1 if last is None else last}, the last recorded, got {n}. Use run.rewind to redo one."
            )
        self._current = Iteration(n, self.path)
        try:
            yield self._current
            with self._database.transaction(f"commit iteration {n} to") as connection:
                self._current.insert(connection, _iso(self._clock()))
                connection.execute("DELETE FROM live WHERE seq <= (SELECT max(seq) FROM live) - ?", (LIVE_KEPT,))
        finally:
            self._current = None
        try:
            checkpoints.prune(self.path)
        except OSError as error:
            # The iteration is safe; old checkpoints only take space and are tried again next time.
            log.warning("cannot remove old checkpoints of %s: %s", self.path, error)

    def live(self, kind: str, payload: Mapping[str, Any]) -> int:
        """Record a progress message at once, outside any iteration, and return its number. Never part of the digest.

        May be called from another thread.
        """
        self._require_writable()
        text = dump_json(payload, f"live {kind}")
        with self._database.transaction("record a live message in") as connection:
            at = _iso(self._clock())
            sql = "INSERT INTO live (at, kind, payload) VALUES (?, ?, ?)"
            row = connection.execute(sql, (at, kind, text)).lastrowid
            assert row is not None  # an INSERT into a rowid table always has one
            connection.execute("UPDATE live SET checksum = ? WHERE seq = ?", (checksum([row, at, kind, text]), row))
        return row

    def put_blob(self, key: str, data: bytes) -> None:
        """Record bytes under `key` with the open iteration; equal contents are stored once.

        Raises:
            ContractError: no iteration is open.
        """
        if self._current is None:
            raise ContractError(f"put_blob({key!r}) needs an open iteration: call it inside `with run.iteration(n)`.")
        self._current.put_blob(key, data)

    def get_blob(self, key: str) -> bytes:
        """As `RecordReader.get_blob`, and also what the open iteration has put."""
        if self._current is not None and key in self._current.blobs:
            return self._current.blobs[key]
        return super().get_blob(key)

    def write_checkpoint(self, n: int, files: checkpoints.Files) -> Path:
        """Publish the checkpoint of iteration `n`; call it before that iteration is committed.

        Raises:
            RecordError: iteration `n` is committed already and has its checkpoint, or the disk is full.
        """
        self._require_writable()
        last = self.last_iteration()
        if last is not None and n <= last and n in checkpoints.numbers(self.path):
            raise RecordError(f"iteration {n} of {self.path} is committed and its checkpoint is final. Write the next one.")
        return checkpoints.write(self.path, n, files)

    def rewind(self, to: int | None) -> None:
        """Forget all iterations after `to` (None: all), their adapters and checkpoints, in order to redo them.

        For resuming from a checkpoint that is older than the last iteration.
        """
        self._require_writable()
        if self._current is not None:
            raise ContractError(f"iteration {self._current.n} is open; end its `with` block before rewinding.")
        with self._database.transaction("rewind") as connection:
            connection.execute("DELETE FROM iterations WHERE n > ?", (-1 if to is None else to,))
            connection.execute(_UNREACHABLE_CONTEXTS)
            connection.execute("DELETE FROM blobs WHERE hash NOT IN (SELECT hash FROM blob_keys)")
        self._remove_leftovers()

    def adapter_path(self, role: str, version: int) -> Path:
        """Where version `version` of `role` is to be saved; the parent folder is made, the folder itself is not."""
        self._require_writable()
        parent = self.path / "adapters" / check_name(role, "a role")
        with explained("create", parent):
            parent.mkdir(parents=True, exist_ok=True)
            fsync(parent.parent)
        return parent / f"{role}@{version:04d}"

    def _require_writable(self) -> None:
        if self.readonly:
            raise RecordError(f"{self.path} was opened with readonly=True. Open it for writing.")

    def _remove_leftovers(self) -> None:
        """Remove folders that no committed iteration names: a killed writer's, or those of rewound iterations."""
        with explained("clean up", self.path):
            checkpoints.remove_uncommitted(self.path, self.last_iteration())
            # Resolved: the folder of adapters may have been moved to another disk, with a link in its place.
            recorded = {adapter.path.resolve() for adapter in self.adapters()}
            for folder in sorted((self.path / "adapters").glob("*/*")):
                ours = folder.name.startswith((f"{folder.parent.name}@", TEMPORARY))
                if ours and folder.is_dir() and not folder.is_symlink() and folder.resolve() not in recorded:
                    log.info("removing uncommitted %s", folder)
                    remove_folder(folder)


def _sealed(meta: dict[str, str], *, first: int) -> dict[str, str]:
    """The facts of a run with their checksum. first: number of the first iteration that must have checksums."""
    meta = meta | {FIRST_KEY: str(first)}
    return meta | {CHECKSUM_KEY: meta_checksum(meta)}


def _upgrade(database: Database) -> None:
    """Iterations that follow get checksums; those that are there stay unverified."""
    meta = dict(database.rows("SELECT key, value FROM meta"))
    last = Checksums(database, meta).last()
    database.upgrade(_sealed(meta, first=0 if last is None else last + 1))


def _create(path: Path, meta: dict[str, str]) -> bool:
    """Publish an empty run at `path` or leave nothing; False when the name is taken."""
    remove_abandoned(path.parent, path.name)
    if path.exists():
        return False
    try:
        with published(path) as temporary:
            Database.create(temporary / FILE, meta)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False  # another process took the name meanwhile
        raise
    return True
