"""The worker's side of sampling: published adapters, and prompts in, replies out.

A sampler keeps the base model, the adapters that it was sent, and caches of prompts. With compiled code a reply is a function of
its prompt, adapter, sampling parameters and seed alone, to the last bit, so none of these changes one. Only cached replies would,
as their keys and values were computed token by token; a sampler keeps none.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onthejob.models.encoder import load_encoder
from onthejob.models.fetch import fetch
from onthejob.models.sampler import LocalSampler
from onthejob.models.template import read_arguments
from onthejob.scale.base_spec import BaseSpec
from onthejob.types import Adapter, Completion, Sampling

FILES = ("adapter_config.json", "adapter_meta.json", "adapter_model.safetensors")
"""Of an adapter, which travel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerSpec:
    """What all samplers of a run have in common."""

    base: BaseSpec
    base_digest: str
    """Of the base's weights; adapters of another base are refused."""
    arguments: tuple[str, ...]
    """Of the chat template, each `NAME=VALUE`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentAdapter:
    """An adapter as it travels."""

    role: str
    version: int
    parent: str | None
    digest: str
    files: tuple[tuple[str, bytes], ...]

    @classmethod
    def of(cls, adapter: Adapter) -> SentAdapter:
        """Read the files of an adapter."""
        files = tuple((name, (adapter.path / name).read_bytes()) for name in FILES if (adapter.path / name).is_file())
        return cls(role=adapter.role, version=adapter.version, parent=adapter.parent, digest=adapter.digest, files=files)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedReplies:
    """Prompts of one adapter."""

    adapter: str | None
    live: tuple[str, ...]
    """Names of all adapters that may be asked for; a sampler forgets the others."""
    prompts: tuple[tuple[int, ...], ...]
    sampling: Sampling
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingAdapters:
    """Answer of a sampler that does not have all live adapters, e.g. because it was started in the place of a lost one."""

    names: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class _Held:
    sampler: Any

    def close(self) -> None:
        self.sampler = None


def publish(
    shelf: dict[str, Any], spec: SamplerSpec, probe: tuple[int, ...], sent: Sequence[SentAdapter]
) -> tuple[tuple[float, ...], ...]:
    """Admit and load adapters; a job.

    Returns:
        Of each adapter the log-probabilities of the probe's tokens but the first.

    Raises:
        ModelError: one is not an adapter of this base, or damaged.
    """
    sampler = _sampler(shelf, spec)
    for one in sent:
        adapter = Adapter(role=one.role, version=one.version, path=Path(), parent=one.parent, digest=one.digest)
        if adapter.name in sampler.published:
            continue
        with tempfile.TemporaryDirectory(prefix="onthejob-adapter-") as folder:
            for name, content in one.files:
                (Path(folder) / name).write_bytes(content)
            placed = Adapter(role=one.role, version=one.version, path=Path(folder), parent=one.parent, digest=one.digest)
            sampler.publish(placed, keep=True)
    names = [f"{one.role}@{one.version:04d}" for one in sent]
    return tuple(tuple(sampler.score(probe, adapter=name)) for name in names)


def generate(shelf: dict[str, Any], spec: SamplerSpec, asked: AskedReplies) -> list[Completion] | MissingAdapters:
    """One reply per prompt, in order; a job."""
    sampler = _sampler(shelf, spec)
    if missing := tuple(name for name in asked.live if name not in sampler.published):
        return MissingAdapters(names=missing)
    for name in sampler.published:
        if name not in asked.live:
            sampler.withdraw(name)
    return sampler.generate(asked.prompts, adapter=asked.adapter, sampling=asked.sampling, seeds=asked.seeds)


def _sampler(shelf: dict[str, Any], spec: SamplerSpec) -> LocalSampler:
    held = shelf.get("sampler")
    if held is None:
        chat = load_encoder(fetch(spec.base.model), arguments=read_arguments(spec.arguments))
        sampler = LocalSampler(spec.base.load().model, chat, engine="native", base_digest=spec.base_digest)
        held = shelf["sampler"] = _Held(sampler=sampler)
    return held.sampler
