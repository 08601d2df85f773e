"""Trackers of a run that is under way: they follow it, and whatever they do, the run does not notice."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from onthejob.errors import ConfigError, MissingDependency
from onthejob.files import is_running
from onthejob.record import Run
from onthejob.track import check_trackers, start_trackers
from onthejob.track.send_record import left_over
from onthejob.track.sent_state import read_state, state_path, write_state

TRACKERS = '''
import os, time
from pathlib import Path
from onthejob.track import Tracker


class Hangs(Tracker):
    def start(self, run, sent):
        time.sleep(600)


class HangsLater(Tracker):
    def metrics(self, step, values):
        if step == 1:
            time.sleep(600)

    def finish(self):
        time.sleep(600)


class HangsAtTheEnd(Tracker):
    def finish(self):
        time.sleep(600)


class Refuses(Tracker):
    def start(self, run, sent):
        raise ConnectionError("no: api_key=" + os.environ["WANDB_API_KEY"])


class Raises(Tracker):
    def flush(self):
        raise KeyError("flush")


class Dies(Tracker):
    def metrics(self, step, values):
        os._exit(7)


class Floods(Tracker):
    def metrics(self, step, values):
        while True:
            print("x" * 1_000_000)


class Recovers(Tracker):
    """Fails twice, and then keeps lines."""

    def start(self, run, sent):
        with Path("tries.txt").open("a") as file:
            file.write("x")
        if len(Path("tries.txt").read_text()) < 3:
            raise OSError("not yet")
        self.kept = []
        return sent

    def metrics(self, step, values):
        self.kept.append(f"{step} {values['train/guesser/reward']}")

    def flush(self):
        with Path("kept.txt").open("a") as file:
            file.write("".join(f"{line}\\n" for line in self.kept))
        self.kept = []


class Adapters(Tracker):
    def adapter(self, step, adapter):
        with Path("adapters.txt").open("a") as file:
            file.write(f"{step} {adapter.name} {adapter.path.is_dir()}\\n")


class Needs(Tracker):
    def __init__(self, url):
        pass
'''


@pytest.fixture
def mine(recorder) -> Path:
    """Trackers of the user's own, in the folder of the commands."""
    path = Path("mine.py").absolute()
    path.write_text(TRACKERS, encoding="utf-8")
    return path


