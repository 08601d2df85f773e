"""Small real models for the sampler: byte-level ChatML tokenizer, random Llama and Qwen2."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from onthejob.models.chat import ChatEncoder
from onthejob.types import Adapter

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SHAPE = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


def byte_tokenizer(template: str = CHATML) -> PreTrainedTokenizerFast:
    vocab = {char: index + 3 for index, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocab |= {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
    backend = Tokenizer(BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        unk_token="<|endoftext|>",
        pad_token="<|im_end|>",
    )
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[[str], PreTrainedTokenizerFast]:
    """Byte-level tokenizer with a given chat template."""
    return byte_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return byte_tokenizer()


@pytest.fixture(scope="session")
def chat(tokenizer) -> ChatEncoder:
    return ChatEncoder(tokenizer)


@pytest.fixture(scope="session")
def make_model() -> Callable[..., Any]:
    """A fresh random model: `make_model("llama" | "qwen2", dtype=...)`; equal arguments, equal weights."""

    def make(kind: str, *, dtype: torch.dtype = torch.float32) -> Any:
        config, cls = (LlamaConfig, LlamaForCausalLM) if kind == "llama" else (Qwen2Config, Qwen2ForCausalLM)
        with torch.random.fork_rng():
            torch.manual_seed(5)
            model = cls(config(**SHAPE, eos_token_id=2, bos_token_id=1, pad_token_id=2))
            for parameter in model.parameters():
                # Larger than the default initialisation, so that distributions are far from uniform.
                if parameter.dim() == 2:
                    torch.nn.init.normal_(parameter, std=0.15)
        return model.to(dtype).eval()

    return make


@pytest.fixture(scope="session")
def wrap() -> Callable[..., Any]:
    """`wrap(model, config)`: PEFT's own PeftModel with the adapter `sales`."""
    from peft import get_peft_model

    def wrapped(model: Any, config: Any) -> Any:
        with warnings.catch_warnings():  # PEFT asks transformers for a flag that was renamed in 5.23.
            warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`", category=FutureWarning)
            return get_peft_model(model, config, adapter_name="sales")

    return wrapped


@pytest.fixture(scope="session")
def make_adapter(tmp_path_factory: pytest.TempPathFactory, make_model, wrap) -> Callable[..., tuple[Adapter, Any]]:
    """An adapter saved by PEFT itself, and the PeftModel it came from: `make_adapter(kind, seed=1, version=1)`."""
    from peft import LoraConfig

    def make(kind: str, *, seed: int = 1, version: int = 1, targets: str = "all") -> tuple[Adapter, Any]:
        every = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        config = LoraConfig(r=4, lora_alpha=8, target_modules=every if targets == "all" else targets.split(","))
        trained = wrap(make_model(kind), config).eval()
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in trained.named_parameters():
            if "lora_" in name:
                parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1
        folder: Path = tmp_path_factory.mktemp("adapter")
        trained.save_pretrained(folder, selected_adapters=["sales"])
        digest = hashlib.sha256((folder / "sales" / "adapter_model.safetensors").read_bytes()).hexdigest()
        return Adapter(role="sales", version=version, path=folder / "sales", digest=digest), trained

    return make
