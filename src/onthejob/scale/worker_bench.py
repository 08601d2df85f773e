"""A worker's side of the runtime: does the jobs of one message and returns their results, or what they raised, as bytes.

Messages are pickled here and nowhere else, with the standard library: classes and functions travel as names that the other side
imports, never as code.
"""

from __future__ import annotations

import importlib
import logging
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from onthejob.errors import ConfigError, ContractError, OnTheJobError, ScaleError, StepError
from onthejob.scale.actor_logs import HeardLines
from onthejob.scale.runtime import Facts, Job

COMPARED = ("onthejob", "numpy", "torch", "transformers", "tokenizers")
"""Packages whose versions must be the driver's: other versions may compute other numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A job as it is sent."""

    key: str
    function: str
    arguments: bytes
    place: str
    shelf: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """What became of one job."""

    key: str
    value: bytes
    """The pickled result, or the pickled error that the job raised."""
    raised: str
    """The error in words; empty when the job returned."""
    seconds: float
    kept: bool
    """Whether the shelf of the job's place holds anything now."""
    logged: tuple[str, ...] = ()
    """Lines that the package logged meanwhile."""

    def unpacked(self) -> Any:
        """The result.

        Raises:
            Exception: what the job raised.
        """
        if not self.raised:
            return pickle.loads(self.value)
        try:
            error = pickle.loads(self.value)
        except Exception as unknown:
            raise ScaleError(f"job {self.key} raised {self.raised} in its worker.") from unknown
        raise error


def packed(job: Job) -> Packed:
    """The job as it is sent.

    Raises:
        ConfigError: an argument cannot be pickled by name and value.
    """
    arguments = sendable(job.arguments, f"job {job.key}")
    return Packed(key=job.key, function=job.function, arguments=arguments, place=job.place, shelf=job.shelf)


def sendable(value: Any, what: str) -> bytes:
    """A value as workers receive it.

    Raises:
        ConfigError: it cannot be pickled by name and value.
    """
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{what} cannot be sent to a worker: {error}. Its classes and functions must be importable by name: put them "
            "at the top level of a module, or score with --workers 0."
        ) from error


def message(jobs: Sequence[Packed]) -> bytes:
    """Several jobs as one message."""
    return pickle.dumps(tuple(jobs), protocol=pickle.HIGHEST_PROTOCOL)


def outcomes_of(answer: bytes) -> tuple[JobOutcome, ...]:
    """What `perform` returned."""
    return pickle.loads(answer)


class WorkerBench:
    """The place of one worker: does messages of jobs, one at a time."""

    def __init__(self, *, hears: bool = False) -> None:
        """hears: in a process of its own, whose log lines go to the driver."""
        self._logger = logging.getLogger("onthejob")
        if hears:
            self._logger.setLevel(logging.INFO)
            self._logger.propagate = False
        self._hears = hears
        self._shelves: dict[str, dict[str, Any]] = {}
        self._own: dict[str, dict[str, Any]] = {}

    def perform(self, jobs: bytes, shared: bytes | Path | None = None) -> bytes:
        """The outcomes of a message's jobs, to each of which `shared`, or what the file holds, is the last argument."""
        found = tuple(self._outcome(job, shared) for job in pickle.loads(jobs))
        return pickle.dumps(found, protocol=pickle.HIGHEST_PROTOCOL)

    def clear(self) -> None:
        """Close what lies on the shelves."""
        for shelf in (*self._shelves.values(), *self._own.values()):
            for held in shelf.values():
                with suppress(Exception):
                    held.close()
        self._shelves.clear()
        self._own.clear()

    def _outcome(self, job: Packed, shared: bytes | Path | None) -> JobOutcome:
        started = time.perf_counter()
        said, heard = "", HeardLines()
        if self._hears:
            self._logger.addHandler(heard)
        try:
            result = self._call(job, shared)
        except (Exception, SystemExit) as raised:
            result, said = portable(raised), f"{type(raised).__name__}: {raised}"
        finally:
            self._logger.removeHandler(heard)
        try:
            value = pickle.dumps(result, protocol=pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, TypeError, AttributeError) as raised:
            said = f"what {job.function} returned cannot be sent between processes: {raised}. Use plain values."
            value = pickle.dumps(ContractError(said))
        seconds, kept = time.perf_counter() - started, job.place in self._shelves
        return JobOutcome(key=job.key, value=value, raised=said, seconds=seconds, kept=kept, logged=tuple(heard.lines))

    def _call(self, job: Packed, shared: bytes | Path | None) -> Any:
        arguments = pickle.loads(job.arguments)
        if shared is not None:
            arguments += (pickle.loads(shared if isinstance(shared, bytes) else shared.read_bytes()),)
        function = function_at(job.function)
        if job.shelf:
            return function(self._own.setdefault(job.shelf, {}), *arguments)
        if not job.place:
            return function(*arguments)
        shelf = self._shelves.setdefault(job.place, {})
        try:
            return function(shelf, *arguments)
        finally:
            if not shelf:
                self._shelves.pop(job.place, None)


def function_at(path: str) -> Callable[..., Any]:
    """The function of an import path.

    Raises:
        ConfigError: there is none.
    """
    module, _, name = path.partition(":")
    function = getattr(importlib.import_module(module), name, None)
    if not callable(function):
        raise ConfigError(f"a job names {path}, which is no function. Write package.module:function.")
    return function


def versions() -> dict[str, str]:
    """What must be equal here and in every worker: name -> version of Python and of the packages that compute."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    return found | {package: known for package in COMPARED if (known := _version(package))}


@cache
def _version(package: str) -> str:
    """Empty where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def found_here(facts: Facts | None) -> dict[str, str]:
    """The versions, and what `facts` asks for: in this process, or in a worker."""
    found = versions()
    for path, arguments in () if facts is None else facts.functions:
        found |= function_at(path)(*arguments)
    return found


def expected_of(facts: Facts | None) -> dict[str, str]:
    """What workers must have found."""
    return found_here(facts) | dict(() if facts is None else facts.stated)


def differing(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """What a worker found that is not as in this process, in words; empty when all is equal."""
    names = sorted({*here, *there})
    parts = [
        f"{name} {there.get(name, 'missing')} (here {here.get(name, 'missing')})"
        for name in names
        if here.get(name) != there.get(name)
    ]
    return ", ".join(parts)


def portable(error: BaseException) -> Exception:
    """The error as it can be raised in another process, with what led to it."""
    said = "".join(traceback.format_exception(error)[-3:]).strip()
    if isinstance(error, OnTheJobError):
        return type(error)(str(error))
    kept: Exception = error if isinstance(error, Exception) else StepError(f"{type(error).__name__}: {error}")
    # Classes of the user's own may need more than their message to be made again.
    with suppress(Exception):
        if type(pickle.loads(pickle.dumps(kept))) is type(kept):
            kept.add_note(f"In its process:\n{said}")
            return kept
    return StepError(f"{type(error).__name__}: {error}")
