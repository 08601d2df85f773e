"""A sampler's adapters as policies."""

from __future__ import annotations

from collections.abc import Sequence

from onthejob.models.chat import ChatEncoder
from onthejob.types import Completion, Context, Sampler, Sampling


class InProcessPolicy:
    """One adapter of a sampler (or the base) as a policy."""

    def __init__(self, sampler: Sampler, chat: ChatEncoder, *, adapter: str | None, name: str = "base") -> None:
        """adapter: a published adapter's name, or None for the base; name: the version recorded then."""
        self._sampler = sampler
        self._chat = chat
        self._adapter = adapter
        self._name = name

    @property
    def version(self) -> str:
        return self._adapter or self._name

    @property
    def reads(self) -> str:
        return "tokens"

    def act(self, contexts: Sequence[Context], sampling: Sampling) -> list[Completion]:
        return self._sampler.generate(
            [context.prompt_ids for context in contexts],
            adapter=self._adapter,
            sampling=sampling,
            seeds=[context.seed for context in contexts],
        )