def until(true, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def lines(path: Path) -> list[int]:
    return [json.loads(line)["iteration"] for line in path.read_text().splitlines()] if path.exists() else []


def test_a_run_is_followed_while_it_is_written(recorder):
    recorder.add(1)
    path = recorder.path / "track" / "metrics.jsonl"
    with start_trackers(["jsonl"], recorder.path) as trackers:
        until(lambda: lines(path) == [0])
        recorder.add(2)
        until(lambda: lines(path) == [0, 1, 2])
        recorder.add(1)
        assert trackers.close(wait_s=30) == ()
    assert lines(path) == [0, 1, 2, 3]
    assert trackers.left == ()


def test_what_is_committed_long_after_the_rest_is_waited_for_at_the_end(recorder):
    recorder.add(1)
    path = recorder.path / "track" / "metrics.jsonl"
    trackers = start_trackers(["jsonl"], recorder.path)
    until(lambda: lines(path) == [0])
    until(lambda: read_state(recorder.path, "jsonl").sent == 0)
    # As after an iteration of a minute.
    write_state(recorder.path, replace(read_state(recorder.path, "jsonl"), confirmed_at=0.0))
    trackers._followers = [replace(one, started=0.0) for one in trackers._followers]
    recorder.add(1)
    assert trackers.close() == ()
    assert lines(path) == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Hangs", "HangsLater", "HangsAtTheEnd", "Refuses", "Raises", "Dies", "Floods"])
def test_a_tracker_that_fails_changes_neither_the_record_nor_the_end(recorder, mine: Path, kind: str):
    recorder.add(2)
    with Run.open(recorder.path, readonly=True) as run:
        before = run.digest()
    begun = time.monotonic()
    trackers = start_trackers([f"mine.py:{kind}"], recorder.path)
    (pid,) = [one.process.pid for one in trackers._followers]
    assert time.monotonic() - begun < 2
    time.sleep(8)
    begun = time.monotonic()
    (line,) = trackers.close()
    assert time.monotonic() - begun < 7
    assert not is_running(pid)
    assert f"`onthejob runs sync {recorder.path} --track {mine}:{kind}`" in line
    if kind == "HangsAtTheEnd":
        assert "was ended before it had closed" in line
    else:
        assert line.startswith("2 of 2 iterations are not sent")
    if kind == "Refuses":
        assert "ConnectionError: no" in line
        assert os.environ["WANDB_API_KEY"] not in line + state_path(recorder.path, f"{mine}:{kind}").read_text()
    if kind == "Raises":
        assert "KeyError: 'flush'" in line
    recorder.add(1)
    recorder.close()
    with Run.open(recorder.path, readonly=True) as run:
        assert run.digest(through=1) == before
    assert trackers.close() == (line,)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Hangs", "Refuses", "Raises"])
def test_one_that_is_stuck_for_long_is_not_waited_for(recorder, mine: Path, kind: str):
    recorder.add(2)
    with start_trackers([f"mine.py:{kind}", "jsonl"], recorder.path) as trackers:
        until(lambda: lines(recorder.path / "track" / "metrics.jsonl") == [0, 1])
        time.sleep(11)
        begun = time.monotonic()
        (line,) = trackers.close()
        assert f"mine.py:{kind}" in line
        assert time.monotonic() - begun < 3, "the wait was for the other one"


def test_a_tracker_of_your_own_gets_everything_once_after_failures(recorder, mine: Path, sync):
    recorder.add(3)
    sync("mine.py:Recovers")
    assert Path("kept.txt").read_text() == "0 0.0\n1 0.25\n2 0.5\n"
    recorder.add(1)
    sync("mine.py:Recovers")
    assert Path("kept.txt").read_text() == "0 0.0\n1 0.25\n2 0.5\n3 0.75\n"
    assert left_over(recorder.path, f"{mine}:Recovers") == ""


def test_adapters_of_kept_checkpoints_are_sent_once(recorder, mine: Path, sync):
    recorder.add(12)
    sync("mine.py:Adapters")
    assert not Path("adapters.txt").exists(), "they are sent on demand"
    state_path(recorder.path, f"{mine}:Adapters").unlink()
    sync("mine.py:Adapters", "--adapters")
    expected = "0 guesser@0000 True\n10 guesser@0010 True\n11 guesser@0011 True\n"
    assert Path("adapters.txt").read_text() == expected
    sync("mine.py:Adapters", "--adapters")
    assert Path("adapters.txt").read_text() == expected


@pytest.mark.slow
def test_trackers_end_with_a_run_that_is_killed(recorder, mine: Path):
    recorder.add(1)
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from onthejob.track import start_trackers\n"
        "trackers = start_trackers(['mine.py:Hangs', 'jsonl'], Path(sys.argv[1]))\n"
        "print(*(one.process.pid for one in trackers._followers), flush=True)\n"
        "time.sleep(600)\n"
    )
    words = [sys.executable, "-c", program, str(recorder.path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        until(lambda: lines(recorder.path / "track" / "metrics.jsonl") == [0])
        time.sleep(3)
        process.send_signal(signal.SIGKILL)
    until(lambda: not any(map(is_running, pids)), 10)


def test_two_processes_do_not_send_to_one_tracker(recorder, sync):
    recorder.add(1)
    with start_trackers(["jsonl"], recorder.path):
        until(lambda: lines(recorder.path / "track" / "metrics.jsonl") == [0])
        assert "another process sends" in sync("jsonl", code=2)
    sync("jsonl")


def test_following_ends_with_the_run(recorder, sync):
    recorder.add(1)
    words = [sys.executable, "-m", "onthejob", "runs", "sync", "a", "--track", "jsonl", "--follow", "--quiet"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
        until(lambda: lines(recorder.path / "track" / "metrics.jsonl") == [0])
        recorder.add(1)
        until(lambda: lines(recorder.path / "track" / "metrics.jsonl") == [0, 1])
        assert process.poll() is None
        recorder.close()
        assert process.wait(timeout=30) == 0


def test_mistakes_are_met_before_anything_is_started(recorder, mine: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match="cannot be made without url"):
        start_trackers(["jsonl", "mine.py:Needs"], recorder.path)
    with pytest.raises(ConfigError, match="has no 'Nothing'"):
        check_trackers(["mine.py:Nothing"])
    monkeypatch.setenv("WANDB_MODE", "disabled")
    if importable("wandb"):
        with pytest.raises(ConfigError, match="WANDB_MODE=disabled"):
            check_trackers(["wandb"])
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "site-packages" not in path])
    for name, package in (("mlflow", "mlflow-skinny"), ("wandb", "wandb"), ("rows.xlsx", "openpyxl")):
        if package.split("-")[0] not in sys.modules:
            with pytest.raises(MissingDependency, match=f"pip install {package}"):
                check_trackers([name])


def importable(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
