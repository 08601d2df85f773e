"""What an adapter's `adapter_config.json` states, and the one rule of which of PEFT's kinds of LoRA are computed here.

Plain LoRA, rsLoRA and other ranks or alphas by layer (`rank_pattern`, `alpha_pattern`) are: they differ in each layer's rank and
scaling only. Everything else (DoRA, biases, initialisations that change the base's weights, activated LoRA, further trained
weights, ...) computes another function than base + scaling B A, and is refused wherever an adapter is read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from peft.utils.other import get_pattern_key

from onthejob.errors import ModelError

CONFIG = "adapter_config.json"
MOST_RANK = 65_536
"""Largest rank that is read: above the width of any layer."""
MOST_ALPHA = 1e6
"""Largest alpha that is read: far above any that is trained with, far below what overflows."""
_IGNORED = frozenset({
    # About how an adapter was trained, loaded or named, and not about what it computes.
    "auto_mapping", "base_model_name_or_path", "eva_config", "inference_mode", "lora_dropout", "megatron_core", "peft_version",
    "qalora_group_size", "revision",
})  # fmt: skip
_INITIALISATIONS = (True, False, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the base's weights as they are."""
SELECTION: Mapping[str, Any] = {
    "target_modules": [], "exclude_modules": None, "layers_to_transform": None, "layers_pattern": None,
}  # fmt: skip
"""Keys that select layers, with values that select by name alone; the tensors say which layers it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterShape:
    """Rank and scaling of every layer of one adapter."""

    rank: int
    """Where no pattern says otherwise, >= 1."""
    alpha: float
    """Where no pattern says otherwise, finite and > 0."""
    targets: tuple[str, ...]
    """Ends of the names of its layers, sorted."""
    rslora: bool = False
    """Scaling is alpha / sqrt(rank) instead of alpha / rank (Kalajdzievski 2023, 2312.03732)."""
    ranks: Mapping[str, int] = field(default_factory=dict)
    """Regular expression for the end of a layer's name -> its rank; the first that matches counts."""
    alphas: Mapping[str, float] = field(default_factory=dict)
    """The same for alpha."""

    @property
    def uniform(self) -> bool:
        """Whether all layers have one rank and one scaling."""
        return not self.ranks and not self.alphas

    @property
    def largest_rank(self) -> int:
        """Of any layer, at most."""
        return max(self.rank, *self.ranks.values(), 1)

    @property
    def plain_alpha(self) -> float:
        """The alpha of plain LoRA of `largest_rank` with the scaling of layers that no pattern names."""
        return self.alpha if self.uniform and not self.rslora else self._scaling(self.rank, self.alpha) * self.largest_rank

    def rank_of(self, module: str) -> int:
        """Of a layer, by its full name."""
        return self.ranks.get(get_pattern_key(list(self.ranks), module), self.rank)

    def scaling_of(self, module: str) -> float:
        """The factor of B A in a layer, by its full name."""
        return self._scaling(self.rank_of(module), self.alphas.get(get_pattern_key(list(self.alphas), module), self.alpha))

    def _scaling(self, rank: int, alpha: float) -> float:
        return alpha / (math.sqrt(rank) if self.rslora else rank)


def read_shape(folder: Path) -> AdapterShape:
    """The shape that the adapter in `folder` states.

    Raises:
        ModelError: its configuration is missing or unreadable, or of a kind that is not computed here.
    """
    path = folder / CONFIG
    return shape_of_config(read_object(path), str(path))


