"""The pieces of the training step work on a plain PEFT model, without the loop."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

# PEFT asks transformers for an attribute under its old name.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")


def test_snapshot_delta_advantages_and_packed_step(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("library_lora", repository / "recipes" / "library_lora.py")
    assert spec is not None
    assert spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    with torch.random.fork_rng():
        assert recipe.main(["--tiny"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "put back bit for bit" in printed
    assert "[-1.0, 1.0, 0.0, -2.0]" in printed
    assert "152 tokens as 56 nodes (tree)" in printed
    gaps = re.search(r"gradient norm (\S+) within (\S+) of itself, log-probabilities within (\S+)", printed)
    assert gaps is not None
    norm, gradient, logprobs = map(float, gaps.groups())
    assert norm > 0
    assert gradient < 1e-4
    assert logprobs < 1e-5
