"""The backend `local`: this process, or processes of this machine that end with it."""

from __future__ import annotations

import multiprocessing
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from multiprocessing import util
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

from onthejob.errors import ConfigError, ScaleError
from onthejob.processes import end_with_parent
from onthejob.scale.actor_logs import ActorLogs
from onthejob.scale.dispatch import Dispatcher
from onthejob.scale.heartbeats import beats
from onthejob.scale.runtime import Crew, Facts, Job, Results, check_keys
from onthejob.scale.worker_bench import WorkerBench, found_here, message, outcomes_of, packed, sendable
from onthejob.types import Environment

KILL_S = 5.0
"""Seconds in which a process that was killed is gone."""


class LocalRuntime:
    """Jobs in this process (`workers` 0) or in worker processes; a `Runtime`."""

    threads = 0

    def __init__(self, workers: int, *, facts: Facts | None = None) -> None:
        """No process is started before the first job; `facts` must be found by the worker processes.

        Raises:
            ConfigError: negative `workers`.
        """
        if workers < 0:
            raise ConfigError(f"workers must be >= 0, got {workers}. Use 0 to work in this process.")
        self.workers = workers
        self.logs = ActorLogs()
        hire = partial(ProcessHand, facts=facts)
        self._queue = Dispatcher(hire, workers, facts=facts, logs=self.logs) if workers else None
        self._bench = WorkerBench()
        self._crews: list[Dispatcher] = []
        self._numbers: dict[str, count[int]] = {}

    def submit(self, jobs: Sequence[Job]) -> Results:
        """As `Runtime.submit`."""
        if self._queue is not None:
            return self._queue.submit(jobs)
        check_keys(jobs)
        messages = [(message([packed(job)]), job.shared) for job in jobs]
        done = [outcome for one in messages for outcome in outcomes_of(self._bench.perform(*one))]
        return lambda: {outcome.key: outcome.unpacked() for outcome in done}

    @contextmanager
    def share(self, value: Any) -> Iterator[Path]:
        """As `Runtime.share`: a file that the processes of this machine read."""
        content = sendable(value, "what jobs share")
        with tempfile.TemporaryDirectory(prefix="onthejob-shared-") as folder:
            path = Path(folder) / "value"
            path.write_bytes(content)
            yield path

    def environments(self, make_env: Callable[[], Environment]) -> Callable[[], Environment]:
        """`make_env`: whole episodes are stepped by threads of this process."""
        return make_env

    def crew(self, kind: str, size: int, *, facts: Facts | None = None) -> Crew:
        """As `Runtime.crew`: processes of this machine."""
        # Numbered through all crews of a kind.
        numbers = self._numbers.setdefault(kind, count())
        self._crews.append(
            Dispatcher(lambda _: ProcessHand(next(numbers), kind=kind, facts=facts), size, facts=facts, ahead=1, logs=self.logs)
        )
        return self._crews[-1]

    def close(self) -> None:
        """As `Runtime.close`."""
        self._bench.clear()
        for crew in self._crews:
            crew.close()
        if self._queue is not None:
            self._queue.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class ProcessHand:
    """A worker process; a `Hand`.

    A thread sends it one message after the other and waits for each answer, which fails when the process is gone.
    """

    def __init__(self, number: int, *, kind: str = "worker", facts: Facts | None = None) -> None:
        """Start it."""
        # Spawned: a process in which torch has started threads can deadlock when it is forked.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._reports, reporting = context.Pipe(duplex=False)
        self._beats = 0
        self._process = context.Process(target=_serve, args=(theirs, reporting, facts), name=f"{kind}-{number}")
        self._process.start()
        # No daemon, which could have no processes of its own; nor does the interpreter wait for it at its end.
        self._at_exit = util.Finalize(None, self._process.kill, exitpriority=1)
        theirs.close()
        reporting.close()
        self.name = f"{self._process.name} (process {self._process.pid})"
        self._asked: SimpleQueue[tuple[tuple[bytes, Path | None] | None, Future[Any]]] = SimpleQueue()
        threading.Thread(target=self._talk, name=self._process.name, daemon=True).start()

    def ready(self) -> Future[Mapping[str, str]]:
        """As `Hand.ready`."""
        return self.do(b"", None)

    def do(self, jobs: bytes, shared: Path | None) -> Future[Any]:
        """As `Hand.do`; an empty message asks for the facts."""
        answer: Future[Any] = Future()
        self._asked.put(((jobs, shared), answer))
        return answer

    def beats(self) -> int:
        """As `Hand.beats`."""
        # Of a process that is gone there are none to read.
        with suppress(EOFError, OSError):
            while self._reports.poll():
                self._reports.recv_bytes()
                self._beats += 1
        return self._beats

    def end(self, within_s: float) -> None:
        """As `Hand.end`."""
        self._asked.put((None, Future()))
        if within_s > 0:
            self._process.join(within_s)
        self._process.kill()
        self._process.join(KILL_S)
        self._at_exit.cancel()

    def _talk(self) -> None:
        lost: Exception | None = None
        while True:
            asked, answer = self._asked.get()
            if lost is None:
                try:
                    self._pipe.send(asked)
                    if asked is not None:
                        answer.set_result(self._pipe.recv())
                except (EOFError, OSError):
                    self._process.join(KILL_S)
                    lost = ScaleError(f"ended with code {self._process.exitcode}: killed, or out of memory")
            if asked is None:
                self._pipe.close()
                self._reports.close()
                return
            if lost is not None:
                answer.set_exception(lost)


def _report(pipe: Connection) -> None:
    """Say that this process is alive, until it ends."""
    with suppress(OSError):
        for _ in beats(threading.Event()):
            pipe.send_bytes(b"alive")


def _serve(pipe: Connection, reports: Connection, facts: Facts | None) -> None:
    """A worker process."""
    end_with_parent()
    threading.Thread(target=_report, args=(reports,), name="heartbeats", daemon=True).start()
    # Ctrl-C reaches all processes of a terminal; the parent ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    bench = WorkerBench(hears=True)
    with suppress(EOFError, OSError):
        while (asked := pipe.recv()) is not None:
            jobs, shared = asked
            pipe.send(bench.perform(jobs, shared) if jobs else found_here(facts))
    bench.clear()
