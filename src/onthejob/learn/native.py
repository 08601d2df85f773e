"""A row's log-probabilities and their gradients by compiled code (`models/native/training.c`), where it can run the model.

It computes what `learn.forward` computes with torch: the model's own forward pass over a tree, and the gradients of LoRA factors,
which are float32. With a bfloat16 base products take bfloat16 operands and sum in float32; the residual stream stays in float32.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from peft.tuners.lora.layer import Linear
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from onthejob.errors import ContractError
from onthejob.learn.batch import Row
from onthejob.learn.interrupt import check
from onthejob.learn.lora_linear import plain_adapter
from onthejob.learn.tree import block_keys
from onthejob.models.llama import LlamaEngine
from onthejob.models.native import structures
from onthejob.models.native.engine import suiting_library
from onthejob.models.native.huge_pages import Memory, Room
from onthejob.models.native.shared_library import Library, addresses, team, trains

MEMORY = Memory()
"""Buffers of all rows that are scored; those of one row serve the next."""
BLOCK = 64
"""Nodes that attend together."""
_PROJECTIONS = (
    *(("self_attn", name) for name in ("q_proj", "k_proj", "v_proj", "o_proj")),
    *(("mlp", name) for name in ("gate_proj", "up_proj", "down_proj")),
)
"""In the order of `training.c`."""


class NativeScores(NamedTuple):
    """Of a row's U distinct (head, token) pairs and R heads, differentiable."""

    logprobs: Tensor  # (U,)
    entropy: Tensor  # (R,)


def native_scores(base: Any, row: Row, sharpness: Tensor, *, at_once: int) -> NativeScores | None:
    """Score `row` with compiled code; None where that cannot run this model, or what is trained of it.

    Args:
        base: The causal LM, with PEFT's layers in it.
        row: From `pack` or `collate`.
        sharpness: By what the logits of each head are multiplied, float32; may have a gradient.  # (R,)
        at_once: Heads whose logits are held at the same time; with more of them logits are computed again in the backward pass.

    Raises:
        ContractError: a token id that the model does not have.
    """
    library = _library(base)
    projections = None if library is None else _projections(base)
    if library is None or projections is None:
        return None
    factors = [factor for each in projections if each.rank for factor in (each.a, each.b)]
    vocab = base.lm_head.out_features
    ids = np.concatenate([row.tree.ids, row.pair_token])
    if ids.min() < 0 or ids.max() >= vocab:
        raise ContractError(f"token ids must be in 0..{vocab - 1}, got {ids.min()}..{ids.max()}.")
    differentiable = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (sharpness, *factors))
    again = base.training and any(
        getattr(module, "gradient_checkpointing", False) for module in (base.model, base.model.layers[0])
    )
    work = _Work(
        base=base,
        library=library,
        projections=projections,
        row=row,
        at_once=min(len(row.heads), at_once),
        differentiable=differentiable,
        again=again,
    )
    return NativeScores(*_Scores.apply(work, sharpness, *factors))


class _Projection(NamedTuple):
    weight: Tensor  # (O, I)
    a: Tensor  # (R, I)
    b: Tensor  # (O, R)
    rank: int
    """0 without an adapter."""
    scale: float


_libraries: weakref.WeakKeyDictionary[nn.Module, tuple[torch.dtype, torch.device, Library | None]] = weakref.WeakKeyDictionary()
"""Of each base: its dtype and device, and the code that runs it."""


def _library(base: Any) -> Library | None:
    weight = base.get_input_embeddings().weight
    known = _libraries.get(base)
    if known is None or known[:2] != (weight.dtype, weight.device):
        known = (weight.dtype, weight.device, _find_library(base))
        _libraries[base] = known
    return known[2]


def _find_library(base: Any) -> Library | None:
    if not LlamaEngine.supports(base):
        return None
    library = suiting_library(base)
    return library if library is not None and trains(bf16=library.pack == 2) else None


def _projections(base: Any) -> list[_Projection] | None:
    """All projections, layer after layer.

    None where the compiled code would compute something else: a projection with anything but one plain float32 adapter or none,
    another adapter elsewhere, weights of several dtypes or with gradients of their own, dropout.
    """
    found = []
    model, gradients = base.model, torch.is_grad_enabled()
    for layer in model.layers:
        for part, name in _PROJECTIONS:
            module = getattr(getattr(layer, part), name)
            if type(module) is nn.Linear:
                found.append(_Projection(module.weight, module.weight, module.weight, 0, 0.0))
                continue
            plain = plain_adapter(module) if type(module) is Linear else None
            if plain is None or plain.a.dtype is not torch.float32 or plain.b.dtype is not torch.float32:
                return None
            found.append(_Projection(plain.weight, plain.a, plain.b, len(plain.a), plain.scale))
    if type(base.lm_head) is not nn.Linear or type(model.embed_tokens) is not nn.Embedding:
        return None
    norms = [model.norm, *(norm for each in model.layers for norm in (each.input_layernorm, each.post_attention_layernorm))]
    if any(type(norm) is not type(model.norm) for norm in norms) or (base.training and base.config.attention_dropout):
        return None
    head = base.lm_head.weight
    weights = [head, model.embed_tokens.weight, *(norm.weight for norm in norms), *(each.weight for each in found)]
    if any(w.dtype is not head.dtype or w.device != head.device or (gradients and w.requires_grad) for w in weights):
        return None
    return found


