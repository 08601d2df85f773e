"""Adapters on the disk: one immutable directory per version, written whole or not at all, and believed only after every check.

The format is PEFT's, so that vLLM and PEFT load the directories as they are. What only onthejob needs is in a separate file.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from peft import PeftConfig, PeftModel
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional as F

from onthejob.errors import ConfigError, ModelError
from onthejob.files import published
from onthejob.learn.lora import LoraSpec, alpha_of, load_state, parameters, state
from onthejob.models.adapter_config import CONFIG, AdapterShape, parse_object, read_object, read_shape, shape_of_config
from onthejob.models.adapter_weights import DTYPES, LOG_LOGIT_SCALE, parse_log_logit_scale, problem_of, read_log_logit_scale
from onthejob.types import Adapter

WEIGHTS = "adapter_model.safetensors"
META = "adapter_meta.json"
_KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<half>[AB])\.weight")


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
    return write_adapter(state(model, role), model.peft_config[role], adapter, base_digest=base_digest, dtype=dtype)


def write_adapter(
    live: Mapping[str, Tensor],
    config: PeftConfig,
    adapter: Adapter,
    *,
    base_digest: str,
    dtype: Literal["bfloat16", "float32"] = "float32",
) -> Adapter:
    """Write `adapter.path` of these tensors, as `save_adapter` does; returns the adapter with the digest of its weights."""
    kind = {"bfloat16": torch.bfloat16, "float32": torch.float32}[dtype]
    check_finite(live, adapter.path)
    metadata, matrices = {"format": "pt"}, dict(live)
    if LOG_LOGIT_SCALE in live:
        # Not among the tensors: PEFT and vLLM refuse tensors that they do not know, and rounding it would gain nothing.
        metadata[LOG_LOGIT_SCALE] = repr(matrices.pop(LOG_LOGIT_SCALE).item())
        try:
            parse_log_logit_scale(metadata[LOG_LOGIT_SCALE])
        except ValueError as error:
            raise ModelError(f"{adapter.path} is not written: {error}. Go back to the previous version.") from error
    weights = _ordered(save({name: tensor.to(kind).contiguous() for name, tensor in matrices.items()}, metadata=metadata))
    digest = hashlib.sha256(weights).hexdigest()
    meta = {
        "role": adapter.role,
        "version": adapter.version,
        "parent": adapter.parent,
        "base_digest": base_digest,
        "dtype": dtype,
        "digest": digest,
    }
    if adapter.path.exists():
        same_shape = read_shape(adapter.path) == shape_of_config(_peft_config(config), str(adapter.path))
        if same_shape and read_object(adapter.path / META) == meta:
            return read_adapter(adapter.path)
        raise ModelError(f"adapter {adapter.name} exists with other weights at {adapter.path}; use the next version number.")
    write_directory(adapter.path, {WEIGHTS: weights, CONFIG: _json(_peft_config(config)), META: _json(meta)})
    return replace(adapter, digest=digest)


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
    """The plain shape in which a saved adapter is trained on; of its weights only the header is read.

    rsLoRA is plain LoRA with another alpha, and where ranks differ by layer all layers get the largest (see `plain_tensors`).

    Raises:
        ModelError: Its configuration or weights are missing, unreadable, or of a kind of LoRA that is not computed here.
    """
    shape, scaled = read_shape(path), read_log_logit_scale(path) is not None
    try:
        return LoraSpec(rank=shape.largest_rank, alpha=shape.plain_alpha, targets=shape.targets, logit_scale=scaled)
    except ConfigError as error:
        raise ModelError(f"{path / CONFIG} states no shape of an adapter: {error} Write it again with `onthejob sft`.") from error


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
    found, tensors, meta, shape = _read(path)
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
    log_scale, scales = read_log_logit_scale(path), {}
    if LOG_LOGIT_SCALE in parameters(model, role):
        scales[LOG_LOGIT_SCALE] = torch.tensor(log_scale or 0.0)
    elif log_scale is not None:
        raise ModelError(
            f"adapter {found.name} has a logit scale of its own, role {role!r} was attached without. "
            "Attach with --lora.logit-scale."
        )
    load_state(model, role, plain_tensors(tensors, shape) | scales)
    return found


def _peft_config(config: PeftConfig) -> dict[str, Any]:
    written = config.to_dict()
    written["inference_mode"] = True
    written["base_model_name_or_path"] = None  # A path would be true on one machine only; the base's digest is in META.
    return {name: sorted(value) if isinstance(value, set) else value for name, value in written.items()}


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def write_directory(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a directory durably; readers see all of it or nothing. OSError leaves nothing behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with published(path) as draft:
        for name, content in files.items():
            (draft / name).write_bytes(content)


def _read(path: Path) -> tuple[Adapter, dict[str, Tensor], dict[str, Any], AdapterShape]:
    refuse_pickles(path)
    try:
        meta = parse_object((path / META).read_bytes())
        digest = hashlib.sha256((path / WEIGHTS).read_bytes()).hexdigest()
        with safe_open(path / WEIGHTS, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
        adapter = Adapter(role=meta["role"], version=meta["version"], path=path, parent=meta["parent"], digest=meta["digest"])
        expected = meta["digest"]
        _check_types(meta)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ModelError(f"{path} is not a readable adapter directory ({WEIGHTS}, {CONFIG}, {META}): {error}") from error
    if digest != expected:
        raise ModelError(f"{path / WEIGHTS} has sha256 {digest[:12]}, recorded was {expected[:12]}: the file was changed.")
    shape = read_shape(path)
    check_pairs(tensors, shape, path)
    check_finite(tensors, path)
    return adapter, tensors, meta, shape


def _check_types(values: Mapping[str, Any]) -> None:
    """TypeError unless what an adapter's files state of it has the types that `save_adapter` writes."""
    for name in ("role", "digest", "base_digest"):
        if not isinstance(values[name], str):
            raise TypeError(f"{name} must be text, got {values[name]!r}")
    if type(values["version"]) is not int or values["version"] < 0:
        raise TypeError(f"version must be a whole number >= 0, got {values['version']!r}")
    if not isinstance(values["parent"], str | None):
        raise TypeError(f"parent must be text or null, got {values['parent']!r}")


