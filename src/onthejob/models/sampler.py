"""The in-process sampler: many replies in lock step, one adapter per call, on the base model's own weights.

What makes it fast on a CPU, and exact:

* equal prompts are computed once, whatever the number of replies, and the first turn of a prompt (a role's constant system
  message) is kept across calls per adapter; it is always computed by a forward of its own, so that a process that resumes
  gets bit-identical numbers whether the cache was warm or not;
* many prompts with the same first turn attend to it together, as one trunk;
* a conversation that continues is, from its third turn on, not computed again: what an adapter was asked in its last call is kept
  when it holds a reply, and a prompt that extends it begins there. Where conversations usually continue (`goes_on`), that holds
  from the second turn on, replies included, so that nothing but what was heard in between is computed;
* replies of one prompt are one row for as long as they are equal (same tokens so far, same distribution), and part when they
  draw different tokens; finished rows leave the batch;
* adapters are never merged: the base's weights are shared with the learner and are never written.

Every draw is keyed by the reply's own seed. With torch operations a batch's composition can change the last
bits of a matrix product, and nothing else; with compiled code it changes nothing.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from onthejob.errors import ConfigError, ContractError
from onthejob.models.adapter_weights import read_adapter_weights, read_logit_scale
from onthejob.models.chat import ChatEncoder
from onthejob.models.draw import uniforms
from onthejob.models.engines import Engine, make_engine, without_adapters
from onthejob.models.kv_cache import Conversations, Said
from onthejob.models.targets import linear_layers
from onthejob.models.window import context_window, refuse_longer
from onthejob.progress import Progress
from onthejob.types import Adapter, Completion, Sampling

log = logging.getLogger(__name__)

_WORTH = 2048
"""Tokens whose keys are read once instead of once per prompt that make a trunk worth its small operations per layer."""
_SHARE = 0.25
"""A trunk is at least this share of what the prompts have behind it, as its own cost grows with that (measured: a step takes
0.72 of its time for 64 prompts with 600 of 1,300 tokens in common, and all of it with 110 of 700)."""


@dataclass(slots=True, kw_only=True)
class SamplerStats:
    """Counters since the sampler was made; only ever grow."""

    prefilled: int = 0
    """Prompt tokens computed."""
    cached: int = 0
    """Prompt tokens that needed no computation: equal prompts, cached first turns and conversations that continued."""
    decoded: int = 0
    """Tokens sampled."""
    forwarded: int = 0
    """Rows computed while decoding: below `decoded`, because equal beginnings share a row."""
    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Published:
    adapter: Adapter
    lora: Any
    logit_scale: float


@dataclass(slots=True)
class _Reply:
    uniform: Any
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Sampler:
    """Samples completions from a base model and its published adapters."""

    def __init__(
        self,
        model: Any,
        chat: ChatEncoder,
        *,
        max_rows: int = 256,
        max_tokens: int = 98304,
        prefix_cache_tokens: int = 16384,
        conversation_cache_tokens: int = 49152,
        goes_on: bool = False,
        share_beginnings: bool = True,
        engine: Engine = "auto",
        base_digest: str = "",
    ) -> None:
        """A sampler on a model that may be trained at the same time.

        Args:
            model: a causal language model or a PeftModel around one; its weights are shared, its own adapters are ignored.
            chat: of the same model.
            max_rows: largest number of replies in lock step.
            max_tokens: of prompts and of replies at their limit for which keys and values are held at once; bounds memory (46 kB
                each for SmolLM2-135M in float32). What does not fit is sampled after it. One reply is sampled whatever its size.
            prefix_cache_tokens: how many tokens of first turns are kept (least recently used go first). 0 keeps none.
            conversation_cache_tokens: how many tokens of conversations that may continue are kept between calls (22 kB each for
                SmolLM2-135M in bfloat16); those of the adapter that was asked longest ago go first. 0 keeps none.
            goes_on: a context and its reply usually come back with more behind them, as in a shell, so every one is kept.
            share_beginnings: replies of one prompt share a row while they are equal, and prompts with the same long first turn
                attend to it together. False only serves measurements.
            engine: what runs the model: `native` compiled code, `torch` operations on Llama-shaped models, or the model's own
                forward, `transformers`. `auto` takes the first of them that suits model and machine.
            base_digest: of the base's weights; adapters trained on another base are then refused.

        Raises:
            ConfigError: max_rows or max_tokens below 1.
            ContractError: an adapter is merged into the model's weights.
            ModelError: the model's cache is of a kind that cannot be shared, or the stated engine cannot run it here.
        """
        if min(max_rows, max_tokens) < 1:
            raise ConfigError(f"max_rows and max_tokens must be >= 1, got {max_rows} and {max_tokens}. Usual: 256 and 98304.")
        self.chat = chat
        self.stats = SamplerStats()
        self._max_rows = max_rows
        self._max_tokens = max_tokens
        self._goes_on = goes_on
        self._share_beginnings = share_beginnings
        self._base_digest = base_digest
        own = without_adapters(model)
        self._window = context_window(own.config)
        self._shapes = linear_layers(own)
        self._engine = make_engine(own, engine)
        log.info("engine: %s", self._engine.describe())
        self._published: dict[str, _Published] = {}
        self._prefixes: OrderedDict[tuple[str | None, tuple[int, ...]], Any] = OrderedDict()
        self._prefix_budget = prefix_cache_tokens
        self._conversations = Conversations(conversation_cache_tokens)

    @property
    def published(self) -> tuple[str, ...]:
        """Names of the adapters that can be sampled."""
        return tuple(self._published)

    def publish(self, adapter: Adapter, *, keep: bool = False) -> None:
        """Load an adapter; from now on `adapter.name` can be sampled.

        Args:
            adapter: an immutable directory in PEFT format.
            keep: keep older versions of the role too (to compare them); by default they are dropped.

        Raises:
            ModelError: the directory is not an adapter of this base (see `read_adapter_weights`).
            ContractError: another adapter with this name is published: versions are immutable.
        """
        known = self._published.get(adapter.name)
        if known is not None:
            if known.adapter.digest != adapter.digest or known.adapter.path != adapter.path:
                raise ContractError(
                    f"adapter {adapter.name} is published from {known.adapter.path} already, got {adapter.path}. "
                    "Versions are immutable: save a new version, or withdraw this one first."
                )
            return
        pairs = read_adapter_weights(adapter, self._shapes, device=self._engine.device, base_digest=self._base_digest)
        published = _Published(adapter, self._engine.adapt(pairs), read_logit_scale(adapter.path))
        if not keep:
            for name in [name for name, other in self._published.items() if other.adapter.role == adapter.role]:
                self.withdraw(name)
        self._published[adapter.name] = published
        log.debug("published %s with %d projections", adapter.name, len(pairs))

    def withdraw(self, name: str) -> None:
        """Forget a published adapter and what is cached for it."""
        self._lora(name)
        del self._published[name]
        self._conversations.forget(name)
        for key in [key for key in self._prefixes if key[0] == name]:
            del self._prefixes[key]

    @torch.inference_mode()
    def generate(
        self, prompts: Sequence[tuple[int, ...]], *, adapter: str | None, sampling: Sampling, seeds: Sequence[int]
    ) -> list[Completion]:
        """One completion per prompt, in order.

        Args:
            prompts: token ids; equal prompts are computed once.
            adapter: name of a published adapter, or None for the base.
            sampling: temperature, which divides the logits after the adapter's own scale multiplied them, and token limit.
            seeds: one per prompt, >= 0; a completion is a function of its prompt, adapter, sampling and seed.

        Raises:
            ContractError: empty prompts, a different number of seeds, or an adapter that is not published.
            ConfigError: sampling parameters out of range, or a prompt and its reply at the limit exceed the model's context.
            ModelError: the model returned non-finite numbers.
        """
        lora, scale = (None, 1.0) if adapter is None else (self._lora(adapter), self._published[adapter].logit_scale)
        if len(seeds) != len(prompts) or not all(prompts):
            raise ContractError(
                f"generate needs non-empty prompts and one seed for each, got {len(prompts)} and {len(seeds)} seeds."
            )
        if not (0.0 <= sampling.temperature < float("inf")) or sampling.max_new_tokens < 1:
            raise ConfigError(
                "temperature must be finite and >= 0 and max_new_tokens >= 1, "
                f"got {sampling.temperature} and {sampling.max_new_tokens}."
            )
        refuse_longer(self._window, prompts, new_tokens=sampling.max_new_tokens)
        sampling = replace(sampling, temperature=sampling.temperature / scale)
        replies = [_Reply(uniforms(seed, sampling.max_new_tokens)) for seed in seeds]
        said, progress = Said(self._conversations.bound), Progress("sampling")
        for chunk in self._chunks([tuple(prompt) for prompt in prompts], sampling.max_new_tokens):
            self._run(chunk, replies, adapter, lora, sampling, said, progress)
        self._conversations.replace(adapter, said)
        self.stats.decoded += sum(len(reply.tokens) for reply in replies)
        return [self._completion(reply) for reply in replies]

    @torch.inference_mode()
    def score(self, ids: Sequence[int], *, adapter: str | None) -> list[float]:
        """Log-probabilities of ids[1:], each given what comes before it, of the logits as they are; one step per token."""
        if len(ids) < 2:
            raise ContractError(f"score needs at least two ids, got {len(ids)}.")
        lora = None if adapter is None else self._lora(adapter)
        batch = self._engine.batch([1], rows=1, new_tokens=len(ids), lora=lora)
        logits = batch.prefill([(0, tuple(ids[:1]), 0)])[0]
        scores = []
        for token in ids[1:]:
            scores.append(float(torch.log_softmax(logits.double(), dim=-1)[token]))
            batch.select([0])
            logits = batch.step([token])[0]
        return scores

    def _lora(self, name: str) -> Any:
        if name not in self._published:
            raise ContractError(f"adapter {name!r} is not published. Published are: {', '.join(self._published) or 'none'}.")
        return self._published[name].lora

    def _chunks(self, prompts: Sequence[tuple[int, ...]], limit: int) -> list[dict[tuple[int, ...], list[int]]]:
        """Replies (indices) by prompt, cut where a chunk would exceed max_rows or max_tokens with replies of `limit` tokens."""
        by_prompt: dict[tuple[int, ...], list[int]] = {}
        for index, prompt in enumerate(prompts):
            by_prompt.setdefault(prompt, []).append(index)
        chunks: list[dict[tuple[int, ...], list[int]]] = []
        rows = tokens = 0
        for prompt, members in by_prompt.items():
            most = max(1, min(self._max_rows, (self._max_tokens - len(prompt)) // limit))
            for start in range(0, len(members), most):
                part = members[start : start + most]
                size = len(prompt) + len(part) * limit
                if not chunks or rows + len(part) > self._max_rows or tokens + size > self._max_tokens:
                    chunks.append({})
                    rows = tokens = 0
                chunks[-1][prompt] = part
                rows, tokens = rows + len(part), tokens + size
        return chunks

    def _run(
        self,
        chunk: Mapping[tuple[int, ...], list[int]],
        replies: list[_Reply],
        adapter: str | None,
        lora: Any,
        sampling: Sampling,
        said: Said,
        progress: Progress,
    ) -> None:
        """Sample one chunk in lock step; fills the replies' tokens and logprobs, and `said` with what may continue."""
        started = time.perf_counter()
        # Neighbours of similar length can attend together without much padding.
        chunk = dict(sorted(chunk.items(), key=lambda item: -len(item[0])))
        limit = sampling.max_new_tokens
        batch = self._engine.batch(
            [len(prompt) for prompt in chunk],
            rows=sum(map(len, chunk.values())),
            new_tokens=limit,
            lora=lora,
            trunk=self._trunk(chunk, adapter, lora),
        )
        logits = batch.prefill(
            [(slot, prompt, self._load(batch, slot, prompt, adapter, lora)) for slot, prompt in enumerate(chunk)]
        )
        self.stats.cached += sum(len(prompt) * (len(members) - 1) for prompt, members in chunk.items())
        for slot, prompt in enumerate(chunk):
            # A context without a reply is usually asked once; when it continues, it is computed once more and kept from then on.
            if not self._goes_on and self.chat.turns(prompt) > 2:
                said.keep(prompt, partial(batch.prefix, slot))
        asked = {member: prompt for prompt, members in chunk.items() for member in members}
        decoding = time.perf_counter()
        self.stats.prefill_s += decoding - started
        rows = list(chunk.values())
        for time_step in range(limit):
            members = [member for row in rows for member in row]
            of_row = [row for row, owners in enumerate(rows) for _ in owners]
            u = torch.tensor([replies[member].uniform[time_step] for member in members], dtype=torch.float64)
            tokens, logprobs = self._engine.draw(logits, of_row, u, temperature=sampling.temperature)
            for member, token, logprob in zip(members, tokens, logprobs, strict=True):
                replies[member].tokens.append(token)
                replies[member].logprobs.append(logprob)
            last = time_step == limit - 1
            if self._goes_on:
                for row, owners in enumerate(rows):
                    for member in owners:
                        if last or replies[member].tokens[-1] in self.chat.end_ids:
                            said.keep_reply(batch, row, asked[member], replies[member].tokens)
            sources, rows = self._continue(rows, replies)
            if not rows or last:
                break
            batch.select(sources)
            logits = batch.step([replies[owners[0]].tokens[-1] for owners in rows])
            self.stats.forwarded += len(rows)
            if progress.due:
                sampled = sum(len(reply.tokens) for reply in replies)
                progress.say(f"{sampled:,} tokens of {len(replies)} replies, {sampled / progress.seconds:,.0f} tokens/s")
        self.stats.decode_s += time.perf_counter() - decoding

    def _continue(self, rows: Sequence[list[int]], replies: Sequence[_Reply]) -> tuple[list[int], list[list[int]]]:
        """The next step's rows: where each comes from, and whose replies it is.

        Rows keep their place where they can; what finished leaves a hole that a newly parted or the last row fills.
        """
        children: list[list[list[int]]] = []
        for owners in rows:
            parted: dict[int, list[int]] = {}
            for order, member in enumerate(owners):
                token = replies[member].tokens[-1]
                if token not in self.chat.end_ids:
                    parted.setdefault(token if self._share_beginnings else -order, []).append(member)
            children.append(list(parted.values()))
        count = sum(len(parts) for parts in children)
        placed: list[tuple[int, list[int]] | None] = [None] * count
        waiting = []
        for source, parts in enumerate(children):
            for order, owners in enumerate(parts):
                if order == 0 and source < count:
                    placed[source] = (source, owners)
                else:
                    waiting.append((source, owners))
        filler = iter(waiting)
        settled = [place if place is not None else next(filler) for place in placed]
        return [source for source, _ in settled], [owners for _, owners in settled]

    def _load(self, batch: Any, slot: int, prompt: tuple[int, ...], adapter: str | None, lora: Any) -> int:
        """Load what is known of a prompt; the position from which on it is to be computed.

        Its beginning is taken from the conversation that it extends, or else from the cached first turn, which is computed by a
        forward of its own.
        """
        length = self.chat.prefix_length(prompt)
        start = 0
        begun = self._conversations.begun(adapter, prompt)
        if begun is not None:
            start = batch.load_prefix(slot, begun)
            self.stats.cached += start
        elif 0 < length < len(prompt):
            prefix, computed = self._first_turn(prompt[:length], adapter, lora)
            start = batch.load_prefix(slot, prefix)
            self.stats.cached += 0 if computed else length
        self.stats.prefilled += len(prompt) - start
        return start

    def _trunk(self, prompts: Collection[tuple[int, ...]], adapter: str | None, lora: Any) -> Any:
        """The cached first turn when all prompts begin with it, and attending to it apart saves enough; else None."""
        if not (self._share_beginnings and self._engine.trunks):
            return None
        first = next(iter(prompts))
        length = self.chat.prefix_length(first)
        if length * (len(prompts) - 1) < _WORTH:
            return None
        if length < _SHARE * (sum(map(len, prompts)) / len(prompts) - length):
            return None
        if any(len(prompt) == length or prompt[:length] != first[:length] for prompt in prompts):
            return None
        return self._first_turn(first[:length], adapter, lora)[0]

    def _first_turn(self, ids: tuple[int, ...], adapter: str | None, lora: Any) -> tuple[Any, bool]:
        """Keys and values of a first turn, and whether they had to be computed now."""
        key = (adapter, ids)
        if key in self._prefixes:
            self._prefixes.move_to_end(key)
            return self._prefixes[key], False
        batch = self._engine.batch([len(ids)], rows=0, new_tokens=0, lora=lora)
        batch.prefill([(0, ids, 0)])
        self.stats.prefilled += len(ids)
        prefix = batch.prefix(0)
        self._prefixes[key] = prefix
        while sum(len(kept) for _, kept in self._prefixes) > self._prefix_budget:
            self._prefixes.popitem(last=False)
        return prefix, True

    def _completion(self, reply: _Reply) -> Completion:
        stopped = reply.tokens[-1] in self.chat.end_ids
        return Completion(
            text=self.chat.decode(reply.tokens),
            token_ids=tuple(reply.tokens),
            logprobs=tuple(reply.logprobs),
            finish_reason="stop" if stopped else "length",
        )
