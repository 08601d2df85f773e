"""The load benchmark: it runs at a tiny size, and its verdict sees a missed target."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("openenv", reason="needs the extra openenv")


@pytest.fixture
def benchmark(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(repository / "benchmarks")
    return importlib.import_module("openenv_load")


def test_a_missed_target_is_named(benchmark: ModuleType):
    def measured(**changes: object) -> Any:
        fields = {"subject": "office table", "connections": 32, "steps": 30_000, "seconds": 10.0, "latencies_ms": [5.0] * 100}
        return benchmark.Measured(**{**fields, **changes})

    assert measured().missed() == []
    assert measured().verdict == "yes"
    assert measured(connections=4096).verdict == measured(subject="echo").verdict == "no target"
    assert measured(connections=4096, errors=1, complaints=["lost"]).verdict == "1 errors: lost"
    assert "1,400 steps/s" in measured(steps=14_000).missed()[0]
    assert "p99 80.0 ms" in measured(latencies_ms=[5.0] * 95 + [80.0] * 5).missed()[0]
    assert "3 errors: lost" in measured(errors=3, complaints=["lost"]).missed()[0]
    assert "no step" in measured(steps=0, connections=4_096, latencies_ms=[]).missed()[0]


@pytest.mark.server
@pytest.mark.slow
def test_every_subject_is_loaded_without_errors(repository: Path):
    command = [sys.executable, str(repository / "benchmarks/openenv_load.py"), "--connections", "8", "--seconds", "2", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(repository / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=290, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout)
    assert [row["subject"] for row in rows] == ["echo", "office table", "office seat"]
    for row in rows:
        assert row["errors"] == 0
        assert row["steps"] >= 8
        assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]
