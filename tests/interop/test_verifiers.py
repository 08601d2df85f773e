"""`verifiers:ID`: packages written for verifiers alone, played in the interpreter that `make verifiers` makes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from onthejob.cli import main
from onthejob.envs.running import Running, running
from onthejob.errors import ConfigError, MissingDependency, ProgramError
from onthejob.interop.verifiers import SHARES, Verifiers, _divided
from onthejob.interop.verifiers_process import process
from onthejob.plugins import anchored, resolve
from onthejob.testing import check_env
from onthejob.types import Split, StopReason, Task

PYTHON = Path(__file__).parents[2] / ".venv-verifiers" / "bin" / "python"
PACKAGES = Path(__file__).parent / "verifiers_packages"
needs_verifiers = pytest.mark.skipif(not PYTHON.exists(), reason="verifiers has no interpreter. Run: make verifiers")


@pytest.fixture(autouse=True, scope="module")
def _packages() -> Iterator[None]:
    """The packages are found by the interpreter of verifiers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(PACKAGES))
        yield


def of(what: str, **options: Any) -> Verifiers:
    return resolve(f"verifiers:{what}")(**{"python": str(PYTHON), **options})  # type: ignore[return-value]


def refused(what: str, **options: Any) -> str:
    """Why an environment is refused."""
    with pytest.raises(ConfigError) as caught:
        of(what, **options).tasks(Split.TRAIN)
    return str(caught.value)


def one_turn(run: Running, task: Task) -> None:
    run.reset(task)
    run.step("yes")


def odd(case: str, **options: Any) -> Verifiers:
    """A taskset that does something else than it should."""
    return of("odd-v1", args=json.dumps({"case": case}), count=3, **options)


@needs_verifiers
def test_a_taskset_is_asked_and_scored_by_all_its_functions():
    env = of("sums-v1")
    tasks = {split: env.tasks(split) for split in Split}
    assert {split: len(found) for split, found in tasks.items()} == {Split.TRAIN: 49, Split.DEV: 7, Split.TEST: 4}
    assert len({task.id for found in tasks.values() for task in found}) == 60
    run = running(env)
    for task in tasks[Split.TRAIN][:4]:
        seen = run.reset(task)
        assert [message.role for message in seen.messages] == ["system", "user"]
        first, second = map(int, seen.messages[1].content.removesuffix(" =").split(" + "))
        step = run.step(f" {first + second}")
        assert (step.rewards, step.stop) == ({"agent": 1.5}, StopReason.DONE)
        assert run.state()["metrics"] == {
            "reward": 1.5, "turns": 1.0, "invalid": 0.0, "correct": 1.0, "short": 1.0, "length": 1.0
        }  # fmt: skip
        run.reset(task)
        # Half of a surrogate pair, as a model may sample it, and no text at all.
        assert run.step("I do not know \ud800").rewards == {"agent": 0.0}
        run.reset(task)
        assert run.step("").rewards == {"agent": 0.5}


@needs_verifiers
def test_an_environment_with_turns_continues_one_conversation():
    env = of("guess-v1", count=20)
    run, task = running(env), env.tasks(Split.TRAIN)[0]
    secret = 1 + task.payload["index"] * 7 % 9
    assert [message.content for message in run.reset(task).messages] == ["Guess my number: 1 to 9. Digits only."]
    for wrong, hint in (("none", "That is no number."), ("0", "Higher."), ("99", "Lower.")):
        step = run.step(wrong)
        assert step.observation is not None
        assert (step.observation.fresh, [message.content for message in step.observation.messages]) == (False, [hint])
    last = run.step(str(secret))
    assert (last.rewards, last.stop) == ({"agent": 1.0}, StopReason.DONE)
    assert run.state()["metrics"]["turns_taken"] == 4.0
    # Its own end.
    run.reset(task)
    assert [run.step("0").stop for _ in range(4)] == [None, None, None, StopReason.DONE]
    # Ours, which verifiers is given, so that it scores.
    short = of("guess-v1", count=20, max_turns=2)
    run = running(short)
    run.reset(short.tasks(Split.TRAIN)[0])
    assert [run.step("0").stop for _ in range(2)] == [None, StopReason.MAX_TURNS]
    assert run.state()["metrics"]["found"] == 0.0