def refuse_pickles(path: Path) -> None:
    """ModelError when the folder holds weights in a format that can run code."""
    pickled = sorted(file.name for file in path.glob("*") if file.suffix in (".bin", ".pt", ".pth", ".pkl"))
    if pickled:
        raise ModelError(f"{path} holds pickled weights ({pickled[0]}), which can run code; only safetensors are read.")


def plain_tensors(tensors: Mapping[str, Tensor], shape: AdapterShape) -> dict[str, Tensor]:
    """The pairs of the same policy in plain LoRA of rank `shape.largest_rank` and alpha `shape.plain_alpha`.

    Where patterns give layers other ranks or scalings, A and B are filled up with zeros, which stay zero in training, and B takes
    the rest of the scaling. Uniform adapters keep their tensors as they are.
    """
    if shape.uniform:
        return dict(tensors)
    scaling = shape.plain_alpha / shape.largest_rank
    plain = {}
    for name, tensor in tensors.items():
        module, half = module_and_half(name)
        lacking = shape.largest_rank - shape.rank_of(module)
        if half == "A":
            plain[name] = F.pad(tensor.float(), (0, 0, 0, lacking))  # (R, I)
        else:
            plain[name] = F.pad(tensor.float() * (shape.scaling_of(module) / scaling), (0, lacking))  # (O, R)
    return plain


def module_and_half(name: str) -> tuple[str, str]:
    """`base_model.model.a.b.lora_A.weight` -> (`a.b`, `A`); the half is empty when the name is no LoRA matrix's."""
    match = _KEY.fullmatch(name)
    return ("", "") if match is None else (match["module"], match["half"])


def check_pairs(tensors: Mapping[str, Tensor], shape: AdapterShape, path: Path) -> None:
    """ModelError unless `tensors` are complete LoRA pairs of the stated ranks; `path` is named in the error."""
    modules: dict[str, set[str]] = {}
    for name, tensor in tensors.items():
        module, half = module_and_half(name)
        if not half or tensor.dim() != 2 or tensor.dtype not in DTYPES:
            raise ModelError(f"{path}: {name!r} {tuple(tensor.shape)} {tensor.dtype} is not a LoRA matrix.")
        if tensor.shape[0 if half == "A" else 1] != (rank := shape.rank_of(module)):
            raise ModelError(f"{path}: {name!r} has shape {tuple(tensor.shape)}, its config states rank {rank!r}.")
        modules.setdefault(module, set()).add(half)
    single = sorted(module for module, parts in modules.items() if parts != {"A", "B"})
    if single or not modules:
        raise ModelError(f"{path}: every adapted layer has lora_A and lora_B; incomplete: {single[:1] or 'all'}.")


def check_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    """ModelError when a number is not finite or overflows in float16; `path` is named in the error."""
    for name, tensor in tensors.items():
        if problem := problem_of(tensor):
            raise ModelError(f"{path}: {name!r} {problem}. Go back to the previous version.")
