"""A tiny real model with adapters on disk, as a trainer writes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from peft import PeftModel

from onthejob.learn import adapter_files, lora
from onthejob.models.base_model import weights_digest
from onthejob.models.chat import ChatEncoder
from onthejob.models.sampler import Sampler
from onthejob.serve.intake import BaseShape
from onthejob.testing.tiny import tiny_model
from onthejob.types import Adapter


@dataclass
class Workshop:
    """A base on disk, a PEFT model of it, and a way to write versions."""

    folder: Path
    model: PeftModel
    chat: ChatEncoder
    base: BaseShape
    out: Path

    def write(self, role: str, version: int, *, scale: float = 0.2) -> Adapter:
        """Move `role`'s weights (keyed by version) and save them as the next version."""
        generator = torch.Generator().manual_seed(version)
        with torch.no_grad():
            for name, parameter in lora.parameters(self.model, role).items():
                if ".lora_B." in name:
                    parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
        return adapter_files.save_adapter(
            self.model, role, self.out, version=version, parent=None, base_digest=self.base.digest, dtype="float32"
        )

    def sampler(self) -> Sampler:
        return Sampler(self.model, self.chat, base_digest=self.base.digest)


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    tiny = tiny_model()
    folder = tmp_path / "base"
    tiny.model.save_pretrained(folder)
    tiny.tokenizer.save_pretrained(folder)
    base = BaseShape.of_folder(folder, digest=weights_digest(folder))
    model = lora.attach(tiny.model, ["sales", "dev"], lora.LoraSpec(rank=4, alpha=8), seed=0)
    return Workshop(folder=folder, model=model, chat=ChatEncoder(tiny.tokenizer), base=base, out=tmp_path / "adapters")
