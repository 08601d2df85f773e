"""A policy made of a function: experts, random players, fixed replies in tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onthejob.errors import ContractError
from onthejob.types import Completion, Context, Observation, Sampling


class ScriptedPolicy:
    """Answers with `reply(observation, seed)`; reads the structured view, so that no prompt is ever rendered for it."""

    def __init__(self, reply: Callable[[Observation, int], str], *, version: str) -> None:
        """reply: a pure function of the observation and the seed. version: recorded with every turn, e.g. `heuristic`.

        Raises:
            ContractError: the version is empty.
        """
        if not version:
            raise ContractError(
                "a scripted policy needs a version for the record, got an empty string. Pass e.g. version='heuristic'."
            )
        self._reply = reply
        self._version = version

    @property
    def version(self) -> str:
        return self._version

    @property
    def reads(self) -> str:
        return "view"

    def act(self, contexts: Sequence[Context], sampling: Sampling) -> list[Completion]:
        """One reply per context, without token ids (not trainable). Sampling parameters do not apply to a script."""
        return [Completion(text=self._reply(context.observation, context.seed)) for context in contexts]
