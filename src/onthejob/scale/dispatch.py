"""The queue between a driver and its workers: long jobs first, pulled as workers become free, done again when a worker is lost.

One thread owns all of its state. Everything reaches it as an event: jobs, a worker that is ready, an answer, the end. A worker
holds at most `AHEAD` messages, so that it never waits for the next one and little is lost with it; everything else stays here. A
message holds several short jobs or one long one: about `MESSAGE_S` seconds of work, less towards the end of the queue. None of
this changes a result.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any

from onthejob.errors import ConfigError, ContractError, OnTheJobError, ScaleError
from onthejob.scale.actor_logs import ActorLogs
from onthejob.scale.heartbeats import PATIENCE_S, DriverClock
from onthejob.scale.runtime import Facts, Job, Results, check_keys
from onthejob.scale.worker_bench import JobOutcome, differing, expected_of, message, outcomes_of, packed
from onthejob.scale.worker_hands import DispatchedItem, Hand, HandMessage, JobBatch, Worker, reason

log = logging.getLogger(__name__)

AHEAD = 2
"""Messages that a worker holds at most: the one that it does, and the next."""
MESSAGE_S = 0.5
"""Work of a message in seconds, as estimated, where it holds more than one job."""
ATTEMPTS = 3
"""How often a job may be the one during which its worker is lost."""
START_S = 300.0
"""Seconds in which a worker starts, which includes its imports."""
NOTED_S = 1.0
"""Seconds of a job from which on its end is a line of its worker's log."""
QUEUED = 20_000
"""Jobs that may wait; with more, `submit` waits."""
LOOK_S = 1.0
"""Seconds between two looks at deadlines and reports."""


