"""Whole episodes in workers: stand-ins here for environments that live there, which a lost worker does not end.

The stand-in keeps everything that was done to its environment: the task, then every reply. Each call is a job of these and of
the call itself, so any worker can do it. The worker that has the environment on its shelf only makes the call. Another one makes
the environment anew, repeats what was done and compares what comes of it with what came of it before. Where the same replies lead
elsewhere, the episode ends with an error instead of continuing as another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from onthejob.errors import ContractError, StepError
from onthejob.scale.runtime import LIMIT_S, Job, Runtime
from onthejob.types import Environment, Interruptible, Observation, Scored, Step, StopReason, Task

CHANGES = ("reset", "step", "interrupt")
"""Calls that change an environment; all others only look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvCall:
    """One call of an environment's method."""

    method: str
    argument: Any
    digest: str = ""
    """Of what it returned; empty for one that was not made yet."""


@dataclass(slots=True, kw_only=True)
class _Held:
    """An environment on a shelf."""

    env: Environment
    done: int = 0
    """Changes that it has been through."""

    def close(self) -> None:
        self.env.close()


def perform(
    shelf: dict[str, Any], make_env: Callable[[], Environment], before: tuple[EnvCall, ...], call: EnvCall
) -> tuple[Any, str]:
    """Make `call` in an environment that has been through `before`; a job.

    Returns:
        The result and its digest.

    Raises:
        StepError: repeating `before` led elsewhere.
        Exception: what the environment raised; it is closed then.
    """
    held = shelf.get("env")
    if held is None or held.done != len(before):
        if held is not None:
            held.close()
        held = shelf["env"] = _Held(env=make_env())
    try:
        for change in before[held.done :]:
            found = digest(_called(held.env, change))
            if found != change.digest:
                raise StepError(
                    f"the worker of this episode was lost, and {change.method} number {held.done} returned something else when "
                    "it was repeated. The environment is not deterministic: draw its randomness from the task's seed."
                )
            held.done += 1
        result = _called(held.env, call)
    except BaseException:
        del shelf["env"]
        held.close()
        raise
    held.done += call.method in CHANGES
    return result, digest(result) if call.method in CHANGES else ""


def drop(shelf: dict[str, Any]) -> None:
    """Close the environment of a place; a job."""
    held = shelf.pop("env", None)
    if held is not None:
        held.close()


def digest(result: Any) -> str:
    """Of what a policy reads and a learner is paid in a result, 16 hex digits; facts, which may hold times, do not count."""
    said: Any = None
    if isinstance(result, Step):
        request = None if result.observation is None else _read(result.observation)
        said = request, sorted(result.rewards.items()), str(result.stop), result.valid
    elif result is not None:
        said = _read(result)
    return hashlib.sha256(repr(said).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _read(observation: Observation) -> tuple[Any, ...]:
    messages = [(message.role, message.content) for message in observation.messages]
    return observation.actor, str(observation.kind), observation.fresh, messages


def _called(env: Any, call: EnvCall) -> Any:
    match call.method:
        case "reset":
            return env.reset(call.argument)
        case "step":
            return env.step(call.argument)
        case "state":
            return env.state()
        case "interrupt":
            return env.interrupt(call.argument)
        case "scores":
            return env.scores(call.argument)
    raise ContractError(f"an environment in a worker has no method {call.method!r}.")


class Placement:
    """Makes stand-ins."""

    def __init__(
        self, runtime: Runtime, make_env: Callable[[], Environment], *, numbers: count[int], limit_s: float = LIMIT_S
    ) -> None:
        """Make one environment here to see what it can do; it plays nothing.

        Args:
            runtime: has the workers.
            make_env: makes an environment there; importable by name.
            numbers: of the runtime's stand-ins.
            limit_s: of one call, in seconds.
        """
        self._runtime, self._make_env, self._numbers, self._limit_s = runtime, make_env, numbers, limit_s
        env = make_env()
        try:
            kinds = {
                (False, False): PlacedEnvironment,
                (True, False): PlacedScored,
                (False, True): PlacedInterruptible,
                (True, True): PlacedBoth,
            }
            self._kind = kinds[isinstance(env, Scored), isinstance(env, Interruptible)]
            self.name = type(env).__name__
        finally:
            env.close()

    def __call__(self) -> Environment:
        """A new stand-in; its environment is made with its first call."""
        return self._kind(self._runtime, self._make_env, f"{self.name}-{next(self._numbers)}", self._limit_s)


class PlacedEnvironment:
    """Stand-in for an environment in a worker."""

    def __init__(self, runtime: Runtime, make_env: Callable[[], Environment], place: str, limit_s: float) -> None:
        self._runtime, self._make_env, self._place, self._limit_s = runtime, make_env, place, limit_s
        self._before: tuple[EnvCall, ...] = ()
        self._open = False

    def reset(self, task: Task) -> Observation:
        """As `Environment.reset`; a new episode, whatever was before."""
        self._before = ()
        return self._do("reset", task)

    def step(self, reply: str) -> Step:
        """As `Environment.step`."""
        return self._do("step", reply)

    def state(self) -> Mapping[str, Any]:
        """As `Environment.state`."""
        return self._do("state")

    def close(self) -> None:
        """As `Environment.close`."""
        if self._open:
            self._open = False
            self._submit("onthejob.scale.placed:drop", ())

    def _do(self, method: str, argument: Any = None) -> Any:
        self._open = True
        call = EnvCall(method=method, argument=argument)
        result, found = self._submit("onthejob.scale.placed:perform", (self._make_env, self._before, call))
        if method in CHANGES:
            self._before = (*self._before, EnvCall(method=method, argument=argument, digest=found))
        return result

    def _submit(self, function: str, arguments: tuple[Any, ...]) -> Any:
        job = Job(key=self._place, function=function, arguments=arguments, place=self._place, limit_s=self._limit_s)
        return self._runtime.submit([job])()[job.key]


class PlacedScored(PlacedEnvironment):
    """A stand-in for an environment that is `Scored`."""

    def scores(self, reply: str) -> Mapping[str, float]:
        """As `Scored.scores`."""
        return self._do("scores", reply)


class PlacedInterruptible(PlacedEnvironment):
    """A stand-in for an environment that is `Interruptible`."""

    def interrupt(self, stop: StopReason) -> Step:
        """As `Interruptible.interrupt`."""
        return self._do("interrupt", stop)


class PlacedBoth(PlacedScored, PlacedInterruptible):
    """A stand-in for an environment that is both."""
