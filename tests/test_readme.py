"""The README is short, its pictures and figures are real, and every command in it runs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image

from onthejob.cli import main
from onthejob.envs.env import Env
from onthejob.envs.running import random_legal, running
from onthejob.keys import keyed_seed
from onthejob.plugins import resolve
from onthejob.types import Split

from .test_docs import code_lines

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINES, WORDS, WORDS_BEFORE = 170, 1_200, 150
"""Limits: lines, words, and words before the quick start."""
FILM_BYTES = 3_000_000


def script(name: str) -> ModuleType:
    """A program of docs/scripts as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/scripts/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_is_short():
    assert len(README.splitlines()) <= LINES
    assert len(README.split()) <= WORDS
    assert len(README.split("## Quick start")[0].split()) <= WORDS_BEFORE


def test_the_readme_shows_pictures_of_which_one_moves():
    shown = [ROOT / name for name in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)]
    assert len(shown) >= 3
    assert [path for path in shown if not path.is_file()] == []
    (film,) = [path for path in shown if path.suffix in (".webp", ".gif")]
    assert film.stat().st_size <= FILM_BYTES
    with Image.open(film) as picture:
        frames: int = getattr(picture, "n_frames", 1)
        assert frames >= 24


@pytest.fixture(scope="module")
def rows() -> dict[str, Any]:
    path = ROOT / "adapters/office/evaluation.json"
    if not path.is_file():
        pytest.skip("the source archive has no adapters/")
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_figures_of_the_readme_are_those_of_the_kept_rows(rows: dict[str, Any]):
    over = {
        (row["first"], row["second"]): [f"{abs(round(row[name], -2)):,.0f}" for name in ("mean", "low", "high")]
        for row in rows["differences"]
        if row["metric"] == "company_value" and row["stratum"] == "all"
    }
    text = " ".join(README.split())
    mean, low, high = over["grpo", "start"]
    assert f"earns ${mean} more than its warm start (95 % interval {low} to {high})" in text
    mean, low, high = over["expert", "grpo"]
    assert f"${mean} less than a scripted expert ({low} to {high})" in text


def test_the_chart_shows_the_kept_rows(rows: dict[str, Any]):
    pytest.importorskip("matplotlib")
    chart = script("results_chart")
    drawn = (ROOT / "docs/images/results.svg").read_text(encoding="utf-8")
    bars = chart.bars()
    assert {bar.team for bar in bars} == {row["team"] for row in rows["means"]}
    assert [bar.mean for bar in bars] == sorted(bar.mean for bar in bars)
    for bar in bars:
        assert f">{bar.text}<" in drawn
        assert f">{chart.TEAMS[bar.team]}<" in drawn


def block() -> str:
    """The README's environment."""
    return re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)[0]


def outcomes(env: Env) -> list[dict[str, float]]:
    """Metrics of twenty episodes of random play."""
    found, run = [], running(env)
    for task in env.tasks(Split.TRAIN)[:20]:
        seen = run.reset(task)
        while seen is not None:
            seen = run.step(random_legal(seen, keyed_seed(task.seed, "play", run.state()["turn"]))).observation
        found.append(dict(run.state()["metrics"]))
    return found


def test_the_environment_of_the_readme_has_25_lines_and_is_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert len(block().splitlines()) <= 25
    (tmp_path / "guess.py").write_text(block(), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    shown = outcomes(resolve("guess.py")())
    assert shown == outcomes(resolve(str(ROOT / "examples/guess.py"))())
    assert {row["found"] for row in shown if "found" in row} == {1.0}
    assert main(["env", "check", "guess.py", "--quiet"]) == 0


def commands() -> list[str]:
    return [line for line in code_lines(README) if not line.startswith("source ")]


SMALLER = {
    "sft demonstrations/guess": "--limit 8",
    "train --env examples/guess.py": "--collect.episodes 2 --scale-states 4 --library-tasks 4",
    "compare adapters/guess": "--limit 2",
    "compare trained=adapters/office": "--env.days 1",
    "train --env claw": "--sampling.max-new-tokens 4 --env.protocol.max-turns 2",
}
"""Command, as it begins -> options that make it short; the others run as they stand."""
REPLACED = {"--iterations 16": "--iterations 1", "--branch.worlds 8": "--branch.worlds 2"}
SERVES = "onthejob view"
"""How a command begins that serves until it is stopped."""
ACCEPTANCE = {"make demo", "make test"}
"""Run on a bare machine by `make acceptance`."""


def test_the_two_commands_of_the_readme_are_run_by_acceptance():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert {line for line in commands() if line.startswith("make ")} == ACCEPTANCE
    assert '.ci/bare-root "make demo" "make test"' in makefile


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(1800)
def test_every_other_command_of_the_readme_runs(tmp_path: Path, smollm2_path: Path, kept_adapters: Path):
    """In their order, in a folder that holds what a checkout has; without a person, the game by hand ends at once."""
    for name in ("examples", "recipes"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "adapters").mkdir()
    for kept in kept_adapters.iterdir():
        (tmp_path / "adapters" / kept.name).symlink_to(kept)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    ran = []
    for line in commands():
        if line in ACCEPTANCE:
            continue
        for old, new in REPLACED.items():
            line = line.replace(old, new)
        extra = next((more for start, more in SMALLER.items() if line.startswith(f"onthejob {start}")), "")
        words = [sys.executable, "-m", *shlex.split(line), *shlex.split(extra)]
        if line.startswith(SERVES):
            serve(words, tmp_path, environment)
        else:
            done = subprocess.run(
                words, cwd=tmp_path, env=environment, input="", capture_output=True, text=True, timeout=900, check=False
            )
            assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        ran.append(line.split()[1])
    assert {"env", "collect", "sft", "train", "compare", "view", "play"} == set(ran)


def serve(words: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Start a server, ask it for its first page, and stop it."""
    process = subprocess.Popen(
        [*words, "--no-open", "--port", "0"], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split("/#token=")[0]
        began = time.monotonic()
        with urllib.request.urlopen(f"{address}/api/config", timeout=120) as answer:
            assert json.load(answer)["worlds"]
        assert time.monotonic() - began < 120
    finally:
        process.terminate()
        process.communicate(timeout=60)