class Dispatcher:
    """Does jobs with workers that `hire` starts."""

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
        """No worker is started before `start` or the first job.

        Args:
            hire: starts a worker, given a number that no other one had, and returns at once.
            workers: >= 1.
            facts: what they must find as it is found here.
            ahead: messages that a worker holds at most, >= 1.
            start_s: seconds in which a worker must be ready.
            patience_s: seconds without a report after which a worker is lost.
            logs: what becomes of each worker; None keeps nothing.
        """
        self._hire, self._workers, self._ahead = hire, workers, ahead
        self._start_s, self._patience_s = start_s, patience_s
        self._facts, self._logs = facts, logs or ActorLogs()
        self._events: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._room = threading.Condition()
        self._queued = 0
        # Owned by the thread.
        self._clock, self._looked = DriverClock(), 0.0
        self._staff: dict[int, Worker] = {}
        self._numbers, self._order = count(), count()
        self._heap: list[tuple[float, int, DispatchedItem]] = []
        self._homes: dict[str, int] = {}
        self._rates: dict[str, float] = {}
        self._waiting = 0.0
        """Work in the heap."""
        self._lost_in_a_row = 0
        self._failed_starts = 0
        self._failure: OnTheJobError | None = None
        self._expected: Mapping[str, str] = {}
        self.lost = 0
        """Workers that were lost so far; for the log and tests."""

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
        if self._failure is not None:
            raise self._failure

    def submit(self, jobs: Sequence[Job]) -> Results:
        """As `Runtime.submit`."""
        check_keys(jobs)
        batch = JobBatch(keys=tuple(job.key for job in jobs))
        items = [DispatchedItem(batch=batch, job=packed(job), work=job.work, limit_s=job.limit_s) for job in jobs]
        if not items:
            return dict
        self.start()
        with self._room:
            while self._queued > QUEUED and self._failure is None:
                self._room.wait(LOOK_S)
                self._check_thread()
            self._queued += len(items)
        self._events.put(("jobs", items))

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

    # What follows runs in the thread.

    def _run(self) -> None:
        asking: list[tuple[threading.Event, int]] = []
        within_s = 0.0
        try:
            for _ in range(self._workers):
                self._hire_one()
            self._expected = expected_of(self._facts)
            while True:
                try:
                    event = self._events.get(timeout=LOOK_S)
                except Empty:
                    event = ("look",)
                self._clock.look()
                match event:
                    case ("close", seconds):
                        within_s = seconds
                        return
                    case ("ask", answered, wanted):
                        asking.append((answered, wanted))
                    case ("jobs", items):
                        self._take(items)
                    case ("ready", number, future):
                        self._welcome(number, future)
                    case ("done", number, sent, future):
                        self._answered(number, sent, future)
                self._look()
                ready = self._workers if self._failure is not None else sum(one.ready for one in self._staff.values())
                for answered in [answered for answered, wanted in asking if ready >= wanted]:
                    answered.set()
                asking = [one for one in asking if not one[0].is_set()]
                self._send()
        except Exception as error:
            log.exception("the queue of jobs failed")
            self._fail(ScaleError(f"the queue of jobs failed: {type(error).__name__}: {error}"))
        finally:
            self._give_up(ScaleError("the runtime was closed while jobs were waiting."))
            for answered, _ in asking:
                answered.set()
            ending = [threading.Thread(target=worker.hand.end, args=(within_s,)) for worker in self._staff.values()]
            for one in ending:
                one.start()
            for one in ending:
                one.join()

    def _hire_one(self) -> None:
        number = next(self._numbers)
        hand = self._hire(number)
        self._logs.say(hand.name, f"{hand.name} is started")
        ready = hand.ready()
        self._staff[number] = Worker(hand=hand, started=self._clock.now, number=number, answer=ready)
        ready.add_done_callback(lambda future: self._events.put(("ready", number, future)))

    def _take(self, items: Sequence[DispatchedItem]) -> None:
        if self._failure is not None:
            for item in items:
                self._end_batch(item.batch, self._failure)
            self._count(-len(items))
            return
        for item in items:
            self._queue(item)

    def _queue(self, item: DispatchedItem) -> None:
        home = self._staff.get(self._homes.get(item.job.place, -1)) if item.job.place else None
        if home is not None:
            home.own.append(item)
        else:
            heapq.heappush(self._heap, (-item.work, next(self._order), item))
            self._waiting += item.work

    def _welcome(self, number: int, future: Future[Mapping[str, str]]) -> None:
        worker = self._staff.get(number)
        if worker is None or self._failure is not None:
            return
        error = future.exception()
        if error is not None:
            self._lose(worker, f"did not start, {reason(error)}")
            return
        if wrong := differing(self._expected, future.result()):
            text = f"{worker.hand.name} has {wrong}. Numbers could differ: every node needs the same versions, base and files."
            self._fail(ConfigError(text))
            return
        worker.ready = True
        self._logs.say(worker.hand.name, f"ready after {self._clock.now - worker.started:.1f} s")
        self._failed_starts = 0

    def _answered(self, number: int, sent: HandMessage, future: Future[bytes]) -> None:
        worker = self._staff.get(number)
        if worker is None or not worker.held or sent not in worker.held:
            return  # of a worker that is given up: its jobs are done elsewhere
        error = future.exception()
        if error is not None:
            self._lose(worker, reason(error))
            return
        worker.held.remove(sent)
        if worker.held:
            worker.held[0].sent = self._clock.now
        self._lost_in_a_row = 0
        for outcome, item in zip(outcomes_of(future.result()), sent.items, strict=True):
            if outcome.key != item.job.key:
                raise ContractError(f"worker {worker.hand.name} answered {outcome.key} where {item.job.key} was asked.")
            self._learn(item, outcome)
            for line in outcome.logged:
                self._logs.say(worker.hand.name, line)
            if outcome.raised or outcome.seconds >= NOTED_S:
                ended = f": {outcome.raised}" if outcome.raised else ""
                self._logs.say(worker.hand.name, f"{outcome.key} took {outcome.seconds:.1f} s{ended}")
            if not outcome.kept:
                self._homes.pop(item.job.place, None)
            item.batch.outcomes[outcome.key] = outcome
            if len(item.batch.outcomes) == len(item.batch.keys):
                item.batch.over.set()
        self._count(-len(sent.items))

    def _learn(self, item: DispatchedItem, outcome: JobOutcome) -> None:
        rate = outcome.seconds / item.work
        known = self._rates.get(item.job.function)
        self._rates[item.job.function] = rate if known is None else 0.8 * known + 0.2 * rate

    def _look(self) -> None:
        """Give up workers that are late or silent."""
        now = self._clock.now
        if now - self._looked < LOOK_S / 2:
            return
        self._looked = now
        for worker in list(self._staff.values()):
            if why := worker.overdue(now, start_s=self._start_s, patience_s=self._patience_s):
                self._lose(worker, why)

    def _lose(self, worker: Worker, why: str) -> None:
        """A worker is gone: its jobs wait again, and another is hired."""
        del self._staff[worker.number]
        self.lost += 1
        self._lost_in_a_row += 1
        log.warning("worker %s is lost (%s); its %d jobs are done again", worker.hand.name, why, worker.jobs)
        self._logs.say(worker.hand.name, f"lost: {why}; its {worker.jobs} jobs are done again")
        # Ending may wait for a machine that is gone.
        threading.Thread(target=worker.hand.end, args=(0.0,), daemon=True).start()
        self._homes = {place: home for place, home in self._homes.items() if home != worker.number}
        blamed = worker.held[0].items if worker.held else []
        for item in blamed:
            item.losses += 1
            if item.losses >= ATTEMPTS:
                text = (
                    f"job {item.job.key} ended its worker {item.losses} times; the last one {why}. It may need more memory "
                    "or time than it is given: use fewer workers."
                )
                self._end_batch(item.batch, ScaleError(text))
        for item in [*(item for sent in worker.held for item in sent.items), *worker.own]:
            self._queue(item)
        self._failed_starts += not worker.ready
        idle = not any(other.ready for other in self._staff.values())
        if idle and self._failed_starts >= max(2, self._workers):
            self._fail(ScaleError(f"no worker could be started; the last one {why}. Look at the machine's memory and load."))
        elif self._lost_in_a_row > ATTEMPTS * (self._workers + 1):
            text = f"{self._lost_in_a_row} workers were lost without one finished job in between; the last one {why}."
            self._fail(ScaleError(f"{text} Look at the machine's memory, and use fewer workers."))
        if self._failure is None:
            self._hire_one()

    def _send(self) -> None:
        """Give every worker that has room its next message."""
        sending = True
        while sending:
            sending = False
            for worker in sorted(self._staff.values(), key=lambda one: len(one.held)):
                if worker.ready and len(worker.held) < self._ahead and (items := self._next(worker)):
                    sent = HandMessage(items=items, sent=self._clock.now)
                    worker.held.append(sent)
                    sent.answer = worker.hand.do(message([item.job for item in items]))
                    sent.answer.add_done_callback(partial(self._done, worker.number, sent))
                    sending = True

    def _done(self, number: int, sent: HandMessage, future: Future[bytes]) -> None:
        # In a thread of the backend.
        self._events.put(("done", number, sent, future))

    def _next(self, worker: Worker) -> list[DispatchedItem]:
        """The items of the worker's next message; none when nothing waits for it."""
        while worker.own:
            item = worker.own.popleft()
            if not self._dropped(item):
                return [item]
        found: list[DispatchedItem] = []
        seconds = 0.0
        while self._heap:
            item = self._heap[0][2]
            if self._dropped(item):
                self._pop()
                continue
            alone = bool(item.job.place) or item.losses > 0
            rate = self._rates.get(item.job.function)
            if found and (alone or rate is None or seconds + rate * item.work > self._share(rate)):
                break
            self._pop()
            found.append(item)
            if item.job.place:
                self._homes[item.job.place] = worker.number
            if alone or rate is None:
                break
            seconds += rate * item.work
        return found

    def _pop(self) -> None:
        item = heapq.heappop(self._heap)[2]
        self._waiting = self._waiting - item.work if self._heap else 0.0

    def _share(self, rate: float) -> float:
        """Seconds of work of a message: less towards the end, so that all workers end at about the same time."""
        return min(MESSAGE_S, rate * self._waiting / (2 * max(1, len(self._staff))))

    def _dropped(self, item: DispatchedItem) -> bool:
        """True for an item whose batch has failed; it is counted as gone."""
        if item.batch.over.is_set():
            self._count(-1)
            return True
        return False

    def _count(self, change: int) -> None:
        with self._room:
            self._queued += change
            self._room.notify_all()

    def _end_batch(self, batch: JobBatch, failure: OnTheJobError) -> None:
        if not batch.over.is_set():
            batch.failure = failure
            batch.over.set()

    def _fail(self, failure: OnTheJobError) -> None:
        self._failure = failure
        self._give_up(failure)

    def _give_up(self, failure: OnTheJobError) -> None:
        """End every batch that is not over."""
        waiting = [item for _, _, item in self._heap]
        for worker in self._staff.values():
            waiting += [*worker.own, *(item for sent in worker.held for item in sent.items)]
        for item in waiting:
            self._end_batch(item.batch, failure)
        with self._room:
            self._queued = 0
            self._room.notify_all()
