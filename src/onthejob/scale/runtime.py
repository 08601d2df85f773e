"""The runtime: where jobs are done, behind one small protocol with the backends `local` (this machine) and `ray`.

A job is a pure function, named by its import path, of arguments that can be pickled. Its result is looked up by its key. So the
order of jobs, the number of workers and repeated work never change a result, and all workers may be lost: only the process that
submits, the driver, writes the record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, Self

from onthejob.errors import ContractError
from onthejob.scale.actor_logs import ActorLogs
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
    shelf: str = ""
    """Name of a shelf that every worker has for itself: its own one is given as first argument, for what is costly to make, as a
    model. Any worker may do the job, and no result may depend on what lies there. Not together with `place`."""
    limit_s: float = LIMIT_S
    """Seconds after which the job's worker counts as lost, > 0."""
    shared: Any = None
    """What `Runtime.share` gave; the value that was shared is the function's last argument."""


Results = Callable[[], dict[str, Any]]
"""Waits for a batch: key -> result of every job, or raises what the first job (in the order of submission) raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What every worker must find as it is found here, besides equal versions."""

    functions: tuple[tuple[str, tuple[Any, ...]], ...]
    """Import paths of functions that return name -> text, each with its arguments. What a node may lack is such a text too."""
    stated: tuple[tuple[str, str], ...] = ()
    """Name and text of facts that must be so in workers, whatever is found here."""


def merged(first: Facts | None, second: Facts | None) -> Facts | None:
    """What both ask for."""
    if first is None or second is None:
        return first or second
    return Facts(functions=first.functions + second.functions, stated=first.stated + second.stated)


class Crew(Protocol):
    """Workers of one kind, apart from those of a runtime's own jobs."""

    def submit(self, jobs: Sequence[Job]) -> Results:
        """As `Runtime.submit`."""
        ...

    def start(self) -> None:
        """Start the workers without waiting for them."""
        ...

    def wait_ready(self, *, all_of_them: bool = False) -> None:
        """Start the workers and wait until one of them, or all, can work.

        Raises:
            ConfigError: what one of them has is not what this process has.
            ScaleError: none can be started.
        """
        ...

    def close(self) -> None:
        """End the workers; jobs that wait are given up."""
        ...


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

    @property
    def logs(self) -> ActorLogs:
        """What becomes of every worker."""
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

    def share(self, value: Any) -> AbstractContextManager[Any]:
        """What jobs that have a large value in common name as `Job.shared`, until the context ends.

        It is written once, and every worker that needs it reads it by itself, so that many workers wait no longer than one.

        Raises:
            ConfigError: the value cannot be sent by name and value.
        """
        ...

    def crew(self, kind: str, size: int, *, facts: Facts | None = None) -> Crew:
        """`size` more workers, which take one job at a time and end with the runtime; none is started yet.

        Args:
            kind: their name in messages, e.g. `learner`.
            size: >= 1.
            facts: what must be equal here and there.

        Raises:
            ConfigError: a cluster has too few CPUs for them.
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
