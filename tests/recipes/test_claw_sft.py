"""The warm start of the shell agent, its mechanics with a tiny model."""

import importlib.util
import re
from pathlib import Path

import pytest

# PEFT asks transformers for an attribute under its old name.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")]


def test_both_ways_run_and_differ_in_their_stops(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("claw_sft", repository / "recipes" / "claw_sft.py")
    assert spec is not None
    assert spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    for way, stopping in (("seed", 0), ("right", 8)):
        words = ["--way", way, "--tiny", "--count", "8", "--epochs", "1", "--judge", "1", "--out", str(tmp_path / way)]
        assert recipe.main(words) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert f"8 demonstrations, {stopping} stop" in printed
        assert re.search(r"loss \d+\.\d+ -> \d+\.\d+ in", printed)
        assert "of 1 dev tasks" in printed
        assert list((tmp_path / way).rglob("adapter_model.safetensors"))
