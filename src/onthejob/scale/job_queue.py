"""The queue between a driver and its workers: long jobs first, pulled as workers become free, done again when a worker is lost.

It has no thread and reads no clock but the one that it is given: its owner hands it one event after the other, in a thread
(`scale.dispatch`) or in simulated time (`benchmarks/scale_model.py`). A worker holds at most `AHEAD` messages, so that it never
waits for the next one and little is lost with it; everything else stays here. A message holds several short jobs or one long one:
about `MESSAGE_S` seconds of work, less towards the end of the queue, and more where there are so many workers that the driver
could not serve all of them with so short ones. None of this changes a result.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count
from math import sqrt
from typing import Any

from onthejob.errors import ConfigError, ContractError, OnTheJobError, ScaleError
from onthejob.scale.actor_logs import ActorLogs
from onthejob.scale.heartbeats import PATIENCE_S, DriverClock
from onthejob.scale.runtime import Facts, Job, check_keys
from onthejob.scale.worker_bench import JobOutcome, differing, expected_of, message, outcomes_of, packed
from onthejob.scale.worker_hands import DispatchedItem, Hand, HandMessage, JobBatch, Worker, reason

log = logging.getLogger(__name__)

AHEAD = 2
"""Messages that a worker holds at most: the one that it does, and the next."""
MESSAGE_S = 0.5
"""Work of a message in seconds, as estimated, where it holds more than one job."""
SERVED_S = 0.002
"""What a message takes of the driver in seconds, at most. With n workers a message holds n times as much work, where there is
enough of it, so that the driver can keep all of them busy."""
ATTEMPTS = 3
"""How often a job may be the one during which its worker is lost."""
START_S = 300.0
"""Seconds in which a worker starts, which includes its imports."""
NOTED_S = 1.0
"""Seconds of a job from which on its end is a line of its worker's log."""
LOOK_S = 1.0
"""Seconds between two looks at deadlines and reports; its owner calls `handle` at least as often."""

QueueEvent = tuple[Any, ...]
"""What happened: a word, and what belongs to it."""
LOOK: QueueEvent = ("look",)
"""Time has passed."""


def batch_of(jobs: Sequence[Job]) -> tuple[JobBatch, QueueEvent]:
    """Jobs that are submitted together, and the event that brings them to a queue.

    Raises:
        ContractError: two have the same key.
        ConfigError: arguments that cannot be sent by name and value.
    """
    check_keys(jobs)
    batch = JobBatch(keys=tuple(job.key for job in jobs))
    items = [DispatchedItem(batch=batch, job=packed(job), work=job.work, limit_s=job.limit_s, shared=job.shared) for job in jobs]
    return batch, ("jobs", items)


