"""Keys and values of a batch in packed caches, one per prompt and one per row, and the passes over it.

What leaves a batch (`prefix`, `conversation`) is unpacked, in the form of `LlamaEngine`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from onthejob.errors import ContractError
from onthejob.models.buckets import Prompt, portions
from onthejob.models.llama import Cached
from onthejob.models.native import structures
from onthejob.models.native.shared_library import addresses, team

if TYPE_CHECKING:
    from onthejob.models.native.adapter import NativeAdapter
    from onthejob.models.native.engine import NativeEngine

QUERIES = 32
"""Tokens of a prompt that attend side by side."""


class NativeBatch:
    """Keys and values of some prompts and of the rows that continue them, packed; see `LlamaBatch` for the contract."""

    def __init__(
        self,
        engine: NativeEngine,
        lengths: Sequence[int],
        *,
        rows: int,
        new_tokens: int,
        lora: NativeAdapter | None,
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
        self._caches = (structures.Cache * (len(sizes) + rows))(*map(_stated, self._prompts))
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

    def prefill(self, prompts: Sequence[Prompt]) -> Tensor:
        """Compute prompts, each (slot, ids, where what is not loaded begins); the next tokens' logits (prompts, vocab).

        Raises:
            ContractError: a prompt has another length than was stated, or nothing is left to compute.
        """
        return torch.cat([self._prefill(part) for part in portions(prompts)])

    def _prefill(self, prompts: Sequence[Prompt]) -> Tensor:
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
            groups += [self._group(first + at, min(QUERIES, count - at)) for at in range(0, count, QUERIES)]
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
                groups.append(self._group(len(order), len(part), slot))
                order += part
        positions = torch.tensor([self._start + self._lengths[slot] + self._time for slot in self._slots])
        own = torch.arange(len(self._prompts), len(self._prompts) + rows)
        places = torch.full((rows,), self._time)
        logits = self._forward(tokens, positions, own, places, groups, torch.tensor(order), torch.arange(rows))
        self._time += 1
        return logits

    def _group(self, first: int, count: int, slot: int = -1) -> structures.Group:
        """Rows first .. first + count, which all see the trunk and the prompt in `slot`; -1 for rows of a prompt itself."""
        trunk = -1 if self._trunk is None else len(self._lengths)
        return structures.Group((trunk, slot), (self._start, self._lengths[slot] if slot >= 0 else 0), first, count)

    def _forward(
        self,
        tokens: Sequence[int],
        positions: Tensor,
        own: Tensor,
        places: Tensor,
        groups: Sequence[structures.Group],
        order: Tensor,
        outputs: Tensor,
    ) -> Tensor:
        engine = self._engine
        model = engine.native
        # torch checks these itself; here they would be read past the end of an array.
        if min(tokens) < 0 or max(tokens) >= model.vocab:
            raise ContractError(f"token ids must be in 0..{model.vocab - 1}, got {min(tokens)}..{max(tokens)}.")
        if int(positions.max()) >= engine.positions:
            raise ContractError(f"the model has {engine.positions} positions, got a token at {int(positions.max())}.")
        logits = torch.empty(len(outputs), model.width)
        members = team()
        size = engine.library.thread_bytes(ctypes.byref(model), max(group.count for group in groups))
        given = {"order": order, "token": torch.tensor(tokens), "position": positions, "own": own, "place": places}
        scratch = engine.scratch(len(tokens), self._adapter, members.count * size)
        batch = structures.Batch(
            rows=len(tokens),
            groups=len(groups),
            group=(structures.Group * len(groups))(*groups),
            cache=self._caches,
            outputs=len(outputs),
            output=outputs.data_ptr(),
            lora=None if self._adapter is None else self._adapter.table,
            logits=logits.data_ptr(),
            thread_bytes=size,
            **addresses(given | scratch),
        )
        engine.library.forward(ctypes.byref(model), ctypes.byref(batch), ctypes.byref(members))
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


def _stated(cache: tuple[Tensor, ...]) -> structures.Cache:
    """A cache of one row (1, layers, kv, tokens * dim) as the compiled code takes it."""
    keys, values = cache
    return structures.Cache(
        keys=keys.data_ptr(), values=values.data_ptr(), layer_stride=keys.stride(1), head_stride=keys.stride(2)
    )