@needs_verifiers
def test_settings_reach_the_taskset_and_the_environment():
    env = of("guess-v1", count=20, env_args='{"tries": 1}')
    run = running(env)
    run.reset(env.tasks(Split.TRAIN)[0])
    assert run.step("0").stop is StopReason.DONE
    held = of("sums-v1", args='{"size": 8}', heldout_args='{"size": 40, "most": 5}')
    sizes = [len(held.tasks(split)) for split in Split]
    assert sizes[0] == 8
    assert sum(sizes[1:]) == 40
    assert of("sums-v1", count=10).fingerprint() != of("sums-v1").fingerprint() == of("sums-v1").fingerprint()
    assert "size" in refused("sums-v1", args='{"size": "many"}')
    assert "mosst" in refused("sums-v1", args='{"mosst": 3}')


@needs_verifiers
def test_an_agent_that_runs_twice_begins_anew_and_earns_the_mean():
    env = of("best-of-n+sums-v1", env_args='{"n": 2}')
    run, task = running(env), env.tasks(Split.TRAIN)[0]
    answer = str(sum(map(int, run.reset(task).messages[1].content.removesuffix(" =").split(" + "))))
    again = run.step(answer).observation
    assert again is not None
    assert again.fresh
    assert run.step("no idea").rewards == {"agent": 0.75}
    assert run.state()["metrics"]["runs"] == 2.0
    short = running(of("best-of-n+sums-v1", env_args='{"n": 2}', max_turns=1))
    short.reset(task)
    with pytest.raises(ProgramError, match=r"needs more than 1 replies\. Raise --env\.max-turns"):
        short.step(answer)


@needs_verifiers
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_contract_is_kept():
    check_env(of("sums-v1"), tasks=2)
    check_env(of("guess-v1", count=20, threads=2), tasks=2)
    check_env(of("guess-v1", count=20, forks="replay"), tasks=1)


@needs_verifiers
@pytest.mark.parametrize(
    ("what", "options", "why"),
    [
        ("nowhere-v1", {}, "a module is missing in this interpreter"),
        ("duel-v1", {}, "DuelConfig has the agents first, second, and only one agent can be played"),
        ("odd-v1", {"args": '{"case": "container"}'}, "task 0 needs a container"),
        ("odd-v1", {"args": '{"case": "image"}'}, "the prompt of task 0 holds an image or parts"),
        ("odd-v1", {"args": '{"case": "assistant"}'}, "ends with a message of the assistant"),
        ("odd-v1", {"args": '{"case": "prompt"}'}, "task 0 has no prompt"),
        ("odd-v1", {"args": '{"case": "empty"}'}, "its taskset yields no task"),
        ("odd-v1", {"args": '{"case": "raises"}'}, "it cannot be loaded: ValueError: no data today"),
        ("odd-v1", {"args": '{"case": "hub"}'}, "Hugging Face's Hub: load it once where there is a connection"),
        ("odd-v1", {"args": '{"task": {"judges": [{"id": "reference"}]}}'}, "its judge 'reference' asks the model"),
        ("odd-v1", {"env_args": '{"agent": {"harness": {"id": "bash"}}}'}, "its harness 'bash' runs programs"),
        ("odd-v1", {"env_args": '{"agent": {"harness": {"id": "codex"}}}'}, "its harness 'codex' runs programs"),
        ("tools-v1", {}, "ToolTask needs tools, and a reply is text"),
        ("sums-v1", {"args": '{"size": 2}'}, "has 2 tasks, and 3 splits need one each"),
        ("sums-v1", {"args": "size=2"}, "--env.args must be a JSON object"),
        ("sums-v1", {"count": 2}, "--env.count must be >= 3"),
        ("sums-v1", {"forks": "copy"}, "--env.forks must be no or replay"),
        ("sums-v1", {"timeout_s": 0.0}, "--env.timeout-s must be finite and > 0"),
    ],
)
def test_what_cannot_be_played_is_refused_with_the_reason(
    what: str, options: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("PRIME_API_KEY", raising=False)
    assert why in refused(what, **options)


@needs_verifiers
@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("scoring", "verifiers:odd-v1 failed: .*ZeroDivisionError"),
        ("unpaid", "the task gives no reward"),
        ("setup", "verifiers:odd-v1 failed: .*no room"),
        ("leaves", r"the process of verifiers ended \(exit code 7\): .*goodbye"),
    ],
)
def test_an_episode_that_fails_says_why_and_the_next_one_is_played(case: str, why: str):
    env = odd(case)
    run, task = running(env), env.tasks(Split.TRAIN)[0]
    run_it = partial(one_turn, run, task)
    with pytest.raises(ProgramError, match=why):
        run_it()
    fine = odd("fine")
    well = running(fine)
    well.reset(fine.tasks(Split.TRAIN)[0])
    assert well.step("yes").rewards == {"agent": 1.0}


