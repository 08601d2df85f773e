"""The backend `local`: the same digests with 0, 1 and 2 processes, also when one of them is killed; nothing outlives it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onthejob.errors import ConfigError, ScaleError
from onthejob.scale import Job
from onthejob.scale.local import LocalRuntime
from onthejob.scale.runtime import Facts

pytestmark = pytest.mark.server
HERE = str(Path(__file__).parent)


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs and environments of this folder can be imported, here and in workers."""
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, *filter(None, sys.path)]))


@pytest.fixture
def runtime(importable: None) -> Iterator[LocalRuntime]:
    with LocalRuntime(2) as made:
        yield made
    deadline = time.monotonic() + 10.0
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert multiprocessing.active_children() == []


def test_any_number_of_processes_gives_the_same_digests(importable: None):
    import tiny  # pyright: ignore[reportMissingImports]

    for kind in ("office", "claw", "own"):
        collect = tiny.OF[kind]
        inline = collect(None, 0)
        assert [collect(None, workers) for workers in (1, 2)] == [inline] * 2, kind
        with LocalRuntime(2) as made:
            assert collect(made, 0) == inline, kind


def test_a_whole_run_has_the_same_record(importable: None):
    import tiny  # pyright: ignore[reportMissingImports]

    assert tiny.loop(None, 2) == tiny.loop(None, 0)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shared_value_reaches_every_job_and_is_gone_afterwards(
    importable: None, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with LocalRuntime(workers) as made:
        for value, size in (([b"abc", bytes(300_000)], 300_003), ([], 0)):
            with made.share(value) as shared:
                assert any(path.name == "value" for path in tmp_path.rglob("*"))
                jobs = [Job(key=f"k{n}", function="jobs:weigh", arguments=(n,), shared=shared) for n in range(5)]
                plain = Job(key="plain", function="jobs:square", arguments=(7,))
                assert made.submit([*jobs, plain])() == {**{f"k{n}": n * size for n in range(5)}, "plain": 49}
            assert [path for path in tmp_path.rglob("*") if path.name == "value"] == []
        with pytest.raises(ConfigError, match=r"what jobs share cannot be sent.*importable by name"):
            made.share(lambda: 1).__enter__()


@pytest.mark.timeout(300)
def test_any_number_of_learners_and_samplers_gives_the_same_record(importable: None):
    import tiny  # pyright: ignore[reportMissingImports]

    alone = tiny.loop(None, 0)
    for learners, samplers in ((1, 0), (2, 2)):
        with LocalRuntime(0) as made:
            assert tiny.loop(made, 0, learners=learners, samplers=samplers) == alone, learners


@pytest.mark.timeout(300)
def test_a_killed_learner_changes_no_record(importable: None, caplog: pytest.LogCaptureFixture):
    import tiny  # pyright: ignore[reportMissingImports]

    from onthejob.scale.crew_learner import CrewLearner

    killed: list[int] = []
    update = CrewLearner.update

    def killing(self: CrewLearner, role: str, *arguments: Any, **named: Any) -> Any:
        # With the first update of a role one learner dies while it makes it, or before it begins.
        if len(killed) < 2:
            threading.Timer(0.02, lambda: [os.kill(child.pid or 0, signal.SIGKILL) for child in busy()[:1]]).start()
            killed.extend(child.pid or 0 for child in busy()[:1])
        return update(self, role, *arguments, **named)

    def busy() -> list[Any]:
        return sorted(
            (one for one in multiprocessing.active_children() if one.name.startswith("learner")), key=lambda one: one.name
        )

    expected = tiny.loop(None, 0)
    with pytest.MonkeyPatch.context() as patch, LocalRuntime(0) as made:
        patch.setattr(CrewLearner, "update", killing)
        assert tiny.loop(made, 0, learners=2) == expected
    assert killed
    assert "learner-0 (process" in caplog.text
    assert "is lost" in caplog.text


def test_learners_with_another_base_are_refused(importable: None):
    facts = Facts(functions=(("jobs:base_of_process", ("abc",)),))
    with LocalRuntime(0) as made, pytest.raises(ConfigError, match=r"learner-0 .*has base abc-there \(here abc-here\)"):
        made.crew("learner", 1, facts=facts).wait_ready(all_of_them=True)


def test_a_killed_process_changes_no_digest(runtime: LocalRuntime):
    import tiny  # pyright: ignore[reportMissingImports]

    killed: list[int] = []

    def kill() -> None:
        deadline = time.monotonic() + 60.0
        while not (children := multiprocessing.active_children()) and time.monotonic() < deadline:
            time.sleep(0.01)
        # Both have begun to work.
        runtime.submit([Job(key="one", function="jobs:process", arguments=())])()
        time.sleep(0.2)
        killed.append(children[0].pid)
        os.kill(children[0].pid, signal.SIGKILL)

    expected = tiny.office(None, 0, long=True)
    killer = threading.Thread(target=kill)
    killer.start()
    found = tiny.office(runtime, 0, long=True)
    killer.join()
    assert len(killed) == 1
    assert found == expected
    # The loss is noticed at once, and another process is there.
    assert runtime.submit([Job(key="two", function="jobs:square", arguments=(3,))])() == {"two": 9}


def test_a_job_that_kills_its_process_once_is_done_and_three_times_is_an_error(runtime: LocalRuntime, tmp_path: Path):
    jobs = [Job(key=f"k{n}", function="jobs:square", arguments=(n,)) for n in range(20)]
    once = Job(key="once", function="jobs:die_once", arguments=(str(tmp_path / "mark"), 5))
    assert runtime.submit([once, *jobs])() == {"once": 25, **{f"k{n}": n * n for n in range(20)}}
    with pytest.raises(ScaleError, match=r"job poison ended its worker 3 times; .*code -9"):
        runtime.submit([Job(key="poison", function="jobs:die", arguments=())])()
    assert runtime.submit(jobs)() == {f"k{n}": n * n for n in range(20)}


def test_a_process_that_hangs_is_killed_at_its_deadline(runtime: LocalRuntime, tmp_path: Path):
    hanging = Job(key="hang", function="jobs:stop_once", arguments=(str(tmp_path / "mark"), 6), limit_s=3.0)
    assert runtime.submit([hanging])() == {"hang": 36}


def test_errors_and_results_cross_the_border_as_they_are(runtime: LocalRuntime):
    with pytest.raises(ValueError, match="exactly this") as raised:
        runtime.submit([Job(key="bad", function="jobs:fail", arguments=("exactly this",))])()
    assert "In its process" in raised.value.__notes__[0]
    from onthejob.errors import ConfigError, ContractError

    with pytest.raises(ContractError, match=r"jobs:unsendable returned cannot be sent"):
        runtime.submit([Job(key="bad", function="jobs:unsendable", arguments=())])()
    with pytest.raises(ConfigError, match=r"jobs:nothing, which is no function"):
        runtime.submit([Job(key="bad", function="jobs:nothing", arguments=())])()


def test_a_process_may_have_processes(runtime: LocalRuntime):
    assert runtime.submit([Job(key="own", function="jobs:of_a_child", arguments=(4,))])() == {"own": 16}


def test_closing_in_the_middle_of_work_is_quick(importable: None):
    made = LocalRuntime(1)
    results = made.submit([Job(key="slow", function="jobs:slow_square", arguments=(2, 600.0))])
    time.sleep(1.0)
    started = time.monotonic()
    made.close()
    assert time.monotonic() - started < 30.0
    with pytest.raises(ScaleError, match="closed"):
        results()
