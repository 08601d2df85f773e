"""The fastest way to run Llama-shaped models on a CPU: a forward pass in one call of compiled code (`forward.c`).

Keys and values live in packed caches, one per prompt and one per row; what leaves a batch (`prefix`, `conversation`) is unpacked,
in the form of `LlamaEngine`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onthejob.errors import ContractError
from onthejob.models.adapter_weights import FusedLora, LoraPair
from onthejob.models.draw import not_finite
from onthejob.models.llama import TOGETHER, Cached, fused_layers
from onthejob.models.native import library as native
from onthejob.models.native.library import Library, load_library

BLOCK = 256
"""Logits whose mass is summed apart when a token is drawn; as in `forward.c`."""
MOST_MEMORY = 0.25
"""Share of the machine's memory that a model's weights may take to be packed, which takes as much again."""
QUERIES = 32
"""Tokens of a prompt that attend side by side."""


class NativeEngine:
    """A model that `LlamaEngine` supports, on a CPU, with its weights packed once, which takes their memory again."""

    trunks: ClassVar[bool] = True
    """A batch can take a trunk."""

    def __init__(self, model: Any, library: Library) -> None:
        self.model, self.library, config = model.model, library, model.config
        self.layers, self.head = model.model.layers, model.lm_head
        self.dtype, self.device = self.head.weight.dtype, self.head.weight.device
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = self.layers[0].self_attn.head_dim
        self._kept: list[Tensor] = []
        layers = (native.Layer * len(self.layers))()
        for index, layer in enumerate(self.layers):
            attention, mlp = layer.self_attn, layer.mlp
            qkv = torch.cat([part.weight for part in (attention.q_proj, attention.k_proj, attention.v_proj)])
            # Blocks of gate and up in turn, so that one tile of a product holds both.
            gate_up = torch.stack([self._pack(part.weight) for part in (mlp.gate_proj, mlp.up_proj)], 1)
            layers[index] = native.Layer(
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
        self.native = native.Model(
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
        # Of all memory, not of what is free, so that one machine always decides the same.
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()) > MOST_MEMORY * memory:
            return None
        return load_library(bf16=weight.dtype is torch.bfloat16)

    def describe(self) -> str:
        """What runs the model, in a few words."""
        return f"compiled code, {self.library.variant.name}"

    def adapt(self, pairs: Mapping[str, LoraPair]) -> _Adapter:
        """The adapter in the order of use, packed."""
        return _Adapter(self, fused_layers(pairs, len(self.layers)))

    def draw(self, logits: Tensor, rows: Sequence[int], uniform: Tensor, *, temperature: float) -> tuple[list[int], list[float]]:
        """Tokens and their log-probabilities; see `models.draw`."""
        (count, vocab), lanes = logits.shape, self.library.lanes
        if logits.stride(0) < vocab - vocab % -lanes:  # rows are read in whole vectors
            logits = F.pad(logits, (0, -vocab % lanes))
        first = torch.tensor(rows).bincount(minlength=count).cumsum(0)
        first = F.pad(first, (1, 0))
        mass = torch.empty(count, -(-vocab // BLOCK), dtype=torch.float64)
        token, logprob = torch.empty(len(rows), dtype=torch.int64), torch.empty(len(rows))
        uniform = uniform.contiguous()
        draws = native.Draws(
            rows=count,
            vocab=vocab,
            width=logits.stride(0),
            temperature=temperature,
            **{
                name: tensor.data_ptr()
                for name, tensor in {
                    "logits": logits,
                    "first": first,
                    "uniform": uniform,
                    "mass": mass,
                    "token": token,
                    "logprob": logprob,
                }.items()
            },
        )
        self.library.draw(ctypes.byref(draws), ctypes.byref(native.team()))
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

    def scratch(self, rows: int, adapter: _Adapter | None, thread: int) -> dict[str, Tensor]:
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


class _Adapter:
    """Factors of an adapter in float32, packed as weights are; ranks are filled up with zeros to whole vectors."""

    def __init__(self, engine: NativeEngine, fused: Sequence[Sequence[FusedLora | None]]) -> None:
        self._kept: list[Tensor] = []
        self.table = (native.Lora * (4 * len(fused)))()
        for index, parts in enumerate(fused):
            for number, part in enumerate(parts):
                if part is not None:
                    self.table[4 * index + number] = self._packed(engine, number, part)
        self.rank = max(entry.rank for entry in self.table)

    def _packed(self, engine: NativeEngine, number: int, part: FusedLora) -> native.Lora:
        outputs, lanes = engine.outputs[number], engine.library.lanes
        factors = part.factors(outputs)
        each = max(-(-len(found[0]) // lanes) * lanes for found in factors if found is not None)
        inputs = next(found[0].shape[1] for found in factors if found is not None)
        a = torch.zeros(len(outputs), each, inputs)
        b = torch.zeros(sum(outputs), each)
        starts = [sum(outputs[:index]) for index in range(len(outputs))]
        for index, found in enumerate(factors):
            if found is not None:
                rank = len(found[0])
                a[index, :rank] = found[0]
                b[starts[index] : starts[index] + outputs[index], :rank] = found[1]
        packed_a = a.view(-1, lanes, inputs).transpose(1, 2).contiguous()
        packed_b = b.view(-1, lanes, each).transpose(1, 2)
        begins = torch.tensor([each * index for index, size in enumerate(outputs) for _ in range(size // lanes)])
        if number == 2:
            packed_b = torch.stack(packed_b.chunk(2), 1).flatten(0, 1)
            begins = torch.stack(begins.chunk(2), 1).flatten()
        packed_b = packed_b.contiguous()
        self._kept += [packed_a, packed_b, begins]
        return native.Lora(
            a=packed_a.data_ptr(), b=packed_b.data_ptr(), from_=begins.data_ptr(), rank=len(outputs) * each, each=each
        )


class NativeBatch:
    """Keys and values of some prompts and of the rows that continue them, packed; see `LlamaBatch` for the contract."""

    def __init__(
        self,
        engine: NativeEngine,
        lengths: Sequence[int],
        *,
        rows: int,
        new_tokens: int,
        lora: _Adapter | None,
        trunk: Cached | None = None,
    ) -> None:
        self._engine, self._adapter, self._trunk = engine, lora, trunk
        self._start = 0 if trunk is None else sum(part[0].shape[2] for part in trunk)
        self._lengths = [length - self._start for length in lengths]
        """Tokens of each prompt behind the trunk."""
        self._time = 0
        self._slots = list(range(len(lengths)))
        sizes = [*self._lengths, self._start] if trunk is not None else self._lengths
        self._prompts = [engine.cache(1, size) for size in sizes]
        """Of each slot, and of the trunk behind them."""
        self._room = (rows, new_tokens)
        self._own = engine.cache(rows, new_tokens)
        self._caches = (native.Cache * (len(sizes) + rows))(*map(_stated, self._prompts))
        for row in range(rows):
            self._caches[len(sizes) + row] = _stated(tuple(part[row : row + 1] for part in self._own))
        if trunk is not None:
            self._fill(len(lengths), 0, trunk)

    def load_prefix(self, slot: int, prefix: Cached) -> int:
        """Copy what is cached to a prompt's beginning, where it is not the trunk's; returns its token count.

        Raises:
            ContractError: it is longer than the prompt.
        """
        behind, start = [], 0
        for keys, values in prefix:
            stop = start + keys.shape[2]
            if stop > self._start:
                skipped = max(0, self._start - start)
                behind.append((keys[:, :, skipped:], values[:, :, skipped:]))
            start = stop
        if start > self._start + self._lengths[slot]:
            raise ContractError(f"a prompt of {self._start + self._lengths[slot]} tokens cannot begin with {start} cached ones.")
        self._fill(slot, 0, behind)
        return start

    def prefix(self, slot: int) -> Cached:
        """A prompt's keys and values, copied, behind those of the trunk, which are not: for `load_prefix` of another batch."""
        own = self._taken(slot, self._lengths[slot])
        return (own,) if self._trunk is None else (*self._trunk, own)

    def conversation(self, row: int, like: Cached | None = None) -> Cached:
        """A row's prompt and what it sampled, but for the last token, which was never put in: for `load_prefix` of another batch.

        `like` is what this gave for another row of the same prompt; its beginning is shared and not copied again.
        """
        beginning = self.prefix(self._slots[row]) if like is None else like[:-1]
        return (*beginning, self._taken(len(self._prompts) + row, self._time))

    def prefill(self, prompts: Sequence[tuple[int, Sequence[int], int]]) -> Tensor:
        """Compute prompts, each (slot, ids, where what is not loaded begins); the next tokens' logits (prompts, vocab).

        Side by side up to `TOGETHER` tokens, which bounds memory.
        """
        found, part, size = [], [], 0
        for prompt in prompts:
            count = len(prompt[1]) - prompt[2]
            if part and size + count > TOGETHER:
                found.append(self._prefill(part))
                part, size = [], 0
            part.append(prompt)
            size += count
        return torch.cat([*found, self._prefill(part)])

    def _prefill(self, prompts: Sequence[tuple[int, Sequence[int], int]]) -> Tensor:
        for slot, ids, start in prompts:
            if len(ids) != self._start + self._lengths[slot] or not self._start <= start < len(ids):
                raise ContractError(
                    f"prompt {slot} has {self._start + self._lengths[slot]} tokens, {self._start} of them in the trunk; "
                    f"got {len(ids)} to be computed from {start} on."
                )
        tokens = [token for _, ids, start in prompts for token in ids[start:]]
        positions = torch.cat([torch.arange(start, len(ids)) for _, ids, start in prompts])
        slots = torch.cat([torch.full((len(ids) - start,), slot) for slot, ids, start in prompts])
        groups, outputs, first = [], [], 0
        for _, ids, start in prompts:
            count = len(ids) - start
            groups += [_Group((self._shared_trunk(),), first + at, min(QUERIES, count - at)) for at in range(0, count, QUERIES)]
            first += count
            outputs.append(first - 1)
        order = torch.arange(len(tokens))
        return self._forward(tokens, positions, slots, positions - self._start, groups, order, torch.tensor(outputs))

    def select(self, sources: Sequence[int]) -> None:
        """Row i becomes a copy of the former row sources[i].

        A source below len(sources) must keep its own place, so that rows can be copied in place in any order.
        """
        moved = [(target, source) for target, source in enumerate(sources) if target != source]
        if moved and self._time:
            lanes = self._engine.library.lanes
            size = -(-self._time // lanes) * lanes * self._engine.head_dim
            targets, origins = ([pair[i] for pair in moved] for i in (0, 1))
            for cache in self._own:
                cache[targets, :, :, :size] = cache[origins, :, :, :size]
        self._slots = [self._slots[source] for source in sources]

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Append one token to every row; returns the logits of the next one (rows, vocab).

        Raises:
            ContractError: a token for each row was not given, or there is no room for more rows or tokens.
        """
        engine = self._engine
        if len(tokens) != len(self._slots) or len(tokens) > self._room[0] or self._time >= self._room[1]:
            raise ContractError(
                f"a batch of {self._room[0]} rows of {self._room[1]} tokens has {len(self._slots)} rows of {self._time} tokens, "
                f"got {len(tokens)} more."
            )
        members: dict[int, list[int]] = {}
        for row, slot in enumerate(self._slots):
            members.setdefault(slot, []).append(row)
        # A group's rows are parted where there are too few groups for the threads.
        rows = len(self._slots)
        most = max(1, rows * engine.kv_heads // (4 * torch.get_num_threads()))
        groups, order = [], []
        for slot, owners in members.items():
            for at in range(0, len(owners), most):
                part = owners[at : at + most]
                groups.append(_Group((self._shared_trunk(), (slot, self._lengths[slot])), len(order), len(part)))
                order += part
        positions = torch.tensor([self._start + self._lengths[slot] + self._time for slot in self._slots])
        own = torch.arange(len(self._prompts), len(self._prompts) + rows)
        places = torch.full((rows,), self._time)
        logits = self._forward(tokens, positions, own, places, groups, torch.tensor(order), torch.arange(rows))
        self._time += 1
        return logits

    def _shared_trunk(self) -> tuple[int, int]:
        return (-1, 0) if self._trunk is None else (len(self._lengths), self._start)

    def _forward(
        self,
        tokens: Sequence[int],
        positions: Tensor,
        own: Tensor,
        places: Tensor,
        groups: Sequence[_Group],
        order: Tensor,
        outputs: Tensor,
    ) -> Tensor:
        engine = self._engine
        model = engine.native
        # What torch would refuse would be memory of somebody else here.
        if min(tokens) < 0 or max(tokens) >= model.vocab:
            raise ContractError(f"token ids must be in 0..{model.vocab - 1}, got {min(tokens)}..{max(tokens)}.")
        if int(positions.max()) >= engine.positions:
            raise ContractError(f"the model has {engine.positions} positions, got a token at {int(positions.max())}.")
        table = (native.Group * len(groups))()
        for entry, group in zip(table, groups, strict=True):
            for number in range(2):
                shared = group.shared[number] if number < len(group.shared) else (-1, 0)
                entry.shared[number], entry.shared_tokens[number] = shared
            entry.first, entry.count = group.first, group.count
        logits = torch.empty(len(outputs), model.width)
        team = native.team()
        size = engine.library.thread_bytes(ctypes.byref(model), max(group.count for group in groups))
        given = {"order": order, "token": torch.tensor(tokens), "position": positions, "own": own, "place": places}
        scratch = engine.scratch(len(tokens), self._adapter, team.count * size)
        batch = native.Batch(
            rows=len(tokens),
            groups=len(groups),
            group=table,
            cache=self._caches,
            outputs=len(outputs),
            output=outputs.data_ptr(),
            lora=None if self._adapter is None else self._adapter.table,
            logits=logits.data_ptr(),
            thread_bytes=size,
            **{name: tensor.data_ptr() for name, tensor in (given | scratch).items()},
        )
        engine.library.forward(ctypes.byref(model), ctypes.byref(batch), ctypes.byref(team))
        return logits[:, : model.vocab]

    def _fill(self, number: int, at: int, parts: Sequence[tuple[Tensor, Tensor]]) -> None:
        for keys, values in parts:
            self._move(number, at, keys, values, unpack=False)
            at += keys.shape[2]

    def _taken(self, number: int, count: int) -> tuple[Tensor, Tensor]:
        engine = self._engine
        keys, values = (
            torch.empty(len(engine.layers), engine.kv_heads, count, engine.head_dim, dtype=engine.dtype) for _ in range(2)
        )
        self._move(number, 0, keys, values, unpack=True)
        return keys, values

    def _move(self, number: int, at: int, keys: Tensor, values: Tensor, *, unpack: bool) -> None:
        layers, heads, count, dim = keys.shape
        if not unpack:
            keys, values = keys.contiguous(), values.contiguous()
        self._engine.library.pack_cache(
            ctypes.byref(self._caches[number]),
            *(layers, heads, dim, at, count),
            *(keys.data_ptr(), values.data_ptr(), *keys.stride()[:3], int(unpack)),
        )


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows that attend to the same caches."""

    shared: tuple[tuple[int, int], ...]
    """Number of a cache and how many tokens of it."""
    first: int
    count: int


def _stated(cache: tuple[Tensor, ...]) -> native.Cache:
    """A cache of one row (1, layers, kv, tokens * dim) as the compiled code takes it."""
    keys, values = cache
    return native.Cache(keys=keys.data_ptr(), values=values.data_ptr(), layer_stride=keys.stride(1), head_stride=keys.stride(2))
