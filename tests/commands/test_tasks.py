"""`onthejob tasks`: corpora as files, and clear verdicts about tasks that are not right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from onthejob.cli import main
from onthejob.envs.claw.families import FAMILIES
from onthejob.envs.claw.splits import split_of
from onthejob.envs.claw.synthesize import synthesize
from onthejob.envs.claw.task_schema import load_tasks

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*words: str | Path) -> tuple[int, str, str]:
        code = main(["tasks", *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_list_names_every_family(call: Call) -> None:
    code, out, _ = call("list", "--json")
    assert code == 0
    rows = json.loads(out)
    assert [row["family"] for row in rows] == list(FAMILIES)
    assert {row["splits"] for row in rows} == {"train dev test", "dev", "test"}


def test_show_prints_what_agent_and_grader_see(call: Call) -> None:
    task = synthesize(16)[9]
    code, out, _ = call("show", task.id)
    assert code == 0
    for part in (task.intent, task.gold[0].splitlines()[0], task.assertions[0].path):
        assert part in out
    assert json.loads(call("show", task.id, "--json")[1]) == task.to_record()
    code, out, err = call("show", "synth-nobody-00")
    assert (code, out) == (2, "")
    assert "no task or family 'synth-nobody-00'" in err


def test_synth_writes_the_splits_and_the_same_bytes_again(call: Call, tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        assert call("synth", "--out", folder, "--count", "128")[0] == 0
    assert [path.name for path in sorted(first.iterdir())] == ["dev.jsonl", "manifest.json", "test.jsonl", "train.jsonl"]
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes()
    tasks = synthesize(128)
    for name in ("train", "dev", "test"):
        assert load_tasks(first / f"{name}.jsonl") == [task for task in tasks if split_of(task).value == name]
    manifest = json.loads((first / "manifest.json").read_text(encoding="utf-8"))
    assert sum(row["all"] for row in manifest["tasks"].values()) == 128
    code, _, err = call("synth", "--out", first)
    assert code == 2
    assert "holds a corpus already" in err


def test_static_validation_of_a_corpus_and_of_a_file(call: Call, tmp_path: Path) -> None:
    code, out, _ = call("validate", "--static", "--count", "64", "--json")
    assert code == 0
    assert json.loads(out)["tasks"] == 64
    path = tmp_path / "mine.jsonl"
    good, bad = synthesize(1)[0].to_record(), synthesize(2)[1].to_record()
    bad["verifiable_assertions"] = [{"kind": "file_unchanged", "path": bad["workspace_seed"]["files"][0]["path"]}]
    path.write_text("\n".join(["nonsense", "[]", json.dumps(good), json.dumps(good), json.dumps(bad)]) + "\n", encoding="utf-8")
    code, out, _ = call("validate", "--static", path)
    assert code == 2
    for part in ("mine.jsonl:1: form: is not JSON", "mine.jsonl:2: form: must be an object", "occurs 2 times", "nothing-to-do"):
        assert part in out
    assert "4 tasks are not right" in out


def test_validation_runs_every_task_with_nothing_done_and_with_its_gold_commands(call: Call, tmp_path: Path) -> None:
    good = [task.to_record() for task in synthesize(6)]
    path = tmp_path / "good.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in good), encoding="utf-8")
    code, out, _ = call("validate", path, "--json")
    found = json.loads(out)
    assert (code, found["tasks"], found["problems"]) == (0, 6, {})
    (whole,) = [row for row in found["table"] if row["difficulty"] == "all"]
    assert (whole["no-op passed"], whole["gold passed"]) == (0.0, 1.0)
    assert whole["no-op rate"] < 1.0

    trivial, failing, unsolved = good[0], good[1], good[2]
    seeded = trivial["workspace_seed"]["files"][0]["path"]
    trivial |= {"verifiable_assertions": [{"kind": "file_exists", "path": seeded, "guard": True}], "answers": []}
    failing |= {"gold": ["true"]}
    unsolved |= {"gold": []}
    path.write_text("".join(json.dumps(record) + "\n" for record in good), encoding="utf-8")
    code, out, _ = call("validate", path, "--json")
    found = json.loads(out)
    assert code == 2
    first = f"{path}:1"  # What the linter refuses is named by its line, and not run.
    assert list(found["problems"]) == [first, failing["task_id"], unsolved["task_id"]], "the other three are right"
    said = {name: " ".join(listed) for name, listed in found["problems"].items()}
    assert "so doing nothing passes" in said[first]
    assert "proof: the gold commands do not pass" in said[failing["task_id"]]
    assert failing["verifiable_assertions"][0]["path"] in said[failing["task_id"]], "which assertion, and why not"
    assert "proof: there are no gold commands" in said[unsolved["task_id"]]
    (whole,) = [row for row in found["table"] if row["difficulty"] == "all"]
    assert (whole["tasks"], whole["no-op passed"]) == (5, 0.0)
    assert whole["gold passed"] == pytest.approx(3 / 5)
    static = json.loads(call("validate", path, "--static", "--json")[1])
    assert list(static["problems"]) == [first], "what only running shows, the linter alone does not find"
    shown = call("validate", path)[1]
    assert "3 tasks are not right" in shown
    assert failing["task_id"] in shown


def test_a_problem_of_many_tasks_is_one_line(call: Call, tmp_path: Path) -> None:
    """Ten tasks whose 26 files each have a kind that there is not were 264 lines."""
    record = synthesize(1)[0].to_record()
    record["workspace_seed"]["files"] = [{"path": f"f{number}.txt", "kind": "plain", "content": ""} for number in range(26)]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps({**record, "task_id": f"t-{n}"}) + "\n" for n in range(10)), encoding="utf-8")
    code, out, _ = call("validate", "--static", path)
    assert code == 2
    said = " ".join(out.split())
    assert said.count("kind must be") == 1
    assert f"{path}:1 and 9 other tasks: form: workspace_seed.files[0]: kind must be one of text, binary-stub" in said
    assert said.endswith("(and 25 more like it) 10 tasks are not right")
    listed = json.loads(call("validate", "--static", path, "--json")[1])["problems"]
    assert [len(problems) for problems in listed.values()] == [1] * 10


def test_options_that_cannot_work_are_refused(call: Call, tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n", encoding="utf-8")
    for words, said in (
        (("validate", "--static", empty), "holds no task"),
        (("validate", "--static", tmp_path / "none.jsonl"), "cannot be read"),
        (("validate", "--static", "--unsafe"), "--unsafe has no effect"),
        (("validate", "--jobs", "0"), "--jobs must be >= 1"),
        (("synth", "--out", tmp_path / "x", "--count", "0"), "1 to 100000 tasks"),
    ):
        code, out, err = call(*words)
        assert (code, out) == (2, ""), words
        assert said in err
