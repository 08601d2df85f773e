"""Limits that a model's configuration states: its context in tokens, and the tokens that end a reply.

Nothing here needs weights, so that what cannot fit is refused before they are loaded.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from onthejob.errors import ConfigError

_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")


def context_window(config: Any) -> int | None:
    """Tokens of prompt and reply together that a model was made for; None where its configuration states no limit.

    Rotary scaling lengthens the stated positions as vLLM derives it: `linear` and `dynamic` by their factor, `yarn` to its factor
    times the original positions. `llama3` and `longrope` models state their full length already.

    Args:
        config: a transformers PretrainedConfig.
    """
    settings = config.get_text_config().to_dict()
    stated = next((settings[name] for name in _NAMES if isinstance(settings.get(name), int)), None)
    if stated is None:
        return None
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    kind, factor = rope.get("rope_type", rope.get("type")), rope.get("factor") or 1.0
    if kind in ("linear", "dynamic"):
        return int(stated * factor)
    if kind == "yarn":
        return max(stated, int(factor * (rope.get("original_max_position_embeddings") or stated)))
    return stated


def refuse_longer(window: int | None, prompts: Sequence[Sequence[int]], *, new_tokens: int) -> None:
    """Refuse prompts that exceed a context together with replies of up to `new_tokens`; with 0, whole texts.

    Raises:
        ConfigError: names the longest.
    """
    longest = max(map(len, prompts), default=0)
    if window is not None and longest + new_tokens > window:
        what = f"a prompt of {longest} tokens with a reply of up to {new_tokens}" if new_tokens else f"a text of {longest} tokens"
        raise ConfigError(
            f"{what} exceeds the model's context of {window} tokens. Shorten it, lower the limit of a reply, or choose a model "
            "with a longer context."
        )


def folder_window(folder: Path) -> int | None:
    """`context_window` of a model's folder."""
    from transformers import AutoConfig

    return context_window(AutoConfig.from_pretrained(folder, local_files_only=True))


def folder_end_ids(folder: Path) -> frozenset[int]:
    """Ids that end a reply by a folder's generation_config.json, or by its config.json where there is none."""
    from transformers import AutoConfig, GenerationConfig

    try:
        generation = GenerationConfig.from_pretrained(folder, local_files_only=True)
    except OSError:
        generation = GenerationConfig.from_model_config(AutoConfig.from_pretrained(folder, local_files_only=True))
    return end_ids(generation.eos_token_id)


def end_ids(stated: int | Collection[int] | None) -> frozenset[int]:
    """The ids of an `eos_token_id`, which may be one, several or none."""
    if stated is None:
        return frozenset()
    return frozenset({stated} if isinstance(stated, int) else stated)
