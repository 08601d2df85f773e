"""The simulation of the runtime: figures worked out by hand, real queues with workers that sleep, and the tables of the page."""

from __future__ import annotations

import importlib
import random
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from onthejob.scale.dispatch import Dispatcher
from onthejob.scale.job_queue import MESSAGE_S, SERVED_S
from onthejob.scale.runtime import Job
from onthejob.scale.worker_bench import WorkerBench, versions


@pytest.fixture
def model(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(repository / "benchmarks")
    return importlib.import_module("scale_model")


@pytest.fixture
def tables(model: Any) -> Any:
    return importlib.import_module("scale_tables")


def free(model: Any) -> Any:
    return model.DriverCosts(message_s=0.0, job_s=0.0, way_s=0.0)


def test_without_costs_work_is_divided_and_nothing_else_takes_time(model: Any, tables: Any):
    seconds = [0.25] * 64
    assert tables.jobs(1, seconds, free(model)).seconds == pytest.approx(16.0)
    for workers in (2, 4, 16):
        done = tables.jobs(workers, seconds, free(model))
        assert done.work_s == pytest.approx(16.0)
        assert done.seconds == pytest.approx(16.0 / workers)


def test_a_message_alone_takes_what_it_costs(model: Any, tables: Any):
    costs = model.DriverCosts(message_s=0.5, job_s=0.25, way_s=2.0)
    # Packed, sent, there, done, back.
    assert tables.jobs(1, [3.0], costs).seconds == pytest.approx(0.25 + 0.5 + 1.0 + 3.0 + 1.0)
    # With two at a time, only the first one's way is waited for; the driver sends one after the other.
    assert tables.jobs(1, [3.0, 3.0], costs).seconds == pytest.approx(0.5 + 0.5 + 1.0 + 6.0 + 1.0)


def test_the_driver_bounds_what_many_workers_do(model: Any, tables: Any):
    costs = model.DriverCosts(message_s=0.002, job_s=0.0, way_s=0.0)
    seconds = [0.05] * 8000
    done = tables.jobs(1000, seconds, costs)
    assert done.seconds >= done.messages * costs.message_s
    # With messages of one job each the driver alone would take 16 s, and with those of 0.5 s 1.6 s.
    assert SERVED_S * 1000 > MESSAGE_S
    assert done.seconds < 3.0


def test_equal_arguments_give_equal_figures(tables: Any):
    luck = random.Random(1)
    seconds = [luck.uniform(0.01, 0.2) for _ in range(500)]
    assert tables.jobs(7, seconds, tables.RAY) == tables.jobs(7, seconds, tables.RAY)
    assert tables.jobs(7, seconds, tables.RAY).seconds < tables.jobs(6, seconds, tables.RAY).seconds


class Sleeper:
    """A real worker that is a thread."""

    def __init__(self, number: int) -> None:
        self.name, self.messages = f"sleeper-{number}", 0
        self._asked: SimpleQueue[tuple[bytes, Future[bytes]] | None] = SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def ready(self) -> Future[Any]:
        found: Future[Any] = Future()
        found.set_result(versions())
        return found

    def do(self, jobs: bytes, shared: object) -> Future[bytes]:
        self.messages += 1
        answer: Future[bytes] = Future()
        self._asked.put((jobs, answer))
        return answer

    def beats(self) -> int:
        return 0

    def end(self, within_s: float) -> None:
        self._asked.put(None)

    def _work(self) -> None:
        bench = WorkerBench()
        while (asked := self._asked.get()) is not None:
            asked[1].set_result(bench.perform(asked[0]))


@pytest.mark.parametrize("workers", [1, 4, 16])
def test_real_workers_do_what_simulated_ones_do(model: Any, tables: Any, workers: int):
    """On a machine that does nothing else the two differ by a few per cent; here only what cannot be is refused."""
    luck = random.Random(workers)
    seconds = [luck.uniform(0.05, 0.15) for _ in range(16 * workers)]
    made: list[Sleeper] = []

    def hire(number: int) -> Sleeper:
        made.append(Sleeper(number))
        return made[-1]

    queue = Dispatcher(hire, workers)
    queue.wait_ready(all_of_them=True)
    asked = [Job(key=f"{n}", function="time:sleep", arguments=(one,), work=one) for n, one in enumerate(seconds)]
    started = time.monotonic()
    queue.submit(asked)()
    took = time.monotonic() - started
    queue.close(0.0)
    done = tables.jobs(workers, seconds, free(model))
    assert 0.95 * done.seconds < took < 10 * done.seconds + 30.0
    assert done.messages / 3 < sum(one.messages for one in made) < 3 * done.messages


def test_an_engine_takes_what_its_steps_take(model: Any):
    speed = model.SamplerSpeed(prefill_s=0.01, steps=((2, 1.0), (4, 3.0)))
    assert [speed.step_s(rows, 0) for rows in (1, 2, 3, 4, 6)] == [1.0, 1.0, 2.0, 3.0, 5.0]
    # A prompt of 100 tokens, then two replies together, then the longer one alone.
    assert speed.seconds([(100, [3, 5])]) == pytest.approx(1.0 + 3 * 1.0 + 2 * 1.0)
    # With room for one group the second one waits for the first.
    narrow = model.SamplerSpeed(prefill_s=0.01, steps=((2, 1.0), (4, 3.0)), room=120)
    assert narrow.seconds([(100, [5, 5]), (100, [5, 5])]) == pytest.approx(2 * (1.0 + 5.0))
    assert speed.seconds([(100, [5, 5]), (100, [5, 5])]) == pytest.approx(2 * 1.0 + 5 * 3.0)
    # What is read of keys and values makes a step longer.
    reading = model.SamplerSpeed(prefill_s=0.0, steps=((1, 1.0),), kept_s=0.1)
    assert reading.seconds([(10, [4])]) == pytest.approx(4 * (1.0 + 14 * 0.1))


def test_64_samplers_are_used_well(tables: Any):
    one = tables.calls(1, 8, tables.CPU_SAMPLER, tables.RAY)
    assert one / tables.calls(64, 8 * 64, tables.CPU_SAMPLER, tables.RAY) >= 0.85


def test_more_gpus_make_a_run_shorter_until_updates_bound_it(tables: Any):
    few, more, many = (tables.iteration(tables.Topology(samplers=count, learners=6), 16) for count in (2, 10, 58))
    assert few.play > more.play >= many.play
    assert few.update == pytest.approx(many.update)
    assert many.publish > few.publish, "the driver's link brings adapters to all nodes"


@pytest.mark.slow
def test_the_page_has_the_tables_of_the_simulation(tables: Any, repository: Path):
    page = (repository / "docs" / "scale.md").read_text(encoding="utf-8")
    for name, written in tables.TABLES.items():
        assert written() in page, f"`python benchmarks/scale.py tables` writes another table of {name}"
