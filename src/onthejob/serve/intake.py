"""What is checked before an adapter may come near a server, and the copy that the server is given.

A server loads whatever it is pointed at, and one poisoned adapter breaks every role: not-a-number weights spread through its
cache to the base and to all other adapters, and a missing file ends the engine. So an adapter is
read once, checked completely, and the very bytes that were checked are written to a directory of our own under a new name (the
same policy as plain LoRA where ranks or alphas differ by layer, which vLLM does not read). The server never sees the source.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Gt
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from onthejob.errors import ModelError
from onthejob.learn.adapter_files import (
    META,
    WEIGHTS,
    check_finite,
    check_pairs,
    module_and_half,
    plain_tensors,
    write_directory,
)
from onthejob.models.adapter_config import CONFIG, AdapterShape, parse_object, shape_of_config
from onthejob.models.adapter_weights import LOG_LOGIT_SCALE, parse_log_logit_scale
from onthejob.models.targets import matches
from onthejob.setting_ranges import check_ranges
from onthejob.types import Adapter

_FILES = frozenset({WEIGHTS, CONFIG, META})
_NAME = re.compile(r"(?P<role>[a-z][a-z0-9_]*)@(?P<version>[0-9]{4,9})")
_FREE = frozenset({
    "alpha_pattern", "inference_mode", "lora_alpha", "peft_version", "r", "rank_pattern", "target_modules", "task_type",
    "use_rslora",
})  # fmt: skip
"""Keys of adapter_config.json that may differ from PEFT's defaults."""


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

    max_rank: Annotated[int, Ge(1)] = 64
    """As the server's --max-lora-rank."""
    max_bytes: Annotated[int, Ge(1)] = 1 << 30
    """Of the weights file."""
    max_weight: Annotated[float, Gt(0)] = 1e3
    """Largest magnitude of a number: far beyond any trained one, far below what overflows in the product of two in bfloat16."""
    max_scaling: Annotated[float, Gt(0)] = 64.0
    """Largest alpha / rank."""

    def __post_init__(self) -> None:
        check_ranges(self)


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
        adapter, served = self._check(source, files)
        target = self.store / adapter.role / f"{adapter.name}-{adapter.digest[:12]}"
        if not target.is_dir():
            write_directory(target, served)
        elif self._read(target) != served:
            raise ModelError(
                f"adapter {adapter.name!r} is not served: its copy {target} was changed after it was checked. Remove that folder "
                "and publish the adapter again."
            )
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

    def _check(self, source: Path, files: Mapping[str, bytes]) -> tuple[Adapter, Mapping[str, bytes]]:
        """Who it is, and what the server is given: the files, or the same policy in plain LoRA."""
        config, meta = (_object(source, name, files[name]) for name in (CONFIG, META))
        adapter = self._identity(source, meta, hashlib.sha256(files[WEIGHTS]).hexdigest())
        shape = self._shape(source, config)
        try:
            tensors = load(files[WEIGHTS])
        except (SafetensorError, ValueError, RuntimeError, KeyError) as error:
            raise _refused(source, f"{WEIGHTS} is not safetensors ({error})") from error
        try:
            parse_log_logit_scale(_metadata(files[WEIGHTS]).get(LOG_LOGIT_SCALE))
        except ValueError as error:
            raise _refused(source, str(error)) from error
        check_pairs(tensors, shape, source)
        check_finite(tensors, source)
        self._weights(source, tensors, shape)
        return adapter, files if shape.uniform else _plain(files, tensors, shape)

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

    def _shape(self, source: Path, config: Mapping[str, Any]) -> AdapterShape:
        from peft import LoraConfig

        shape = shape_of_config(config, f"adapter {source.name!r} is not served: its {CONFIG}")
        # The server reads the file too, also what says nothing about what is computed.
        defaults = LoraConfig().to_dict()
        for key, value in config.items():
            if key not in defaults:
                raise _refused(source, f"{CONFIG} has the unknown key {key!r}")
            if key not in _FREE and value != getattr(defaults[key], "value", defaults[key]):
                raise _refused(source, f"it uses {key}={str(value)[:60]!r}, which is not served")
        if shape.largest_rank > self.limits.max_rank:
            raise _refused(source, f"its rank must be 1..{self.limits.max_rank}, got {shape.largest_rank}")
        return shape

    def _weights(self, source: Path, tensors: Mapping[str, Tensor], shape: AdapterShape) -> None:
        wanted = {module for module in self.base.modules if any(matches(module, target) for target in shape.targets)}
        unknown = [target for target in shape.targets if not any(matches(module, target) for module in wanted)]
        if unknown or not shape.targets:
            raise _refused(source, f"its target {(unknown or ['none'])[0][:60]!r} is no projection of the base")
        modules = set()
        for name, tensor in tensors.items():
            module, half = module_and_half(name)
            if module not in wanted:
                raise _refused(source, f"its tensor {name[:120]!r} belongs to no target")
            outputs, inputs = self.base.modules[module]
            rank, scaling = shape.rank_of(module), shape.scaling_of(module)
            if scaling > self.limits.max_scaling:
                raise _refused(source, f"its scaling is {scaling:g}, at most {self.limits.max_scaling:g} is served")
            expected = (rank, inputs) if half == "A" else (outputs, rank)
            if tuple(tensor.shape) != expected:
                raise _refused(source, f"its tensor {name!r} has the shape {tuple(tensor.shape)}, the base needs {expected}")
            largest = float(tensor.abs().max())
            if largest * (scaling if half == "B" else 1.0) > self.limits.max_weight:
                raise _refused(source, f"its tensor {name!r} holds {largest:g}, larger than anything that was trained")
            modules.add(module)
        if modules != wanted:
            raise _refused(source, f"it lacks {len(wanted - modules)} of {len(wanted)} targeted layers")


def _plain(files: Mapping[str, bytes], tensors: Mapping[str, Tensor], shape: AdapterShape) -> dict[str, bytes]:
    """The same policy in plain LoRA: vLLM knows one rank and one scaling per adapter, and reads no patterns."""
    config = json.loads(files[CONFIG]) | {
        "r": shape.largest_rank, "lora_alpha": shape.plain_alpha,
        "rank_pattern": {}, "alpha_pattern": {}, "use_rslora": False,
    }  # fmt: skip
    return dict(files) | {
        WEIGHTS: save(plain_tensors(tensors, shape), metadata={"format": "pt"}),
        CONFIG: json.dumps(config, indent=2, sort_keys=True).encode(),
    }


def _bytes(path: Path, limit: int) -> bytes:
    """A regular file's content, never through a link and never more than `limit` bytes."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise _refused(path.parent, f"{path.name} cannot be opened as a file of its own ({error.strerror})") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _refused(path.parent, f"{path.name} is no regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(limit + 1)
    finally:
        os.close(descriptor)
    if len(content) > limit:
        raise _refused(path.parent, f"{path.name} is larger than {limit} bytes")
    return content


def _object(source: Path, name: str, content: bytes) -> dict[str, Any]:
    try:
        return parse_object(content)
    except ValueError as error:
        raise _refused(source, f"{name} is not JSON ({str(error)[:100]})") from error


def _metadata(weights: bytes) -> dict[str, str]:
    """Metadata in the header of a safetensors file that was read."""
    size = int.from_bytes(weights[:8], "little")
    return json.loads(weights[8 : 8 + size]).get("__metadata__") or {}


def _refused(source: Path, why: str) -> ModelError:
    return ModelError(f"adapter {source.name!r} is not served: {why}. Write it again with `onthejob sft`.")
