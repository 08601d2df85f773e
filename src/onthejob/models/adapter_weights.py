"""LoRA weights as the sampler uses them: read from an adapter directory, validated, and never merged into the base.

Merging an adapter into bfloat16 weights rounds most of it away, and merging and un-merging drifts the base. So the sampler adds
the low-rank product to each projection's output, in float32, exactly as PEFT does in training.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load
from torch import Tensor

from onthejob.errors import ModelError
from onthejob.models.adapter_config import AdapterShape, parse_object, read_shape
from onthejob.types import Adapter

_PREFIX = "base_model.model."
_WEIGHTS = "adapter_model.safetensors"
LOG_LOGIT_SCALE = "log_logit_scale"
"""In the metadata of an adapter's weights: the logarithm of what its logits are multiplied by. Other programs ignore it."""

MOST_LOG_SCALE = 10.0
"""Largest magnitude of that logarithm: logits times 22,026, or divided by it."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Element types of an adapter's weights; others (float8, float64) are not read."""
LARGEST = torch.finfo(torch.float16).max
"""Largest magnitude of a weight: what a server or trainer that computes in float16 can hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraPair:
    """One projection's low-rank update: `y += (x @ a.T) @ b.T`, with the scaling already in `b`."""

    a: Tensor
    """(rank, inputs), float32."""
    b: Tensor
    """(outputs, rank), float32, times alpha / rank."""

    def delta(self, x: Tensor) -> Tensor:
        """The update of one projection's output in float32; x (..., inputs) -> (..., outputs)."""
        return (x.float() @ self.a.T) @ self.b.T


class FusedLora:
    """The updates of projections that read the same input, with one product for all their A matrices."""

    def __init__(self, pairs: Sequence[LoraPair | None]) -> None:
        present = [pair for pair in pairs if pair is not None]
        self._a = torch.cat([pair.a for pair in present]).T.contiguous()
        self._parts: list[tuple[int, int, int, Tensor]] = []
        start = 0
        for index, pair in enumerate(pairs):
            if pair is not None:
                end = start + pair.a.shape[0]
                self._parts.append((index, start, end, pair.b.T.contiguous()))
                start = end

    @staticmethod
    def of(pairs: Sequence[LoraPair | None]) -> FusedLora | None:
        """None when no projection has an update."""
        return FusedLora(pairs) if any(pair is not None for pair in pairs) else None

    def factors(self, outputs: Sequence[int]) -> list[tuple[Tensor, Tensor] | None]:
        """Of each projection, which has so many outputs: (rank, inputs) and (outputs, rank), or None where it has no update."""
        found: list[tuple[Tensor, Tensor] | None] = [None] * len(outputs)
        for index, start, end, b in self._parts:
            found[index] = (self._a[:, start:end].T, b.T)
        return found

    def add_to(self, outputs: Sequence[Tensor], x: Tensor) -> None:
        """Add each projection's update to its output in place; x (rows, inputs), outputs[i] (rows, outputs_i)."""
        low = x.float() @ self._a
        for index, start, end, b in self._parts:
            outputs[index].add_(low[:, start:end] @ b)


def read_adapter_weights(
    adapter: Adapter, shapes: Mapping[str, tuple[int, int]], *, device: torch.device, base_digest: str = ""
) -> dict[str, LoraPair]:
    """The adapter's pairs by module name (`model.layers.0.self_attn.q_proj`).

    Args:
        adapter: whose directory holds `adapter_config.json` and `adapter_model.safetensors` as PEFT writes them.
        shapes: module name -> (outputs, inputs) of the base's `linear_layers`.
        device: where the pairs are kept.
        base_digest: digest of the base; an adapter that names another one is refused. Empty skips the check.

    Raises:
        ModelError: files missing, unreadable or other than their digest, a kind of LoRA that is not computed here (see
            `adapter_config`), layers that take no adapter, wrong shapes, non-finite numbers, or another base.
    """
    stated = read_shape(adapter.path)
    _check_base(adapter, base_digest)
    try:
        content = (adapter.path / _WEIGHTS).read_bytes()
        tensors = load(content)
    except (OSError, SafetensorError) as error:
        raise _refused(adapter, f"{_WEIGHTS} cannot be read ({error})") from error
    digest = hashlib.sha256(content).hexdigest()
    if adapter.digest and digest != adapter.digest:
        raise _refused(adapter, f"{_WEIGHTS} has the sha256 {digest[:12]}, the record says {adapter.digest[:12]}")
    halves: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        module, _, half = key.removeprefix(_PREFIX).removesuffix(".weight").rpartition(".")
        if half not in ("lora_A", "lora_B") or module not in shapes:
            raise _refused(adapter, f"its tensor {key!r} belongs to no linear layer of the base other than the output head")
        if problem := problem_of(tensor):
            raise _refused(adapter, f"its tensor {key!r} {problem}")
        halves.setdefault(module, {})[half] = tensor.to(device=device, dtype=torch.float32)
    if not halves:
        raise _refused(adapter, "it holds no tensors")
    return {module: _pair(adapter, module, found, stated, shapes[module]) for module, found in halves.items()}


