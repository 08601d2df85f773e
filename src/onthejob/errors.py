"""Exceptions: only our own or the operator's mistakes. What a model writes wrongly is data, never an exception.

    OnTheJobError
    ├── ConfigError (ValueError)      an option or file that cannot work            exit code 2
    ├── MissingDependency (ImportError)  an extra that is not installed             exit code 2
    ├── ModelError                    a model cannot be fetched, loaded or trusted  exit code 1
    ├── ProviderError                 a hosted model gave no answer                 exit code 1
    ├── ServeError                    a model server cannot be started or used      exit code 1
    ├── RecordError                   a run's record cannot be read or written      exit code 1
    │   └── DamagedRecord             a part of it has not the content written      exit code 1
    ├── ContractError                 an object was used against its contract       exit code 1
    ├── ProgramError                  an agent program failed in its episode        exit code 1
    ├── StepError                     an environment's process hung or died         exit code 1
    ├── ScaleError                    workers cannot be had, or keep being lost     exit code 1
    ├── TrackError                    a tracker does not take what is sent to it    exit code 1
    ├── HubError                      the Hub cannot be reached, or refuses         exit code 1
    ├── SandboxError                  commands cannot be isolated, or run           exit code 1
    │   └── NotCheckable              a task's checks need what is not here         exit code 1
    └── TrainingError                 a learner cannot continue (infinite, NaN)     exit code 1

A message states what is wrong, the value met, what is allowed, and the remedy:
`group_size must be >= 2 to have a baseline, got 1. Set --branch.group-size 4.`
"""

from __future__ import annotations

from collections.abc import Sequence


class OnTheJobError(Exception):
    """Base of all errors raised on purpose by this package."""

    exit_code: int = 1


class ConfigError(OnTheJobError, ValueError):
    """An option, file or argument that cannot work."""

    exit_code = 2


class MissingDependency(OnTheJobError, ImportError):
    """A feature needs an optional dependency that is not installed."""

    exit_code = 2


class ModelError(OnTheJobError):
    """A model or adapter cannot be fetched, loaded or trusted."""


class ProviderError(OnTheJobError):
    """A hosted model gave no answer: the provider's or our failure, never what the model wrote."""

    def __init__(
        self, message: str, *, outcome: str = "", retry_after_s: float | None = None, answers: Sequence[object] = ()
    ) -> None:
        """Describe the failure.

        Args:
            message: what, which value, what to do.
            outcome: its name, see `onthejob.models.transport.Outcome`.
            retry_after_s: the wait that the provider asked for.
            answers: when several contexts were asked at once, what became of each: a completion or a ProviderError.
        """
        super().__init__(message)
        self.outcome = outcome
        self.retry_after_s = retry_after_s
        self.answers = tuple(answers)


class ServeError(OnTheJobError):
    """A model server cannot be started, reached or stopped, or refuses an adapter."""


class RecordError(OnTheJobError):
    """A run's record cannot be read or written."""


class DamagedRecord(RecordError):
    """A part of a record does not have the content that was written."""

    def __init__(self, message: str, *, located: bool = False) -> None:
        """message: the problem. located: it also names the file and the part."""
        super().__init__(message)
        self.located = located


class ContractError(OnTheJobError):
    """An environment, policy or snapshot was used against its contract."""


class StepError(OnTheJobError):
    """An environment in a process of its own took too long, ended its process, or raised what cannot be sent here."""


class ScaleError(OnTheJobError):
    """Workers cannot be started or reached, keep being lost, or have other versions than the driver."""


class ProgramError(OnTheJobError):
    """An agent program could not be started, crashed, ran out of time or gave no reward: its episode has no score."""


class TrackError(OnTheJobError):
    """A tracker or a spreadsheet does not take what is sent to it. Never raised in the loop."""


class HubError(OnTheJobError):
    """The Hub cannot be reached or refuses a request, or its repository does not hold what it states."""


class SandboxError(OnTheJobError):
    """A sandbox cannot be started, restarted or proven dead. Never raised for what a command does."""


class NotCheckable(SandboxError):
    """A task's checks need a program or module that sandboxes of this machine lack: an outcome without a score."""


class TrainingError(OnTheJobError):
    """A learner cannot continue."""
