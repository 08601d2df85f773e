"""Several samplers in the place of one: prompts are spread over them, and every reply is the one that a single sampler gives.

That holds because a reply of the compiled code depends on its prompt, adapter, sampling parameters and seed alone, to the last
bit, as long as no reply is kept in a cache. A base that other code would run is refused. So the spread may follow what is quick:
equal prompts go to one sampler, which computes them once, and a conversation that continues goes where it is cached.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from onthejob.errors import ConfigError, ContractError, ScaleError
from onthejob.models.chat import ChatEncoder
from onthejob.scale.runtime import LIMIT_S, Crew, Facts, Job, Results, Runtime, merged
from onthejob.scale.sampler_job import AskedReplies, MissingAdapters, SamplerSpec, SentAdapter
from onthejob.types import Adapter, Completion, Sampling

log = logging.getLogger(__name__)

Prompt = tuple[int, ...]
PROBE_TEXT = "The quick brown fox jumps over the lazy dog."
"""Its log-probabilities must be equal in all samplers before a version of an adapter is asked for."""
TOKEN_S = 0.1
"""Seconds of a call per token of prompts and replies, where that is more than a job's usual limit."""
UNEVEN = 1.25
"""A conversation stays with its sampler up to this share of the mean load."""


class CrewSampler:
    """A `Sampler` of several processes or actors."""

    def __init__(self, runtime: Runtime, count: int, chat: ChatEncoder, spec: SamplerSpec) -> None:
        """Start all samplers and wait until they can work.

        Args:
            runtime: starts them.
            count: >= 1.
            chat: of the same model.
            spec: what they load.

        Raises:
            ConfigError: one of them has another base, another processor's code, or other versions.
            ScaleError: one cannot be started.
        """
        self.chat = chat
        self._spec, self._runtime, self._count = spec, runtime, count
        self._facts = merged(spec.base.facts, Facts(functions=(("onthejob.models.engines:engine_here", (spec.base.dtype,)),)))
        # A crew each: what is sent to a sampler is for this one.
        self._crews = [runtime.crew("sampler", 1, facts=self._facts) for _ in range(count)]
        self._live: dict[str, SentAdapter] = {}
        self._probe = tuple(chat.tokenizer.encode(PROBE_TEXT, add_special_tokens=False))
        self._homes: dict[str | None, dict[int, dict[Prompt, int]]] = {}
        """Adapter -> length -> prompt of its last call -> number of the sampler that has it."""
        self._calls = 0
        for crew in self._crews:
            crew.start()
        for crew in self._crews:
            crew.wait_ready(all_of_them=True)

    @property
    def published(self) -> tuple[str, ...]:
        """Names of the adapters that can be sampled."""
        return tuple(self._live)

    def publish(self, adapter: Adapter, *, keep: bool = False) -> None:
        """Let `adapter.name` be sampled, once every sampler has loaded it and computes the same numbers with it.

        Args:
            adapter: an immutable directory in PEFT format.
            keep: keep older versions of the role too.

        Raises:
            ModelError: the directory is not an adapter of this base.
            ContractError: another adapter with this name is published: versions are immutable.
            ScaleError: samplers keep being lost, or one computes other numbers after a restart too.
        """
        known = self._live.get(adapter.name)
        if known is not None:
            if known.digest != adapter.digest:
                raise ContractError(f"adapter {adapter.name} is published with other weights. Save a new version.")
            return
        sent = SentAdapter.of(adapter)
        with self._runtime.share([sent]) as shared:
            found = [self._published(crew, shared) for crew in self._crews]
            scores = [results() for results in found]
        for number, one in enumerate(scores):
            if one != scores[0]:
                self._renew(number, adapter, sent, scores[0])
        # All have it: from now on it may be asked for.
        if not keep:
            for name in [name for name, other in self._live.items() if other.role == adapter.role]:
                self.withdraw(name)
        self._live[adapter.name] = sent

    def withdraw(self, name: str) -> None:
        """Forget a published adapter; samplers do with their next call."""
        if name not in self._live:
            raise ContractError(f"adapter {name!r} is not published. Published are: {', '.join(self._live) or 'none'}.")
        del self._live[name]
        self._homes.pop(name, None)

    def generate(
        self, prompts: Sequence[Prompt], *, adapter: str | None, sampling: Sampling, seeds: Sequence[int]
    ) -> list[Completion]:
        """As `LocalSampler.generate`.

        Raises:
            ScaleError: samplers keep being lost.
        """
        if len(seeds) != len(prompts) or not all(prompts):
            raise ContractError(
                f"generate needs non-empty prompts and one seed for each, got {len(prompts)} and {len(seeds)} seeds."
            )
        if adapter is not None and adapter not in self._live:
            raise ContractError(f"adapter {adapter!r} is not published. Published are: {', '.join(self._live) or 'none'}.")
        homes = self._homes.get(adapter, {})
        parts = spread([tuple(prompt) for prompt in prompts], len(self._crews), limit=sampling.max_new_tokens, homes=homes)
        jobs: dict[int, Job] = {}
        for number, indices in parts.items():
            asked = AskedReplies(
                adapter=adapter,
                live=tuple(self._live),
                prompts=tuple(tuple(prompts[index]) for index in indices),
                sampling=sampling,
                seeds=tuple(seeds[index] for index in indices),
            )
            jobs[number] = self._job("generate", (self._spec, asked), tokens=_tokens(asked))
        waiting = {number: self._crews[number].submit([job]) for number, job in jobs.items()}
        replies: list[Completion | None] = [None] * len(prompts)
        placed: dict[int, dict[Prompt, int]] = defaultdict(dict)
        for number, results in waiting.items():
            for index, reply in zip(parts[number], self._replies(number, jobs[number], results), strict=True):
                replies[index] = reply
                placed[len(prompts[index])][tuple(prompts[index])] = number
        self._homes[adapter] = dict(placed)
        return [reply for reply in replies if reply is not None]

    def _replies(self, number: int, job: Job, results: Results) -> list[Completion]:
        """What a sampler answered; one that was started anew is given all live adapters first."""
        while isinstance(answer := results()[job.key], MissingAdapters):
            log.warning("sampler %d lacks %s; all live adapters are sent to it", number, ", ".join(answer.names))
            with self._runtime.share(list(self._live.values())) as shared:
                self._published(self._crews[number], shared)()
            results = self._crews[number].submit([job])
        return answer

    def _published(self, crew: Crew, shared: Any) -> Any:
        """shared: the adapters that are sent, of `Runtime.share`."""
        job = self._job("publish", (self._spec, self._probe), tokens=len(self._probe), shared=shared)
        results = crew.submit([job])
        return lambda: results()[job.key]

    def _renew(self, number: int, adapter: Adapter, sent: SentAdapter, expected: Any) -> None:
        """Start a sampler anew that computes other numbers than the first, with all adapters."""
        log.warning("sampler %d computes other numbers with %s and is started anew", number, adapter.name)
        self._crews[number].close()
        self._crews[number] = self._runtime.crew("sampler", 1, facts=self._facts)
        with self._runtime.share([*self._live.values(), sent]) as shared:
            *_, found = self._published(self._crews[number], shared)()
        if (found,) != expected:
            raise ScaleError(
                f"sampler {number} computes other numbers with {adapter.name} than sampler 0, also after a restart. Look at the "
                "processors of the nodes: all must have the same instructions."
            )

    def _job(self, function: str, arguments: tuple[Any, ...], *, tokens: int, shared: Any = None) -> Job:
        self._calls += 1
        return Job(
            key=f"{function}/{self._calls:06d}",
            function=f"onthejob.scale.sampler_job:{function}",
            arguments=arguments,
            work=max(1.0, tokens),
            shelf="sampler",
            limit_s=max(LIMIT_S, TOKEN_S * tokens),
            shared=shared,
        )


