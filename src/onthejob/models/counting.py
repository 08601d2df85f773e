"""Tokens of a text: by a model's own tokenizer without its weights, or by an estimate from above where there is no tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from onthejob.types import Message, Window

if TYPE_CHECKING:
    from onthejob.models.chat import ChatEncoder

MARKS = 16
"""Tokens that are estimated for what a provider writes around a message, and around a conversation."""
_PARTS = re.compile(r"[a-z]{1,2}|[A-Z]")
_LETTERS = re.compile(r" ?[A-Za-z]+")


def token_counter(model: str) -> Callable[[str], int]:
    """What counts the tokens of a message's text as `ChatEncoder.encode` makes them.

    Args:
        model: as for `onthejob model fetch`.

    Raises:
        ConfigError, ModelError: it cannot be fetched, or has no chat template.
    """
    from onthejob.models.encoder import load_encoder
    from onthejob.models.fetch import fetch

    return load_encoder(fetch(model, weights=False)).count


def estimated_tokens(text: str) -> int:
    """Tokens of `text`, estimated from above.

    A capital of ASCII counts as one token; so do two small letters in a row, and one that is left over; so does every other
    character of ASCII, but for the blank before a letter; any further character counts as its bytes in UTF-8. Words have fewer
    tokens in usual vocabularies; random letters may have more.
    """
    return len(_PARTS.findall(text)) + len(_LETTERS.sub("", text).encode("utf-8", "surrogatepass"))


def chat_window(chat: ChatEncoder, *, reply: int) -> Window | None:
    """The context of a model of this machine; None where its configuration states no limit.

    Args:
        chat: its encoder.
        reply: limit of a reply in tokens.
    """
    if chat.window is None:
        return None
    return Window(tokens=chat.window, reply=reply, count=chat.count, measure=lambda messages: len(chat.encode(messages)))


def hosted_window(tokens: int, *, reply: int) -> Window:
    """The context of a hosted model, whose tokenizer is not there.

    Args:
        tokens: of prompt and reply together.
        reply: limit of a reply in tokens.
    """
    return Window(tokens=tokens, reply=reply, count=estimated_tokens, measure=_estimated, estimated=True)


def _estimated(messages: Sequence[Message]) -> int:
    return MARKS + sum(MARKS + estimated_tokens(message.content) for message in messages)
