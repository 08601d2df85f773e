"""The general way to run any causal language model of transformers: its own forward with its own key-value cache.

Slower than `llama`, with the same interface, so that models of the hub work in the in-process sampler. Only models whose cache is
keys and values per layer can share prompts and drop rows; others (recurrent states) are refused. Layers with a sliding window
keep all keys and values, of which their own mask hides those that are too far back: a cache that forgets could not drop rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from onthejob.errors import ModelError
from onthejob.models.adapter_weights import LoraPair
from onthejob.models.buckets import Prompt
from onthejob.models.draw import draw


def check_cache(config: Any) -> None:
    """Refuse a model that the in-process sampler cannot run, by its configuration alone.

    Raises:
        ModelError: it remembers more, or in another way, than keys and values.
    """
    layers = DynamicCache(config=config).layers
    plain = (DynamicLayer, DynamicSlidingWindowLayer)
    unusual = next((type(layer).__name__ for layer in layers if type(layer) not in plain), None)
    if unusual is not None:
        raise ModelError(
            f"the in-process sampler needs a plain key-value cache, {config.model_type!r} uses {unusual}. "
            "Serve this model with vLLM instead."
        )


class GenericEngine:
    """Runs one causal language model through its forward."""

    trunks: ClassVar[bool] = False
    """A batch takes no trunk."""
    draw = staticmethod(draw)

    def __init__(self, model: Any) -> None:
        self.model = model
        self.modules: dict[str, nn.Module] = dict(model.named_modules())
        embedding = model.get_input_embeddings().weight
        self.dtype, self.device = embedding.dtype, embedding.device
        # transformers 5.24 renamed the argument in its own models; older ones, and models with code of their own, did not.
        self._cache_argument = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"
        check_cache(model.config)

    def describe(self) -> str:
        """What runs the model, in a few words."""
        return "the model's own forward"

    def adapt(self, pairs: Mapping[str, LoraPair]) -> Mapping[str, LoraPair]:
        """The adapter in the form that `batch` takes."""
        return pairs

    def batch(self, lengths: Sequence[int], *, rows: int, new_tokens: int, lora: Any, trunk: None = None) -> GenericBatch:
        """A batch of `len(lengths)` prompts without a trunk; as its caches grow, `rows` and `new_tokens` are not used."""
        return GenericBatch(self, lengths, lora=lora or {})

    def forward(self, ids: Tensor, cache: DynamicCache, lora: Mapping[str, LoraPair], **inputs: Any) -> Tensor:
        """Logits of the last position (rows, vocab); the adapter is added to the projections' outputs during this call only."""
        hooks = [self.modules[name].register_forward_hook(partial(_add_delta, pair)) for name, pair in lora.items()]
        try:
            inputs[self._cache_argument] = cache
            return self.model(input_ids=ids, use_cache=True, logits_to_keep=1, **inputs).logits[:, -1]
        finally:
            for hook in hooks:
                hook.remove()


class GenericBatch:
    """Caches of some prompts, joined (padded on the left) at the first step; see `LlamaBatch` for the contract."""

    def __init__(self, engine: GenericEngine, lengths: Sequence[int], *, lora: Mapping[str, LoraPair]) -> None:
        self._engine = engine
        self._lora = lora
        self._lengths = list(lengths)
        self._prompts = [DynamicCache() for _ in lengths]
        self._slots = list(range(len(lengths)))
        self._joined: DynamicCache | None = None
        self._mask = torch.zeros(0)
        self._time = 0

    def load_prefix(self, slot: int, prefix: Sequence[tuple[Tensor, Tensor]]) -> int:
        """Begin a prompt with cached (1, kv_heads, tokens, dim) pairs, one per layer; returns their token count."""
        for index, (keys, values) in enumerate(prefix):
            self._prompts[slot].update(keys, values, index)
        return prefix[0][0].shape[2]

    def prefix(self, slot: int) -> list[tuple[Tensor, Tensor]]:
        """A prompt's keys and values, for `load_prefix` of another batch."""
        return _pairs(self._prompts[slot])

    def conversation(self, row: int, like: object = None) -> list[tuple[Tensor, Tensor]]:
        """A row's prompt and what it sampled, but for the last token; nothing is shared with `like`."""
        if self._joined is None:
            return self.prefix(self._slots[row])
        length = self._lengths[self._slots[row]] + self._time
        return [
            (keys[row : row + 1, :, -length:].clone(), values[row : row + 1, :, -length:].clone())
            for keys, values in _pairs(self._joined)
        ]

    def prefill(self, prompts: Sequence[Prompt]) -> Tensor:
        """Compute prompts, each (slot, ids, where what is not loaded begins); the next tokens' logits (prompts, vocab)."""
        return torch.stack([self._prefill(*prompt) for prompt in prompts])

    def _prefill(self, slot: int, ids: Sequence[int], start: int) -> Tensor:
        tokens = torch.tensor([ids[start:]], device=self._engine.device)
        positions = torch.arange(start, len(ids), device=self._engine.device)[None]
        mask = torch.ones(1, len(ids), dtype=torch.long, device=self._engine.device)
        return self._engine.forward(tokens, self._prompts[slot], self._lora, position_ids=positions, attention_mask=mask)[0]

    def select(self, sources: Sequence[int]) -> None:
        """Row i becomes a copy of the former row sources[i]."""
        if list(sources) == list(range(len(self._slots))):
            return
        self._slots = [self._slots[source] for source in sources]
        if self._joined is not None:
            index = torch.tensor(sources, device=self._engine.device)
            self._mask = self._mask[index]
            self._joined = self._cache([(k[index], v[index]) for k, v in _pairs(self._joined)])

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Append one token to every row; returns the logits of the next one (rows, vocab)."""
        if self._joined is None:
            self._joined = self._join()
        device = self._engine.device
        self._mask = torch.cat([self._mask, torch.ones(len(tokens), 1, dtype=torch.long, device=device)], 1)
        positions = torch.tensor([[self._lengths[slot] + self._time] for slot in self._slots], device=device)
        self._time += 1
        ids = torch.tensor(tokens, device=device)[:, None]
        return self._engine.forward(ids, self._joined, self._lora, position_ids=positions, attention_mask=self._mask)

    def _join(self) -> DynamicCache:
        longest = max(self._lengths[slot] for slot in self._slots)
        padding = [longest - self._lengths[slot] for slot in self._slots]
        prompts = [_pairs(self._prompts[slot]) for slot in self._slots]
        pad = torch.nn.functional.pad
        joined = [
            tuple(
                torch.cat([pad(prompt[layer][half], (0, 0, left, 0)) for prompt, left in zip(prompts, padding, strict=True)])
                for half in (0, 1)
            )
            for layer in range(len(prompts[0]))
        ]
        device = self._engine.device
        self._mask = (torch.arange(longest, device=device)[None] >= torch.tensor(padding, device=device)[:, None]).long()
        self._prompts = []
        return self._cache(joined)

    def _cache(self, pairs: Sequence[tuple[Tensor, ...]]) -> DynamicCache:
        cache = DynamicCache()
        for index, (keys, values) in enumerate(pairs):
            cache.update(keys, values, index)
        return cache


def _pairs(cache: Any) -> list[tuple[Tensor, Tensor]]:
    return [(layer.keys, layer.values) for layer in cache.layers]


def _add_delta(pair: LoraPair, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return (output + pair.delta(args[0])).to(output.dtype)