@needs_verifiers
def test_a_package_that_computes_without_end_is_ended():
    env = odd("endless", timeout_s=30.0)
    run, task = running(env), env.tasks(Split.TRAIN)[0]
    run.reset(task)
    pid = process(str(PYTHON)).pid
    run.env.timeout_s = 1.0  # type: ignore[attr-defined]
    with pytest.raises(ProgramError, match="gave no answer to answer within 1 s and was ended"):
        run.step("yes")
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@needs_verifiers
def test_an_abandoned_episode_ends_and_leaves_the_others():
    env = of("guess-v1", count=20)
    task = env.tasks(Split.TRAIN)[0]
    left, kept = running(env), running(env)
    left.reset(task)
    kept.reset(task)
    left.reset(task)
    del left
    assert kept.step("0").observation is not None


@needs_verifiers
def test_the_process_ends_with_ours(tmp_path: Path):
    code = f"""
        import os, signal
        from onthejob.interop.verifiers_process import process
        from onthejob.plugins import resolve
        from onthejob.types import Split
        resolve("verifiers:sums-v1")(python={str(PYTHON)!r}).tasks(Split.TRAIN)
        print(process({str(PYTHON)!r}).pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    found = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, encoding="utf-8", timeout=300)
    assert found.returncode == -signal.SIGKILL
    pid, end = int(found.stdout), time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.1)
    assert not Path(f"/proc/{pid}").exists()


@needs_verifiers
def test_commands_take_it(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert main(["env", "check", "verifiers:sums-v1", "--env.python", str(PYTHON), "--json"]) == 0
    shown = capsys.readouterr()
    assert "Number" not in shown.err
    found = json.loads(shown.out)
    assert found["name"] == "sums-v1"
    # The process of verifiers is ours, and the class belongs to no module.
    assert not [line for line in found["warnings"] if "child processes" in line or "Verifiers" in line or "Pay " in line]
    assert anchored("verifiers:best-of-n+sums-v1") == "verifiers:best-of-n+sums-v1"
    monkeypatch.chdir(PYTHON.parent)
    assert of("sums-v1", python="python").anchored() == {"python": str(PYTHON)}


@pytest.mark.parametrize("what", ["", "a+b+c", "+a", "a b", "a+"])
def test_a_reference_names_a_package(what: str):
    with pytest.raises(ConfigError, match="names no taskset"):
        resolve(f"verifiers:{what}")


def test_an_interpreter_without_verifiers_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"--env.python must be the path of a Python interpreter, got .*/none"):
        of("sums-v1", python=str(tmp_path / "none")).tasks(Split.TRAIN)
    with pytest.raises(ConfigError, match=r"--env.python /bin/true is no Python from 3.11 on"):
        of("sums-v1", python="/bin/true").tasks(Split.TRAIN)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    with pytest.raises(MissingDependency, match=r"verifiers is not installed in .*bare/bin/python.*pip install 'verifiers>="):
        of("sums-v1", python=str(tmp_path / "bare" / "bin" / "python")).tasks(Split.TRAIN)


def rows(*contents: str) -> list[dict[str, str]]:
    return [{"key": str(number), "content": content} for number, content in enumerate(contents)]


def test_tasks_of_equal_content_are_in_one_split():
    contents = [f"task {number % 50}" for number in range(200)]
    made = _divided(rows(*contents), SHARES, "x")
    assert set(made) == set(Split)
    assert all(len({made[one] for one in range(200) if contents[one] == content}) == 1 for content in contents)
    # More tasks leave the others where they are.
    assert _divided(rows(*contents, "another"), SHARES, "x")[:200] == made
    for few in (("a", "b", "c"), ("a", "a", "a"), ("a", "b", "b", "c", "c")):
        assert set(_divided(rows(*few), SHARES, "x")) == set(Split)


def test_a_task_says_what_is_played():
    task = Task(id="x", env="verifiers", split=Split.TRAIN, seed=0, payload={"index": 0, "key": "k", "heldout": False})
    assert Task.from_row(task.row()) == task
