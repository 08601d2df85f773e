"""Environments in worker processes, for steps that take long to compute: several episodes are stepped at the same time.

The environment of an episode lives in one process, and the proxy that stands for it sends each call there and waits. Calls of
different processes overlap when threads make them (`play`'s `workers`). A step that takes too long, or kills its process, ends
the episodes of that process; the next episodes get a new one.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection
from typing import Any, Self

from onthejob.errors import ConfigError, ContractError, StepError
from onthejob.processes import end_with_parent
from onthejob.scale.worker_bench import portable
from onthejob.types import Branch, Continuable, Environment, Forkable, Observation, Step, Task

START_S = 120.0
"""Seconds in which a process starts and makes its first environment."""
END_S = 5.0
"""Seconds that a process is given to end by itself, in which it closes its environments."""


class Apart:
    """Makes environments that live in worker processes."""

    def __init__(self, make_env: Callable[[], Environment], processes: int, *, limit_s: float = 60.0) -> None:
        """No process is started before an environment is made.

        Args:
            make_env: creates an environment; it is sent to the processes, so it must be importable by name there.
            processes: >= 1.
            limit_s: seconds after which a call has failed and its process is killed, > 0; infinite waits forever.

        Raises:
            ConfigError: a value out of range.
        """
        if processes < 1 or not limit_s > 0:
            raise ConfigError(
                f"worker processes of environments need processes >= 1 and a limit > 0 s, got {processes} and {limit_s}."
            )
        self._make_env, self._limit_s = make_env, limit_s
        self._workers: list[_Worker | None] = [None] * processes
        self._lock = threading.Lock()

    def __call__(self) -> Environment:
        """A new environment, in the process that has the fewest.

        Raises:
            StepError: the process does not start.
            Exception: the environment cannot be made, as it was raised there.
        """
        with self._lock:
            place = min(range(len(self._workers)), key=lambda index: self._load(index))
            worker = self._workers[place]
            if worker is None or not worker.alive:
                worker = self._workers[place] = _Worker(self._make_env, self._limit_s)
        return worker.make()

    def __reduce__(self) -> tuple[Any, ...]:
        # Where it is sent, e.g. to a process that scores branches, environments live in that process.
        return _same, (self._make_env,)

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            if worker is not None:
                worker.close()
        self._workers = [None] * len(self._workers)

    def _load(self, index: int) -> int:
        worker = self._workers[index]
        return 0 if worker is None or not worker.alive else worker.load


class _Worker:
    """One process and the environments in it; one call at a time."""

    def __init__(self, make_env: Callable[[], Environment], limit_s: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make_env), daemon=True)
        self._process.start()
        theirs.close()
        self._limit_s, self._numbers = limit_s, count()
        self.dropped: deque[int] = deque()
        """Environments without a reference, to be closed with the next call."""
        self._lock = threading.Lock()
        self._started = False
        self.alive = True
        self.load = 0
        """Environments that are not closed."""

    def make(self) -> Environment:
        """A new environment of this process."""
        number = next(self._numbers)
        return self.proxy(number, self.call("make", number))

    def proxy(self, number: int, kind: str) -> Environment:
        """What stands for environment `number` here; `kind` says what it can do."""
        self.load += 1
        return {"plain": Remote, "forks": RemoteForkable, "continues": RemoteContinuable}[kind](self, number)

    def fork(self, number: int) -> Environment:
        """A fork of environment `number`, in the same process."""
        made = next(self._numbers)
        return self.proxy(made, self.call("fork", number, made))

    def call(self, what: str, *arguments: Any) -> Any:
        """What the process answers.

        Raises:
            StepError: it takes too long, or has ended.
            Exception: as it was raised there.
        """
        with self._lock:
            if not self.alive:
                raise StepError("the process of this environment has ended. Make another environment.")
            limit_s = self._limit_s if self._started else max(START_S, self._limit_s)
            try:
                self._pipe.send((what, arguments, [self.dropped.popleft() for _ in range(len(self.dropped))]))
                if not self._pipe.poll(None if limit_s == float("inf") else limit_s):
                    self._kill()
                    name = arguments[1] if what == "do" else what
                    raise StepError(
                        f"{name} did not return within {limit_s:g} s, and its process was killed. Make it faster, or raise "
                        "step_limit_s."
                    )
                error, answer = self._pipe.recv()
            except (EOFError, OSError) as lost:
                self._kill()
                code = self._process.exitcode
                raise StepError(f"the process of this environment ended with code {code}: killed, or out of memory.") from lost
            self._started = True
        if error is not None:
            raise error
        return answer

    def close(self) -> None:
        """End the process: by itself when it answers, else it is killed."""
        with self._lock:
            if self.alive:
                self.alive = False
                with suppress(OSError):
                    self._pipe.send(("end", (), []))
                self._process.join(END_S)
            self._kill()

    def _kill(self) -> None:
        self.alive = False
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._pipe.close()


class Remote:
    """An environment in another process; an `Environment`."""

    def __init__(self, worker: _Worker, number: int) -> None:
        self._worker, self._number = worker, number
        self._closed = False

    def reset(self, task: Task) -> Observation:
        """As `Environment.reset`."""
        return self._do("reset", task)

    def step(self, reply: str) -> Step:
        """As `Environment.step`."""
        return self._do("step", reply)

    def state(self) -> Mapping[str, Any]:
        """As `Environment.state`."""
        return self._do("state")

    def close(self) -> None:
        """Close it there, once."""
        if not self._closed:
            self._closed = True
            self._worker.load -= 1
            if self._worker.alive:
                self._worker.call("drop", self._number)

    def __del__(self) -> None:
        # Forks are let go without being closed. No call from here: this may run in the middle of one.
        if not self._closed:
            self._closed = True
            self._worker.load -= 1
            self._worker.dropped.append(self._number)

    def _do(self, method: str, *arguments: Any) -> Any:
        return self._worker.call("do", self._number, method, *arguments)


class RemoteForkable(Remote):
    """The same; a `Forkable`."""

    def observe(self) -> Observation | None:
        """As `Forkable.observe`."""
        return self._do("observe")

    def snapshot(self) -> bytes:
        """As `Forkable.snapshot`."""
        return self._do("snapshot")

    def restore(self, snapshot: bytes) -> Observation | None:
        """As `Forkable.restore`."""
        return self._do("restore", snapshot)

    def fork(self) -> Self:
        """As `Forkable.fork`."""
        return self._worker.fork(self._number)  # type: ignore[return-value]

    def canonical(self, reply: str) -> str:
        """As `Forkable.canonical`."""
        return self._do("canonical", reply)

    def branch(self, reply: str, *, world: int, turns: int) -> Branch:
        """As `Forkable.branch`."""
        return self._do("branch", reply, world, turns)


class RemoteContinuable(RemoteForkable):
    """The same; a `Continuable`."""

    def enter(self, world: int) -> None:
        """As `Continuable.enter`."""
        self._do("enter", world)

    def outcome(self) -> float:
        """As `Continuable.outcome`."""
        return self._do("outcome")


def _serve(pipe: Connection, make_env: Callable[[], Environment]) -> None:
    """The loop of a worker process."""
    end_with_parent()
    # Ctrl-C reaches all processes of a terminal; the parent ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    held: dict[int, Any] = {}
    while True:
        try:
            what, arguments, dropped = pipe.recv()
        except (EOFError, OSError):
            return
        for number in dropped:
            with suppress(Exception):
                held.pop(number).close()
        if what == "end":
            for env in held.values():
                env.close()
            return
        try:
            answer = None, _done(held, make_env, what, arguments)
        except (Exception, SystemExit) as error:
            answer = portable(error), None
        try:
            pipe.send(answer)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            text = f"what {what} returned cannot be sent between processes: {error}. Use plain values, or processes = 0."
            pipe.send((ContractError(text), None))


def _same(make_env: Callable[[], Environment]) -> Callable[[], Environment]:
    return make_env


def _done(held: dict[int, Any], make_env: Callable[[], Environment], what: str, arguments: tuple[Any, ...]) -> Any:
    number, *rest = arguments
    match what:
        case "make":
            held[number] = make_env()
            return _kind(held[number])
        case "fork":
            (made,) = rest
            held[made] = held[number].fork()
            return _kind(held[made])
        case "drop":
            return held.pop(number).close()
    method, *given = rest
    if method == "branch":
        reply, world, turns = given
        return held[number].branch(reply, world=world, turns=turns)
    return getattr(held[number], method)(*given)


def _kind(env: object) -> str:
    return "continues" if isinstance(env, Continuable) else "forks" if isinstance(env, Forkable) else "plain"
