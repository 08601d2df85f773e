"""What gates have already measured: the outcomes of their jobs in one SQLite file, so that hours of measuring can be stopped.

A job is a pure function of its fields and of the code, and is kept under both: with other code it is measured anew.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Self, get_type_hints

from pydantic import TypeAdapter, ValidationError

from checks.office.gates.gate import Job
from checks.office.players.exploiters import Exploit
from onthejob.envs.office.env import OfficeEnvironment
from onthejob.errors import RecordError
from onthejob.evaluate.cache import source_fingerprint
from onthejob.files import connected

COMMIT_S = 1.0
"""Seconds of measuring that a killed process loses at most, besides the jobs under way."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS gate_jobs (code TEXT NOT NULL, job TEXT NOT NULL, outcome TEXT NOT NULL, PRIMARY KEY (code, job))
WITHOUT ROWID;
"""


class MeasuredJobs:
    """A context manager over the file."""

    def __init__(self, path: Path) -> None:
        """Open or create the file at `path`, and its folder.

        Raises:
            RecordError: the file cannot be opened or is no database.
        """
        self._path = path
        self._code = code_fingerprint()
        self._written = time.monotonic()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = connected(path, "PRAGMA journal_mode=WAL;" + _SCHEMA, timeout=30.0)
        except (sqlite3.Error, OSError) as error:
            raise RecordError(f"cannot open --cache {path}: {error}. Delete it or name another file.") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.commit()
        self._db.close()

    def known(self, jobs: Sequence[Job]) -> dict[Job, Any]:
        """Those of `jobs` that were measured with this code, with their outcomes.

        Raises:
            RecordError: an outcome is not what such a job returns.
        """
        rows = dict(self._db.execute("SELECT job, outcome FROM gate_jobs WHERE code=?", (self._code,)))
        try:
            return {job: read_outcome(job, rows[key]) for job in jobs if (key := job_key(job)) in rows}
        except (ValidationError, ValueError) as error:
            raise RecordError(f"--cache {self._path} is damaged: {error}. Delete it or name another file.") from error

    def add(self, job: Job, outcome: Any) -> None:
        """Keep what `job` measured.

        Raises:
            RecordError: the file cannot be written.
        """
        try:
            text = json.dumps(outcome_type(type(job)).dump_python(outcome), default=sorted)
            self._db.execute("INSERT OR REPLACE INTO gate_jobs VALUES (?,?,?)", (self._code, job_key(job), text))
            if time.monotonic() - self._written >= COMMIT_S:
                self._db.commit()
                self._written = time.monotonic()
        except sqlite3.Error as error:
            raise RecordError(f"cannot write --cache {self._path}: {error}. Free space or name another file.") from error


def job_key(job: Job) -> str:
    """What a job is, the same in every process: its type and fields, functions by their names."""
    values = ((field.name, getattr(job, field.name)) for field in fields(job))  # type: ignore[arg-type]
    said = [
        f"{name}={value.__module__}.{value.__qualname__}" if callable(value) else f"{name}={value!r}" for name, value in values
    ]
    return f"{type(job).__qualname__}({', '.join(said)})"


def read_outcome(job: Job, text: str) -> Any:
    """What `job` returned, floats bit for bit, also those that are no number."""
    return outcome_type(type(job)).validate_python(json.loads(text))


@cache
def outcome_type(job: type[Job]) -> TypeAdapter[Any]:
    """Takes what a job of this type returns apart, and puts it together."""
    return TypeAdapter(get_type_hints(job.run)["return"])


def code_fingerprint() -> str:
    """Of the office, the gates and the players of `checks/`."""
    parts = (source_fingerprint(OfficeEnvironment), source_fingerprint(MeasuredJobs), source_fingerprint(Exploit))
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]