def problem_of(tensor: Tensor) -> str:
    """What makes a tensor no weights of an adapter, after its name in a sentence; empty when nothing does."""
    if tensor.dtype not in DTYPES:
        return f"has the type {tensor.dtype}; float32, bfloat16 and float16 are read"
    if not bool(torch.isfinite(tensor).all()):
        return "holds a number that is not finite"
    if tensor.numel() and (largest := float(tensor.abs().max())) > LARGEST:
        return f"holds {largest:g}, which overflows in float16 (largest: {LARGEST:g})"
    return ""


def read_log_logit_scale(folder: Path) -> float | None:
    """The logarithm of the logit scale that the adapter in `folder` learned; None when its role learns none.

    Raises:
        ModelError: its weights cannot be read, or state no number in -MOST_LOG_SCALE..MOST_LOG_SCALE.
    """
    try:
        with safe_open(folder / _WEIGHTS, framework="pt") as file:
            found = (file.metadata() or {}).get(LOG_LOGIT_SCALE)
        return parse_log_logit_scale(found)
    except (OSError, SafetensorError, ValueError) as error:
        raise ModelError(f"{folder / _WEIGHTS} cannot be read ({error}). Go back to the previous version.") from error


def parse_log_logit_scale(stated: str | None) -> float | None:
    """The number that the metadata of an adapter's weights state; None for none.

    Raises:
        ValueError: it is no number in -MOST_LOG_SCALE..MOST_LOG_SCALE.
    """
    if stated is None:
        return None
    value = float(stated)
    if not -MOST_LOG_SCALE <= value <= MOST_LOG_SCALE:
        raise ValueError(f"its logit scale is exp({stated[:40]}); an exponent beyond {MOST_LOG_SCALE:g}")
    return value


def read_logit_scale(folder: Path) -> float:
    """What the logits of the adapter in `folder` are multiplied by before a temperature divides them; 1 when it says nothing.

    Raises:
        ModelError: as `read_log_logit_scale`.
    """
    return math.exp(read_log_logit_scale(folder) or 0.0)


def _pair(adapter: Adapter, module: str, found: Mapping[str, Tensor], stated: AdapterShape, shape: tuple[int, int]) -> LoraPair:
    outputs, inputs = shape
    rank = stated.rank_of(module)
    got = {half: tuple(tensor.shape) for half, tensor in found.items()}
    want = {"lora_A": (rank, inputs), "lora_B": (outputs, rank)}
    if got != want:
        raise _refused(adapter, f"{module} has shapes {got}, the base and the rank need {want}")
    return LoraPair(a=found["lora_A"].contiguous(), b=(found["lora_B"] * stated.scaling_of(module)).contiguous())


def _check_base(adapter: Adapter, base_digest: str) -> None:
    if not base_digest or not (adapter.path / "adapter_meta.json").is_file():
        return
    trained_on = _read_json(adapter, "adapter_meta.json").get("base_digest")
    if trained_on and trained_on != base_digest:
        raise _refused(adapter, f"it was trained on the base {str(trained_on)[:12]}, this base is {base_digest[:12]}")


def _read_json(adapter: Adapter, name: str) -> dict:
    try:
        return parse_object((adapter.path / name).read_bytes())
    except (OSError, ValueError) as error:
        raise _refused(adapter, f"{name} cannot be read ({error})") from error


def _refused(adapter: Adapter, why: str) -> ModelError:
    return ModelError(f"adapter {adapter.name} at {adapter.path} cannot be published: {why}. Write it again with `onthejob sft`.")
