"""The queue of jobs in a thread of its own, which alone touches its state: everything reaches it as an event."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from onthejob.errors import ScaleError
from onthejob.scale.actor_logs import ActorLogs
from onthejob.scale.heartbeats import PATIENCE_S
from onthejob.scale.job_queue import AHEAD, LOOK, LOOK_S, START_S, JobQueue, QueueEvent, batch_of
from onthejob.scale.runtime import Facts, Job, Results
from onthejob.scale.worker_hands import Hand

log = logging.getLogger(__name__)

QUEUED = 20_000
"""Jobs that may wait; with more, `submit` waits."""


class Dispatcher:
    """Does jobs with workers that `hire` starts; may be used by many threads."""

    def __init__(
        self,
        hire: Callable[[int], Hand],
        workers: int,
        *,
        facts: Facts | None = None,
        ahead: int = AHEAD,
        start_s: float = START_S,
        patience_s: float = PATIENCE_S,
        logs: ActorLogs | None = None,
    ) -> None:
        """As `JobQueue`; no worker is started before `start` or the first job."""
        self._events: SimpleQueue[QueueEvent] = SimpleQueue()
        self._queue = JobQueue(
            hire, workers, post=self._events.put, gone=self._gone, clock=time.monotonic, facts=facts, ahead=ahead,
            start_s=start_s, patience_s=patience_s, logs=logs,
        )  # fmt: skip
        self._workers = workers
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._room = threading.Condition()
        self._queued = 0

    @property
    def lost(self) -> int:
        """Workers that were lost so far; for the log and tests."""
        return self._queue.lost

    def start(self) -> None:
        """Start the workers without waiting for them.

        Raises:
            ScaleError: it is closed.
        """
        with self._lock:
            if self._closed:
                raise ScaleError("the runtime is closed. Open another one.")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dispatch", daemon=True)
                self._thread.start()

    def wait_ready(self, *, all_of_them: bool = False) -> None:
        """As `Crew.wait_ready`."""
        self.start()
        answered = threading.Event()
        self._events.put(("ask", answered, self._workers if all_of_them else 1))
        while not answered.wait(LOOK_S):
            self._check_thread()
        if self._queue.failure is not None:
            raise self._queue.failure

    def submit(self, jobs: Sequence[Job]) -> Results:
        """As `Runtime.submit`."""
        batch, event = batch_of(jobs)
        if not jobs:
            return dict
        self.start()
        with self._room:
            while self._queued > QUEUED and self._queue.failure is None:
                self._room.wait(LOOK_S)
                self._check_thread()
            self._queued += len(jobs)
        self._events.put(event)

        def results() -> dict[str, Any]:
            while not batch.over.wait(LOOK_S):
                self._check_thread()
            if batch.failure is not None:
                raise batch.failure
            return {key: batch.outcomes[key].unpacked() for key in batch.keys}

        return results

    def close(self, within_s: float = 10.0) -> None:
        """End the workers; jobs that wait are given up."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            self._events.put(("close", within_s))
            thread.join()

    def _check_thread(self) -> None:
        thread = self._thread
        if thread is None or not thread.is_alive():
            raise ScaleError("the runtime was closed while jobs were waiting.")

    def _gone(self, jobs: int) -> None:
        with self._room:
            self._queued -= jobs
            self._room.notify_all()

    def _run(self) -> None:
        asking: list[tuple[threading.Event, int]] = []
        within_s = 0.0
        try:
            self._queue.begin()
            while True:
                try:
                    event = self._events.get(timeout=LOOK_S)
                except Empty:
                    event = LOOK
                match event:
                    case ("close", seconds):
                        within_s = seconds
                        return
                    case ("ask", answered, wanted):
                        asking.append((answered, wanted))
                self._queue.handle(event)
                for answered, wanted in asking:
                    if self._queue.ready >= wanted:
                        answered.set()
                asking = [one for one in asking if not one[0].is_set()]
        except Exception as error:
            log.exception("the queue of jobs failed")
            self._queue.fail(ScaleError(f"the queue of jobs failed: {type(error).__name__}: {error}"))
        finally:
            self._queue.end(within_s)
            for answered, _ in asking:
                answered.set()
