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
    assert benchmark.main() == 0
    rows = json.loads(capsys.readouterr().out)
    assert {(row["layout"], row["checkpointing"]) for row in rows} == {(a, b) for a in ("tree", "padded") for b in (False, True)}
    assert {row["nodes"] for row in rows if row["layout"] == "tree"} == {20 + 3 * 40 + 3 * 4 * 8}
    assert {row["nodes"] for row in rows if row["layout"] == "padded"} == {3 * 4 * 68}
    norms = [row["grad_norm"] for row in rows]
    assert max(norms) == pytest.approx(min(norms), rel=0.01)
    assert min(norms) > 0


def test_rows_that_are_not_the_same_update_fail(repository: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(repository / "benchmarks")
    verdict = importlib.import_module("gpu_step").verdict

    def rows(*norms: float) -> list[dict[str, object]]:
        return [{"model": "7b", "s": 1.0, "grad_norm": norm} for norm in norms]

    assert verdict([*rows(0.50, 0.51), {"model": "7b", "s": None, "out_of_memory": True}]) == 0
    assert verdict(rows(0.50, 0.55)) == 1
    assert verdict(rows(0.0, 0.0)) == 1


def test_a_step_that_is_not_trls_step_fails_without_a_target_too(repository: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.syspath_prepend(repository / "benchmarks")
    benchmark = importlib.import_module("grpo_step")

    assert benchmark.same_step(0.5, 0.5)
    assert not benchmark.same_step(0.5, 0.6)
    assert not benchmark.same_step(0.0, 0.0)
    side = {"cpu_s": 1.0, "peak_mb": 9, "grad_norm": 0.5}
    result = {"case": "8,2,2", "ours": side, "trl": side, "speedup": 1.0, "memory_ratio": 1.0, "passed": None}
    assert benchmark.verdict([result | {"gradients_agree": True}]) == 0
    assert benchmark.verdict([result | {"gradients_agree": False}]) == 1
    benchmark.print_table([result | {"gradients_agree": False}])
    assert "NOT THE SAME STEP" in capsys.readouterr().out
