"""Tasks in the ClawGym format: a sample of our own, hostile workspaces, broken checks; the real ones where a folder is named."""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest

from onthejob.commands.claw import Claw
from onthejob.envs.claw.env import ACTOR, ClawConfig, ClawEnvironment
from onthejob.envs.claw.official import as_task, copied, graded, load, official_tasks, read
from onthejob.envs.claw.prompt import DONE, block
from onthejob.envs.claw.reward import RewardConfig
from onthejob.envs.claw.sandbox import Limits, SandboxHost, open_host
from onthejob.envs.claw.sandbox.faults.planting import planted
from onthejob.errors import ConfigError
from onthejob.types import Split, Task

CHECK = """
import json, sys
from pathlib import Path

def grade(transcript, workspace_path):
    root = Path(workspace_path)
    total = root / "output" / "total.txt"
    text = total.read_text().strip() if total.is_file() else ""
    polite = 0.5 if (root / "thanks.txt").exists() else 0.0
    return {"exists": float(total.is_file()), "right": float(text == "7"), "polite": polite}

print(json.dumps(grade([], sys.argv[1] if len(sys.argv) > 1 else ".")))
"""


def make(folder: Path, *, check: str = CHECK, number: int = 0) -> Path:
    """A task folder in the format."""
    task = folder / f"task_{number:04d}"
    (task / "input_files" / "input").mkdir(parents=True)
    (task / "input_files" / "input" / "numbers.txt").write_text("3\n4\n", encoding="utf-8")
    (task / "input_files" / "input" / "logo.bin").write_bytes(b"\xff\x00\xfe")
    (task / "reward").mkdir()
    (task / "reward" / "check.py").write_text(check, encoding="utf-8")
    (task / "reward" / "reward.sh").write_text("#!/usr/bin/env bash\nexit 1\n", encoding="utf-8")
    entry = {
        "task_id": task.name,
        "user_query": "Add the numbers in input/numbers.txt and write the sum to output/total.txt.",
        "metadata": {"category": "", "grading_type": "automated"},
        "input_mount_dir": "/somewhere/else",
    }
    (task / "data_entry.json").write_text(json.dumps(entry), encoding="utf-8")
    return task


@pytest.fixture(scope="module")
def host() -> Iterator[SandboxHost]:
    with open_host() as opened:
        yield opened


def end(host: SandboxHost, task: Task, command: str | None) -> ClawEnvironment:
    """The environment after one command and the declaration."""
    env = ClawEnvironment(host=host)
    env.reset(task)
    if command is not None:
        env.step(block(command))
    env.step(DONE)
    return env


def test_the_query_and_the_files_are_what_the_agent_gets(host: SandboxHost, tmp_path: Path):
    task = as_task(make(tmp_path), Split.TRAIN)
    env = ClawEnvironment(host=host)
    first = env.reset(task)
    assert "Add the numbers" in first.messages[1].content
    assert "input/numbers.txt (4 bytes)" in first.messages[1].content
    assert "check" not in json.dumps(dict(first.view)), "the checks are for the grader"
    step = env.step(block("ls -R; cat input/numbers.txt"))
    assert "check.py" not in step.facts["observation"]
    env.close()


def test_partial_scores_are_averaged_and_paid(host: SandboxHost, tmp_path: Path):
    task = as_task(make(tmp_path), Split.TRAIN)
    for command, rate in ((None, 0.0), ("mkdir output; echo 8 > output/total.txt", 1 / 3)):
        metrics = end(host, task, command).state()["metrics"]
        assert metrics["assertion_rate"] == pytest.approx(rate)
        assert metrics["passed"] == 0.0
    env = end(host, task, "mkdir output; echo 7 > output/total.txt; touch thanks.txt")
    state = env.state()
    assert state["metrics"]["assertion_rate"] == pytest.approx(2.5 / 3)
    assert {v["path"]: v["passed"] for v in state["verdicts"]} == {"exists": True, "right": True, "polite": False}
    assert state["metrics"]["reward"] == pytest.approx(2.5 / 3 - 0.2 * 2 / 12)


