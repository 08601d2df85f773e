"""What is checked before an adapter may come near a server, and the copy that the server is given.

A server loads whatever it is pointed at, and one poisoned adapter breaks every role: not-a-number weights spread through its
cache to the base and to all other adapters, a missing file ends the engine (reliability note, facts 1 and 2). So an adapter is
read once, checked completely, and the very bytes that were checked are written to a directory of our own under a new name. The
server never sees the source.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load
from torch import Tensor

from onthejob.errors import ConfigError, ModelError
from onthejob.learn.adapter_files import CONFIG, META, WEIGHTS, check_finite, check_pairs, write_directory
from onthejob.types import Adapter

_FILES = frozenset({WEIGHTS, CONFIG, META})
_NAME = re.compile(r"(?P<role>[a-z][a-z0-9_]*)@(?P<version>[0-9]{4,9})")
_PREFIX = "base_model.model."
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_FREE = frozenset({"r", "lora_alpha", "target_modules", "task_type", "inference_mode", "use_rslora", "peft_version"})
"""Keys of adapter_config.json whose value is checked by itself; every other must have PEFT's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseShape:
    """What an adapter must fit."""

    digest: str
    """Of the base's weights, as adapters name it."""
    modules: Mapping[str, tuple[int, int]]
    """Projection -> (outputs, inputs), e.g. `model.layers.0.self_attn.q_proj`."""

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the linear layers that an adapter may change, e.g. `q_proj`; the head is none of them."""
        return tuple(sorted({module.rpartition(".")[2] for module in self.modules}))

    @classmethod
    def of_folder(cls, folder: Path, *, digest: str) -> BaseShape:
        """Read from a model folder's file headers; no weights are loaded.

        Raises:
            ModelError: a weights file cannot be read, or none has a projection.
        """
        modules: dict[str, tuple[int, int]] = {}
        try:
            for file in sorted(folder.glob("*.safetensors")):
                with safe_open(file, framework="pt") as tensors:
                    for name in tensors.keys():  # noqa: SIM118  # not a dict
                        shape = tensors.get_slice(name).get_shape()
                        if len(shape) == 2 and ".layers." in name and name.endswith(".weight"):
                            modules[name.removesuffix(".weight")] = (shape[0], shape[1])
        except (OSError, SafetensorError) as error:
            raise ModelError(f"the base at {folder} cannot be read: {error}. Fetch it again.") from error
        if not modules:
            raise ModelError(f"the base at {folder} has no projections in *.safetensors. Fetch it again.")
        return cls(digest=digest, modules=modules)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeLimits:
    """Largest adapter that is let in."""

    max_rank: int = 64
    """As the server's --max-lora-rank."""
    max_bytes: int = 1 << 30
    """Of the weights file."""
    max_weight: float = 1e3
    """Largest magnitude of a number: far beyond any trained one, far below what overflows in the product of two in bfloat16."""
    max_scaling: float = 64.0
    """Largest alpha / rank."""

    def __post_init__(self) -> None:
        if self.max_rank < 1 or self.max_bytes < 1 or not self.max_weight > 0 or not self.max_scaling > 0:
            raise ConfigError(f"intake limits must be positive, got {self}.")