@dataclass(slots=True, kw_only=True)
class _Work:
    """One pass over a row, and what its backward pass needs."""

    base: Any
    library: Library
    projections: Sequence[_Projection]
    row: Row
    at_once: int
    differentiable: bool
    again: bool
    """The backward pass computes each layer again."""
    model: structures.Trained = field(default_factory=structures.Trained)
    tree: structures.Tree = field(default_factory=structures.Tree)
    held: list[Tensor] = field(default_factory=list)
    """Tensors whose addresses the structures hold."""
    mapping: Tensor | None = None
    """Memory of what is kept for the backward pass; None once that is over."""

    def forward(self, sharpness: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities (U,) and entropies (R,)."""
        self._state_model()
        row, model, heads, tokens = self.row, self.model, len(self.row.heads), len(self.row.tree)
        keep = self.differentiable and not self.again
        layers, dtype, rows = (model.layers if keep else 1), self.base.lm_head.weight.dtype, self._rows()
        self.mapping, kept = MEMORY.take(
            {
                "x": Room((model.layers + 1 if self.differentiable else 1, tokens, model.hidden)),
                "middle": Room((layers, tokens, model.hidden)),
                "qkv": Room((layers, tokens, rows["qkv"]), dtype),
                "attended": Room((layers, tokens, rows["attended"]), dtype),
                "log_sum": Room((layers, tokens, model.heads)),
                "gate_up": Room((layers, tokens, rows["gate_up"]), dtype),
                "low": Room((layers, tokens, model.low_width)),
                "logits": Room((self.at_once, self.library.training_row(model.vocab, 1))),
                "h": Room((tokens, rows["hidden"]), dtype),
                "inner": Room((tokens, rows["inner"]), dtype),
                "scored": Room((self.at_once, rows["hidden"]), dtype),
            }
        )
        logprob, entropy, log_total = (torch.empty(size, dtype=torch.float32) for size in (len(row.pair_token), heads, heads))
        keys = block_keys(row.tree, size=BLOCK)
        arrays = {
            "id": row.tree.ids,
            "depth": row.tree.depth,
            "start": np.minimum(np.arange(len(keys) + 1) * BLOCK, tokens),
            "from_": np.cumsum([0, *map(len, keys)]),
            "key": np.concatenate(keys).astype(np.int32),
            "end": row.tree.end.astype(np.int32),
            "head": row.heads,
            "pair_from": np.searchsorted(row.pair_head, np.arange(heads + 1)),
            "pair_token": row.pair_token,
        }
        given = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
        # Detached, or what autograd makes of the results would hold this work and be held by it.
        given |= {"logprob": logprob.detach(), "entropy": entropy.detach(), "log_total": log_total}
        given |= {"sharpness": sharpness.detach().float().contiguous()}
        self.held += given.values()
        self.tree = structures.Tree(
            tokens=tokens,
            blocks=len(keys),
            most_keys=max(map(len, keys)),
            most_tokens=min(BLOCK, tokens),
            heads=heads,
            at_once=self.at_once,
            keep=int(keep),
            x_stride=tokens * model.hidden if self.differentiable else 0,
            **addresses(given | kept),
        )
        self._run(None, model.layers + 2)
        if not self.differentiable:
            self.end()
        return logprob, entropy

    def backward(
        self, of_logprob: Tensor | None, of_entropy: Tensor | None, *, of_sharpness: bool
    ) -> tuple[Tensor | None, list[Tensor]]:
        """Gradients of the sharpness, and of each adapter's factors."""
        model, tokens, dtype, rows = self.model, len(self.row.tree), self.base.lm_head.weight.dtype, self._rows()
        mapping, room = MEMORY.take(
            {
                "of_x": Room((tokens, model.hidden)),
                "of_h": Room((tokens, model.hidden)),
                "rounded": Room((tokens, rows["hidden"]), dtype),
                "of_gate_up": Room((tokens, rows["gate_up"]), dtype),
                "of_qkv": Room((tokens, rows["qkv"]), dtype),
                "of_attended": Room((tokens, rows["attended"]), dtype),
                "of_low": Room((tokens, model.low_width)),
                "of_kv": Room((self.library.shares, 2, tokens, model.kv_heads * model.dim)),
                "of_scored": Room((self.at_once, model.hidden)),
            }
        )
        given = {"of_logprob": torch.zeros(len(self.row.pair_token), dtype=torch.float32) if of_logprob is None else of_logprob}
        if of_entropy is not None:
            given["of_entropy"] = of_entropy
        given = {name: tensor.float().contiguous() for name, tensor in given.items()}
        sharp = torch.empty(len(self.row.heads), dtype=torch.float32) if of_sharpness else None
        if sharp is not None:
            given["of_sharpness"] = sharp
        factors = []
        for index, each in enumerate(self.projections):
            if each.rank:
                of_a, of_b = (torch.empty(factor.shape, dtype=torch.float32) for factor in (each.a, each.b))
                stated = self.model.layer[index // len(_PROJECTIONS)].of[index % len(_PROJECTIONS)]
                stated.of_a, stated.of_b = of_a.data_ptr(), of_b.data_ptr()
                factors += [of_a, of_b]
        try:
            self._run(structures.Gradients(**addresses(given | room)), model.layers - model.first + 1)
        finally:
            # Also when it was interrupted: the logits are overwritten by then.
            MEMORY.give_back(mapping)
            self.end()
        return sharp, factors

    def end(self) -> None:
        """What was kept for the backward pass is needed no more."""
        if self.mapping is not None:
            MEMORY.give_back(self.mapping)
        self.mapping, self.held = None, []

    def _state_model(self) -> None:
        base, config, lanes, count = self.base, self.base.config, self.library.lanes, len(_PROJECTIONS)
        layers = (structures.Decoder * len(base.model.layers))()
        widest, adapted = 0, len(layers)
        for index, layer in enumerate(base.model.layers):
            low = 0
            for place, each in enumerate(self.projections[index * count : (index + 1) * count]):
                outputs, inputs = each.weight.shape
                stated = structures.Linear(
                    w=self._hold(each.weight), inputs=inputs, outputs=outputs, rank=each.rank, low=low, scale=each.scale
                )
                if each.rank:
                    stated.a, stated.b = self._hold(each.a), self._hold(each.b)
                    low += -(-each.rank // lanes) * lanes
                    adapted = min(adapted, index)
                layers[index].of[place] = stated
            layers[index].norm_attention = self._hold(layer.input_layernorm.weight)
            layers[index].norm_mlp = self._hold(layer.post_attention_layernorm.weight)
            widest = max(widest, low)
        # A tensor only says in which dtype they are rounded, as the sampler's and the model's own are.
        positions = torch.arange(int(self.row.tree.depth.max()) + 1)[None]
        cos, sin = base.model.rotary_emb(base.lm_head.weight[:1, :1], positions)
        self.model = structures.Trained(
            layers=len(layers),
            hidden=config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            dim=base.model.layers[0].self_attn.head_dim,
            inner=config.intermediate_size,
            vocab=base.lm_head.out_features,
            low_width=widest,
            first=adapted,
            eps=config.rms_norm_eps,
            layer=layers,
            embedding=self._hold(base.model.embed_tokens.weight),
            norm=self._hold(base.model.norm.weight),
            head=self._hold(base.lm_head.weight),
            cos=self._hold(cos[0].float()),
            sin=self._hold(sin[0].float()),
        )

    def _rows(self) -> dict[str, int]:
        """Numbers from one row to the next of what products multiply."""
        model = self.model
        numbers = {
            "hidden": model.hidden,
            "qkv": (model.heads + 2 * model.kv_heads) * model.dim,
            "attended": model.heads * model.dim,
            "inner": model.inner,
            "gate_up": 2 * model.inner,
        }
        return {name: self.library.training_row(number, 0) for name, number in numbers.items()}

    def _hold(self, tensor: Tensor) -> int:
        self.held.append(tensor.detach().contiguous())
        return self.held[-1].data_ptr()

    def _run(self, gradients: structures.Gradients | None, stages: int) -> None:
        """Stage by stage, so that an interrupt, or Ctrl-C, is met before the whole row is done."""
        model, tree, members = ctypes.byref(self.model), self.tree, team()
        tree.thread_bytes = self.library.training_bytes(model, ctypes.byref(tree))
        scratch = torch.empty(members.count * tree.thread_bytes, dtype=torch.uint8)
        tree.thread = scratch.data_ptr()
        of = None if gradients is None else ctypes.byref(gradients)
        for stage in range(stages):
            self.library.training_stage(model, ctypes.byref(tree), of, ctypes.byref(members), stage)
            if 0 < stage <= self.model.layers:
                check(self.base.model.layers)


class _Scores(torch.autograd.Function):
    """Log-probabilities (U,) and entropies (R,) from a sharpness (R,) and the factors of adapters."""

    @staticmethod
    def forward(ctx: Any, work: _Work, sharpness: Tensor, *factors: Tensor) -> tuple[Tensor, Tensor]:
        ctx.work = work
        ctx.save_for_backward(*factors)  # so that torch notices who changes them before the backward pass
        ctx.set_materialize_grads(False)
        return work.forward(sharpness)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        _ = ctx.saved_tensors
        of_logprob, of_entropy = grads
        if of_logprob is None and of_entropy is None:
            return (None,) * len(ctx.needs_input_grad)
        if ctx.work.mapping is None:
            raise RuntimeError("a row's backward pass was run before; score the row again.")
        of_sharpness, factors = ctx.work.backward(of_logprob, of_entropy, of_sharpness=ctx.needs_input_grad[1])
        return (None, of_sharpness, *factors)