def test_a_task_whose_checks_are_all_met_is_passed(host: SandboxHost, tmp_path: Path):
    task = as_task(make(tmp_path, check='print(\'{"one": 1, "two": 1.0}\')'), Split.TRAIN)
    env = ClawEnvironment(ClawConfig(reward=RewardConfig(mode="binary")), host=host)
    env.reset(task)
    step = env.step(DONE)
    assert step.rewards == {ACTOR: 1.0}


@pytest.mark.parametrize(
    "command",
    [
        'echo \'import sys; print("{\\"a\\": 1}"); sys.exit()\' | tee json.py sitecustomize.py pathlib.py usercustomize.py',
        'mkdir reward; echo \'print("{\\"a\\": 1}")\' | tee check.py reward/check.py reward/json.py',
        "mkdir output; ln -s /etc/hostname output/total.txt; ln -s / thanks.txt",
        "mkdir output; mkfifo output/total.txt",
    ],
    ids=["modules", "checks", "links", "fifo"],
)
def test_what_the_agent_leaves_does_not_become_the_grader(host: SandboxHost, tmp_path: Path, command: str):
    task = as_task(make(tmp_path), Split.TRAIN)
    assert end(host, task, command).state()["metrics"]["assertion_rate"] == 0.0


def test_files_that_interpreters_look_for_do_not_become_the_grader(host: SandboxHost, tmp_path: Path):
    folder = make(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for name, content in planted(listener.getsockname()[1]).items():
            path = folder / "input_files" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        state = end(host, as_task(folder, Split.TRAIN), "mkdir output; echo 7 > output/total.txt; cp -r . output").state()
        assert not select.select([listener], [], [], 0)[0]
    assert {v["path"]: v["passed"] for v in state["verdicts"]} == {"exists": True, "right": True, "polite": False}


@pytest.mark.parametrize(
    ("check", "why"),
    [
        ("import sys; sys.exit(3)", "ended with 3"),
        ("raise ValueError('no such key')", "no such key"),
        ("print('all good')", "one JSON value"),
        ('print(\'{"a": 1}\\n{"a": 1}\')', "one JSON value"),
        ("print('{}')", "no scores"),
        ('print(\'{"a": 7, "b": NaN}\')', "no number in [0, 1]"),
        ("print('x' * 3_000_000)", "printed 3000001 bytes"),
        ("import subprocess; print(open('/etc/shadow').read())", "Permission denied"),
    ],
)
def test_checks_that_fail_give_nothing(host: SandboxHost, tmp_path: Path, check: str, why: str):
    state = end(host, as_task(make(tmp_path, check=check), Split.TRAIN), "true").state()
    assert state["metrics"]["assertion_rate"] == 0.0
    reasons = " ".join(verdict["reason"] for verdict in state["verdicts"])
    assert why in reasons or "No such file" in reasons, reasons


def test_a_report_of_one_number_and_booleans():
    assert graded(b"0.25\n").rate == 0.25
    assert graded(b'{"a": true, "b": false}').rate == 0.5
    assert graded(b"[1, 1]").rate == 0.0
    assert graded(b'{"a": 1' + 400 * b"0" + b', "b": NaN, "c": 1}').rate == pytest.approx(1 / 3)


def test_only_plain_files_are_copied(tmp_path: Path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c.txt").write_text("x", encoding="utf-8")
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / os.fsdecode(b"\xff")).mkdir()
    assert copied(tmp_path) == {"a/b/c.txt": b"x"}


def test_splits_come_from_folders_and_a_tenth_of_training_is_dev(tmp_path: Path):
    for number in range(20):
        make(tmp_path / "clawgym_train", number=number)
    make(tmp_path / "clawgym_eval")
    by_split = {split: official_tasks(tmp_path, split) for split in Split}
    assert {split: len(tasks) for split, tasks in by_split.items()} == {Split.TRAIN: 18, Split.DEV: 2, Split.TEST: 1}
    assert len({task.id for tasks in by_split.values() for task in tasks}) == 21
    with pytest.raises(ConfigError, match="clawgym_train"):
        official_tasks(tmp_path / "clawgym_eval", Split.TRAIN)


def test_evaluation_tasks_are_the_test_split_and_can_be_played(host: SandboxHost, tmp_path: Path):
    for number in range(10):
        make(tmp_path / "clawgym_train", number=number)
    for number in range(3):
        make(tmp_path / "clawgym_eval", number=number, check=CHECK + f"# of evaluation task {number}\n")
    (tmp_path / "clawgym_eval" / "README.md").write_text("no task", encoding="utf-8")
    workplace = Claw(official=tmp_path)
    workplace.check()
    tasks = workplace.tasks(Split.TEST)
    assert [task.id for task in tasks] == [f"clawgym_eval-task_{number:04d}" for number in range(3)]
    assert {(task.env, task.split) for task in tasks} == {("claw", Split.TEST)}
    # The same names and files as in training, other checks: other tasks.
    trained = [task for split in (Split.TRAIN, Split.DEV) for task in workplace.tasks(split)]
    assert not {task.seed for task in tasks} & {task.seed for task in trained}
    state = end(host, tasks[2], "mkdir output; echo 7 > output/total.txt").state()
    assert state["metrics"]["assertion_rate"] == pytest.approx(2 / 3)


def test_folders_that_are_no_task_are_refused(tmp_path: Path, host: SandboxHost):
    with pytest.raises(ConfigError, match=r"data_entry\.json"):
        read(tmp_path)
    folder = make(tmp_path)
    task = as_task(folder, Split.TRAIN)
    (folder / "input_files" / "input" / "numbers.txt").write_text("1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="not what it was"):
        ClawEnvironment(host=host).reset(task)
    (folder / "reward" / "check.py").unlink()
    with pytest.raises(ConfigError, match=r"check\.py"):
        read(folder)
    (folder / "data_entry.json").write_text('{"task_id": "t"}', encoding="utf-8")
    with pytest.raises(ConfigError, match="user_query"):
        read(folder)


CLAWGYM = os.environ.get("ONTHEJOB_CLAWGYM", "")


@pytest.mark.slow
@pytest.mark.skipif(not CLAWGYM, reason="set ONTHEJOB_CLAWGYM to the folder that holds clawgym_train and clawgym_eval")
def test_every_official_task_loads_and_evaluation_tasks_are_others():
    """The evaluation tasks are loaded and told apart, not played: nothing here may depend on what is in them."""
    train, dev, test = (official_tasks(Path(CLAWGYM), split) for split in (Split.TRAIN, Split.DEV, Split.TEST))
    assert (len(train), len(dev), len(test)) == (1_800, 200, 200)
    tasks = [*train, *dev, *test]
    assert len({task.id for task in tasks}) == 2_200
    assert {Path(task.payload["folder"]).parent.name for task in test} == {"clawgym_eval"}
    assert not {task.payload["digest"] for task in test} & {task.payload["digest"] for task in (*train, *dev)}
    for task in tasks:
        held = load(task.payload)
        assert held.query
        assert held.checks["check.py"]
        assert sum(len(data) for data in held.files.values()) <= Limits().workspace_bytes


@pytest.mark.slow
@pytest.mark.skipif(not CLAWGYM, reason="set ONTHEJOB_CLAWGYM to the folder that holds clawgym_train and clawgym_eval")
def test_every_official_training_task_loads_and_doing_nothing_scores_nothing(host: SandboxHost, counts):
    """Only training tasks are looked at here. With full counts all of them are graded, else every fortieth."""
    tasks = [task for split in (Split.TRAIN, Split.DEV) for task in official_tasks(Path(CLAWGYM), split)]
    assert len(tasks) == 2_000
    rates = []
    for task in tasks[:: counts(40, 1)]:
        env = end(host, task, None)
        reasons = [verdict["reason"] for verdict in env.state()["verdicts"]]
        assert not [reason for reason in reasons if reason.startswith("the checks")], (task.id, reasons)
        rates.append(env.state()["metrics"]["assertion_rate"])
    assert fmean(rates) <= 0.002
