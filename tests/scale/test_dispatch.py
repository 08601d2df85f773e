"""The queue: whatever its workers do, every job has one result, or the batch one error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onthejob.errors import ConfigError, ContractError, ScaleError
from onthejob.scale.dispatch import Dispatcher
from onthejob.scale.heartbeats import GAP_S, DriverClock
from onthejob.scale.job_queue import AHEAD, ATTEMPTS
from onthejob.scale.runtime import Job
from onthejob.scale.worker_bench import WorkerBench, versions

ENDING = 60.0
"""Seconds after which a test that waits for the queue fails instead."""


class Fake:
    """A worker that is a thread; its `plan` says of each message what becomes of it."""

    def __init__(
        self,
        number: int,
        *,
        plan: Callable[[int, int], str] = lambda number, message: "answer",
        there: Mapping[str, str] | None = None,
        starts: bool = True,
    ) -> None:
        self.name, self.number = f"fake-{number}", number
        self.ended = threading.Event()
        self.most = 0
        self.silent = False
        self._beats = 1
        self._plan, self._there, self._starts = plan, versions() if there is None else there, starts
        self._messages: list[tuple[bytes, Future[bytes]]] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._work, daemon=True).start()

    def ready(self) -> Future[Mapping[str, str]]:
        future: Future[Mapping[str, str]] = Future()
        if self._starts:
            future.set_result(self._there)
        return future

    def do(self, jobs: bytes, shared: object) -> Future[bytes]:
        future: Future[bytes] = Future()
        with self._changed:
            self._messages.append((jobs, future))
            self.most = max(self.most, len(self._messages))
            self._changed.notify_all()
        return future

    def beats(self) -> int:
        self._beats += not self.silent
        return self._beats

    def end(self, within_s: float) -> None:
        self.ended.set()

    def _work(self) -> None:
        bench, done = WorkerBench(), 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._messages))
                jobs, future = self._messages[0]
            fate = self._plan(self.number, done)
            done += 1
            if fate == "stop":
                self.silent = True
            if fate in ("hang", "stop"):
                self.ended.wait(ENDING)
                return
            if fate == "die":
                with self._changed:
                    waiting, self._messages = self._messages, []
                for _, one in waiting:
                    one.set_exception(ConnectionResetError("gone"))
                return
            answer = bench.perform(jobs)
            if fate == "late":
                self.ended.wait(ENDING)
            with self._changed:
                self._messages.pop(0)
            future.set_result(answer)


@contextmanager
def dispatcher(
    workers: int, *, start_s: float = ENDING, patience_s: float = ENDING, **fakes: object
) -> Iterator[tuple[Dispatcher, list[Fake]]]:
    made: list[Fake] = []

    def hire(number: int) -> Fake:
        made.append(Fake(number, **fakes))
        return made[-1]

    queue = Dispatcher(hire, workers, start_s=start_s, patience_s=patience_s)
    try:
        yield queue, made
    finally:
        queue.close(0.0)
        assert all(fake.ended.wait(ENDING) for fake in made), "every worker is ended"


def squares(count: int, **options: object) -> list[Job]:
    return [Job(key=f"k{n}", function="operator:mul", arguments=(n, n), **options) for n in range(count)]


@given(st.lists(st.sampled_from(["answer", "answer", "answer", "die"]), max_size=12), st.integers(1, 4), st.integers(0, 40))
def test_lost_workers_change_no_result(fates: list[str], workers: int, count: int):
    """Each fate belongs to one message, whichever worker has it."""
    left, lock = list(fates), threading.Lock()

    def plan(number: int, message: int) -> str:
        with lock:
            return left.pop() if left else "answer"

    wanted = {f"k{n}": n * n for n in range(count)}
    with dispatcher(workers, plan=plan) as (queue, _):
        results = queue.submit(squares(count))
        if fates.count("die") < ATTEMPTS:
            assert list(results().items()) == list(wanted.items()), "in the order of submission"
            return
        # A job with bad luck may have lost its three workers: then its batch has an error, and no result is wrong.
        with suppress(ScaleError):
            assert results() == wanted


def test_jobs_of_a_lost_worker_are_done_by_others_and_none_twice():
    counted: list[int] = []

    with dispatcher(2, plan=lambda number, message: "die" if number == 0 and message == 1 else "answer") as (queue, fakes):
        found = queue.submit(squares(50))()
        counted.append(queue.lost)
        assert found == {f"k{n}": n * n for n in range(50)}
    assert counted == [1]
    assert len(fakes) == 3, "another one was hired"


def test_a_late_answer_of_a_worker_that_was_given_up_is_ignored():
    plan = lambda number, message: "late" if number == 0 else "answer"  # noqa: E731
    with dispatcher(1, plan=plan) as (queue, fakes):
        assert queue.submit(squares(3, limit_s=0.2))() == {"k0": 0, "k1": 1, "k2": 4}
        assert fakes[0].ended.wait(ENDING)
        # Its answer arrives now.
        assert queue.submit(squares(3))() == {"k0": 0, "k1": 1, "k2": 4}
        assert queue.lost == 1


def test_a_worker_that_hangs_is_given_up_at_its_deadline():
    with dispatcher(1, plan=lambda number, message: "hang" if number == 0 else "answer") as (queue, _):
        started = time.monotonic()
        assert queue.submit(squares(2, limit_s=0.2))() == {"k0": 0, "k1": 1}
        assert 0.2 <= time.monotonic() - started < ENDING


def test_a_silent_worker_is_given_up_before_its_deadline():
    with dispatcher(2, patience_s=1.0, plan=lambda number, message: "stop" if number == 0 else "answer") as (queue, fakes):
        started = time.monotonic()
        assert queue.submit(squares(20, limit_s=ENDING))() == {f"k{n}": n * n for n in range(20)}
        assert 1.0 <= time.monotonic() - started < ENDING / 2
        assert queue.lost == 1
        assert len(fakes) == 3, "another one was hired"


def test_a_silent_worker_without_a_job_is_given_up_too():
    with dispatcher(1, patience_s=1.0) as (queue, fakes):
        assert queue.submit(squares(1))() == {"k0": 0}
        fakes[0].silent = True
        assert fakes[0].ended.wait(ENDING / 2)
        assert queue.submit(squares(1))() == {"k0": 0}
        assert queue.lost == 1


def test_a_worker_that_has_not_begun_to_report_has_the_time_of_a_start():
    silent = type("Silent", (Fake,), {"beats": lambda self: 0})
    queue = Dispatcher(lambda number: silent(number, starts=False), 1, start_s=2.0, patience_s=0.1)
    started = time.monotonic()
    with pytest.raises(ScaleError, match=r"not ready within 2 s"):
        queue.wait_ready()
    assert time.monotonic() - started >= 2.0
    queue.close(0.0)


def test_time_in_which_the_driver_is_stopped_is_no_silence():
    at = iter([100.0, 101.0, 101.5, 5000.0, 5001.0])
    clock = DriverClock(lambda: next(at))
    found = []
    for _ in range(4):
        clock.look()
        found.append(clock.now)
    assert found == [1.0, 1.5, 1.5 + GAP_S, 2.5 + GAP_S]


def test_a_job_that_ends_every_worker_fails_its_batch_and_no_other():
    poison = threading.Event()

    def plan(number: int, message: int) -> str:
        return "die" if poison.is_set() else "answer"

    with dispatcher(1, plan=plan) as (queue, fakes):
        poison.set()
        with pytest.raises(ScaleError, match=rf"job k0 ended its worker {ATTEMPTS} times; .*fewer workers"):
            queue.submit(squares(1))()
        poison.clear()
        assert queue.submit(squares(2))() == {"k0": 0, "k1": 1}
        assert len(fakes) >= ATTEMPTS


def test_workers_that_never_start_end_the_wait():
    with dispatcher(2, start_s=0.1, starts=False) as (queue, _):
        with pytest.raises(ScaleError, match=r"no worker could be started.*not ready within 0\.1 s"):
            queue.wait_ready()
        with pytest.raises(ScaleError, match="no worker could be started"):
            queue.submit(squares(1))()


def test_workers_with_other_versions_are_refused_by_name():
    with (
        dispatcher(1, there={**versions(), "numpy": "0.1"}) as (queue, _),
        pytest.raises(ConfigError, match=r"fake-0 has numpy 0\.1 \(here .*every node needs the same versions"),
    ):
        queue.wait_ready()


def test_long_jobs_begin_first_and_a_worker_holds_few_messages():
    begun: list[int] = []
    free = threading.Event()

    class Noting(Fake):
        def do(self, jobs: bytes, shared: object) -> Future[bytes]:
            import pickle

            begun.extend(int(job.key[1:]) for job in pickle.loads(jobs))
            return super().do(jobs, shared)

    def plan(number: int, message: int) -> str:
        free.wait(ENDING)
        return "answer"

    queue = Dispatcher(lambda number: Noting(number, plan=plan), 1)
    jobs = [Job(key=f"k{n}", function="operator:mul", arguments=(n, n), work=float(n + 1)) for n in range(20)]
    results = queue.submit(jobs)
    deadline = time.monotonic() + ENDING
    while len(begun) < AHEAD and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    assert begun == [19, 18], "the longest two, one message each while nothing is known of their pace"
    free.set()
    assert results() == {f"k{n}": n * n for n in range(20)}
    assert begun == sorted(begun, reverse=True)
    queue.close(0.0)


def test_short_jobs_share_messages():
    messages: list[int] = []

    class Noting(Fake):
        def do(self, jobs: bytes, shared: object) -> Future[bytes]:
            import pickle

            messages.append(len(pickle.loads(jobs)))
            return super().do(jobs, shared)

    queue = Dispatcher(lambda number: Noting(number), 2)
    queue.submit(squares(2000))()
    assert sum(messages) == 2000
    assert len(messages) < 200
    queue.close(0.0)


def test_jobs_of_a_place_meet_one_shelf_until_its_worker_is_lost():
    fates: list[str] = []
    with dispatcher(3, plan=lambda number, message: fates.pop() if fates else "answer") as (queue, _):

        def visit() -> int:
            job = Job(key="visit", function=f"{__name__}:visit_thread", arguments=(), place="p1")
            return queue.submit([job])()["visit"]

        assert [visit() for _ in range(3)] == [0, 1, 2]
        fates.append("die")
        assert [visit() for _ in range(2)] == [0, 1]


class Counted:
    calls = 0

    def close(self) -> None:
        pass


def visit_thread(shelf: dict[str, Counted]) -> int:
    counted = shelf.setdefault("counted", Counted())
    counted.calls += 1
    return counted.calls - 1


def test_what_a_job_raises_is_raised_by_its_own_batch():
    with dispatcher(1) as (queue, _):
        jobs = [*squares(3), Job(key="bad", function="operator:truediv", arguments=(1, 0))]
        with pytest.raises(ZeroDivisionError, match="division by zero"):
            queue.submit(jobs)()
        assert queue.submit(squares(3))() == {"k0": 0, "k1": 1, "k2": 4}


def test_equal_keys_and_what_cannot_be_sent_by_name_are_refused():
    with dispatcher(1) as (queue, fakes):
        with pytest.raises(ContractError, match="key 'k1'"):
            queue.submit([*squares(2), *squares(2)[1:]])
        with pytest.raises(ConfigError, match=r"cannot be sent.*importable by name"):
            queue.submit([Job(key="closure", function="operator:call", arguments=(lambda: 1,))])
        assert fakes == [], "nothing was started for it"
        assert queue.submit([])() == {}


def test_a_closed_queue_ends_the_wait_of_its_batches():
    queue = Dispatcher(lambda number: Fake(number, plan=lambda number, message: "hang"), 1)
    results = queue.submit(squares(2))
    queue.close(0.0)
    with pytest.raises(ScaleError, match="closed"):
        results()
    with pytest.raises(ScaleError, match="closed"):
        queue.submit(squares(2))
