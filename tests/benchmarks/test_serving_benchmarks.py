"""The benchmarks of the model server run at a tiny size, against the tests' own server."""

from __future__ import annotations

import importlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from onthejob.record import Run
from onthejob.testing.tiny import tiny_model


@pytest.fixture
def base(tmp_path: Path) -> Path:
    tiny = tiny_model()
    tiny.model.save_pretrained(tmp_path / "base")
    tiny.tokenizer.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "options", "names"),
    [
        ("publish", ("--versions", "2"), {"publish_idle_s", "first_token_loaded_s", "restart_s", "probe_nats"}),
        ("serving", ("--replies", "4", "--tokens", "3", "--repeats", "1"), {"server_1_adapters_tok_s", "own_prompt_s"}),
    ],
)
def test_a_benchmark_measures(
    script: str, options: tuple[str, ...], names: set[str], base: Path, repository: Path, tmp_path: Path
):
    command = [
        sys.executable,
        str(repository / f"benchmarks/{script}.py"),
        "--tests-server",
        "--model",
        str(base),
        "--roles",
        "2",
    ]
    environ = {**os.environ, "ONTHEJOB_CACHE": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*command, *options, "--json"], capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path, env=environ
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert names <= told.keys()
    assert all(value >= 0 for value in told.values())
    assert all(value > 0 for name, value in told.items() if name.endswith("_s"))


def test_curves_that_differ_are_told_from_curves_that_do_not(repository: Path, runs_dir: Path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(repository / "benchmarks")
    curves = importlib.import_module("sampler_curves")

    def record(name: str, values: list[float]) -> Path:
        with Run.create(runs_dir, config={}, name=name) as run:
            for number, value in enumerate(values):
                with run.iteration(number) as iteration:
                    iteration.metrics("train/sales", {"reward": value})
        return runs_dir / name

    noise = random.Random(0)
    first = [record(f"a{pair}", [0.0, *(0.1 * n + noise.gauss(0, 0.1) for n in range(8))]) for pair in range(6)]
    same = [record(f"b{pair}", [5.0, *(0.1 * n + noise.gauss(0, 0.1) for n in range(8))]) for pair in range(6)]
    worse = [record(f"c{pair}", [0.0, *(0.1 * n - 0.5 + noise.gauss(0, 0.1) for n in range(8))]) for pair in range(6)]
    short = record("short", [0.0, 1.0])

    def compare(*pairs: tuple[Path, Path]) -> int:
        words = [f"{one}:{other}" for one, other in pairs]
        monkeypatch.setattr("sys.argv", ["sampler_curves.py", "--role", "sales", "--json", *words])
        return curves.main()

    assert compare(*zip(first, same, strict=True)) == 0
    told = json.loads(capsys.readouterr().out)
    # Iteration 0 is the start, before any update: no part of the curve.
    assert (told["n"], told["clusters"]) == (48, 6)
    assert told["low"] < 0 < told["high"]
    assert compare(*zip(first, worse, strict=True)) == 1
    assert json.loads(capsys.readouterr().out)["mean"] == pytest.approx(-0.5, abs=0.1)
    assert compare((first[0], worse[0])) == 0, "one pair proves nothing"
    assert json.loads(capsys.readouterr().out)["low"] is None
    with pytest.raises(SystemExit):
        compare((first[0], short))
    assert "Compare equal ones" in capsys.readouterr().err
