"""Which training jobs were claimed and what came of them: one row per key, written before the work starts.

A key names all that a job depends on, so the same job sent again (by a client that lost the answer, or by eight at once) is done
once and answered from here. A claim names its owner exactly (boot, process id, start time): when the owner is gone, the next
who asks takes over; after `MAX_ATTEMPTS` dead owners the job counts as failed, because it kills its worker.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from onthejob.errors import RecordError

MAX_ATTEMPTS = 2
_SCHEMA = """CREATE TABLE IF NOT EXISTS jobs (key TEXT PRIMARY KEY, state TEXT NOT NULL, owner TEXT NOT NULL,
  attempt INTEGER NOT NULL, result TEXT NOT NULL DEFAULT '') WITHOUT ROWID"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as recorded."""

    key: str
    state: Literal["claimed", "running", "done", "failed"]
    """`claimed`: the asker owns it now and must do it. `running`: somebody else does."""
    attempt: int
    result: Mapping[str, Any]
    """Of a job that is done; of a failed one, its `error`."""


class Jobs:
    """The table of jobs in a worker's folder."""

    def __init__(self, path: Path, *, owner: str | None = None) -> None:
        """path: an SQLite file. owner: identity of this process; None takes the real one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._owner = owner or identity()
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(path, timeout=30.0, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute(_SCHEMA)
        except sqlite3.Error as error:
            raise RecordError(f"{path} cannot be opened: {error}. Give the worker another folder.") from error

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def claim(self, key: str) -> Job:
        """Take the job, or learn what became of it. Exactly one of any number of simultaneous askers gets `claimed`."""
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                found = self._db.execute("SELECT state, owner, attempt, result FROM jobs WHERE key = ?", (key,)).fetchone()
                job = self._decide(key, found)
                self._db.execute("COMMIT")
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            return job

    def finish(self, key: str, result: Mapping[str, Any]) -> None:
        """Record the answer; it is durable when this returns."""
        self._end(key, "done", result)

    def fail(self, key: str, error: str) -> None:
        """Record that the job cannot be done; sent again, it fails again."""
        self._end(key, "failed", {"error": error})

    def release(self, key: str) -> None:
        """Give an undone job back, e.g. because the worker is asked to stop."""
        with self._lock:
            self._db.execute("DELETE FROM jobs WHERE key = ? AND owner = ? AND state = 'running'", (key, self._owner))

    def forget(self, key: str) -> None:
        """Let a job that is done be done again, because its result is gone."""
        with self._lock:
            self._db.execute("DELETE FROM jobs WHERE key = ? AND state = 'done'", (key,))

    def _decide(self, key: str, found: tuple[str, str, int, str] | None) -> Job:
        if found is None:
            self._db.execute("INSERT INTO jobs (key, state, owner, attempt) VALUES (?, 'running', ?, 1)", (key, self._owner))
            return Job(key=key, state="claimed", attempt=1, result={})
        state, owner, attempt, result = found
        if state in ("done", "failed"):
            return Job(key=key, state=state, attempt=attempt, result=json.loads(result))  # type: ignore[arg-type]
        if is_alive(owner):
            return Job(key=key, state="running", attempt=attempt, result={})
        if attempt >= MAX_ATTEMPTS:
            error = {"error": f"{attempt} workers died on it"}
            self._db.execute("UPDATE jobs SET state = 'failed', result = ? WHERE key = ?", (json.dumps(error), key))
            return Job(key=key, state="failed", attempt=attempt, result=error)
        self._db.execute("UPDATE jobs SET owner = ?, attempt = ? WHERE key = ?", (self._owner, attempt + 1, key))
        return Job(key=key, state="claimed", attempt=attempt + 1, result={})

    def _end(self, key: str, state: str, result: Mapping[str, Any]) -> None:
        with self._lock:
            text = json.dumps(dict(result))
            changed = self._db.execute(
                "UPDATE jobs SET state = ?, result = ? WHERE key = ? AND owner = ? AND state = 'running'",
                (state, text, key, self._owner),
            ).rowcount
        if changed != 1:
            raise RecordError(f"job {key[:12]} is not this worker's any more. Nothing was recorded.")


def identity(pid: int | str = "self") -> str:
    """`boot:pid:start` of a process; unique on this machine for ever."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    start = text.rpartition(")")[2].split()[19]
    return f"{boot}:{text.split(' ', 1)[0]}:{start}"


def is_alive(owner: str) -> bool:
    """True when the process with this identity lives."""
    try:
        return identity(owner.split(":")[1]) == owner
    except (OSError, IndexError, ValueError):
        return False
