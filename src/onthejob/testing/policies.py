"""Policies whose replies are known in advance but that look to the loop like a sampled model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from onthejob.types import Completion, Context, Observation, Sampling


class ScriptedTokens:
    """Reads tokens and answers with `reply(observation, seed)`, encoded by a tokenizer and closed with its end-of-turn.

    The log-probabilities are those of a policy that is uniform over `choices` replies: ln(1 / choices) on the first token, 0 on
    the others. With them, groups from a script can be recorded, collated and trained on.
    """

    def __init__(
        self, tokenizer: Any, reply: Callable[[Observation, int], str], *, version: str = "script", choices: int = 3
    ) -> None:
        self._tokenizer = tokenizer
        self._reply = reply
        self._version = version
        self._choices = choices

    @property
    def version(self) -> str:
        return self._version

    @property
    def reads(self) -> str:
        return "tokens"

    def act(self, contexts: Sequence[Context], sampling: Sampling) -> list[Completion]:
        """One reply per context; at most `sampling.max_new_tokens` tokens are kept."""
        return [self._complete(self._reply(context.observation, context.seed), sampling) for context in contexts]

    def _complete(self, text: str, sampling: Sampling) -> Completion:
        ids = (*self._tokenizer.encode(text, add_special_tokens=False), self._tokenizer.eos_token_id)
        kept = ids[: sampling.max_new_tokens]
        logprobs = tuple(-math.log(self._choices) if index == 0 else 0.0 for index in range(len(kept)))
        cut = len(kept) < len(ids)
        shown = self._tokenizer.decode(list(kept)) if cut else text
        return Completion(text=shown, token_ids=kept, logprobs=logprobs, finish_reason="length" if cut else "stop")