class Intake:
    """The door of one server: `admit` gives the checked copy."""

    def __init__(self, store: Path, base: BaseShape, limits: IntakeLimits | None = None) -> None:
        """store: where admitted copies are kept; only this object writes there. base: what they must fit."""
        self.store = store
        self.base = base
        self.limits = limits or IntakeLimits()

    def admit(self, source: Path) -> Adapter:
        """Check the adapter directory `source` (named `role@version`) and copy it to a new path in the store.

        The copy's path holds the digest of its weights, so no path ever has two contents; admitting the same again returns it.

        Raises:
            ModelError: what is wrong with it; nothing was written then.
        """
        files = self._read(source)
        adapter = self._check(source, files)
        target = self.store / adapter.role / f"{adapter.name}-{adapter.digest[:12]}"
        if not target.is_dir():
            write_directory(target, files)
        return Adapter(role=adapter.role, version=adapter.version, path=target, parent=adapter.parent, digest=adapter.digest)

    def _read(self, source: Path) -> dict[str, bytes]:
        """All files, read without following any link."""
        if source.is_symlink() or not source.is_dir():
            raise _refused(source, "it is not a directory of its own")
        found = sorted(entry.name for entry in source.iterdir())
        if set(found) != _FILES:
            raise _refused(source, f"it must hold exactly {', '.join(sorted(_FILES))}, got {', '.join(found[:8]) or 'nothing'}")
        sizes = {WEIGHTS: self.limits.max_bytes, CONFIG: 64 * 1024, META: 64 * 1024}
        return {name: _bytes(source / name, limit) for name, limit in sizes.items()}

    def _check(self, source: Path, files: Mapping[str, bytes]) -> Adapter:
        config, meta = (_object(source, name, files[name]) for name in (CONFIG, META))
        adapter = self._identity(source, meta, hashlib.sha256(files[WEIGHTS]).hexdigest())
        scaling = self._config(source, config)
        try:
            tensors = load(files[WEIGHTS])
        except (SafetensorError, ValueError, RuntimeError) as error:
            raise _refused(source, f"{WEIGHTS} is not safetensors ({error})") from error
        check_pairs(tensors, config["r"], source)
        check_finite(tensors, source)
        self._weights(source, tensors, config, scaling)
        return adapter

    def _identity(self, source: Path, meta: Mapping[str, Any], digest: str) -> Adapter:
        named = _NAME.fullmatch(source.name)
        if named is None:
            raise _refused(source, "its directory must be called role@version, e.g. sales@0007")
        role, version = named["role"], int(named["version"])
        if meta.get("role") != role or type(meta.get("version")) is not int or meta["version"] != version:
            raise _refused(source, f"{META} says {meta.get('role')}@{meta.get('version')}")
        if meta.get("digest") != digest:
            raise _refused(source, f"{WEIGHTS} has the sha256 {digest[:12]}, {META} says {str(meta.get('digest'))[:12]}")
        if meta.get("base_digest") != self.base.digest:
            raise _refused(
                source, f"it was trained on the base {str(meta.get('base_digest'))[:12]}, served is {self.base.digest[:12]}"
            )
        parent = meta.get("parent")
        if parent is not None and not (isinstance(parent, str) and _NAME.fullmatch(parent)):
            raise _refused(source, f"its parent {str(parent)[:40]!r} is no adapter's name")
        return Adapter(role=role, version=version, path=source, parent=parent, digest=digest)

    def _config(self, source: Path, config: Mapping[str, Any]) -> float:
        from peft import LoraConfig

        rank, alpha = config.get("r"), config.get("lora_alpha")
        if type(rank) is not int or not 1 <= rank <= self.limits.max_rank:
            raise _refused(source, f"its rank must be 1..{self.limits.max_rank}, got {rank!r}")
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha) or alpha <= 0:
            raise _refused(source, f"its lora_alpha must be a finite number > 0, got {alpha!r}")
        if config.get("task_type") != "CAUSAL_LM":
            raise _refused(source, f"its task_type must be CAUSAL_LM, got {config.get('task_type')!r}")
        defaults = LoraConfig().to_dict()
        for key, value in config.items():
            if key in _FREE:
                continue
            if key not in defaults:
                raise _refused(source, f"{CONFIG} has the unknown key {key!r}")
            if value != getattr(defaults[key], "value", defaults[key]):
                raise _refused(source, f"it uses {key}={str(value)[:60]!r}, which is not served")
        scaling = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
        if scaling > self.limits.max_scaling:
            raise _refused(source, f"its scaling is {scaling:g}, at most {self.limits.max_scaling:g} is served")
        return scaling

    def _weights(self, source: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any], scaling: float) -> None:
        targets = config.get("target_modules")
        if not isinstance(targets, list) or not targets or not all(isinstance(target, str) for target in targets):
            raise _refused(source, f"target_modules must be a list of names, got {str(targets)[:60]!r}")
        wanted = {module for module in self.base.modules if module.rpartition(".")[2] in targets}
        unknown = [target for target in targets if not any(module.endswith(f".{target}") for module in wanted)]
        if unknown:
            raise _refused(source, f"its target {unknown[0][:60]!r} is no projection of the base")
        modules = set()
        for name, tensor in tensors.items():
            module, _, half = name.removeprefix(_PREFIX).removesuffix(".weight").rpartition(".")
            if not name.startswith(_PREFIX) or module not in wanted:
                raise _refused(source, f"its tensor {name[:120]!r} belongs to no target")
            if tensor.dtype not in _DTYPES:
                raise _refused(source, f"its tensor {name!r} has the dtype {tensor.dtype}")
            outputs, inputs = self.base.modules[module]
            shape = (config["r"], inputs) if half == "lora_A" else (outputs, config["r"])
            if tuple(tensor.shape) != shape:
                raise _refused(source, f"its tensor {name!r} has the shape {tuple(tensor.shape)}, the base needs {shape}")
            largest = float(tensor.abs().max())
            if largest * (scaling if half == "lora_B" else 1.0) > self.limits.max_weight:
                raise _refused(source, f"its tensor {name!r} holds {largest:g}, larger than anything that was trained")
            modules.add(module)
        if modules != wanted:
            raise _refused(source, f"it lacks {len(wanted - modules)} of {len(wanted)} targeted layers")


def _bytes(path: Path, limit: int) -> bytes:
    """A regular file's content, never through a link and never more than `limit` bytes."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise _refused(path.parent, f"{path.name} cannot be opened as a file of its own ({error.strerror})") from error
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise _refused(path.parent, f"{path.name} is no regular file")
        content = file.read(limit + 1)
    if len(content) > limit:
        raise _refused(path.parent, f"{path.name} is larger than {limit} bytes")
    return content


def _object(source: Path, name: str, content: bytes) -> dict[str, Any]:
    def no_constant(text: str) -> float:
        raise ValueError(f"{text} is not JSON")

    def no_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError("a key is repeated")
        return dict(pairs)

    try:
        value = json.loads(content, parse_constant=no_constant, object_pairs_hook=no_repetition)
    except (ValueError, RecursionError) as error:
        raise _refused(source, f"{name} is not JSON ({str(error)[:100]})") from error
    if not isinstance(value, dict):
        raise _refused(source, f"{name} holds a {type(value).__name__}, not an object")
    return value


def _refused(source: Path, why: str) -> ModelError:
    return ModelError(f"adapter {source.name!r} is not served: {why}. Save it again with save_adapter.")
