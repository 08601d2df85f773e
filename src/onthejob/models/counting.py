"""Tokens of a text by a model's own tokenizer, without its weights."""

from __future__ import annotations

from collections.abc import Callable


def token_counter(model: str) -> Callable[[str], int]:
    """What counts the tokens of a message's text as `ChatEncoder.encode` makes them.

    Args:
        model: as for `onthejob model fetch`.

    Raises:
        ConfigError, ModelError: it cannot be fetched, or has no chat template.
    """
    from transformers import AutoTokenizer

    from onthejob.models.chat import ChatEncoder
    from onthejob.models.fetch import fetch

    return ChatEncoder(AutoTokenizer.from_pretrained(fetch(model, weights=False), local_files_only=True)).count
