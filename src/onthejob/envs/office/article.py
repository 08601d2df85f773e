"""The reward of the OpenOfficeRL article: the form of a reply, 0 to 1.45, plus a judge's opinion of it, 0 to 1.

For comparison runs (`onthejob train --reward onthejob.envs.office:article_reward`) and `recipes/trl_article.py`. It is no
default, because nothing that the reply did enters it: a constant reply reaches 1.45 in every state (docs/metrics.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from onthejob.envs.office.company_state import FEATURE_INDEX
from onthejob.envs.office.names import COMPANY_NAMES, HELD_OUT_NAMES, NAMES
from onthejob.envs.office.roles import Role
from onthejob.envs.office.scorer import score_reply
from onthejob.errors import ConfigError

UNJUDGED = 0.25
"""Opinion that stands for one that the judge did not give."""
Opinions = Callable[[Sequence[tuple[str, str]]], Sequence[float | None]]
"""A judge: (situation, reply) pairs -> a score in [0, 1] for each, None where there is none."""
Chat = str | Sequence[dict[str, Any]]
"""A text, or messages as TRL passes them."""

_ENTITIES = (*NAMES, *HELD_OUT_NAMES, *COMPANY_NAMES, *FEATURE_INDEX)
_WORD = re.compile(r"\w+")


def article_reward(
    prompts: Sequence[Chat],
    completions: Sequence[Chat],
    role: Sequence[str],
    *,
    judge: Opinions | None = None,
    **columns: Any,
) -> list[float]:
    """The article's reward of each completion: `score_reply`, plus the judge's opinion where there is a judge.

    A reward function in TRL's form, for `GRPOTrainer(reward_funcs=...)` and for `onthejob train --reward`.

    Args:
        prompts: one per completion, texts or messages; accounts and features named in them are the entities that a target may
            refer to (of messages, those of the user).
        completions: replies as sampled, texts or messages; of messages the assistant's first one counts, and of a tool call its
            arguments.
        role: who replied, one per completion.
        judge: 1 to 5 as (score - 1) / 4, e.g. `Judge.scores` of `onthejob.rollout.judge`. A score that it does not give is 0.25,
            as in the article. None is the form alone, 0 to 1.45.
        columns: further columns of TRL, which are not read.

    Returns:
        Rewards in [0, 1.45], with a judge in [0, 2.45].

    Raises:
        ConfigError: the lengths differ, an unknown role, or a judge whose scores are not one in [0, 1] or None for each reply.
    """
    if not len(prompts) == len(completions) == len(role):
        raise ConfigError(
            "article_reward needs one prompt and one role for each completion, got "
            f"{len(prompts)}, {len(role)} and {len(completions)}. Add the column `role` to the dataset."
        )
    unknown = sorted(set(map(str, role)) - set(Role))
    if unknown:
        raise ConfigError(f"role must be one of {', '.join(Role)}, got {unknown[0]!r}.")
    replies = [_reply(completion) for completion in completions]
    forms = [
        score_reply(reply, Role(who), entities=_named(prompt)).total
        for prompt, reply, who in zip(prompts, replies, role, strict=True)
    ]
    if judge is None:
        return forms
    scores = list(judge([(_whole(prompt), reply) for prompt, reply in zip(prompts, replies, strict=True)]))
    if len(scores) != len(forms) or any(score is not None and not 0.0 <= score <= 1.0 for score in scores):
        raise ConfigError(
            f"the judge must give one score in [0, 1], or None, for each of {len(forms)} replies, got {scores!r:.80}."
        )
    return [form + (UNJUDGED if score is None else score) for form, score in zip(forms, scores, strict=True)]


def _named(prompt: Chat) -> list[str]:
    """Accounts and features that the prompt names; an example in the system message names none."""
    text = prompt if isinstance(prompt, str) else "\n".join(_content(one) for one in prompt if one.get("role") == "user")
    words = set(_WORD.findall(text))
    return [name for name in _ENTITIES if name in words]


def _whole(prompt: Chat) -> str:
    return prompt if isinstance(prompt, str) else "\n\n".join(map(_content, prompt))


def _reply(completion: Chat) -> str:
    """What the model wrote first."""
    if isinstance(completion, str):
        return completion
    said = next((message for message in completion if message.get("role") == "assistant"), {})
    calls = said.get("tool_calls")
    if calls:
        arguments = calls[0].get("function", calls[0]).get("arguments", "")
        return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return _content(said)


def _content(message: dict[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""