def read_object(path: Path) -> dict[str, Any]:
    """The object in one of an adapter's JSON files.

    Raises:
        ModelError: it cannot be read, or holds something else.
    """
    try:
        return parse_object(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read ({error}). Save the adapter again, or import it anew.") from error


def parse_object(content: bytes) -> dict[str, Any]:
    """The object that a JSON file holds, read as strictly as any program that will read it after us.

    Raises:
        ValueError: it is not UTF-8 (UTF-16, or a byte order mark), not JSON, no object, repeats a key, or states NaN or Infinity.
    """

    def no_constant(text: str) -> float:
        raise ValueError(f"{text} is not JSON")

    def no_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError("a key is repeated")
        return dict(pairs)

    try:
        value = json.loads(content.decode("utf-8"), parse_constant=no_constant, object_pairs_hook=no_repetition)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__}, not an object")
    return value


def shape_of_config(config: object, where: str) -> AdapterShape:
    """The shape that the content of an `adapter_config.json` states; `where` begins the message of an error.

    Raises:
        ModelError: it is of a kind that is not computed here, or states no rank, alpha or targets.
    """
    if not isinstance(config, Mapping):
        raise ModelError(f"{where} holds a {type(config).__name__}, not an object. Save the adapter again.")
    if odd := _odd(config):
        raise ModelError(
            f"{where} states {odd}, which is not computed here: adapters are plain LoRA or rsLoRA, with rank_pattern and "
            "alpha_pattern if need be. Convert it with PEFT, or train it again as one of these."
        )
    rank, alpha, targets = config.get("r"), config.get("lora_alpha"), config.get("target_modules")
    ranks, alphas = config.get("rank_pattern") or {}, config.get("alpha_pattern") or {}
    if not _is_rank(rank) or not _is_alpha(alpha):
        raise ModelError(
            f"{where} needs r, an integer in 1..{MOST_RANK}, and lora_alpha > 0, at most {MOST_ALPHA:g}, got "
            f"{repr(rank)[:40]} and {repr(alpha)[:40]}."
        )
    if not isinstance(ranks, Mapping) or not all(map(_is_rank, ranks.values())):
        raise ModelError(f"{where} needs a rank_pattern of integers in 1..{MOST_RANK}, got {str(ranks)[:80]}.")
    if not isinstance(alphas, Mapping) or not all(map(_is_alpha, alphas.values())):
        raise ModelError(f"{where} needs an alpha_pattern of numbers > 0, at most {MOST_ALPHA:g}, got {str(alphas)[:80]}.")
    selected = next((f"{key}={config[key]}" for key in SELECTION if key != "target_modules" and config.get(key)), "")
    if selected or not isinstance(targets, list | tuple) or not all(isinstance(target, str) for target in targets):
        raise ModelError(
            f"{where} needs target_modules as a list of names, got {selected[:80] or repr(targets)[:80]}. `onthejob adapters "
            "import` writes such a list."
        )
    for pattern in (*ranks, *alphas):
        try:
            re.compile(pattern)
        except re.error as error:
            raise ModelError(f"{where} has the pattern {pattern!r}, which is no regular expression ({error}).") from error
    return AdapterShape(
        rank=rank,
        alpha=alpha,
        targets=tuple(sorted(targets)),
        rslora=bool(config.get("use_rslora")),
        ranks=dict(ranks),
        alphas=dict(alphas),
    )


def _odd(config: Mapping[str, Any]) -> str:
    """The first setting of a kind of LoRA that is not computed here, e.g. `use_dora=true`; empty when there is none."""
    allowed = {
        "bias": lambda value: value in ("none", None),
        "init_lora_weights": lambda value: value in _INITIALISATIONS,
        "peft_type": lambda value: value in ("LORA", None),
        "task_type": lambda value: value in ("CAUSAL_LM", None),
    }
    free = _IGNORED | SELECTION.keys() | {"r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern"}
    for key, value in sorted(config.items()):
        # A key of a later PEFT that is off computes nothing.
        fine = key in free or (allowed[key](value) if key in allowed else not value)
        if not fine:
            return f"{key}={json.dumps(value, default=str)[:60]}"
    return ""


def _is_rank(value: object) -> TypeGuard[int]:
    return type(value) is int and 1 <= value <= MOST_RANK


def _is_alpha(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MOST_ALPHA
