"""The benchmark of updates at real sizes, on a tiny model: what it compares is the same gradient."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest


def test_every_layout_makes_the_same_update(repository: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.syspath_prepend(repository / "benchmarks")
    benchmark = importlib.import_module("gpu_step")
    sizes = ["--prompt", "60", "--shared", "20", "--completion", "8", "--replies", "4", "--groups", "3", "--repeats", "1"]
    monkeypatch.setattr("sys.argv", ["gpu_step.py", "--device", "cpu", "--model", "tiny", "--json", *sizes])
    benchmark.main()
    rows = json.loads(capsys.readouterr().out)
    assert {(row["layout"], row["checkpointing"]) for row in rows} == {(a, b) for a in ("tree", "padded") for b in (False, True)}
    assert {row["nodes"] for row in rows if row["layout"] == "tree"} == {20 + 3 * 40 + 3 * 4 * 8}
    assert {row["nodes"] for row in rows if row["layout"] == "padded"} == {3 * 4 * 68}
    norms = [row["grad_norm"] for row in rows]
    assert max(norms) == pytest.approx(min(norms), rel=0.01)
    assert min(norms) > 0
