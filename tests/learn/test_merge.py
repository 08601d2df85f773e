"""A merged model computes what base and adapter compute together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from onthejob.errors import ConfigError, ModelError
from onthejob.learn import adapter_files, lora, merge
from onthejob.learn.merge import merge_adapter
from onthejob.models.base_model import weights_digest
from onthejob.testing.tiny import tiny_model
from onthejob.types import Adapter


@pytest.fixture
def trained(tmp_path: Path) -> tuple[Path, Adapter, torch.Tensor, torch.Tensor]:
    """Base folder, adapter, ids and the logits that base + adapter give."""
    tiny = tiny_model()
    tiny.model.save_pretrained(tmp_path / "base")
    tiny.tokenizer.save_pretrained(tmp_path / "base")
    model = lora.attach(tiny.model, ["sales"], lora.LoraSpec(rank=4, alpha=8), seed=0)
    with torch.no_grad():
        for name, parameter in lora.parameters(model, "sales").items():
            if ".lora_B." in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    digest = weights_digest(tmp_path / "base")
    adapter = adapter_files.save_adapter(
        model, "sales", tmp_path / "adapters", version=3, parent=None, base_digest=digest, dtype="float32"
    )
    ids = torch.arange(5, 40)[None]
    with torch.no_grad():
        return tmp_path / "base", adapter, ids, model(input_ids=ids).logits


def test_the_merged_model_is_base_and_adapter(trained, tmp_path: Path):
    base, adapter, ids, want = trained
    done = merge_adapter(base, adapter, tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    plain = AutoModelForCausalLM.from_pretrained(base)
    with torch.no_grad():
        assert torch.allclose(model(input_ids=ids).logits, want, atol=1e-3)
        assert not torch.allclose(plain(input_ids=ids).logits, want, atol=0.1)
    assert done.adapter == "sales@0003"
    assert done.max_difference < 1e-3
    assert (tmp_path / "out" / "tokenizer_config.json").is_file()


def test_bfloat16_is_within_its_tolerance_or_refused(trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    base, adapter, ids, _ = trained
    probe = tuple(ids[0].tolist())
    # Weights this large and random are rounded by more than a trained model's.
    monkeypatch.setitem(merge.TOLERANCES, "bfloat16", (2.0, 20.0))
    done = merge_adapter(base, adapter, tmp_path / "out", dtype="bfloat16", probe=probe)
    assert 0 < done.mean_difference <= 2.0
    dtypes = {tensor.dtype for tensor in load_file(tmp_path / "out" / "model.safetensors").values()}
    assert dtypes == {torch.bfloat16}
    monkeypatch.setitem(merge.TOLERANCES, "bfloat16", (done.mean_difference / 2, 20.0))
    with pytest.raises(ModelError, match="Merge as float32"):
        merge_adapter(base, adapter, tmp_path / "again", dtype="bfloat16", probe=probe)
    assert not (tmp_path / "again").exists()


def test_nothing_is_overwritten_and_nothing_is_left(trained, tmp_path: Path):
    base, adapter, _, _ = trained
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="exists"):
        merge_adapter(base, adapter, tmp_path / "out")
    other = tiny_model(seed=1)
    other.model.save_pretrained(tmp_path / "other")
    other.tokenizer.save_pretrained(tmp_path / "other")
    with pytest.raises(ModelError, match="was trained on the base"):
        merge_adapter(tmp_path / "other", adapter, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
    assert not list(tmp_path.glob(".merged*"))
