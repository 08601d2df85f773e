"""InterCode's form, written in the Harbor format: a checkout of our own, proven by the tests that were made of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checks.harbor.intercode import read_intercode
from onthejob.cli import main
from onthejob.errors import ConfigError

SETUP = """#!/bin/bash
mkdir -p /testbed/a/b /testbed/empty
echo one > /testbed/a/one.txt
echo two > /testbed/a/b/two.txt
touch -m -t 202305312359.59 /testbed/a/one.txt
ln -s one.txt /testbed/a/link
tar -czf /testbed/a.tar.gz -C /testbed a
"""
ROWS = {
    "print": ("List the text files", "find /testbed -name '*.txt'"),
    "change": ("Remove two.txt", "rm /testbed/a/b/two.txt"),
    "mode": ("Make one.txt private", "chmod 600 /testbed/a/one.txt"),
    "time": ("Date two.txt back", "touch -d '2020-01-02 UTC' /testbed/a/b/two.txt"),
    "link": ("Point the link to b", "ln -sfn b /testbed/a/link"),
    "both": ("Copy one.txt and print it", "cp /testbed/a/one.txt /testbed/c.txt; cat /testbed/c.txt"),
    "nothing": ("Do nothing", "true"),
    "luck": ("Print a number", "echo $RANDOM$RANDOM"),
    "missing": ("Run what is nowhere", "no-such-program-anywhere /testbed"),
}


def checkout(folder: Path) -> Path:
    texts = {
        "data/nl2bash/nl2bash_fs_1.json": json.dumps([{"query": query, "gold": gold} for query, gold in ROWS.values()]),
        "docker/bash_scripts/setup_nl2b_fs_1.sh": SETUP,
    }
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


def test_gold_commands_become_what_tests_expect(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "out"
    assert main(["tasks", "convert", str(checkout(tmp_path / "in")), "--out", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    names = dict(zip(ROWS, (f"fs1-{number:02d}" for number in range(len(ROWS))), strict=True))
    assert said["written"] == 6
    assert said["left_out"] == {
        names["nothing"]: "the gold command changes nothing and prints nothing",
        names["luck"]: "the gold command does something else each time",
        names["missing"]: "needs no-such-program-anywhere",
    }
    assert main(["tasks", "validate", "--env", f"harbor:{out}", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["tasks"]
    assert {(row["finding"], row["marked"]) for row in rows.values()} == {("right", "")}
    request = (out / "test" / names["print"] / "instruction.md").read_text(encoding="utf-8")
    assert request == "List the text files\n\nWrite what the answer prints, and nothing else, to /answer.txt.\n"
    assert "answer.txt" not in (out / "test" / names["change"] / "instruction.md").read_text(encoding="utf-8")


def test_other_work_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """With another solution in its place, each task is seen to fail."""
    out = tmp_path / "out"
    assert main(["tasks", "convert", str(checkout(tmp_path / "in")), "--out", str(out)]) == 0
    wrong = {
        "fs1-00": "find /testbed -name 'one*' > /answer.txt",
        "fs1-01": "rm /testbed/a/b/two.txt; touch /testbed/more",
        "fs1-02": "chmod 640 /testbed/a/one.txt",
        "fs1-03": "touch -d '2020-01-03 UTC' /testbed/a/b/two.txt",
        "fs1-04": "ln -sfn empty /testbed/a/link",
        "fs1-05": "cp /testbed/a/one.txt /testbed/c.txt",
    }
    for name, script in wrong.items():
        (out / "test" / name / "solution" / "solve.sh").write_text(f"{script}\n", encoding="utf-8")
    capsys.readouterr()
    assert main(["tasks", "validate", "--env", f"harbor:{out}", "--runs", "1", "--json"]) == 2
    rows = json.loads(capsys.readouterr().out)["tasks"]
    assert {row["finding"] for row in rows.values()} == {"the solution fails"}
    assert len(rows) == len(wrong)


def test_what_is_no_checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(ConfigError, match="Give a checkout of InterCode"):
        read_intercode(tmp_path)
    file = checkout(tmp_path) / "data" / "nl2bash" / "nl2bash_fs_1.json"
    file.write_text('[{"question": "x"}]', encoding="utf-8")
    with pytest.raises(ConfigError, match="is not in InterCode's form: KeyError"):
        read_intercode(tmp_path)
    assert main(["tasks", "convert", str(tmp_path), "--out", str(tmp_path / "o"), "--jobs", "0"]) == 2
    assert "--jobs must be >= 1" in capsys.readouterr().err
