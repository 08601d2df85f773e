"""Token ids as text, with a tokenizer that is on this machine already: looking at a run downloads nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import try_to_load_from_cache

from onthejob.files import cache_dir
from onthejob.models.fetch import EMBEDDED

if TYPE_CHECKING:
    from tokenizers import Tokenizer

DEFAULT_MODEL = "smollm2-135m"


class Tokens:
    """The tokenizer of one model, or none when it is not on this machine."""

    def __init__(self, model: str = DEFAULT_MODEL) -> None:
        self._model = model

    @cached_property
    def _tokenizer(self) -> Tokenizer | None:
        path = tokenizer_file(self._model)
        if path is None:
            return None
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(path))

    def count(self, text: str) -> int | None:
        """Number of tokens without special ones; None without a tokenizer."""
        tokenizer = self._tokenizer
        return None if tokenizer is None else len(tokenizer.encode(text, add_special_tokens=False).ids)

    def text(self, ids: Sequence[int]) -> str | None:
        """What the ids say, control tokens included."""
        tokenizer = self._tokenizer
        return None if tokenizer is None else tokenizer.decode(list(ids), skip_special_tokens=False)

    def pieces(self, ids: Sequence[int]) -> list[str] | None:
        """Each id alone; a piece of a character is shown as �."""
        tokenizer = self._tokenizer
        return None if tokenizer is None else [tokenizer.decode([one], skip_special_tokens=False) for one in ids]


def tokenizer_file(model: str) -> Path | None:
    """Where the model's tokenizer lies, if it does."""
    if model in EMBEDDED:
        path = cache_dir() / "models" / f"{model}-{EMBEDDED[model].sha256[:8]}" / "tokenizer.json"
        return path if path.is_file() else None
    path = Path(model).expanduser() / "tokenizer.json"
    if path.is_file():
        return path
    if model.count("/") != 1 or model.startswith((".", "/", "~")):
        return None
    found = try_to_load_from_cache(model, "tokenizer.json")
    return Path(found) if isinstance(found, str) else None


def model_of(config: Mapping[str, Any]) -> str:
    """The base model that a run's configuration names."""
    model = config.get("model")
    name = model.get("name") if isinstance(model, Mapping) else None
    return name if isinstance(name, str) else DEFAULT_MODEL
