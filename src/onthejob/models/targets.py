"""The layers of a model that take an adapter: the one rule of learner, sampler, server and import.

An adapter may change every linear layer but the output head, what PEFT calls `all-linear`: fused projections are layers like any
other, and linear layers of shared experts too where PEFT can reach them. Experts that transformers holds as one tensor (Mixtral,
Qwen3-MoE) are no layers and take none; neither do embeddings, norms, convolutions and GPT-2's Conv1D.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from peft import LoraConfig
from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
from torch import nn

from onthejob.errors import ConfigError

ALL_LINEAR = "all-linear"
"""As a target: every layer of `linear_layers`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Which layers of one model get an adapter."""

    names: tuple[str, ...]
    """Ends of module names, sorted, that mean `modules` and nothing else: PEFT's `target_modules`."""
    modules: Mapping[str, tuple[int, int]]
    """Full name, e.g. `model.layers.0.self_attn.q_proj` -> (outputs, inputs)."""
    without: tuple[str, ...]
    """Further weights that look like layers and take no adapter, such as fused experts: ends of their names, sorted."""

    def describe(self, rank: int) -> str:
        """One sentence about the adapter that is trained."""
        count = sum(rank * (outputs + inputs) for outputs, inputs in self.modules.values())
        lacking = f"; without adapter: {', '.join(self.without)}" if self.without else ""
        return f"LoRA rank {rank} on {len(self.modules)} layers ({', '.join(self.names)}), {count:,} parameters{lacking}"


def linear_layers(model: Any) -> dict[str, tuple[int, int]]:
    """Name -> (outputs, inputs) of every layer of a causal language model that takes an adapter."""
    head = model.get_output_embeddings()
    found = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head}
    moved = {leaf for leaf in {name.rpartition(".")[2] for name in found} if _is_moved(model, leaf)}
    return {
        name: (module.out_features, module.in_features) for name, module in found.items() if name.rpartition(".")[2] not in moved
    }


def resolve(model: Any, targets: Sequence[str]) -> Targets:
    """The layers that `targets` mean in `model`, a causal language model without adapters; its weights may be on `meta`.

    Args:
        model: its architecture.
        targets: module names or ends of them (`q_proj`, `self_attn.q_proj`), or `all-linear` alone.

    Raises:
        ConfigError: a target that matches nothing, or anything that takes no adapter; or a model that has no such layer.
    """
    layers = linear_layers(model)
    kind = type(model).__name__
    if not layers:
        other = sorted({type(module).__name__ for _, module in model.named_modules() if type(module).__name__ == "Conv1D"})
        raise ConfigError(
            f"{kind} has no layer that takes an adapter: adapters change torch's linear layers except the output head"
            f"{', it is built of ' + other[0] if other else ''}. Choose another model."
        )
    if ALL_LINEAR in targets:
        if len(targets) > 1:
            raise ConfigError(f"LoRA target {ALL_LINEAR} means every layer; remove {_listed(set(targets) - {ALL_LINEAR})}.")
        return name_layers(model, layers)
    chosen: dict[str, tuple[int, int]] = {}
    for target in targets:
        found = [name for name, _ in model.named_modules() if matches(name, target)]
        if not found or any(name not in layers for name in found):
            raise ConfigError(
                f"LoRA target {target!r} {_problem(model, target, found, layers)} {_choices(model, layers, target)}"
            )
        chosen |= {name: layers[name] for name in found}
    # In the model's order, whatever the targets' was.
    modules = {name: shape for name, shape in layers.items() if name in chosen}
    return Targets(names=tuple(sorted(set(targets))), modules=modules, without=_without(model, modules))


def name_layers(model: Any, modules: Mapping[str, tuple[int, int]]) -> Targets:
    """`modules`, some of the model's `linear_layers`, under the shortest names that mean them and nothing else."""
    other = {end for name, _ in model.named_modules() if name not in modules for end in _ends(name)}
    names = {next((end for end in _ends(module) if end not in other), module) for module in modules}
    return Targets(names=tuple(sorted(names)), modules=dict(modules), without=_without(model, modules))


def matches(module: str, target: str) -> bool:
    """Whether PEFT means the module by an entry of `target_modules`."""
    return module == target or module.endswith(f".{target}")


def _ends(name: str) -> Iterator[str]:
    """`c`, `b.c`, `a.b.c` of `a.b.c`."""
    parts = name.split(".")
    return (".".join(parts[-count:]) for count in range(1, len(parts) + 1))


def _is_moved(model: Any, name: str) -> bool:
    """Whether PEFT takes the layer's name for that of experts held as one tensor since transformers 5, and cannot reach it."""
    leaf = name.rpartition(".")[2]
    config = LoraConfig(target_modules=[leaf])
    try:
        convert_peft_config_for_transformers(config, model, None)
    except ValueError:  # One of two layers that belong together there, such as gate_proj without up_proj.
        return True
    return set(config.target_modules or ()) != {leaf}


def _without(model: Any, modules: Mapping[str, tuple[int, int]]) -> tuple[str, ...]:
    head = model.get_output_embeddings()
    layers = {
        name
        for name, module in model.named_modules()
        if name not in modules and module is not head and (isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D")
    }
    # Three dimensions: one matrix per expert. A convolution's weight is one of a module with a name of its own.
    experts = {name for name, parameter in model.named_parameters() if parameter.dim() == 3 and not name.endswith(".weight")}
    return tuple(sorted({_without_numbers(name) for name in layers | experts}))


def _without_numbers(name: str) -> str:
    """What follows the number of the layer: `mlp.experts.down_proj`."""
    parts = name.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[numbers[0] + 1 :] if numbers else parts)


def _problem(model: Any, target: str, found: Sequence[str], layers: Mapping[str, object]) -> str:
    """Why `target` cannot be one, as the end of a sentence."""
    modules = dict(model.named_modules())
    odd = next((name for name in found if name not in layers), None)
    if odd is not None and modules[odd] is model.get_output_embeddings():
        return "is the output head, which takes no adapter."
    if (odd is None or isinstance(modules[odd], nn.Linear)) and _is_moved(model, target):
        return f"names experts of {type(model).__name__}, which are held as one tensor and take no adapter."
    if odd is not None:
        return f"means {odd}, a {type(modules[odd]).__name__}: only torch's linear layers take an adapter."
    if any(matches(name, target) for name, _ in model.named_parameters()):
        return "is a tensor and no layer: it takes no adapter."
    return f"matches no layer of {type(model).__name__}."


def _choices(model: Any, layers: Mapping[str, tuple[int, int]], target: str) -> str:
    names = name_layers(model, layers).names
    near = difflib.get_close_matches(target, names, n=1)
    meant = f"Did you mean {near[0]}? " if near else ""
    return f"{meant}Choose among {_listed(names)}, or {ALL_LINEAR} for all of them (--lora.targets)."


def _listed(names: Sequence[str] | set[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:20]) + (f" and {len(shown) - 20} more" if len(shown) > 20 else "")
