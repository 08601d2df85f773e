"""What gates have already measured: the outcomes of their jobs in a cache file, so that hours of measuring can be stopped.

A job is a pure function of its fields and of the code, and is kept under both: with other code it is measured anew.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Self, get_type_hints

from pydantic import TypeAdapter

from checks.office.gates.gate import Job
from checks.office.players.exploiters import Exploit
from onthejob.envs.office.env import OfficeEnvironment
from onthejob.errors import RecordError
from onthejob.evaluate.cache import EvaluationCache, source_fingerprint

COMMIT_S = 1.0
"""Seconds of measuring that a killed process loses at most, in addition to the jobs under way."""


class MeasuredJobs:
    """A context manager over the evaluation cache at a path."""

    def __init__(self, path: Path) -> None:
        """Open or create the cache at `path`.

        Raises:
            RecordError: as `EvaluationCache`.
        """
        self._path = path
        self._cache = EvaluationCache(path, env=code_fingerprint())
        self._new: dict[str, str] = {}
        self._written = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._cache.close()

    def known(self, jobs: Sequence[Job]) -> dict[Job, Any]:
        """Those of `jobs` that were measured with this code, with their outcomes.

        Raises:
            RecordError: an outcome is not what such a job returns.
        """
        self._flush()
        texts = self._cache.measurements()
        try:
            return {job: read_outcome(job, texts[key]) for job in jobs if (key := job_key(job)) in texts}
        except ValueError as error:
            raise RecordError(f"--cache {self._path} is damaged: {error}. Delete it or pass another --cache.") from error

    def add(self, job: Job, outcome: Any) -> None:
        """Keep what `job` measured.

        Raises:
            RecordError: the file cannot be written.
        """
        self._new[job_key(job)] = json.dumps(outcome_type(type(job)).dump_python(outcome), default=sorted)
        if time.monotonic() - self._written >= COMMIT_S:
            self._flush()

    def _flush(self) -> None:
        self._cache.add_measurements(self._new)
        self._new, self._written = {}, time.monotonic()


def job_key(job: Job) -> str:
    """What a job is, the same in every process: its type and fields, functions by their names."""
    values = ((field.name, getattr(job, field.name)) for field in fields(job))  # type: ignore[arg-type]
    said = [
        f"{name}={value.__module__}.{value.__qualname__}" if callable(value) else f"{name}={value!r}" for name, value in values
    ]
    return f"{type(job).__qualname__}({', '.join(said)})"


def read_outcome(job: Job, text: str) -> Any:
    """What `job` returned, floats bit for bit, also NaN and infinities."""
    return outcome_type(type(job)).validate_python(json.loads(text))


@cache
def outcome_type(job: type[Job]) -> TypeAdapter[Any]:
    """Converts what a job of this type returns to plain data and back."""
    return TypeAdapter(get_type_hints(job.run)["return"])


def code_fingerprint() -> str:
    """Of the office, the gates and the players of `checks/`."""
    parts = (source_fingerprint(OfficeEnvironment), source_fingerprint(MeasuredJobs), source_fingerprint(Exploit))
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]
