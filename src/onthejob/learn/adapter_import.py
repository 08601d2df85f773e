"""Adapters of PEFT, TRL and Unsloth become ours: checked completely, and written anew as plain LoRA with a role and a base.

All three write PEFT's format. What they lack is what makes an adapter safe to use here: whose it is, and the digest of the base's
weights that it was trained on. Layers, ranks and scalings are taken from the tensors and checked against the base.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from onthejob.errors import ConfigError, ModelError
from onthejob.learn.adapter_files import (
    META,
    WEIGHTS,
    check_finite,
    check_pairs,
    module_and_half,
    plain_tensors,
    refuse_pickles,
    write_adapter,
)
from onthejob.learn.lora import check_role, plain_config
from onthejob.models.adapter_config import CONFIG, SELECTION, AdapterShape, read_object, shape_of_config
from onthejob.models.base_model import skeleton, weights_digest
from onthejob.models.targets import linear_layers, name_layers
from onthejob.types import Adapter


def import_adapter(source: Path, directory: Path, *, role: str, base: Path, version: int = 0) -> Adapter:
    """Write the adapter of another program as `directory/role@version`; its policy stays the same.

    Args:
        source: folder with `adapter_config.json` and `adapter_model.safetensors`, e.g. a checkpoint of TRL.
        directory: parent of the new folder.
        role: whose adapter it becomes.
        base: folder of the base model on which it was trained; its weights' digest is computed, and kept with the adapter.
        version: of the new adapter, >= 0.

    Raises:
        ConfigError: a role or version that cannot be, or a folder without an adapter of another program.
        ModelError: a kind of LoRA that is not computed here, another base, layers that it does not have, or damaged weights.
        OSError: it cannot be written; nothing remains then.
    """
    check_role(role)
    if version < 0:
        raise ConfigError(f"version must be >= 0, got {version}. Use the default 0.")
    config = _read_config(source)
    digest = _checked_base(config, base)
    # The tensors say which layers it adapts; how they were once selected (an expression, numbers of layers) no longer matters.
    shape = shape_of_config({**config, **SELECTION}, str(source / CONFIG))
    tensors = _read_tensors(source, shape)
    model = skeleton(base)
    modules = _checked_layers(tensors, linear_layers(model), source)
    return write_adapter(
        plain_tensors(tensors, shape),
        plain_config(rank=shape.largest_rank, alpha=shape.plain_alpha, targets=name_layers(model, modules).names),
        Adapter(role=role, version=version, path=directory / f"{role}@{version:04d}"),
        base_digest=digest,
        dtype="bfloat16" if shape.uniform and all(t.dtype == torch.bfloat16 for t in tensors.values()) else "float32",
    )


def _read_config(source: Path) -> Mapping[str, Any]:
    if (source / META).exists():
        raise ConfigError(f"{source} is an adapter of this program already ({META}). Use it as it is.")
    if not (source / CONFIG).is_file():
        inside = sorted(str(path.parent) for path in source.glob(f"*/{CONFIG}")) if source.is_dir() else []
        hint = f"Name one of {', '.join(inside)}." if inside else "Give the folder that PEFT, TRL or Unsloth saved."
        raise ConfigError(f"{source} holds no {CONFIG}. {hint}")
    return read_object(source / CONFIG)


def _checked_base(config: Mapping[str, Any], base: Path) -> str:
    """The digest of the base's weights; a folder that the adapter names as its base must have the same."""
    digest, named = weights_digest(base), str(config.get("base_model_name_or_path") or "")
    if named and Path(named).is_dir() and any(Path(named).glob("*.safetensors")):
        trained_on = weights_digest(Path(named))
        if trained_on != digest:
            raise ModelError(
                f"the adapter was trained on {named}, whose weights have the digest {trained_on[:12]}; those of {base} have "
                f"{digest[:12]}. Name the base it was trained on with --model."
            )
    return digest


def _read_tensors(source: Path, shape: AdapterShape) -> dict[str, Tensor]:
    if not (source / WEIGHTS).is_file():
        refuse_pickles(source)
    try:
        tensors = load_file(source / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{source / WEIGHTS} cannot be read ({error}). Save the adapter with safetensors.") from error
    check_pairs(tensors, shape, source)
    check_finite(tensors, source)
    return tensors


def _checked_layers(
    tensors: Mapping[str, Tensor], layers: Mapping[str, tuple[int, int]], source: Path
) -> dict[str, tuple[int, int]]:
    """The layers of the base that the tensors adapt."""
    for name, tensor in tensors.items():
        module, half = module_and_half(name)
        if module not in layers:
            raise ModelError(
                f"{source}: {name!r} belongs to no layer of the base that takes an adapter (a linear layer other than the output "
                "head). Name the base it was trained on with --model."
            )
        outputs, inputs = layers[module]
        if (got := tensor.shape[1 if half == "A" else 0]) != (want := inputs if half == "A" else outputs):
            raise ModelError(
                f"{source}: {name!r} has shape {tuple(tensor.shape)}, the base's layer has {want} and not {got} "
                f"{'inputs' if half == 'A' else 'outputs'}. Name the base it was trained on with --model."
            )
    adapted = {module_and_half(name)[0] for name in tensors}
    return {module: shape for module, shape in layers.items() if module in adapted}
