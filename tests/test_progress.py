"""Progress in the log: silent while work is quick, one line now and then when it is not."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from onthejob import progress
from onthejob.progress import EVERY_S, Progress, Watch


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    held = SimpleNamespace(now=100.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: held.now))
    return held


def test_quick_work_is_silent_and_slow_work_is_counted(clock: SimpleNamespace, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", logger="onthejob")
    work = Progress("scales")
    for done in range(11):
        work.count(done, 10, "states")
        clock.now += EVERY_S / 2
    # Of ten states two are done after EVERY_S, and every further two take as long; the last line would say nothing.
    assert caplog.messages == [
        f"scales: {done} of 10 states, about {EVERY_S / 2 * (10 - done):.0f} s left" for done in (2, 4, 6, 8)
    ]


def test_a_line_is_logged_once_per_interval(clock: SimpleNamespace, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", logger="onthejob")
    work = Progress("sampling")
    clock.now += EVERY_S
    assert work.due
    work.say("one")
    assert not work.due
    work.say("two")
    assert caplog.messages == ["sampling: one"]


def test_a_call_that_does_not_return_is_named_once(caplog: pytest.LogCaptureFixture):
    watch = Watch(0.1)
    with watch.over(lambda: "quick"):
        pass
    end = time.monotonic() + 30.0
    with watch.over(lambda: "outer"), watch.over(lambda: "Guess.step, task 3,"):
        while len(caplog.messages) < 2 and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(0.3)
    assert [line.rpartition(" for ")[0] for line in sorted(caplog.messages)] == [
        "Guess.step, task 3, has not returned", "outer has not returned",
    ]  # fmt: skip
