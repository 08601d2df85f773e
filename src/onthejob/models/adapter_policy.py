"""A sampler's adapters as policies."""

from __future__ import annotations

from collections.abc import Sequence

from onthejob.models.chat import ChatEncoder
from onthejob.types import Completion, Context, PromptBudget, Sampler, Sampling


class AdapterPolicy:
    """One adapter of a sampler (or the base) as a policy."""

    def __init__(
        self,
        sampler: Sampler,
        chat: ChatEncoder,
        *,
        adapter: str | None,
        name: str = "base",
        prompt_budget: PromptBudget | None = None,
    ) -> None:
        """Seat a model.

        Args:
            sampler: holds it.
            chat: encodes its prompts.
            adapter: a published adapter's name, or None for the base.
            name: the version that is recorded of the base.
            prompt_budget: of the prompts that it reads; None sets none.
        """
        self._sampler = sampler
        self._chat = chat
        self._adapter = adapter
        self._name = name
        self._prompt_budget = prompt_budget

    @property
    def version(self) -> str:
        return self._adapter or self._name

    @property
    def reads(self) -> str:
        return "tokens"

    @property
    def prompt_budget(self) -> PromptBudget | None:
        return self._prompt_budget

    def act(self, contexts: Sequence[Context], sampling: Sampling) -> list[Completion]:
        return self._sampler.generate(
            [context.prompt_ids for context in contexts],
            adapter=self._adapter,
            sampling=sampling,
            seeds=[context.seed for context in contexts],
        )
