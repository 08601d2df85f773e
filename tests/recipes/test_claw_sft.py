"""The warm start of the shell agent, its mechanics with a tiny model."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from onthejob.cli import main
from onthejob.learn.adapter_files import read_spec
from onthejob.learn.lora import LoraSpec
from onthejob.stack import find_adapters
from onthejob.testing import tiny_model

# PEFT asks transformers for an attribute under its old name.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")]


@pytest.fixture
def recipe(repository: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("claw_sft", repository / "recipes" / "claw_sft.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_both_ways_run_and_differ_in_their_stops(recipe: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for way, stopping in (("seed", 0), ("right", 8)):
        words = ["--way", way, "--tiny", "--count", "8", "--epochs", "1", "--judge", "1", "--out", str(tmp_path / way)]
        assert recipe.main(words) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert f"8 demonstrations, {stopping} stop" in printed
        assert re.search(r"loss \d+\.\d+ -> \d+\.\d+ in", printed)
        assert "of 1 dev tasks" in printed
        assert list((tmp_path / way).rglob("adapter_model.safetensors"))


def test_training_goes_on_from_the_recipes_adapter(
    recipe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command that the recipe names next, without any --lora option, though the recipe's shape is not the default."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONTHEJOB_CACHE", str(tmp_path / "cache"))
    tiny = tiny_model()
    tiny.model.save_pretrained("tiny")
    tiny.tokenizer.save_pretrained("tiny")
    words = ["--way", "seed", "--model", "tiny", "--count", "4", "--epochs", "1", "--judge", "1", "--out", "adapters/claw-seed"]
    assert recipe.main(words) == 0
    first = read_spec(find_adapters(Path("adapters/claw-seed"))["agent"].path)
    assert (first.rank, first.alpha) == (16, 32)
    assert (first.rank, first.alpha) != (LoraSpec().rank, LoraSpec().alpha)

    small = ["--iterations", "1", "--collect.episodes", "1", "--branch.group-size", "2", "--env.protocol.max-turns", "1"]
    follow = [
        "train",
        "--env",
        "claw",
        "--init",
        "adapters/claw-seed",
        "--name",
        "next",
        "--sampling.max-new-tokens",
        "4",
        "--env.growth",
        "0",
        *small,
    ]
    assert main([*follow, "--model.name", "tiny", "--quiet"]) == 0, capsys.readouterr()
    assert read_spec(find_adapters(Path("runs/next"))["agent"].path) == first
