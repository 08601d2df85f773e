"""The commands that train and evaluate, on an NVIDIA GPU: the real office with a tiny real model."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from onthejob.envs.office.env import SEATS
from onthejob.record import Run

from . import test_training

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
tiny_path = test_training.tiny_path


def model(path: Path, dtype: str = "float32") -> tuple[str, ...]:
    return ("--model.name", str(path), "--model.dtype", dtype, "--model.device", DEVICE)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_training_publishes_and_resumes(call, tiny_path: Path, dtype: str):
    options = ("--roles", "hr", *test_training.SMALL, *model(tiny_path, dtype))
    # Spawned workers import the office; the GPU is this process's alone.
    workers = ("--workers", "2") if dtype == "float32" else ()
    first = call("train", "--iterations", "1", "--name", "a", *workers, *options)
    assert first["stop"] == "iterations"
    resumed = call("train", "--resume", "a", "--extend", "3")
    with Run.open(Path("runs/a"), readonly=True) as run:
        assert run.last_iteration() == 3
        assert run.config["model"]["device"] == DEVICE
        moved = [metric.value for metric in run.read_metrics("train/hr", name="delta_l2")]
        gaps = [metric.value for metric in run.read_metrics("train/hr", name="sampling/sampling_logp_difference/mean")]
        versions = [adapter.version for adapter in run.adapters("hr")]
    assert moved, "no update was made: the test would show nothing"
    assert all(math.isfinite(value) and value > 0 for value in moved)
    assert len(versions) > 1
    assert resumed["adapters"]["hr"]["version"] == max(versions)
    assert max(gaps) < (1e-4 if dtype == "float32" else 0.1), "the trainer scores what was sampled"


def test_a_warm_start_on_the_gpu(call, tiny_path: Path):
    call("collect", "--env.seeds", "1", "--env.scenarios", "baseline", "--env.days", "2")
    small = ("--roles", "hr", "sales", "--lora.rank", "2", "--limit", "8", "--lr", "0.01", "--epochs", "2")
    rows = call("sft", *small, *model(tiny_path))
    here = call("sft", *small, "--out", "here", *test_training.model(tiny_path))
    assert [row["last loss"] for row in rows] == pytest.approx([row["last loss"] for row in here], rel=1e-3)


def test_eval_and_compare_on_the_gpu(call, tiny_path: Path):
    small = ("--per-role", "2", "--env.seeds", "1", "--env.days", "1", "--worlds", "2", "--turns", "4", "--candidates", "4")
    judged = call("eval", "base", "expert", *small, "--max-new-tokens", "4", *model(tiny_path))
    assert {cell["team"] for cell in judged["cells"]} == {"base", "expert"}
    assert set(judged["states"]) == set(SEATS)
    tiny = ("--env.seeds", "1", "--env.scenarios", "baseline", "churn", "--env.days", "1", "--max-new-tokens", "4")
    compared = call("compare", "model=base", "heuristic", *tiny, *model(tiny_path))
    values = {row["team"] for row in compared["means"] if row["metric"] == "valid_rate" and row["stratum"] == "all"}
    assert values == {"model", "heuristic"}
    assert not compared["failed"]
