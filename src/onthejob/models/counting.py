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
    from onthejob.models.encoder import load_encoder
    from onthejob.models.fetch import fetch

    return load_encoder(fetch(model, weights=False)).count