def spread(
    prompts: Sequence[Prompt], count: int, *, limit: int, homes: Mapping[int, Mapping[Prompt, int]]
) -> dict[int, list[int]]:
    """Number of a sampler -> indices of the prompts that it gets; a sampler without any is not listed.

    Equal prompts stay together. A prompt that continues one of `homes` goes there, unless that sampler has much to do already;
    then, and all others, to the sampler with the least work, the largest first.

    Args:
        prompts: token ids.
        count: samplers.
        limit: of a reply in tokens.
        homes: length -> prompt of the last call -> sampler that has it in its caches.
    """
    members: dict[Prompt, list[int]] = defaultdict(list)
    for index, prompt in enumerate(prompts):
        members[prompt].append(index)
    cost = {prompt: len(prompt) + limit * len(indices) for prompt, indices in members.items()}
    most = UNEVEN * sum(cost.values()) / count
    load = [0.0] * count
    parts: dict[int, list[int]] = defaultdict(list)
    lengths = sorted(homes, reverse=True)
    for prompt in sorted(members, key=lambda one: -cost[one]):
        known = (homes[length].get(prompt[:length]) for length in lengths if length < len(prompt))
        home = next((number for number in known if number is not None), None)
        if home is None or load[home] + cost[prompt] > most:
            home = min(range(count), key=lambda number: load[number])
        load[home] += cost[prompt]
        parts[home] += members[prompt]
    return {number: sorted(parts[number]) for number in sorted(parts)}


def check_exact(model: Any) -> None:
    """Refuse a base that several samplers could not sample as one does.

    Raises:
        ConfigError: the compiled code does not run it here.
    """
    from onthejob.models.engines import is_batch_invariant

    if not is_batch_invariant(model):
        raise ConfigError(
            "--scale.samplers needs the compiled code, as with torch a reply's last bits depend on what else is sampled with it, "
            "and this base or machine does without. `onthejob doctor` says why. Omit --scale.samplers."
        )


def _tokens(asked: AskedReplies) -> int:
    return sum(len(prompt) + asked.sampling.max_new_tokens for prompt in asked.prompts)
