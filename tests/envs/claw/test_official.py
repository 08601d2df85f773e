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

from checks.sandbox.planting import planted
from onthejob.claw import Claw
from onthejob.envs.claw.agent_messages import DONE, block
from onthejob.envs.claw.checks import graded
from onthejob.envs.claw.env import ACTOR, ClawConfig, ClawEnvironment
from onthejob.envs.claw.episode_reward import RewardConfig
from onthejob.envs.claw.needs import needs_of
from onthejob.envs.claw.official import as_task, checkable, load, official_tasks, read
from onthejob.envs.claw.policies import noop
from onthejob.envs.claw.protocol import ProtocolConfig
from onthejob.envs.claw.sandbox import Limits, SandboxHost, open_host
from onthejob.envs.claw.sandbox.sandbox_interface import WORKSPACE
from onthejob.errors import ConfigError, NotCheckable
from onthejob.models.scripted import ScriptedPolicy
from onthejob.rollout.play import play
from onthejob.types import Sampling, Split, StopReason

from .official import CHECK, end, make


@pytest.fixture(scope="module")
def host() -> Iterator[SandboxHost]:
    with open_host() as opened:
        yield opened


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


STATE = """
import json, os, sys
from pathlib import Path

root = Path(sys.argv[1])
run = root / "run.sh"
print(json.dumps({
    "executable": os.access(run, os.X_OK),
    "mode": f"{run.stat().st_mode & 0o777:o}" == "750",
    "old": run.stat().st_mtime == 1_000_000_000,
    "old folder": (root / "made").stat().st_mtime == 1_100_000_000,
    "empty folder": (root / "made" / "empty").is_dir(),
    "seed executable": os.access(root / "input" / "tool.sh", os.X_OK),
    "link": (root / "latest").is_symlink() and (root / "latest").read_text() == "one\\n",
    "absolute link": (root / "here").read_text() == "one\\n",
    "path": (root / "where.txt").read_text().strip() == str(root.resolve()),
    "secret": not (root / "locked.txt").read_text(),
}))
"""
WORK = """
mkdir -p made/empty; echo one > made/one.txt; echo 'echo hi' > run.sh; chmod 750 run.sh
ln -s made/one.txt latest; ln -s $PWD/made/one.txt here; pwd > where.txt; touch locked.txt; chmod 000 locked.txt
touch -d @1000000000 run.sh; touch -d @1100000000 made
"""


def test_checks_see_modes_times_folders_links_and_paths_as_the_agent_left_them(host: SandboxHost, tmp_path: Path):
    folder = make(tmp_path, check=STATE)
    tool = folder / "input_files" / "input" / "tool.sh"
    tool.write_text("echo tool\n", encoding="utf-8")
    tool.chmod(0o755)
    verdicts = end(host, as_task(folder, Split.TRAIN), WORK).state()["verdicts"]
    assert {v["path"]: v["reason"] for v in verdicts if not v["passed"]} == {}
    assert len(verdicts) == 10


def test_the_tree_of_a_task_keeps_executables_and_empty_folders(host: SandboxHost, tmp_path: Path):
    folder = make(tmp_path)
    before = read(folder).digest
    (folder / "input_files" / "input" / "numbers.txt").chmod(0o755)
    (folder / "input_files" / "outbox").mkdir()
    task = as_task(folder, Split.TRAIN)
    assert task.payload["digest"] != before
    env = ClawEnvironment(host=host)
    env.reset(task)
    seen = env.step(block("stat -c '%A %n' input/* outbox")).facts["observation"]
    env.close()
    assert "-rwxr-xr-x input/numbers.txt" in seen
    assert "-rw-r--r-- input/logo.bin" in seen
    assert "drwxr-xr-x outbox" in seen


TMP = "/tmp"
"""Inside a sandbox."""
LINKS = """
import json, sys
from pathlib import Path

answer, expected = Path(sys.argv[1]) / "answer.txt", Path(__file__).parent / "expected.txt"
print(json.dumps({"right": float(answer.exists() and answer.read_text() == expected.read_text())}))
"""


@pytest.mark.parametrize(
    "command",
    [
        "ln -s /beside/expected.txt answer.txt",
        "ln -s ../beside/expected.txt answer.txt",
        "ln -s / root; ln -s root/beside/expected.txt answer.txt",
        "mkdir a; ln -s ../../beside a/b; ln -s a/b/expected.txt answer.txt",
        f"ln -s {WORKSPACE}/../beside/expected.txt answer.txt",
        "ln -s /proc/self/root/beside/expected.txt answer.txt",
        f"ln -s {TMP}/answer.txt answer.txt; ln -s answer.txt loop; echo 42 > {TMP}/answer.txt",
    ],
)
def test_a_link_out_of_the_workspace_reads_nothing(host: SandboxHost, tmp_path: Path, command: str):
    folder = make(tmp_path, check=LINKS)
    (folder / "reward" / "expected.txt").write_text("42\n", encoding="utf-8")
    task = as_task(folder, Split.TRAIN)
    assert end(host, task, "echo 42 > answer.txt").state()["metrics"]["assertion_rate"] == 1.0
    assert end(host, task, command).state()["metrics"]["assertion_rate"] == 0.0


