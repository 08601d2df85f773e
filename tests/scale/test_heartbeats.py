"""Processes that hang: noticed after the patience, long before a deadline, and the record is that of an undisturbed run."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from onthejob.scale import Job
from onthejob.scale.dispatch import Dispatcher
from onthejob.scale.heartbeats import BEAT_S, PATIENCE_S
from onthejob.scale.job_queue import LOOK_S
from onthejob.scale.local import LocalRuntime, ProcessHand
from onthejob.scale.runtime import LIMIT_S

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]
HERE = str(Path(__file__).parent)
SHORT_S = 8.0
"""Patience of these tests."""
BUSY_S = 10.0
"""Added for a machine that does other things too."""


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs and environments of this folder can be imported, here and in workers."""
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, *filter(None, sys.path)]))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Silence counts after `SHORT_S`; and no process is left."""
    usual: Any = Dispatcher.__init__.__kwdefaults__
    assert usual["patience_s"] == PATIENCE_S
    monkeypatch.setitem(usual, "patience_s", SHORT_S)
    yield
    deadline = time.monotonic() + 10.0
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert multiprocessing.active_children() == []


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    """Digests of undisturbed runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE)
        import tiny  # pyright: ignore[reportMissingImports]

        return {"office": tiny.office(None, 0, long=True), "loop": tiny.loop(None, 0)}


class Stopper:
    """Stops the first process of a kind some moments after it was sent its first job."""

    def __init__(self, kind: str, after_s: float, patch: pytest.MonkeyPatch) -> None:
        self.at: list[float] = []
        self.names: list[str] = []
        send = ProcessHand.do

        def do(hand: ProcessHand, jobs: bytes, shared: Any) -> Future[Any]:
            answer = send(hand, jobs, shared)
            if jobs and hand.name.startswith(kind) and not self.names:
                self.names.append(hand.name)
                threading.Timer(after_s, self._stop, [hand]).start()
            return answer

        patch.setattr(ProcessHand, "do", do)

    def _stop(self, hand: ProcessHand) -> None:
        os.kill(hand._process.pid or 0, signal.SIGSTOP)
        self.at.append(time.time())


@pytest.mark.parametrize(
    ("kind", "after_s", "options"), [("worker", 0.0, {}), ("sampler", 0.3, {"samplers": 2}), ("learner", 0.3, {"learners": 2})]
)
def test_a_stopped_process_changes_no_record(
    importable: None, impatient: None, expected: dict[str, str], caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch, kind: str, after_s: float, options: dict[str, int],
):  # fmt: skip
    import tiny  # pyright: ignore[reportMissingImports]

    stopper = Stopper(kind, after_s, monkeypatch)
    with caplog.at_level(logging.WARNING, "onthejob.scale"), LocalRuntime(0 if options else 2) as made:
        found = tiny.loop(made, 0, **options) if options else tiny.office(made, 0, long=True)
    assert found == expected["loop" if options else "office"]
    ((stopped, name),) = zip(stopper.at, stopper.names, strict=True)
    (lost,) = [record for record in caplog.records if "is lost" in record.message]
    assert f"worker {name} is lost (was silent for {SHORT_S:g} s" in lost.message
    bound = SHORT_S + BEAT_S + 2 * LOOK_S + BUSY_S
    assert SHORT_S - BEAT_S - 0.5 < lost.created - stopped < bound < LIMIT_S / 10


def test_a_stopped_process_without_a_job_is_replaced(importable: None, impatient: None):
    with LocalRuntime(1) as made:
        first = made.submit([Job(key="one", function="jobs:process", arguments=())])()["one"]
        os.kill(first, signal.SIGSTOP)
        deadline = time.monotonic() + SHORT_S + BEAT_S + 2 * LOOK_S + BUSY_S
        while Path(f"/proc/{first}").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not Path(f"/proc/{first}").exists()
        assert made.submit([Job(key="two", function="jobs:process", arguments=())])()["two"] != first


def test_native_code_that_keeps_pythons_lock_is_not_lost(importable: None, impatient: None):
    seconds = int(SHORT_S - BEAT_S - 1)
    assert seconds > 2 * BEAT_S
    with LocalRuntime(1) as made:
        jobs = [Job(key=f"k{n}", function="jobs:keep_the_lock", arguments=(seconds,)) for n in range(2)]
        assert made.submit(jobs)() == {"k0": seconds, "k1": seconds}
        assert made._queue is not None
        assert made._queue.lost == 0
