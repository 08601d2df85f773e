"""The runtime: where jobs are done, behind one small protocol with the backends `local` (this machine) and `ray`.

A job is a pure function, named by its import path, of arguments that can be pickled. Its result is looked up by its key. So the
order of jobs, the number of workers and repeated work never change a result, and all workers may be lost: only the process that
submits, the driver, writes the record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from onthejob.errors import ContractError
from onthejob.types import Environment

LIMIT_S = 600.0
"""Usual limit of one job in seconds: far above what one takes, as it only ends the wait for a worker that hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One call of a pure function in some worker."""

    key: str
    """Its name in the batch with which it is submitted; unique there."""
    function: str
    """Import path, `package.module:function`."""
    arguments: tuple[Any, ...]
    """Sent by pickle: values, and classes and functions that can be imported by name."""
    work: float = 1.0
    """Expected work in any unit, > 0, the same unit for all jobs of a function. Long jobs begin first."""
    place: str = ""
    """Jobs of one place go to one worker while it lives and are given that worker's shelf of the place as first argument: a dict
    in which a job may leave objects with a method `close` for the next one. A new worker's shelf is empty, so no result may
    depend on it."""
    limit_s: float = LIMIT_S
    """Seconds after which the job's worker counts as lost, > 0."""


Results = Callable[[], dict[str, Any]]
"""Waits for a batch: key -> result of every job, or raises what the first job (in the order of submission) raised."""


class Runtime(Protocol):
    """Does jobs."""

    @property
    def workers(self) -> int:
        """Processes or actors that do jobs; 0: they are done in this process when they are submitted."""
        ...

    @property
    def threads(self) -> int:
        """Threads that step the environments of whole episodes for it, at least; 0 where these live in this process."""
        ...

    def submit(self, jobs: Sequence[Job]) -> Results:
        """Begin `jobs` and return what waits for them. Returns at once, unless very many jobs are waiting already.

        Raises:
            ContractError: two jobs have the same key.
            ConfigError: arguments that cannot be sent by name and value.
            ScaleError: the runtime is closed. What is returned raises it when workers keep being lost.
        """
        ...

    def environments(self, make_env: Callable[[], Environment]) -> Callable[[], Environment]:
        """What makes the environments of whole episodes: `make_env` itself, or stand-ins for environments of the workers.

        Raises:
            ConfigError: `make_env` cannot be sent by name.
        """
        ...

    def close(self) -> None:
        """End the workers; returns when none is left."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...


def check_keys(jobs: Sequence[Job]) -> None:
    """Refuse jobs whose results would have the same name.

    Raises:
        ContractError: two have the same key.
    """
    counts = Counter(job.key for job in jobs)
    if twice := [key for key, number in counts.items() if number > 1]:
        raise ContractError(f"two jobs of a batch have the key {twice[0]!r}. Results are looked up by it: make keys unique.")


def ordered(results: Mapping[str, Any], jobs: Sequence[Job]) -> list[Any]:
    """The results in the order of `jobs`."""
    return [results[job.key] for job in jobs]