RUNS = """
import json, subprocess, sys
from pathlib import Path
import helper, yaml

def ends_well(*words):
    return subprocess.run(words, cwd=sys.argv[1], stdout=subprocess.DEVNULL, timeout=50).returncode == 0

print(json.dumps({
    "python": ends_well("python", "tool.py"),
    "pytest": ends_well("pytest", "-q"),
    "module": ends_well("python", "-m", "pytest", "-q", "test_tool.py"),
    "same": ends_well(sys.executable, "-m", "pytest", "-q"),
    "yaml": yaml.safe_load((Path(sys.argv[1]) / "a.yaml").read_text()) == {"a": [1, 2]},
    "helper": helper.VALUE == 3,
    "read-only": helper.unwritable(__file__),
}))
"""
HELPER = """
VALUE = 3

def unwritable(path):
    try:
        open(path, "a").close()
    except OSError:
        return True
    return False
"""


def test_python_pytest_yaml_and_modules_beside_the_check_are_there(host: SandboxHost, tmp_path: Path):
    folder = make(tmp_path, check=RUNS)
    (folder / "reward" / "helper.py").write_text(HELPER, encoding="utf-8")
    command = """
echo 'print(1)' > tool.py; echo 'VALUE = 0' > helper.py
printf 'def test_one():\\n    assert 1 + 1 == 2\\n' > test_tool.py; printf 'a:\\n- 1\\n- 2\\n' > a.yaml
python tool.py && python -m pytest -q && pytest -q test_tool.py && python -c 'import yaml'
"""
    env = ClawEnvironment(ClawConfig(protocol=ProtocolConfig(command_s=60.0)), host=host)
    env.reset(as_task(folder, Split.TRAIN))
    assert env.step(block(command)).facts["exit_code"] == 0
    env.step(DONE)
    assert {v["path"]: v["reason"] for v in env.state()["verdicts"] if not v["passed"]} == {}


@pytest.mark.parametrize(
    ("check", "lacking"),
    [
        ("import no_such_module", "Python module no_such_module"),
        ("try:\n    from no_such_module.part import x\nexcept ImportError:\n    pass", "Python module no_such_module"),
        ("import subprocess\nsubprocess.run(['no-such-program', 'a.js'])", "no-such-program"),
        ("import subprocess\nfor cmd in [['no-such-program'], ['sh', 'x']]:\n    subprocess.run(cmd)", "no-such-program"),
        ("import subprocess\nsubprocess.run(f'no-such-program {1}', shell=True)", "no-such-program"),
        ("import os\nos.system('no-such-program a')", "no-such-program"),
        ("import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'no_such_module'])", "Python module no_such_module"),
    ],
)
def test_what_this_machine_lacks_is_no_score(host: SandboxHost, tmp_path: Path, caplog, check: str, lacking: str):
    for number in range(3):
        body = f"{check}\n{CHECK}" if number == 1 else CHECK + f"# {number}\n"
        make(tmp_path / "clawgym_train", check=body, number=number)
    task = as_task(tmp_path / "clawgym_train" / "task_0001", Split.TRAIN)
    with pytest.raises(NotCheckable, match="cannot be checked here: its checks need " + lacking):
        ClawEnvironment(host=host).reset(task)
    # As an outcome of its own: an episode without a return, which is not trained on.
    env = ClawEnvironment(host=host)
    (episode,) = play([env], [task], {ACTOR: ScriptedPolicy(noop, version="noop")}, Sampling(), seed=0, max_turns=2)
    assert episode.stop is StopReason.ERROR
    assert str(episode.error).startswith("NotCheckable: ")
    assert not episode.trajectories
    # And skipped, counted, where tasks are chosen.
    found, out = checkable(tmp_path, Split.TRAIN)
    assert ([one.id[-4:] for one in found], out) == (["0000", "0002"], {task.id: [lacking]})
    caplog.clear()
    assert [one.id for one in Claw(official=tmp_path).tasks(Split.TRAIN)] == [one.id for one in found]
    assert "1 of 3 official tasks of train cannot be checked here" in caplog.text
    assert f"{lacking} (1)" in caplog.text


@pytest.mark.parametrize(
    "check",
    [
        "import tool",
        "import subprocess\nsubprocess.run(['./tool.sh'])",
        "import subprocess\nsubprocess.run(['bash', 'x.sh']); subprocess.run('ls | wc -l', shell=True)",
        "expected = ['no-such-program', 'columns']\nimport subprocess",
        "# import no_such_module\ntext = 'import no_such_module'",
        "import csv, json, yaml\nfrom pathlib import Path",
        "def f(:",
    ],
)
def test_what_the_agent_makes_and_what_is_there_is_not_lacking(check: str):
    assert needs_of({"check.py": check.encode()}, own="Write src/tool.py and tool.sh.").missing() == []


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
    workplace.check_options()
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