class JobQueue:
    """Does jobs with workers that `hire` starts; not to be used by two threads at the same time."""

    def __init__(
        self,
        hire: Callable[[int], Hand],
        workers: int,
        *,
        post: Callable[[QueueEvent], None],
        gone: Callable[[int], None],
        clock: Callable[[], float],
        facts: Facts | None = None,
        ahead: int = AHEAD,
        start_s: float = START_S,
        patience_s: float = PATIENCE_S,
        logs: ActorLogs | None = None,
    ) -> None:
        """No worker is started before `begin`.

        Args:
            hire: starts a worker, given a number that no other one had, and returns at once.
            workers: >= 1.
            post: takes an event from any thread, and has it handed to `handle` later.
            gone: receives how many jobs no longer wait.
            clock: seconds.
            facts: what they must find as it is found here.
            ahead: messages that a worker holds at most, >= 1.
            start_s: seconds in which a worker must be ready.
            patience_s: seconds without a report after which a worker is lost.
            logs: what becomes of each worker; None keeps nothing.
        """
        self._hire, self._workers, self._ahead = hire, workers, ahead
        self._post, self._gone = post, gone
        self._start_s, self._patience_s = start_s, patience_s
        self._facts, self._logs = facts, logs or ActorLogs()
        self._clock, self._looked = DriverClock(clock), 0.0
        self._staff: dict[int, Worker] = {}
        self._free: dict[int, Worker] = {}
        """Workers that may be sent a message."""
        self._numbers, self._order = count(), count()
        self._heap: list[tuple[float, int, DispatchedItem]] = []
        self._homes: dict[str, int] = {}
        self._rates: dict[str, float] = {}
        self._waiting = 0.0
        """Work in the heap."""
        self._lost_in_a_row = 0
        self._failed_starts = 0
        self._expected: Mapping[str, str] = {}
        self.failure: OnTheJobError | None = None
        """Why no job is done any more."""
        self.lost = 0
        """Workers that were lost so far."""

    @property
    def ready(self) -> int:
        """Workers that can work; all of them once it has failed, so that no one waits for them."""
        return self._workers if self.failure is not None else sum(one.ready for one in self._staff.values())

    def begin(self) -> None:
        """Start the workers without waiting for them."""
        for _ in range(self._workers):
            self._hire_one()
        self._expected = expected_of(self._facts)

    def handle(self, event: QueueEvent) -> None:
        """Do what follows from an event, and from the time."""
        self._clock.look()
        match event:
            case ("jobs", items):
                self._take(items)
            case ("ready", number, future):
                self._welcome(number, future)
            case ("done", number, sent, future):
                self._answered(number, sent, future)
        self._look()
        self._send()

    def fail(self, failure: OnTheJobError) -> None:
        """Do no further job: every batch that is not over raises `failure`."""
        self.failure = failure
        self._give_up(failure)

    def end(self, within_s: float) -> None:
        """Give up every batch that is not over, and end the workers."""
        self._give_up(ScaleError("the runtime was closed while jobs were waiting."))
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
        ready.add_done_callback(lambda future: self._post(("ready", number, future)))

    def _take(self, items: Sequence[DispatchedItem]) -> None:
        if self.failure is not None:
            for item in items:
                self._end_batch(item.batch, self.failure)
            self._gone(len(items))
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
        if worker is None or self.failure is not None:
            return
        error = future.exception()
        if error is not None:
            self._lose(worker, f"did not start, {reason(error)}")
            return
        if wrong := differing(self._expected, future.result()):
            text = f"{worker.hand.name} has {wrong}. Numbers could differ: every node needs the same versions, base and files."
            self.fail(ConfigError(text))
            return
        worker.ready = True
        self._free[number] = worker
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
        self._free[number] = worker
        if worker.held:
            worker.held[0].sent = self._clock.now
        self._lost_in_a_row = 0
        outcomes = outcomes_of(future.result())
        more = f" and {len(outcomes) - 1} more" if len(outcomes) > 1 else ""
        actor, what = worker.hand.name.split(" ")[0], f"{sent.items[0].job.key}{more}"
        self._logs.timeline.did(actor, what, sum(outcome.seconds for outcome in outcomes))
        for outcome, item in zip(outcomes, sent.items, strict=True):
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
        self._gone(len(sent.items))

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
        self._free.pop(worker.number, None)
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
            self.fail(ScaleError(f"no worker could be started; the last one {why}. Look at the machine's memory and load."))
        elif self._lost_in_a_row > ATTEMPTS * (self._workers + 1):
            text = f"{self._lost_in_a_row} workers were lost without one finished job in between; the last one {why}."
            self.fail(ScaleError(f"{text} Look at the machine's memory, and use fewer workers."))
        if self.failure is None:
            self._hire_one()

    def _send(self) -> None:
        """Give every worker that has room its next message, those with the fewest first."""
        sending = True
        while sending:
            sending = False
            able = [worker for worker in self._free.values() if self._heap or worker.own]
            for worker in sorted(able, key=lambda one: len(one.held)):
                if not (items := self._next(worker)):
                    continue
                sent = HandMessage(items=items, sent=self._clock.now)
                worker.held.append(sent)
                if len(worker.held) >= self._ahead:
                    del self._free[worker.number]
                sent.answer = worker.hand.do(message([item.job for item in items]), items[0].shared)
                sent.answer.add_done_callback(partial(self._done, worker.number, sent))
                sending = True

    def _done(self, number: int, sent: HandMessage, future: Future[bytes]) -> None:
        # In a thread of the backend.
        self._post(("done", number, sent, future))

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
            alone = bool(item.job.place) or item.losses > 0 or item.shared is not None
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
        workers, seconds = max(1, len(self._staff)), rate * self._waiting
        # Of messages of c seconds the driver serves seconds / c, and the last one ends c later: the sum is least at this root.
        least = min(SERVED_S * workers, sqrt(SERVED_S * seconds))
        return max(least, min(MESSAGE_S, seconds / (2 * workers)))

    def _dropped(self, item: DispatchedItem) -> bool:
        """True for an item whose batch has failed; it is counted as gone."""
        if item.batch.over.is_set():
            self._gone(1)
            return True
        return False

    def _end_batch(self, batch: JobBatch, failure: OnTheJobError) -> None:
        if not batch.over.is_set():
            batch.failure = failure
            batch.over.set()

    def _give_up(self, failure: OnTheJobError) -> None:
        """End every batch that is not over; nothing waits any more."""
        waiting = [item for _, _, item in self._heap]
        self._heap, self._waiting = [], 0.0
        for worker in self._staff.values():
            waiting += [*worker.own, *(item for sent in worker.held for item in sent.items)]
            worker.own.clear()
            worker.held.clear()
        for item in waiting:
            self._end_batch(item.batch, failure)
        self._gone(len(waiting))
