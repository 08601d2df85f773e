"""The fast way to run Llama-shaped models: preallocated caches, prompts kept once per group, grouped attention, a shared trunk.

A decode step of the usual path on a CPU spends most of its time repeating key heads and concatenating the cache (measured: 59 %
and 20 %). Here the query heads that share a key head are the rows of one matrix product, the keys of a prompt are kept once
for all its replies, and each row owns only the few tokens it sampled. What all prompts begin with (a system message) can be one
trunk, to which all rows attend in one product: reading keys is most of a step when 64 conversations of 1,300 tokens are sampled
(measured: 68 %). The weights are the base's own tensors: nothing is copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onthejob.models.adapter_weights import FusedLora, LoraPair
from onthejob.models.buckets import Bucket, Prompt, edges, portions, scores_of
from onthejob.models.draw import draw

_ROPE_TYPES = ("default", "linear", "llama3")

Cached = tuple[tuple[Tensor, Tensor], ...]
"""Keys and values (layers, kv_heads, tokens, dim) of consecutive parts of a prompt, from its beginning on."""


class LlamaEngine:
    """Runs one Llama-shaped model (RMS norm, rotary positions, grouped query heads, SiLU-gated MLP)."""

    trunks: ClassVar[bool] = True
    """A batch can take a trunk."""
    draw = staticmethod(draw)

    def __init__(self, model: Any) -> None:
        config = model.config
        self.model = model.model
        self.head = model.lm_head
        self.layers = model.model.layers
        self.dtype = self.head.weight.dtype
        self.device = self.head.weight.device
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_dim = self.layers[0].self_attn.head_dim
        self.scale = self.head_dim**-0.5

    @staticmethod
    def supports(model: Any) -> bool:
        """True when this file computes the same function as the model's own forward."""
        config = model.config
        if config.model_type != "llama" or config.hidden_act != "silu":
            return False
        # It reads the weights themselves; layers that compute otherwise (4-bit ones) are run by their own forward.
        if any(isinstance(module, nn.Linear) and type(module) is not nn.Linear for module in model.modules()):
            return False
        rope = config.rope_parameters or {}
        return rope.get("rope_type", "default") in _ROPE_TYPES and model.config.pretraining_tp == 1

    def describe(self) -> str:
        """What runs the model, in a few words."""
        return "torch"

    def adapt(self, pairs: Mapping[str, LoraPair]) -> list[list[FusedLora | None]]:
        """The adapter in the order of use."""
        return fused_layers(pairs, len(self.layers))

    def batch(self, lengths: Sequence[int], *, rows: int, new_tokens: int, lora: Any, trunk: Cached | None = None) -> LlamaBatch:
        """Room for `len(lengths)` prompts of these lengths and up to `rows` replies of `new_tokens` tokens.

        `trunk` is what all of the prompts begin with and are longer than, as `LlamaBatch.prefix` gave it.
        """
        return LlamaBatch(self, lengths, rows=rows, new_tokens=new_tokens, lora=lora, trunk=trunk)

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines (rows, 1, head_dim), the sines' first half negated so that a roll replaces rotate-half."""
        cos, sin = self.model.rotary_emb(self.head.weight[:1, :1], positions[None])
        sin = sin[0].clone()
        sin[:, : self.head_dim // 2].neg_()
        return cos[0][:, None], sin[:, None]

    def project(
        self, x: Tensor, layer: Any, rotary: tuple[Tensor, Tensor], lora: FusedLora | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Project x (rows, hidden) to queries (rows, heads, dim), keys and values (rows, kv_heads, dim), with positions."""
        attention = layer.self_attn
        outputs = [linear(part, x) for part in (attention.q_proj, attention.k_proj, attention.v_proj)]
        if lora is not None:
            lora.add_to(outputs, x)
        qk = torch.cat(outputs[:2], 1).view(-1, self.heads + self.kv_heads, self.head_dim)
        cos, sin = rotary
        qk = qk * cos + qk.roll(self.head_dim // 2, -1) * sin
        return qk[:, : self.heads], qk[:, self.heads :], outputs[2].view(-1, self.kv_heads, self.head_dim)

    def finish(self, x: Tensor, attended: Tensor, layer: Any, lora: Sequence[FusedLora | None]) -> Tensor:
        """The rest of a layer after attention; x, attended (rows, hidden) -> (rows, hidden)."""
        out = [linear(layer.self_attn.o_proj, attended)]
        if lora[1] is not None:
            lora[1].add_to(out, attended)
        x = x + out[0]
        h = norm(x, layer.post_attention_layernorm)
        gate_up = [linear(part, h) for part in (layer.mlp.gate_proj, layer.mlp.up_proj)]
        if lora[2] is not None:
            lora[2].add_to(gate_up, h)
        h = F.silu(gate_up[0]) * gate_up[1]
        down = [linear(layer.mlp.down_proj, h)]
        if lora[3] is not None:
            lora[3].add_to(down, h)
        return x + down[0]


def fused_layers(pairs: Mapping[str, LoraPair], layers: int) -> list[list[FusedLora | None]]:
    """An adapter's updates per layer: (q, k, v), (o), (gate, up), (down), which are all layers that take one."""
    inputs = (
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        ("self_attn.o_proj",),
        ("mlp.gate_proj", "mlp.up_proj"),
        ("mlp.down_proj",),
    )
    return [
        [FusedLora.of([pairs.get(f"model.layers.{index}.{target}") for target in targets]) for targets in inputs]
        for index in range(layers)
    ]


class LlamaBatch:
    """Keys and values of some prompts and of the rows (replies being sampled) that continue them.

    At first there is one row per prompt. `select` duplicates, drops and moves rows; every row has sampled the same number of
    tokens, so that only positions, never the rows' own keys, need a mask. A trunk is kept once and in no prompt's cache.
    Neighbouring prompts of similar length attend together, padded to the longest of them; one long conversation among short ones
    would else make all of them long.
    """

    def __init__(
        self,
        engine: LlamaEngine,
        lengths: Sequence[int],
        *,
        rows: int,
        new_tokens: int,
        lora: Any,
        trunk: Cached | None = None,
    ) -> None:
        self._engine = engine
        self._lora = lora if lora is not None else [[None] * 4] * len(engine.layers)
        self._trunk: tuple[Tensor, Tensor] | None = None
        """Keys and values (layers, kv_heads, tokens, dim)."""
        if trunk is not None:
            keys, values = ([part[half] for part in trunk] for half in (0, 1))
            self._trunk = trunk[0] if len(trunk) == 1 else (torch.cat(keys, 2), torch.cat(values, 2))
        self._start = 0 if self._trunk is None else self._trunk[0].shape[2]
        lengths = [length - self._start for length in lengths]
        self._lengths = list(lengths)
        """Tokens of each prompt behind the trunk."""
        options: dict[str, Any] = {"dtype": engine.dtype, "device": engine.device}
        self.edges = edges(lengths)
        self._prompts: list[tuple[Tensor, Tensor]] = []
        """Of each slot: views of its prompt's keys and values (layers, kv_heads, tokens, dim), padded to the bucket's longest."""
        self._caches: list[tuple[Tensor, Tensor]] = []
        """Of each bucket: keys and values (layers, prompts, kv_heads, tokens, dim)."""
        for start, stop in pairwise(self.edges):
            shape = (len(engine.layers), stop - start, engine.kv_heads, max(lengths[start:stop]), engine.head_dim)
            # Zeros: padding is masked after the product with the keys, but zero weights times uninitialised values may be NaN.
            keys, values = torch.zeros(shape, **options), torch.zeros(shape, **options)
            self._caches.append((keys, values))
            self._prompts += [(keys[:, place], values[:, place]) for place in range(stop - start)]
        own = (len(engine.layers), rows, engine.kv_heads, new_tokens, engine.head_dim)
        self._own_keys, self._own_values = torch.empty(own, **options), torch.empty(own, **options)
        self._slots = list(range(len(lengths)))
        self._time = 0
        self._arrange()

    def load_prefix(self, slot: int, prefix: Cached) -> int:
        """Copy what is cached to a prompt's beginning, where it is not the trunk's; returns its token count."""
        start = 0
        for part in prefix:
            stop = start + part[0].shape[2]
            if stop > self._start:
                behind = max(start, self._start)
                for cache, given in zip(self._prompts[slot], part, strict=True):
                    cache[:, :, behind - self._start : stop - self._start] = given[:, :, behind - start :]
            start = stop
        return start

    def prefix(self, slot: int) -> Cached:
        """A prompt's keys and values, copied, behind those of the trunk, which are not: for `load_prefix` of another batch."""
        length = self._lengths[slot]
        keys, values = (cache[:, :, :length].clone() for cache in self._prompts[slot])
        return ((keys, values),) if self._trunk is None else (self._trunk, (keys, values))

    def conversation(self, row: int, like: Cached | None = None) -> Cached:
        """A row's prompt and what it sampled, but for the last token, which was never put in: for `load_prefix` of another batch.

        `like` is what this gave for another row of the same prompt; its beginning is shared and not copied again.
        """
        beginning = self.prefix(self._slots[row]) if like is None else like[:-1]
        own = (self._own_keys[:, row, :, : self._time].clone(), self._own_values[:, row, :, : self._time].clone())
        return (*beginning, own)

    def prefill(self, prompts: Sequence[Prompt]) -> Tensor:
        """Compute prompts, each (slot, ids, where what is not loaded begins); the next tokens' logits (prompts, vocab).

        Side by side up to `TOGETHER` tokens: what a conversation heard since its last turn is too little to fill a core alone.
        """
        return torch.cat([self._prefill(part) for part in portions(prompts)])

    def _prefill(self, prompts: Sequence[Prompt]) -> Tensor:
        engine = self._engine
        counts = [len(ids) - start for _, ids, start in prompts]
        positions = torch.cat([torch.arange(start, len(ids), device=engine.device) for _, ids, start in prompts])
        rotary = engine.rotary(positions)
        masks = [
            None if start == 0 else torch.arange(len(ids), device=engine.device)[None] <= own[:, None]
            for (_, ids, start), own in zip(prompts, positions.split(counts), strict=True)
        ]
        x = engine.model.embed_tokens(
            torch.tensor([token for _, ids, start in prompts for token in ids[start:]], device=engine.device)
        )
        for index, layer in enumerate(engine.layers):
            lora = self._lora[index]
            q, k, v = engine.project(norm(x, layer.input_layernorm), layer, rotary, lora[0])
            attended = [
                self._attend_prompt(index, slot, own, start, mask)
                for (slot, _, start), mask, *own in zip(prompts, masks, *(part.split(counts) for part in (q, k, v)), strict=True)
            ]
            x = engine.finish(x, torch.cat(attended), layer, lora)
        last = torch.tensor(counts, device=engine.device).cumsum(0) - 1
        return linear(engine.head, norm(x[last], engine.model.norm)).contiguous()

    def _attend_prompt(self, index: int, slot: int, own: Sequence[Tensor], start: int, mask: Tensor | None) -> Tensor:
        """A prompt's new tokens attend to all of it; own: queries, keys, values (tokens, heads, dim) -> (tokens, hidden)."""
        q, *new = own
        first, last = start - self._start, start - self._start + len(q)
        for cache, part in zip(self._prompts[slot], new, strict=True):
            cache[index, :, first:last] = part.transpose(0, 1)
        keys, values = (cache[index, :, :last] for cache in self._prompts[slot])
        if self._trunk is not None:
            keys, values = (torch.cat([trunk[index], own], 1) for trunk, own in zip(self._trunk, (keys, values), strict=True))
        attended = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            keys[None],
            values[None],
            attn_mask=mask,
            is_causal=mask is None and len(q) > 1,
            enable_gqa=True,
        )
        return attended[0].transpose(0, 1).reshape(len(q), -1)

    def select(self, sources: Sequence[int]) -> None:
        """Row i becomes a copy of the former row sources[i].

        A source below len(sources) must keep its own place, so that rows can be copied in place in any order.
        """
        moved = [(target, source) for target, source in enumerate(sources) if target != source]
        if moved and self._time:
            targets, origins = ([pair[i] for pair in moved] for i in (0, 1))
            for cache in (self._own_keys, self._own_values):
                cache[:, targets, :, : self._time] = cache[:, origins, :, : self._time]
        if moved or len(sources) != len(self._slots):
            self._slots = [self._slots[source] for source in sources]
            self._drop_unused_prompts()
            self._arrange()

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Append one token to every row; returns the logits of the next one (rows, vocab)."""
        engine = self._engine
        rotary = engine.rotary(self._positions + self._time)
        x = engine.model.embed_tokens(torch.tensor(tokens, device=engine.device))
        for index, layer in enumerate(engine.layers):
            lora = self._lora[index]
            q, k, v = engine.project(norm(x, layer.input_layernorm), layer, rotary, lora[0])
            self._own_keys[index, : len(tokens), :, self._time] = k
            self._own_values[index, : len(tokens), :, self._time] = v
            x = engine.finish(x, self._attend(index, q), layer, lora)
        self._time += 1
        return linear(engine.head, norm(x, engine.model.norm)).contiguous()

    def _attend(self, index: int, q: Tensor) -> Tensor:
        """Attention of one new token per row to its prompt and to its own tokens; q (rows, heads, dim) -> (rows, hidden)."""
        engine = self._engine
        rows, time = q.shape[0], self._time + 1
        q = q.reshape(rows, engine.kv_heads, -1, engine.head_dim)
        own = scores_of(q, self._own_keys[index, :rows, :, :time])
        prompts, owns, sums = [], [], []
        for bucket in self._buckets:
            keys, values = (cache[index, : bucket.prompts, :, : bucket.length] for cache in bucket.cache)
            shared = scores_of(bucket.by_prompt(q), keys)
            if bucket.mask is not None:
                shared = shared + bucket.mask
            scores = torch.cat([shared, bucket.by_prompt(own)], -1).float() * engine.scale
            weights = scores.softmax(-1).to(engine.dtype)
            if self._trunk is not None:
                sums.append(bucket.by_row(scores.logsumexp(-1, keepdim=True)))
            prompts.append(bucket.by_row(weights[..., : bucket.length] @ values))
            owns.append(bucket.by_row(weights[..., bucket.length :]))
        out, own = (self._in_order(parts) for parts in (prompts, owns))
        out = out + own @ self._own_values[index, :rows, :, :time]
        if self._trunk is not None:
            out = self._with_trunk(index, q, out, self._in_order(sums))
        return out.reshape(rows, -1)

    def _with_trunk(self, index: int, q: Tensor, out: Tensor, total: Tensor) -> Tensor:
        """Attention to the trunk too: `out` is what the rest gave, `total` the logarithm of its weights' sum (rows, kv, g, 1)."""
        assert self._trunk is not None
        keys, values = (cache[index] for cache in self._trunk)
        rows, kv, g, dim = q.shape
        # All rows side by side: (kv, rows * g, tokens).
        scores = (q.transpose(0, 1).reshape(kv, rows * g, dim) @ keys.transpose(1, 2)).float() * self._engine.scale
        attended = scores.softmax(-1).to(self._engine.dtype) @ values
        attended = attended.view(kv, rows, g, dim).transpose(0, 1).float()
        share = (total - scores.logsumexp(-1).view(kv, rows, g, 1).transpose(0, 1)).sigmoid()
        return torch.lerp(attended, out.float(), share).to(self._engine.dtype)

    def _in_order(self, parts: list[Tensor]) -> Tensor:
        x = parts[0] if len(parts) == 1 else torch.cat(parts)
        return x if self._scatter is None else x.index_select(0, self._scatter)

    def _arrange(self) -> None:
        """Which rows attend together, and where each of them stands there."""
        device = self._engine.device
        members: list[list[int]] = [[] for _ in self._lengths]
        for row, slot in enumerate(self._slots):
            members[slot].append(row)
        self._buckets: list[Bucket] = []
        place, places = 0, [0] * len(self._slots)
        for (start, stop), cache in zip(pairwise(self.edges), self._caches, strict=True):
            rows = [owners for owners in members[start:stop] if owners]
            if not rows:
                continue
            width = max(map(len, rows))
            for number, owners in enumerate(rows):
                for offset, row in enumerate(owners):
                    places[row] = place + number * width + offset
            place += len(rows) * width
            gather = [row for owners in rows for row in owners + [owners[0]] * (width - len(owners))]
            lengths = torch.tensor(self._lengths[start : start + len(rows)], device=device)
            longest = int(lengths.max())
            mask = None
            if int(lengths.min()) < longest:
                padding = torch.arange(longest, device=device)[None] >= lengths[:, None]
                mask = torch.zeros(padding.shape, dtype=self._engine.dtype, device=device)
                mask = mask.masked_fill(padding, float("-inf"))[:, None, None]
            self._buckets.append(
                Bucket(
                    cache=cache,
                    prompts=len(rows),
                    length=longest,
                    width=width,
                    gather=None if gather == list(range(len(self._slots))) else torch.tensor(gather, device=device),
                    mask=mask,
                )
            )
        self._scatter = None if places == list(range(place)) else torch.tensor(places, device=device)
        self._positions = torch.tensor([self._start + self._lengths[slot] for slot in self._slots], device=device)

    def _drop_unused_prompts(self) -> None:
        """Move the last prompts of a bucket that still have rows to the places of its prompts that have none."""
        for start, stop in pairwise(self.edges):
            used = sorted({slot for slot in self._slots if start <= slot < stop})
            holes = [slot for slot in range(start, start + len(used)) if slot not in set(used)]
            for hole, last in zip(holes, reversed(used), strict=False):
                length = self._lengths[hole] = self._lengths[last]
                for target, source in zip(self._prompts[hole], self._prompts[last], strict=True):
                    target[:, :, :length] = source[:, :, :length]
                self._slots = [hole if slot == last else slot for slot in self._slots]


_FEW = range(2, 33)
"""Rows for which a product is faster with the weights on the left (`linear`)."""


def linear(module: Any, x: Tensor) -> Tensor:
    """A linear layer of x (rows, in) -> (rows, out), possibly not contiguous.

    Few rows in float32 on a CPU: a product's time is that of reading the weights, which torch's own order of the factors takes
    up to three times as long for (`benchmarks/few_rows.py`).
    """
    if len(x) in _FEW and x.dtype is torch.float32 and x.device.type == "cpu" and module.bias is None:
        return (module.weight @ x.T).T
    return module(x)


def norm(x: Tensor, module: Any) -> Tensor:
    """RMS norm as transformers computes it: normalised in float32, rounded, then scaled in the model's dtype."""
    normed = F.rms_norm(x.float(), (x.shape[-1],), None, module.variance_epsilon)
    return module.weight * normed.to(x.dtype)
