"""The fastest way to run Llama-shaped models on a CPU: a forward pass in one call of compiled code (`forward.c`)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onthejob.models.adapter_weights import LoraPair
from onthejob.models.draw import not_finite
from onthejob.models.llama import Cached, fused_layers
from onthejob.models.native import structures
from onthejob.models.native.adapter import NativeAdapter
from onthejob.models.native.packed_caches import NativeBatch
from onthejob.models.native.shared_library import Library, addresses, load_library, team

BLOCK = 256
"""Logits whose mass is summed apart when a token is drawn; as in `forward.c`."""
MOST_MEMORY = 0.25
"""Share of the machine's memory up to which a model's weights are packed."""


class NativeEngine:
    """A model that `LlamaEngine` supports, on a CPU. Its weights are packed once, which takes as much memory again."""

    trunks: ClassVar[bool] = True
    """A batch can take a trunk."""

    def __init__(self, model: Any, library: Library) -> None:
        self.model, self.library, config = model.model, library, model.config
        self.layers, self.head = model.model.layers, model.lm_head
        self.dtype, self.device = self.head.weight.dtype, self.head.weight.device
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = self.layers[0].self_attn.head_dim
        self._kept: list[Tensor] = []
        layers = (structures.Layer * len(self.layers))()
        for index, layer in enumerate(self.layers):
            attention, mlp = layer.self_attn, layer.mlp
            qkv = torch.cat([part.weight for part in (attention.q_proj, attention.k_proj, attention.v_proj)])
            # Blocks of gate and up in turn, so that one tile of a product holds both.
            gate_up = torch.stack([self._pack(part.weight) for part in (mlp.gate_proj, mlp.up_proj)], 1)
            layers[index] = structures.Layer(
                qkv=self._keep(self._pack(qkv)),
                o=self._keep(self._pack(attention.o_proj.weight)),
                gate_up=self._keep(gate_up),
                down=self._keep(self._pack(mlp.down_proj.weight)),
                norm_attention=self._keep(layer.input_layernorm.weight),
                norm_mlp=self._keep(layer.post_attention_layernorm.weight),
            )
        self._layers = layers
        heads, kv, hidden, inner = (
            self.heads * self.head_dim,
            self.kv_heads * self.head_dim,
            config.hidden_size,
            config.intermediate_size,
        )
        self.outputs = ((heads, kv, kv), (hidden,), (inner, inner), (hidden,))
        """Of the projections that read the same input."""
        vocab = self.head.weight.shape[0]
        self.positions = config.max_position_embeddings
        cos, sin = self.model.rotary_emb(self.head.weight[:1, :1], torch.arange(self.positions)[None])
        self.native = structures.Model(
            layers=len(layers),
            hidden=config.hidden_size,
            heads=self.heads,
            kv_heads=self.kv_heads,
            dim=self.head_dim,
            inner=config.intermediate_size,
            vocab=vocab,
            width=vocab - vocab % -(2 * library.lanes),
            eps=config.rms_norm_eps,
            layer=layers,
            embedding=self._keep(self.model.embed_tokens.weight),
            norm=self._keep(self.model.norm.weight),
            head=self._keep(self._pack(F.pad(self.head.weight, (0, 0, 0, -vocab % (2 * library.lanes))))),
            cos=self._keep(cos[0].float()),
            sin=self._keep(sin[0].float()),
        )

    @staticmethod
    def library_for(model: Any) -> Library | None:
        """The compiled code that can run a model which `LlamaEngine` supports; None for models it does not suit."""
        # Of all memory, not of what is free, so that one machine always decides the same.
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()) > MOST_MEMORY * memory:
            return None
        return suiting_library(model)

    def describe(self) -> str:
        """What runs the model, in a few words."""
        return f"compiled code, {self.library.variant.name}"

    def adapt(self, pairs: Mapping[str, LoraPair]) -> NativeAdapter:
        """The adapter in the order of use, packed."""
        return NativeAdapter(self, fused_layers(pairs, len(self.layers)))

    def draw(self, logits: Tensor, rows: Sequence[int], uniform: Tensor, *, temperature: float) -> tuple[list[int], list[float]]:
        """Tokens and their log-probabilities; see `models.draw`."""
        (count, vocab), lanes = logits.shape, self.library.lanes
        if logits.stride(0) < vocab - vocab % -lanes:  # rows are read in whole vectors
            logits = F.pad(logits, (0, -vocab % lanes))
        first = F.pad(torch.tensor(rows).bincount(minlength=count).cumsum(0), (1, 0))
        mass = torch.empty(count, -(-vocab // BLOCK), dtype=torch.float64)
        token, logprob = torch.empty(len(rows), dtype=torch.int64), torch.empty(len(rows))
        given = {"logits": logits, "first": first, "uniform": uniform, "mass": mass, "token": token, "logprob": logprob}
        draws = structures.Draws(rows=count, vocab=vocab, width=logits.stride(0), temperature=temperature, **addresses(given))
        self.library.draw(ctypes.byref(draws), ctypes.byref(team()))
        if draws.wrong:
            raise not_finite()
        return token.tolist(), logprob.tolist()

    def cache(self, rows: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Empty keys and values of `rows` caches (rows, layers, kv_heads, tokens in whole blocks * dim).

        Zeros, as the neighbour of an odd last value is multiplied by 0, and uninitialised memory may hold NaN.
        """
        lanes = self.library.lanes
        shape = (rows, len(self.layers), self.kv_heads, -(-tokens // lanes) * lanes * self.head_dim)
        return torch.zeros(shape, dtype=self.dtype), torch.zeros(shape, dtype=self.dtype)

    def scratch(self, rows: int, adapter: NativeAdapter | None, thread: int) -> dict[str, Tensor]:
        """Room for what a pass over `rows` rows computes in between."""
        model = self.native
        out = model.heads * model.dim
        rank = 0 if adapter is None else adapter.rank
        of = {
            "x": model.hidden,
            "h": model.hidden,
            "qkv": max(out + 2 * model.kv_heads * model.dim, model.hidden),
            "attended": out,
            "inner": model.inner,
        }
        room = {name: torch.empty(rows, size, dtype=self.dtype) for name, size in of.items()}
        room["wide"] = torch.empty(rows, max(model.hidden, model.inner, out) if rank else 0)
        room["low"] = torch.empty(rows, rank)
        room["thread"] = torch.empty(thread, dtype=torch.uint8)
        return room

    def batch(self, lengths: Sequence[int], *, rows: int, new_tokens: int, lora: Any, trunk: Cached | None = None) -> NativeBatch:
        """Room for prompts and rows, as `LlamaEngine.batch` gives it."""
        return NativeBatch(self, lengths, rows=rows, new_tokens=new_tokens, lora=lora, trunk=trunk)

    def _pack(self, weight: Tensor) -> Tensor:
        """(outputs, inputs) -> (outputs / lanes, inputs / pack, lanes, pack)."""
        outputs, inputs = weight.shape
        lanes, pack = self.library.lanes, self.library.pack
        return weight.detach().view(outputs // lanes, lanes, inputs // pack, pack).transpose(1, 2).contiguous()

    def _keep(self, tensor: Tensor) -> int:
        tensor = tensor.detach().contiguous()
        self._kept.append(tensor)
        return tensor.data_ptr()


def suiting_library(model: Any) -> Library | None:
    """The compiled code for a model which `LlamaEngine` supports; None where its sizes, dtype or this machine do not suit."""
    config = model.config
    weight = model.lm_head.weight
    if weight.device.type != "cpu" or weight.dtype not in (torch.bfloat16, torch.float32):
        return None
    dim = model.model.layers[0].self_attn.head_dim
    sizes = (config.hidden_size, config.num_attention_heads * dim, config.intermediate_size)
    qkv = (config.num_attention_heads + 2 * config.num_key_value_heads) * dim
    linear = (module for module in model.modules() if isinstance(module, nn.Linear))
    if any(size % 32 for size in (*sizes, qkv)) or dim % 16 or dim > 256 or any(module.bias is not None for module in linear):
        return None
    return load_library(bf16=weight.dtype is torch.bfloat16)
