"""Which training jobs were claimed and what came of them: one row per key, written before the work starts.

A key names all that a job depends on, so the same job sent again (by a client that lost the answer, or by eight at once) is done
once and answered from here. A claim names its owner exactly (boot, process id, start time): when the owner is gone, the next
who asks takes over; after `MAX_ATTEMPTS` dead owners the job counts as failed, because it seems to kill its worker. An owner that
was asked to stop, or that went with its machine (another boot), is not counted. This verdict, and that a job was cancelled, hold
while the worker that gave them lives: one that is started afterwards tries the job anew, as what killed the others may be gone.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from onthejob.errors import RecordError
from onthejob.files import connected

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 2
REMEDY = (
    "Look at the worker's log and the machine's memory; with less memory per step (--learner.max-tokens) it may pass. Once the "
    "worker was started again, `onthejob train --resume` has the update tried anew"
)
_SCHEMA = """CREATE TABLE IF NOT EXISTS jobs (key TEXT PRIMARY KEY, state TEXT NOT NULL, owner TEXT NOT NULL,
  attempt INTEGER NOT NULL, result TEXT NOT NULL DEFAULT '') WITHOUT ROWID"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedJob:
    """A job as recorded."""

    key: str
    state: Literal["claimed", "running", "done", "failed"]
    """`claimed`: the asker owns it now and must do it. `running`: another process does."""
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
            setup = "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;" + _SCHEMA
            self._db = connected(path, setup, timeout=30.0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise RecordError(f"{path} cannot be opened: {error}. Give the worker another folder.") from error

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def claim(self, key: str) -> ClaimedJob:
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

    def fail(self, key: str, error: str, *, cancelled: bool = False) -> None:
        """Record that the job cannot be done; sent again, it fails again. cancelled: only while this worker lives."""
        self._end(key, "failed", {"error": error} | ({"cancelled": True} if cancelled else {}))

    def release(self, key: str) -> None:
        """Give an undone job back, as if it had never been claimed."""
        with self._lock:
            self._db.execute("DELETE FROM jobs WHERE key = ? AND owner = ? AND state = 'running'", (key, self._owner))

    def stopping(self) -> None:
        """This worker is asked to stop: what it has in work is no attempt, whether it still ends or is killed meanwhile."""
        sql = "UPDATE jobs SET attempt = attempt - 1 WHERE owner = ? AND state = 'running'"
        try:
            with self._lock:
                self._db.execute(sql, (self._owner,))
        except sqlite3.Error as error:  # the end must not fail for it
            log.warning("an update that is interrupted now will count as one on which a worker died: %s", error)

    def hand_over(self, key: str) -> None:
        """After `stopping`: give up an undone job, so that the next process that asks takes it; deaths before are remembered."""
        mine = "key = ? AND owner = ? AND state = 'running'"
        with self._lock:
            self._db.execute(f"DELETE FROM jobs WHERE {mine} AND attempt <= 0", (key, self._owner))
            gone = f"{boot_of(self._owner)}:gone"
            self._db.execute(f"UPDATE jobs SET owner = ? WHERE {mine}", (gone, key, self._owner))

    def forget(self, key: str) -> None:
        """Let a job that is done be done again, because its result is gone."""
        with self._lock:
            self._db.execute("DELETE FROM jobs WHERE key = ? AND state = 'done'", (key,))

    def _decide(self, key: str, found: tuple[str, str, int, str] | None) -> ClaimedJob:
        if found is None:
            self._db.execute("INSERT INTO jobs (key, state, owner, attempt) VALUES (?, 'running', ?, 1)", (key, self._owner))
            return ClaimedJob(key=key, state="claimed", attempt=1, result={})
        state, owner, attempt, result = found
        if state == "failed" and {"deaths", "cancelled"} & json.loads(result).keys() and not is_alive(owner):
            return self._take(key, 1)
        if state in ("done", "failed"):
            return ClaimedJob(key=key, state=state, attempt=attempt, result=json.loads(result))  # type: ignore[arg-type]
        if is_alive(owner):
            return ClaimedJob(key=key, state="running", attempt=attempt, result={})
        if boot_of(owner) != boot_of(self._owner):
            return self._take(key, attempt)
        if attempt >= MAX_ATTEMPTS:
            error = {"error": f"{attempt} workers died on it. {REMEDY}", "deaths": attempt}
            sql = "UPDATE jobs SET state = 'failed', owner = ?, result = ? WHERE key = ?"
            self._db.execute(sql, (self._owner, json.dumps(error), key))
            return ClaimedJob(key=key, state="failed", attempt=attempt, result=error)
        return self._take(key, attempt + 1)

    def _take(self, key: str, attempt: int) -> ClaimedJob:
        sql = "UPDATE jobs SET state = 'running', owner = ?, attempt = ?, result = '' WHERE key = ?"
        self._db.execute(sql, (self._owner, attempt, key))
        return ClaimedJob(key=key, state="claimed", attempt=attempt, result={})

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
    """`boot:pid:start` of a process; unique on this machine forever."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    start = text.rpartition(")")[2].split()[19]
    return f"{boot}:{text.split(' ', 1)[0]}:{start}"


def boot_of(owner: str) -> str:
    """The boot of the machine in an identity."""
    return owner.partition(":")[0]


def is_alive(owner: str) -> bool:
    """True when the process with this identity lives."""
    try:
        return identity(owner.split(":")[1]) == owner
    except (OSError, IndexError, ValueError):
        return False
