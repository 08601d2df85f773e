"""Tiny random models of about forty architectures, a few ten thousand parameters each, with one byte-level tokenizer.

Shared by the tests that a model of another shape is trained, sampled, saved and merged as it computes, or is refused in one line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from onthejob.testing.tiny import SPECIAL, tiny_tokenizer

LAYERS = 2
SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
ATTENTION = ("k_proj", "o_proj", "q_proj", "v_proj")
GATED = ("down_proj", "gate_proj", "up_proj")
SEVEN = tuple(sorted(ATTENTION + GATED))


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A configuration of transformers, and what is expected of it."""

    kind: str
    """Name of the configuration's class, without `Config`."""
    options: dict[str, Any] = field(default_factory=dict)
    """In addition to those of `SHAPE`; None takes one of those away."""
    trained: tuple[str, ...] = SEVEN
    """Leaf names of the layers that `all-linear` means, sorted; each occurs in every layer."""
    refused: str = ""
    """Part of the sentence with which the whole model is refused before its weights are read."""


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(kind="Llama"),
    "llama-tied": Architecture(kind="Llama", options={"tie_word_embeddings": True}),
    "llama-biases": Architecture(kind="Llama", options={"attention_bias": True, "mlp_bias": True}),
    "llama-one-kv-head": Architecture(kind="Llama", options={"num_key_value_heads": 1}),
    "llama-all-kv-heads": Architecture(kind="Llama", options={"num_key_value_heads": 4}),
    "llama-head-dim": Architecture(kind="Llama", options={"head_dim": 16}),
    "llama-gelu": Architecture(kind="Llama", options={"hidden_act": "gelu"}),
    "llama-linear-rope": Architecture(
        kind="Llama", options={"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}
    ),
    "llama-llama3-rope": Architecture(
        kind="Llama",
        options={
            "rope_parameters": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
                "rope_theta": 1e4,
            }
        },
    ),
    "llama-yarn": Architecture(
        kind="Llama",
        options={
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 128,
                "rope_theta": 1e4,
            }
        },
    ),
    "qwen2": Architecture(kind="Qwen2"),
    "qwen2-window": Architecture(
        kind="Qwen2", options={"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}
    ),
    "qwen3": Architecture(kind="Qwen3", options={"head_dim": 8}),
    "mistral": Architecture(kind="Mistral", options={"sliding_window": None}),
    "mistral-window": Architecture(kind="Mistral", options={"sliding_window": 16}),
    "ministral": Architecture(kind="Ministral", options={"head_dim": 8, "sliding_window": 16}),
    "gemma": Architecture(kind="Gemma", options={"head_dim": 8}),
    "gemma2": Architecture(
        kind="Gemma2",
        options={"head_dim": 8, "sliding_window": 16, "final_logit_softcapping": None, "attn_logit_softcapping": None},
    ),
    "gemma3": Architecture(kind="Gemma3Text", options={"head_dim": 8, "sliding_window": 16}),
    "phi": Architecture(kind="Phi", trained=("dense", "fc1", "fc2", "k_proj", "q_proj", "v_proj")),
    "phi3": Architecture(kind="Phi3", trained=("down_proj", "gate_up_proj", "o_proj", "qkv_proj")),
    "phi3-window": Architecture(
        kind="Phi3", options={"sliding_window": 16}, trained=("down_proj", "gate_up_proj", "o_proj", "qkv_proj")
    ),
    "olmo": Architecture(kind="Olmo"),
    "olmo2": Architecture(kind="Olmo2"),
    "olmo3": Architecture(kind="Olmo3", options={"sliding_window": 16}),
    "granite": Architecture(kind="Granite"),
    "smollm3": Architecture(kind="SmolLM3"),
    "starcoder2": Architecture(
        kind="Starcoder2", trained=("c_fc", "c_proj", "k_proj", "o_proj", "q_proj", "v_proj"), options={"sliding_window": None}
    ),
    "stablelm": Architecture(kind="StableLm"),
    "glm4": Architecture(
        kind="Glm4", options={"head_dim": 8}, trained=("down_proj", "gate_up_proj", "k_proj", "o_proj", "q_proj", "v_proj")
    ),
    "helium": Architecture(kind="Helium", options={"head_dim": 8}),
    "arcee": Architecture(kind="Arcee", trained=("down_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")),
    "ernie": Architecture(kind="Ernie4_5", options={"head_dim": 8}),
    "nemotron": Architecture(kind="Nemotron", trained=("down_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")),
    "gpt-neox": Architecture(
        kind="GPTNeoX",
        trained=("dense", "dense_4h_to_h", "dense_h_to_4h", "query_key_value"),
        options={"num_key_value_heads": None},
    ),
    "gpt2": Architecture(kind="GPT2", refused="Conv1D"),
    "mixtral": Architecture(
        kind="Mixtral",
        options={"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
        trained=ATTENTION,
    ),
    "qwen3-moe": Architecture(
        kind="Qwen3Moe",
        options={"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
        trained=ATTENTION,
    ),
    "qwen2-moe": Architecture(
        kind="Qwen2Moe",
        options={
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
        },
        trained=tuple(sorted((*SEVEN, "shared_expert_gate"))),
    ),
    "qwen3-moe-dense-layer": Architecture(
        kind="Qwen3Moe",
        options={
            "head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "mlp_only_layers": [0],
        },
        trained=ATTENTION,
    ),
    "olmoe": Architecture(kind="Olmoe", options={"num_experts": 4, "num_experts_per_tok": 2}, trained=ATTENTION),
    "mamba": Architecture(kind="Mamba", options={"state_size": 4}, refused="cache"),
}
"""Name -> architecture. The windows are shorter than the texts of the tests."""


def build(name: str, *, seed: int = 0) -> Any:
    """A random model in float32 and evaluation mode; the global torch generator is not moved."""
    row = ARCHITECTURES[name]
    config_class = getattr(transformers, f"{row.kind}Config")
    options = {key: value for key, value in (SHAPE | row.options).items() if not (key in SHAPE and value is None)}
    end = SPECIAL.index("<|im_end|>")
    config = config_class(
        vocab_size=len(tiny_tokenizer()),
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=SPECIAL.index("<|pad|>"),
        **options,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def write(name: str, folder: Path, *, seed: int = 0, tokenizer: PreTrainedTokenizerFast | None = None) -> Path:
    """The model of `build` in `folder`, with `tokenizer` or the ChatML one; returns the folder."""
    build(name, seed=seed).save_pretrained(folder)
    (tokenizer or tiny_tokenizer()).save_pretrained(folder)
    return folder
