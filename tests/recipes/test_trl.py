"""TRL's own GRPOTrainer takes a step on the office, through both of its doors."""

import importlib
from pathlib import Path

import pytest
from safetensors.torch import load_file

pytestmark = pytest.mark.filterwarnings("ignore")  # TRL, PEFT and transformers warn about each other


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trl_environment_factory", "trl_rollout_func"])
def test_a_step_of_trls_trainer_moves_the_adapter(
    name: str, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(repository / "recipes")
    recipe = importlib.import_module(name)
    assert recipe.main(["--tiny", "--role", "hr", "--replies", "6", "--taught", "120", "--out", str(tmp_path)]) == 0
    words = capsys.readouterr().out.split()
    printed = {
        key: float(words[index + 1]) for index, key in enumerate(words[:-1]) if key in ("reward", "reward_std", "grad_norm")
    }
    assert printed["reward_std"] > 0, "all replies of a group were worth the same: the office was not asked"
    assert printed["grad_norm"] > 0
    if name == "trl_environment_factory":
        assert float(words[words.index("tools/call_frequency") + 1]) > 0.2
    weights = load_file(tmp_path / "adapter_model.safetensors")
    # A new adapter's B matrices are zero.
    assert any(tensor.abs().max() > 0 for key, tensor in weights.items() if "lora_B" in key)


@pytest.mark.parametrize("name", ["trl_environment_factory", "trl_rollout_func"])
def test_they_stay_short(name: str, repository: Path) -> None:
    assert len((repository / "recipes" / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 120
