"""The prompt that a policy reads: the request's own messages, or fewer lines of them where its model's context is short.

Pruning belongs to the reader: models with contexts of different sizes can play in one environment, and scripted players,
which read no prompt, cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from onthejob.types import Budgeted, Message, Observation, Policy, PromptBudget, Prunable


def budget_of(policy: Policy) -> PromptBudget | None:
    """The budget of the prompts that `policy` reads; None where it has none."""
    return policy.prompt_budget if isinstance(policy, Budgeted) else None


def messages_within(observation: Observation, budget: PromptBudget | None) -> Sequence[Message]:
    """The messages of a request, pruned to `budget` where they can be."""
    if budget is None or not isinstance(observation, Prunable):
        return observation.messages
    return observation.within(budget)


def messages_for(policy: Policy, observation: Observation) -> Sequence[Message]:
    """The messages of a request as `policy` reads them."""
    return messages_within(observation, budget_of(policy))
