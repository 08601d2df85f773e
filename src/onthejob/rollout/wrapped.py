"""A policy around another one."""

from __future__ import annotations

from collections.abc import Sequence

from onthejob.rollout.reading import budget_of
from onthejob.types import Completion, Context, Policy, PromptBudget, Sampling


class WrappedPolicy:
    """Replies as another policy does, whose identity and prompts it has. Subclasses do something before or after `act`."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    @property
    def version(self) -> str:
        return self._policy.version

    @property
    def reads(self) -> str:
        return self._policy.reads

    @property
    def prompt_budget(self) -> PromptBudget | None:
        return budget_of(self._policy)

    def act(self, contexts: Sequence[Context], sampling: Sampling) -> list[Completion]:
        """The policy's replies."""
        return self._policy.act(contexts, sampling)
