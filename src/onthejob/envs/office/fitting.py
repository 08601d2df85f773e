"""How long a user message may be for a model: its context, less everything else that the context has to hold.

The parts, in tokens: the longest reply; the longest system message of the six seats, with what the chat template writes around
both messages; where a provider is given the schema of replies, that schema; and every reply that may have to be corrected, with
the feedback on it. A reflection is a request of its own, which takes nothing from the others and has to fit alone.
"""

from __future__ import annotations

import json

from onthejob.envs.office.actions import Invalid, Reason, feedback
from onthejob.envs.office.lexicon import Lexicon
from onthejob.envs.office.memory import MemoryStream, reflection_prompt
from onthejob.envs.office.prompt import persona, system_text
from onthejob.envs.office.reply_schema import action_schema
from onthejob.envs.office.roles import ROLES, TRAINED_ROLES, Role
from onthejob.errors import ConfigError
from onthejob.types import Message, Window

PINNED_BYTES = 600
"""Of the pinned sections at most, in UTF-8, whatever happens to a company."""
LONGEST_BYTES = {"compact": 20_000, "full": 60_000}
"""Of a whole user message at most, by profile: messages of 240 characters in four bytes each."""
SEAMS = 8
"""Tokens for the places where texts meet: there a tokenizer may split otherwise than in each of them."""
REMEDY = (
    "Choose a model with a longer context, lower the limit of a reply (--max-new-tokens, --sampling.max-new-tokens), or state "
    "--env.prompt-budget (--prompt-budget of `office behaviours`)."
)
_WRONG = "SEND_PROPOSAL cannot have the target 'a company of that name' now; it may have: " + ", ".join(["Initech"] * 8)
_EXCERPT = json.dumps('{"action_type": "SEND_PROPOSAL", "target": "a company of that name", "message'[:80])


def fitting_tokens(window: Window, *, profile: str, retries: int = 0, reflect: bool = False) -> int | None:
    """Tokens that a user message may have in front of a model; None where none of this profile can have more.

    That none can is known by bytes, of which a token of a byte-level tokenizer has at least one. Corrections take at most half of
    what the rest leaves, and nothing of what the pinned sections may need: a conversation that exceeds the context all the same
    ends there. `retries` are corrections of an unusable reply, 0 to 8; `reflect` says whether the model is asked to reflect.

    Raises:
        ConfigError: the context cannot hold the pinned sections, or a request for reflection.
    """
    around = max(_around(window, str(role), profile) for role in TRAINED_ROLES)
    left = window.tokens - window.reply - around
    if left < PINNED_BYTES:
        raise ConfigError(
            f"the model's context of {window.tokens} tokens leaves {max(0, left)} for what a role is shown, besides a reply of "
            f"up to {window.reply} and {around} of system message and chat template; header, figures and possible actions may "
            f"need {PINNED_BYTES}. {REMEDY}"
        )
    if reflect and (asked := _reflection(window)) + window.reply > window.tokens:
        raise ConfigError(
            f"--env.reflect asks with up to {asked} tokens; with a reply of up to {window.reply} that exceeds the model's "
            f"context of {window.tokens}. Leave it out, lower the limit of a reply, or choose a model with a longer context."
        )
    corrections = sum(_correction(window, attempt) for attempt in range(1, retries + 1))
    tokens = max(left - corrections, left // 2, PINNED_BYTES)
    return tokens if tokens < LONGEST_BYTES[profile] else None


def _around(window: Window, role: str, profile: str) -> int:
    """Tokens of a request but for its user message."""
    told = window.measure([Message("system", system_text(role, profile)), Message("user", "")])
    # A tokenizer that is here belongs to a model that is given no schema.
    schema = window.count(json.dumps(action_schema(role))) if window.estimated else 0
    return told + schema + SEAMS


def _correction(window: Window, attempt: int) -> int:
    """Tokens by which a context grows between an unusable reply and the next one."""
    types = max((spec.actions for spec in ROLES.values()), key=lambda names: len(" ".join(names)))
    text = feedback(Invalid(Reason.ILLEGAL_TARGET, _WRONG, excerpt=_EXCERPT), attempt, list(types))
    asked = [Message("user", "-")]
    return window.measure([*asked, Message("assistant", "-"), Message("user", text)]) - window.measure(asked) + window.reply


def _reflection(window: Window) -> int:
    """Tokens of a request for reflection on 30 memories of 100 characters, which few have."""
    stream = MemoryStream(Lexicon())
    for turn in range(30):
        stream.observe(("I did SEND_PROPOSAL Initech: it changed nothing. " * 3)[:100], turn)
    speaker = max((persona(role) for role in Role), key=len)
    return window.measure([Message("system", speaker), Message("user", reflection_prompt(stream))]) + SEAMS
