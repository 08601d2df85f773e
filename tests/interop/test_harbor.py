"""`harbor:FOLDER`: which tasks are whose, what is skipped, and that commands play them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onthejob.claw import Claw
from onthejob.cli import main
from onthejob.envs.claw.policies import noop
from onthejob.errors import ConfigError
from onthejob.interop.harbor import Harbor, found_in
from onthejob.models.scripted import ScriptedPolicy
from onthejob.plugins import anchored, resolve
from onthejob.rollout.play import play
from onthejob.types import Sampling, Split

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "harbor"
READS = 'if [ "$(cat /app/answer.txt)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n'
RUNS = "bash /app/answer.sh && echo 1 > /logs/verifier/reward.txt\n"


def task(folder: Path, *, test: str = READS, base: str = "ubuntu:24.04", solution: str = "echo 42 > /app/answer.txt\n") -> None:
    """Write a task."""
    texts = {
        "task.toml": '[metadata]\ncategory = "files"\ndifficulty = "easy"\n',
        "instruction.md": "Write 42 to /app/answer.txt.\n",
        "environment/Dockerfile": f"FROM {base}\nWORKDIR /app\n",
        "tests/test.sh": test,
        "solution/solve.sh": solution,
    }
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


def of(folder: Path, **options: object) -> Harbor:
    return resolve(f"harbor:{folder}")(**options)  # type: ignore[return-value]


def ids(env: Harbor, split: Split) -> list[str]:
    return [one.id for one in env.tasks(split)]


def test_a_split_is_drawn_from_the_topic_and_every_task_has_one():
    splits = {one.id: one.split for one in found_in(str(EXAMPLES))}
    assert len(splits) == 12
    assert splits["words-sorted_easy"] is splits["words-sorted_hard"]
    env = of(EXAMPLES, allow_marked=True)
    assert sorted(name for split in env.task_splits() for name in ids(env, split)) == sorted(splits)


def test_folders_state_the_split(tmp_path: Path):
    for name in ("train/a", "train/b", "dev/a", "test/c"):
        task(tmp_path / name)
    env = of(tmp_path)
    assert [ids(env, split) for split in Split] == [["train-a", "train-b"], ["dev-a"], ["test-c"]]
    assert ids(of(tmp_path / "dev" / "a"), Split.TRAIN) == ["a"]


def test_marked_tasks_are_held_out_but_not_trained_on(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    for split in ("train", "test"):
        task(tmp_path / split / "plain")
        task(tmp_path / split / "runs", test=RUNS)
    env = of(tmp_path)
    assert ids(env, Split.TRAIN) == ["train-plain"]
    assert "1 of 2 training tasks are skipped" in caplog.text
    held_out = env.tasks(Split.TEST)
    assert [env.groupings()["tests"](one) for one in held_out] == [
        "tests apart from the agent's code",
        "tests that run the agent's code",
    ]
    assert ids(of(tmp_path, allow_marked=True), Split.TRAIN) == ["train-plain", "train-runs"]


def test_what_cannot_run_is_left_out_with_its_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    task(tmp_path / "train" / "a")
    task(tmp_path / "train" / "b", base="alpine:3")
    assert ids(of(tmp_path), Split.TRAIN) == ["train-a"]
    assert "1 of 2 tasks of train cannot run here and are skipped: an image of its own (1)" in caplog.text
    task(tmp_path / "other" / "b", base="alpine:3")
    with pytest.raises(ConfigError, match="no task that can be played here"):
        of(tmp_path / "other").check_options()


def test_folders_that_are_none(tmp_path: Path):
    for path, said in ((tmp_path / "missing", "there is no folder"), (tmp_path, "holds no task in the Harbor format")):
        with pytest.raises(ConfigError, match=said):
            resolve(f"harbor:{path}")


def test_a_reference_is_found_from_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path.parent)
    task(tmp_path / "a")
    assert anchored(f"harbor:{tmp_path.name}") == f"harbor:{tmp_path}"
    assert of(Path(tmp_path.name)).fingerprint() == of(tmp_path).fingerprint()
    before = of(tmp_path).fingerprint()
    task(tmp_path / "b")
    found_in.cache_clear()
    assert of(tmp_path).fingerprint() != before


def test_gold_and_noop_play_an_episode():
    env = of(EXAMPLES)
    tasks = [one for one in env.tasks(Split.TRAIN) if one.id == "count-errors"]
    assert tasks
    env.open()
    try:
        for name, reward in (("gold", 1.0), ("noop", 0.0)):
            policy = ScriptedPolicy(env.players_for(tasks)[name], version=name)
            (episode,) = play([env.make_environment()], tasks, {"agent": policy}, Sampling(), seed=0, max_turns=20)
            assert episode.metrics["reward"] == reward
            assert episode.metrics["passed"] == reward
    finally:
        env.close()


def test_the_usual_claw_keeps_its_words():
    """What a kept agent of the claw reads does not depend on this."""
    env = Claw(count=16)
    (first, *_) = env.tasks(Split.TRAIN)
    env.open()
    try:
        seen = env.make_environment().reset(first)
        assert "It runs in the workspace folder, and you are shown" in seen.messages[0].content
        assert noop(seen, 0) == "TASK_COMPLETE"
    finally:
        env.close()


def test_commands_play_and_validate(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    task(tmp_path / "train" / "right")
    task(tmp_path / "train" / "wrong", solution="true\n")
    task(tmp_path / "train" / "alpine", base="alpine:3")
    report = tmp_path / "report.json"
    assert main(["tasks", "validate", "--env", f"harbor:{tmp_path}", "--report", str(report), "--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    rows = json.loads(report.read_text(encoding="utf-8"))["tasks"]
    assert said["tasks"] == rows
    assert {name: row["finding"] for name, row in rows.items()} == {
        "train-alpine": "refused", "train-right": "right", "train-wrong": "the solution fails",
    }  # fmt: skip
    assert rows["train-right"]["solution"] == [1.0, 1.0]
    assert rows["train-alpine"]["refusals"] == [["an image of its own", "alpine:3"]]
    assert ids(of(tmp_path, validated=report), Split.TRAIN) == ["train-right"]
    assert main(["play", f"harbor:{tmp_path}", "--policy", "gold", "--task", "train-right"]) == 0
    assert "1" in capsys.readouterr().out


def test_static_validation_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    task(tmp_path / "a")
    assert main(["tasks", "validate", "--env", f"harbor:{tmp_path}", "--static", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["tasks"].values()
    assert row == {"marked": "", "notes": [], "refusals": []}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--env", "claw"], "has no tasks that can be validated"),
        (["--runs", "3"], "has no effect without --env"),
        (["--report", "x.json"], "has no effect without --env"),
        (["--env", f"harbor:{EXAMPLES}", "--count", "5"], "has no effect with --env"),
        (["--env", f"harbor:{EXAMPLES}", "--runs", "0"], "must be >= 1"),
        (["--env", f"harbor:{EXAMPLES}", "some.jsonl"], "both say which tasks"),
    ],
)
def test_options_without_effect(words: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    assert main(["tasks", "validate", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_report_that_is_none(tmp_path: Path):
    (tmp_path / "x.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ConfigError, match="is no report of"):
        of(EXAMPLES, validated=tmp_path / "x.json").check_options()


def test_claw_tasks_are_right_in_this_format_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Written by `tasks synth --format harbor`, read by the same loader, proven by their own tests."""
    out = tmp_path / "corpus"
    assert main(["tasks", "synth", "--out", str(out), "--count", "24", "--format", "harbor"]) == 0
    capsys.readouterr()
    assert main(["tasks", "validate", "--env", f"harbor:{out}", "--runs", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["tasks"]
    assert len(rows) == 24
    assert {(row["finding"], row["marked"]) for row in rows.values()} == {("right", "")}
