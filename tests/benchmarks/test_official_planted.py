"""A planted program gets full marks in marked tasks alone: tasks of our own writing, and the official ones where they are."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from .test_official_fidelity import CLAWGYM, QUERY

STARTS = """
import json, subprocess, sys
said = subprocess.run(["python3", "scripts/report.py"], cwd=sys.argv[1], capture_output=True, text=True).stdout
print(json.dumps({"runs": float("total 7" in said), "kept": 1.0}))
"""
IMPORTS = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("report", sys.argv[1] + "/scripts/report.py")
report = importlib.util.module_from_spec(spec)
try:
    spec.loader.exec_module(report)
    total = report.total()
except Exception:
    total = None
print(json.dumps({"runs": float(total == 7), "kept": 1.0}))
"""
READS = """
import json, pathlib, sys
script = pathlib.Path(sys.argv[1]) / "scripts" / "report.py"
print(json.dumps({"there": float(script.is_file()), "right": float(script.is_file() and "total = 7" in script.read_text())}))
"""


def make(folder: Path, number: int, check: str) -> None:
    task = folder / "clawgym_train" / f"task_{number:04d}"
    (task / "reward").mkdir(parents=True)
    (task / "reward" / "check.py").write_text(check, encoding="utf-8")
    (task / "data_entry.json").write_text(json.dumps({"task_id": task.name, "user_query": QUERY}), encoding="utf-8")


@pytest.fixture
def planted(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(repository / "benchmarks")
    return importlib.import_module("official_planted")


def run(
    planted: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, dict]:
    monkeypatch.setattr("sys.argv", ["official_planted.py", *words, "--json"])
    code = planted.main()
    return code, json.loads(capsys.readouterr().out)


def test_only_a_marked_check_gives_full_marks(planted: ModuleType, monkeypatch, capsys, tmp_path: Path):
    for number, check in enumerate((STARTS, IMPORTS, READS)):
        make(tmp_path, number, check)
    code, told = run(planted, monkeypatch, capsys, str(tmp_path), "--rows", str(tmp_path / "rows.jsonl"))
    assert code == 0
    assert set(told["marked"]) == {"clawgym_train-task_0001"}
    assert "names" in told["full marks in marked tasks"]["clawgym_train-task_0001"]
    assert "names" in told["full marks by upstream's command"]["clawgym_train-task_0001"]
    assert (told["full marks in other tasks"], told["checks that may start programs"]) == ({}, 1)


def test_full_marks_elsewhere_end_with_1(planted: ModuleType, monkeypatch, capsys, tmp_path: Path):
    make(tmp_path, 0, STARTS.replace('"total 7" in said', '"runs" in said'))
    code, told = run(planted, monkeypatch, capsys, str(tmp_path))
    assert (code, set(told["full marks in other tasks"])) == (1, {"clawgym_train-task_0000"})


@pytest.mark.slow
@pytest.mark.skipif(not CLAWGYM, reason="set ONTHEJOB_CLAWGYM to the folder that holds clawgym_train and clawgym_eval")
@pytest.mark.timeout(7_200)
def test_official_training_tasks(planted: ModuleType, monkeypatch, capsys, counts: Callable[[int, int], int]):
    """With full counts all 2,000, else every hundredth."""
    code, told = run(planted, monkeypatch, capsys, CLAWGYM, "--every", str(counts(100, 1)))
    assert (code, told["full marks in other tasks"]) == (0, {})
