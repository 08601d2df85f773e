"""Adapters on the disk: one immutable directory per version, written whole or not at all, and believed only after every check.

The format is PEFT's, so that vLLM and PEFT load the directories as they are; what only we know stands in a file beside it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from peft import PeftModel
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from onthejob.errors import ConfigError, ModelError
from onthejob.files import published
from onthejob.learn.lora import LoraSpec, alpha_of, load_state, parameters, state
from onthejob.models.adapter_weights import LOG_LOGIT_SCALE, read_log_logit_scale
from onthejob.types import Adapter

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
META = "adapter_meta.json"
_KEY = re.compile(r"(?P<module>.+)\.lora_(?P<part>[AB])\.weight")


def save_adapter(
    model: PeftModel,
    role: str,
    directory: Path,
    *,
    version: int,
    parent: str | None,
    base_digest: str,
    dtype: Literal["bfloat16", "float32"] = "bfloat16",
) -> Adapter:
    """Write `directory/role@version` in PEFT's format; readers see all of it or nothing.

    Writing the same weights under the same name again returns the existing adapter (a resumed run repeats its last publish).

    Args:
        model: Holds the adapter.
        role: Which one.
        directory: Parent of all adapter directories; created when missing.
        version: >= 0, never reused for other weights.
        parent: Name of the adapter it was trained from, or None.
        base_digest: Digest of the base model's weights, so that a wrong base is noticed when loading.
        dtype: Of the file. bfloat16 halves it and is what a bf16 server would round to anyway.

    Raises:
        ModelError: The name is taken by other weights, or a weight is not finite.
        OSError: Disk full or not writable; nothing of the adapter remains.
    """
    adapter = Adapter(role=role, version=version, path=directory / f"{role}@{version:04d}", parent=parent)
    kind = {"bfloat16": torch.bfloat16, "float32": torch.float32}[dtype]
    live = state(model, role)
    check_finite(live, adapter.path)
    metadata = {"format": "pt"}
    if LOG_LOGIT_SCALE in live:
        # Beside the tensors: PEFT and vLLM refuse tensors that they do not know, and rounding it would gain nothing.
        metadata[LOG_LOGIT_SCALE] = repr(live.pop(LOG_LOGIT_SCALE).item())
    weights = _ordered(save({name: tensor.to(kind).contiguous() for name, tensor in live.items()}, metadata=metadata))
    digest = hashlib.sha256(weights).hexdigest()
    meta = {"role": role, "version": version, "parent": parent, "base_digest": base_digest, "dtype": dtype, "digest": digest}
    if adapter.path.exists():
        if json.loads((adapter.path / META).read_text(encoding="utf-8")) == meta:
            return read_adapter(adapter.path)
        raise ModelError(f"adapter {adapter.name} exists with other weights at {adapter.path}; use the next version number.")
    files = {WEIGHTS: weights, CONFIG: _json(_peft_config(model, role)), META: _json(meta)}
    write_directory(adapter.path, files)
    return Adapter(role=role, version=version, path=adapter.path, parent=parent, digest=digest)


def _ordered(weights: bytes) -> bytes:
    """The same safetensors file with its metadata in the order of their names: safetensors writes several in any order."""
    size = int.from_bytes(weights[:8], "little")
    header = json.loads(weights[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + weights[8 + size :]


def read_adapter(path: Path) -> Adapter:
    """Check an adapter directory completely and describe it.

    Raises:
        ModelError: A missing or unreadable file, pickled weights, a digest that does not match, tensors that are not LoRA pairs
            of the stated rank, or a number that is not finite.
    """
    return _read(path)[0]


def read_spec(path: Path) -> LoraSpec:
    """The shape of a saved adapter; of its weights only the header is read.

    Raises:
        ModelError: Its configuration or weights are missing, unreadable, or of a kind of LoRA that `attach` does not make.
    """
    try:
        config = json.loads((path / CONFIG).read_text(encoding="utf-8"))
        targets = config["target_modules"]
        if not isinstance(targets, list):
            raise TypeError(f"target_modules must be a list of names, got {targets!r}")
        scaled = read_log_logit_scale(path) is not None
        return LoraSpec(rank=config["r"], alpha=config["lora_alpha"], targets=tuple(sorted(targets)), logit_scale=scaled)
    except (OSError, ValueError, KeyError, TypeError, ConfigError) as error:
        raise ModelError(f"{path / CONFIG} states no shape of an adapter: {error}. Save it again with save_adapter.") from error


def load_adapter(model: PeftModel, role: str, adapter: Adapter | Path, *, base_digest: str | None = None) -> Adapter:
    """Validate an adapter directory and copy its weights into `role`.

    Args:
        model: Has an adapter of the same shape for `role`.
        role: Where the weights go; may differ from the role that was saved.
        adapter: Directory, or the `Adapter` that names it (its digest is compared when it has one).
        base_digest: When given, must equal the one the adapter was trained on.

    Raises:
        ModelError: As `read_adapter`, or the adapter belongs to another base, shape or alpha. Nothing is written then.
    """
    path = adapter.path if isinstance(adapter, Adapter) else adapter
    found, tensors, meta = _read(path)
    if isinstance(adapter, Adapter) and adapter.digest and adapter.digest != found.digest:
        raise ModelError(f"adapter {adapter.name} has digest {found.digest[:12]}, recorded was {adapter.digest[:12]}.")
    if base_digest is not None and meta["base_digest"] != base_digest:
        raise ModelError(
            f"adapter {found.name} was trained on base {meta['base_digest'][:12]}, this base is {base_digest[:12]}. "
            "Load the base it was trained on."
        )
    # The tensors fit whatever alpha is, and would then be another policy than the one that was saved.
    if (alpha := read_spec(path).alpha) != (wanted := alpha_of(model, role)):
        raise ModelError(
            f"adapter {found.name} has alpha {alpha:g}, role {role!r} was attached with {wanted:g}; they must be equal. "
            f"Attach with --lora.alpha {alpha:g}, or leave it out where --init names the adapter."
        )
    log_scale = read_log_logit_scale(path)
    if LOG_LOGIT_SCALE in parameters(model, role):
        tensors[LOG_LOGIT_SCALE] = torch.tensor(log_scale or 0.0)
    elif log_scale is not None:
        raise ModelError(
            f"adapter {found.name} has a logit scale of its own, role {role!r} was attached without. "
            "Attach with --lora.logit-scale."
        )
    load_state(model, role, tensors)
    return found


def _peft_config(model: PeftModel, role: str) -> dict[str, Any]:
    config = model.peft_config[role].to_dict()
    config["inference_mode"] = True
    config["base_model_name_or_path"] = None  # A path would be true on one machine only; the base's digest is in META.
    return {name: sorted(value) if isinstance(value, set) else value for name, value in config.items()}


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def write_directory(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a directory durably; readers see all of it or nothing. OSError leaves nothing behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with published(path) as draft:
        for name, content in files.items():
            (draft / name).write_bytes(content)


def _read(path: Path) -> tuple[Adapter, dict[str, Tensor], dict[str, Any]]:
    pickled = sorted(file.name for file in path.glob("*") if file.suffix in (".bin", ".pt", ".pth", ".pkl"))
    if pickled:
        raise ModelError(f"{path} holds pickled weights ({pickled[0]}), which can run code; only safetensors are read.")
    try:
        meta = json.loads((path / META).read_text(encoding="utf-8"))
        config = json.loads((path / CONFIG).read_text(encoding="utf-8"))
        digest = hashlib.sha256((path / WEIGHTS).read_bytes()).hexdigest()
        with safe_open(path / WEIGHTS, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
        adapter = Adapter(role=meta["role"], version=meta["version"], path=path, parent=meta["parent"], digest=meta["digest"])
        rank, expected, _ = config["r"], meta["digest"], meta["base_digest"]
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ModelError(f"{path} is not a readable adapter directory ({WEIGHTS}, {CONFIG}, {META}): {error}") from error
    if digest != expected:
        raise ModelError(f"{path / WEIGHTS} has sha256 {digest[:12]}, recorded was {expected[:12]}: the file was changed.")
    check_pairs(tensors, rank, path)
    check_finite(tensors, path)
    return adapter, tensors, meta


def check_pairs(tensors: Mapping[str, Tensor], rank: int, path: Path) -> None:
    """ModelError unless `tensors` are complete LoRA pairs of `rank`; `path` is named in the error."""
    modules: dict[str, set[str]] = {}
    for name, tensor in tensors.items():
        match = _KEY.fullmatch(name)
        if match is None or tensor.dim() != 2 or not tensor.is_floating_point():
            raise ModelError(f"{path}: {name!r} {tuple(tensor.shape)} {tensor.dtype} is not a LoRA matrix.")
        if tensor.shape[0 if match["part"] == "A" else 1] != rank:
            raise ModelError(f"{path}: {name!r} has shape {tuple(tensor.shape)}, its config states rank {rank}.")
        modules.setdefault(match["module"], set()).add(match["part"])
    single = sorted(module for module, parts in modules.items() if parts != {"A", "B"})
    if single or not modules:
        raise ModelError(f"{path}: every adapted layer has lora_A and lora_B; incomplete: {single[:1] or 'all'}.")


def check_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    """ModelError when a number is not finite; `path` is named in the error."""
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise ModelError(f"{path}: {name!r} holds a number that is not finite. Go back to the previous version.")
