"""Official tasks score here as by upstream's own command: tasks of our own writing, and the official ones where they are."""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from onthejob.envs.claw.official import as_task, read
from onthejob.envs.claw.sandbox import SandboxHost, open_host
from onthejob.types import Split

CLAWGYM = os.environ.get("ONTHEJOB_CLAWGYM", "")
QUERY = (
    "Read `input/data.csv` and write scripts/report.sh (make it executable), notes/summary.md and an empty folder archive/. "
    "Then run python scripts/report.py. See https://example.org/a.json for an example."
)
CHECK = """
import json, os, subprocess, sys
from pathlib import Path

root = Path(sys.argv[1])
script = root / "scripts" / "report.sh"
print(json.dumps({
    "script": script.is_file(),
    "executable": os.access(script, os.X_OK),
    "summary": (root / "notes" / "summary.md").stat().st_size / 100,
    "archive": float((root / "archive").is_dir()),
    "runs": float(subprocess.run(["python", "scripts/report.py"], cwd=root, stdout=subprocess.DEVNULL).returncode == 0),
    "absent": 0,
}))
"""


@pytest.fixture(scope="module")
def host() -> Iterator[SandboxHost]:
    with open_host() as opened:
        yield opened


@pytest.fixture
def fidelity(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(repository / "benchmarks")
    return importlib.import_module("official_fidelity")


def make(folder: Path, name: str, check: str) -> Path:
    """A task folder in the official format."""
    task = folder / "clawgym_train" / name
    (task / "input_files" / "input").mkdir(parents=True)
    (task / "input_files" / "input" / "data.csv").write_text("id\n1\n", encoding="utf-8")
    (task / "reward").mkdir()
    (task / "reward" / "check.py").write_text(check, encoding="utf-8")
    (task / "data_entry.json").write_text(json.dumps({"task_id": name, "user_query": QUERY}), encoding="utf-8")
    return task


def test_the_agent_makes_what_a_request_names(fidelity: ModuleType, tmp_path: Path):
    commands = fidelity.obvious(read(make(tmp_path, "task_0000", CHECK)), {"bin/run": "echo ok\n"})
    assert commands.startswith("mkdir -p archive/ scripts notes\n")
    assert re.findall(r" > (\S+)$", commands, re.MULTILINE) == [
        "scripts/report.sh",
        "notes/summary.md",
        "scripts/report.py",
        "bin/run",
    ]
    assert commands.endswith("\nchmod +x scripts/report.sh scripts/report.py bin/run\ntrue")
    assert "example.org" not in commands


def test_a_task_of_our_own_scores_the_same_both_ways(fidelity: ModuleType, host: SandboxHost, tmp_path: Path):
    row = fidelity.compared(as_task(make(tmp_path, "task_0000", CHECK), Split.TRAIN), host)
    assert row.same, row.different
    assert row.upstream == pytest.approx((1 + 1 + 0.15 + 1 + 1 + 0) / 6)
    assert (row.looks_at_modes, list(row.by_chmod), list(row.by_chmod_here)) == (True, ["executable"], ["executable"])


def test_a_difference_is_found_and_ends_with_1(fidelity: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path):
    # A check that looks for files finds itself in upstream's workspace; one that asks where it lies differs for another reason.
    found = "import json, sys, pathlib\nprint(json.dumps({{'own': len(list(pathlib.Path(sys.argv[1]).rglob('check.py'))){}}}))"
    make(tmp_path, "task_0000", found.format(""))
    make(tmp_path, "task_0001", CHECK)
    make(tmp_path, "task_0002", f"import no_such_module\n{CHECK}")
    rows = tmp_path / "rows.jsonl"
    words = ["official_fidelity.py", str(tmp_path), "--rows", str(rows), "--json"]
    monkeypatch.setattr("sys.argv", words)
    for _ in range(2):  # the second time from its rows
        assert fidelity.main() == 0
        told = json.loads(capsys.readouterr().out)
        assert told["find upstream's check.py in the workspace"] == {"clawgym_train-task_0000": {"own": [0.0, 1.0]}}
        assert told["another score"] == {}
        assert (told["tasks"], told["cannot be checked here"], told["same score"]) == (3, 1, 1)
        assert len(rows.read_text(encoding="utf-8").splitlines()) == 3
    make(tmp_path, "task_0003", found.format(", 'beside': float('beside' in __file__)"))
    assert fidelity.main() == 1
    assert set(json.loads(capsys.readouterr().out)["another score"]) == {"clawgym_train-task_0003"}


@pytest.mark.slow
@pytest.mark.skipif(not CLAWGYM, reason="set ONTHEJOB_CLAWGYM to the folder that holds clawgym_train and clawgym_eval")
@pytest.mark.timeout(7_200)
def test_official_training_tasks_score_as_by_upstreams_command(
    fidelity: ModuleType, host: SandboxHost, counts: Callable[[int, int], int]
):
    """With full counts all 2,000, else every hundredth."""
    folders = sorted((Path(CLAWGYM) / "clawgym_train").glob("task_*"))
    assert len(folders) == 2_000
    rows = [fidelity.compared(as_task(folder, Split.TRAIN), host) for folder in folders[:: counts(100, 1)]]
    assert fidelity.summary(rows)["another score"] == {}
