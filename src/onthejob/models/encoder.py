"""The encoder of a model's folder, read without its weights: what it refuses costs no loading."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onthejob.errors import ModelError
from onthejob.models.chat import ChatEncoder
from onthejob.models.window import folder_end_ids, folder_window


def load_encoder(folder: Path, *, arguments: Mapping[str, Any] | None = None) -> ChatEncoder:
    """The encoder of a model: its tokenizer and template, its context and the tokens that end a reply.

    Args:
        folder: in HF format; weights are not read.
        arguments: of the chat template, as `models.template.read_arguments` reads them.

    Raises:
        ConfigError: as `ChatEncoder`.
        ModelError: the files cannot be read.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        window, end_ids = folder_window(folder), folder_end_ids(folder)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"the tokenizer and configuration of {folder} cannot be read: {error}. Fetch it again or choose another folder."
        ) from error
    return ChatEncoder(tokenizer, window=window, end_ids=end_ids, arguments=arguments)
