"""The benchmarks of the model server run at a tiny size, against the tests' own server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
