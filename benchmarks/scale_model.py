"""The runtime in simulated time: the queue and the spreading of prompts are the package's own, and workers only take time.

`JobQueue` and `spread` are driven as they are in a run. What they are driven with is simulated: workers that are done after so
many seconds of a virtual clock, the way of a message, and a driver that handles one event after the other. Nothing here waits,
and equal arguments give equal figures on every machine. `benchmarks/scale.py` compares it with real workers.
"""

from __future__ import annotations

import heapq
import pickle
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from typing import Any

from onthejob.scale.crew_sampler import spread
from onthejob.scale.job_queue import AHEAD, JobQueue, QueueEvent, batch_of
from onthejob.scale.runtime import Job
from onthejob.scale.worker_bench import JobOutcome, expected_of
from onthejob.scale.worker_hands import JobBatch

FOREVER_S = 1e9
NOTHING = pickle.dumps(None)
Program = Generator["Sequence[JobBatch]", None, None]
"""What the driver does: it yields the batches that it waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverCosts:
    """What a message and a job take besides the work, in seconds."""

    message_s: float
    """Of the driver, per message: sending it and handling its answer."""
    job_s: float
    """Of the driver, per job: packing it and unpacking its result."""
    way_s: float
    """From the driver to the worker and back."""


class SimulatedTime:
    """A clock that jumps from one event to the next."""

    def __init__(self) -> None:
        self.now = 0.0
        self._coming: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, time: float, do: Callable[[], None]) -> None:
        """Do something at `time`, or now if that is over; what is due at the same time is done in the order of these calls."""
        heapq.heappush(self._coming, (max(time, self.now), next(self._order), do))

    def step(self) -> None:
        """Jump to the next event, and do it.

        Raises:
            IndexError: there is none.
        """
        due, _, do = heapq.heappop(self._coming)
        self.now = max(self.now, due)
        do()


class SimulatedDriver:
    """The one process that owns all queues: it does one thing at a time, and what comes meanwhile waits."""

    def __init__(self, costs: DriverCosts) -> None:
        self.costs, self.time = costs, SimulatedTime()
        self.free_at = 0.0
        """When it has done what it began."""
        self.busy_s = 0.0
        self._inbox: deque[tuple[JobQueue, QueueEvent]] = deque()
        self._serving = False

    def spend(self, seconds: float) -> None:
        """It is busy for so long."""
        self.free_at = max(self.free_at, self.time.now) + seconds
        self.busy_s += seconds

    def post(self, queue: JobQueue, event: QueueEvent) -> None:
        """An event for a queue."""
        self._inbox.append((queue, event))
        if not self._serving:
            self._serving = True
            self.time.at(self.free_at, self._serve)

    def play(self, program: Program) -> float:
        """Run what the driver does to its end, and return when that is."""
        for awaited in program:
            while not all(batch.over.is_set() for batch in awaited):
                self.time.step()
            for batch in awaited:
                if batch.failure is not None:
                    raise batch.failure
            # What it does next begins when it has handled the last answer.
            self.time.now = max(self.time.now, self.free_at)
        return max(self.time.now, self.free_at)

    def _serve(self) -> None:
        if self.free_at > self.time.now:
            # Its program was busy meanwhile.
            self.time.at(self.free_at, self._serve)
            return
        queue, event = self._inbox.popleft()
        queue.handle(event)
        self._serving = bool(self._inbox)
        if self._serving:
            self.time.at(self.free_at, self._serve)


class SimulatedHand:
    """A worker that is done with a job after the seconds that are its first argument; a `Hand`."""

    def __init__(self, driver: SimulatedDriver, number: int, there: Mapping[str, str]) -> None:
        self.name, self.busy_s, self.messages = f"simulated-{number}", 0.0, 0
        self._driver, self._there = driver, there
        self._free_at = 0.0

    def ready(self) -> Future[Mapping[str, str]]:
        """As `Hand.ready`: at once."""
        future: Future[Mapping[str, str]] = Future()
        future.set_result(self._there)
        return future

    def do(self, jobs: bytes, shared: Any) -> Future[bytes]:
        """As `Hand.do`."""
        driver, answer = self._driver, Future[bytes]()
        driver.spend(driver.costs.message_s)
        asked = pickle.loads(jobs)
        seconds = [pickle.loads(one.arguments)[0] for one in asked]
        outcomes = tuple(
            JobOutcome(key=one.key, value=NOTHING, raised="", seconds=took, kept=False)
            for one, took in zip(asked, seconds, strict=True)
        )
        begins = max(self._free_at, driver.free_at + driver.costs.way_s / 2)
        self._free_at = begins + sum(seconds)
        self.busy_s += sum(seconds)
        self.messages += 1
        driver.time.at(self._free_at + driver.costs.way_s / 2, lambda: answer.set_result(pickle.dumps(outcomes)))
        return answer

    def beats(self) -> int:
        """As `Hand.beats`: none, so that it is never silent."""
        return 0

    def end(self, within_s: float) -> None:
        """As `Hand.end`."""


class SimulatedCrew:
    """Workers with a queue; jobs are lists of seconds."""

    def __init__(self, driver: SimulatedDriver, size: int, *, ahead: int = AHEAD) -> None:
        self._driver = driver
        self.hands: list[SimulatedHand] = []
        self._batches = count()
        there = expected_of(None)

        def hire(number: int) -> SimulatedHand:
            self.hands.append(SimulatedHand(driver, number, there))
            return self.hands[-1]

        self._queue = JobQueue(
            hire, size, post=lambda event: driver.post(self._queue, event), gone=lambda jobs: None,
            clock=lambda: driver.time.now, ahead=ahead,
        )  # fmt: skip
        # No look at the time: no worker is ever late here.
        self._queue.begin()

    def submit(self, seconds: Sequence[float], *, expected: Sequence[float] | None = None) -> JobBatch:
        """Jobs that take so long; `expected` is their work as the queue knows it, the same unless given."""
        works = seconds if expected is None else expected
        batch, event = batch_of(
            [
                Job(key=f"job-{index}", function="time:sleep", arguments=(took,), work=max(work, 1e-9), limit_s=FOREVER_S)
                for index, (took, work) in enumerate(zip(seconds, works, strict=True))
            ]
        )
        self._driver.spend(self._driver.costs.job_s * len(seconds))
        self._driver.post(self._queue, event)
        return batch

    @property
    def busy_s(self) -> float:
        """Seconds of work of all workers."""
        return sum(hand.busy_s for hand in self.hands)

    @property
    def messages(self) -> int:
        """Sent so far."""
        return sum(hand.messages for hand in self.hands)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerSpeed:
    """What an engine takes to sample, in seconds."""

    prefill_s: float
    """Per token of a prompt."""
    steps: tuple[tuple[int, float], ...]
    """(rows, seconds) of one decode step, rising; between two of them, and beyond the last, along the line."""
    kept_s: float = 0.0
    """Of one decode step, per token of keys and values that it reads."""
    room: float = float("inf")
    """Tokens whose keys and values fit at the same time."""

    def step_s(self, rows: int, kept: float) -> float:
        """Of one decode step of so many replies."""
        if rows <= self.steps[0][0] or len(self.steps) == 1:
            return self.steps[0][1] + kept * self.kept_s
        right = min(bisect_right(self.steps, (rows, 0.0)), len(self.steps) - 1)
        (r0, s0), (r1, s1) = self.steps[right - 1], self.steps[right]
        return s0 + (s1 - s0) * (rows - r0) / (r1 - r0) + kept * self.kept_s

    def seconds(self, groups: Sequence[tuple[int, Sequence[int]]]) -> float:
        """Of groups of (tokens of a prompt, tokens of each reply), with continuous batching: a group begins when it fits."""
        waiting, running = deque(groups), list[tuple[int, int]]()  # (step at which it ends, tokens that it keeps)
        took, step, kept = 0.0, 0, 0.0
        while waiting or running:
            while waiting and (not running or kept + _size(waiting[0]) <= self.room):
                prompt, replies = waiting.popleft()
                took += prompt * self.prefill_s
                # The prompt is kept until its last reply is done.
                last = max(replies)
                for reply in replies:
                    held = reply + (prompt if reply == last else 0)
                    heapq.heappush(running, (step + reply, held))
                    kept += held
                    prompt = 0 if reply == last else prompt
            ends, held = running[0]
            took += (ends - step) * self.step_s(len(running), kept)
            step = ends
            while running and running[0][0] == step:
                kept -= heapq.heappop(running)[1]
        return took


def _size(group: tuple[int, Sequence[int]]) -> int:
    return group[0] + sum(group[1])


class SimulatedSamplers:
    """Samplers, each with a queue of its own; a call's prompts are spread as `CrewSampler` does it."""

    def __init__(self, driver: SimulatedDriver, size: int, speed: SamplerSpeed) -> None:
        self.crews = [SimulatedCrew(driver, 1, ahead=1) for _ in range(size)]
        self._speed = speed

    def generate(self, groups: Sequence[tuple[int, Sequence[int]]], *, limit: int) -> list[JobBatch]:
        """Begin a call: groups of (tokens of a prompt, tokens of each reply), with at most `limit` tokens a reply."""
        prompts = [one for index, (size, replies) in enumerate(groups) for one in [(index, *[0] * (size - 1))] * len(replies)]
        parts = spread(prompts, len(self.crews), limit=limit, homes={})
        found = []
        for number, indices in parts.items():
            own = dict.fromkeys(prompts[index][0] for index in indices)
            found.append(self.crews[number].submit([self._speed.seconds([groups[group] for group in own])]))
        return found
