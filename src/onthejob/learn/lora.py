"""Several LoRA adapters on one base model that is loaded once: attach, activate, copy, compare.

Works on any PEFT model, without the loop. The base is never written to: adapters are not merged, because
merging into bf16 weights and back drifts the base.

Source: TRL issue 6688 for the drift.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, cast

import numpy as np
import torch
from annotated_types import Ge, Gt, MinLen
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import PreTrainedModel

from onthejob.errors import ConfigError, ContractError, ModelError
from onthejob.models.adapter_weights import LOG_LOGIT_SCALE
from onthejob.models.targets import ALL_LINEAR, Targets, resolve
from onthejob.setting_ranges import Usual, check_ranges

_ROLE = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSpec:
    """Shape of every role's adapter."""

    rank: Annotated[int, Ge(1), Usual("8 is enough for small models.")] = 8
    """Inner dimension, >= 1."""
    alpha: Annotated[float, Gt(0), Usual("Twice the rank is usual.")] = 16
    """The adapter's output is multiplied by alpha / rank."""
    targets: Annotated[tuple[str, ...], MinLen(1), Usual("Name a linear layer, e.g. q_proj.")] = (ALL_LINEAR,)
    """Linear layers that get an adapter, by name or the end of it (`q_proj v_proj`); every name must match. `all-linear` means
    every linear layer but the output head, whatever the architecture calls it; experts held as one tensor take none."""
    logit_scale: bool = False
    """Each role also learns a logit scale: one number, at first 1, that multiplies its logits before a temperature divides them
    (an inverse temperature). A few hundred episodes are enough to learn it, long before they are enough for a million weights."""

    def __post_init__(self) -> None:
        check_ranges(self, "--lora.")


class WeightDelta(NamedTuple):
    """How far an update moved an adapter."""

    l2: float
    """Euclidean norm of the difference over all tensors."""
    max_abs: float
    """Largest change of one weight."""


def attach(model: PreTrainedModel, roles: Sequence[str], spec: LoraSpec, *, seed: int) -> PeftModel:
    """Put one adapter per role on `model`, all with the same shape, adapter weights in fp32.

    A is drawn from a generator keyed by (seed, role), so a role's start does not depend on which other roles exist; B is 0, so
    every role begins as the base model. The first role is active afterwards.

    Args:
        model: A causal LM; its weights are shared by all roles and frozen.
        roles: Distinct names, `[a-z][a-z0-9_]*`.
        spec: Rank, alpha and target layers.
        seed: Root of the initialisation.

    Raises:
        ConfigError: No role, a repeated or unusable name, or a target that means anything but layers which take an adapter.
        ContractError: `model` carries adapters already.
    """
    if isinstance(model, PeftModel):
        raise ContractError("the model has adapters already; attach all roles in one call to the bare base model.")
    if not roles or len(set(roles)) != len(roles):
        raise ConfigError(f"roles must be distinct and at least one, got {list(roles)}.")
    for role in roles:
        check_role(role)
    targets = resolve(model, spec.targets)
    peft_model = _adapted(model, roles, spec, targets)
    for name, module in peft_model.named_modules():
        # A base without weights (device meta) takes an adapter's with it.
        if ".lora_" in name and isinstance(module, nn.Linear) and module.weight.is_meta:
            module.to_empty(device="cpu")
    for role in roles:
        _initialise(peft_model, role, seed)
    if spec.logit_scale:
        device = next(iter(parameters(peft_model, roles[0]).values())).device
        peft_model.log_logit_scales = nn.ParameterDict({role: nn.Parameter(torch.zeros((), device=device)) for role in roles})
    activate(peft_model, roles[0])
    return peft_model


def plan(model: PreTrainedModel, spec: LoraSpec) -> Targets:
    """The layers that `attach` would adapt, tried on a model whose weights are on `meta`; it must not be used afterwards.

    Raises:
        ConfigError: As `attach`.
    """
    targets = resolve(model, spec.targets)
    _adapted(model, ("plan",), spec, targets)
    return targets


def _adapted(model: PreTrainedModel, roles: Sequence[str], spec: LoraSpec, targets: Targets) -> PeftModel:
    """PEFT's model with its own initialisation."""
    config = plain_config(rank=spec.rank, alpha=spec.alpha, targets=targets.names)
    # PEFT draws an initialisation that is replaced later, and asks transformers for a flag that was renamed since.
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`", category=FutureWarning)
        try:
            peft_model = get_peft_model(model, config, adapter_name=roles[0])
        except ValueError as error:
            raise ConfigError(f"LoRA targets {', '.join(targets.names)} do not fit this model: {error}") from error
        for role in roles[1:]:
            peft_model.add_adapter(role, config)
    adapted = cast("list[str]", peft_model.base_model.targeted_module_names)
    if set(adapted) != set(targets.modules):
        raise ConfigError(
            f"PEFT would adapt other layers than {', '.join(targets.names)}. Name some of them with --lora.targets."
        )
    return peft_model


def check_role(role: str) -> None:
    """ConfigError unless `role` can name an adapter."""
    if not _ROLE.fullmatch(role):
        raise ConfigError(f"role {role!r} cannot name an adapter; use lower-case letters, digits and _, e.g. 'sales'.")


def plain_config(*, rank: int, alpha: float, targets: Sequence[str]) -> LoraConfig:
    """PEFT's configuration of plain LoRA on the layers whose names end in one of `targets`."""
    return LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]  # PEFT multiplies by it; a float is fine.
        lora_dropout=0.0,
        target_modules=list(targets),
        bias="none",
        task_type="CAUSAL_LM",
    )


def activate(model: PeftModel, role: str) -> None:
    """Make `role` the adapter that is used and trained; all others are frozen.

    Raises:
        ContractError: Unknown role.
    """
    if role not in model.peft_config:
        raise ContractError(f"no adapter for role {role!r}; attached are {sorted(model.peft_config)}.")
    model.set_adapter(role)
    for other, scale in _log_logit_scales(model).items():
        scale.requires_grad_(other == role)


def log_logit_scale(model: nn.Module) -> nn.Parameter | None:
    """Of the active role: the logarithm of what its logits are multiplied by, shape (); None when it learns no such number."""
    return _log_logit_scales(model).get(str(model.active_adapter)) if isinstance(model, PeftModel) else None


def alpha_of(model: PeftModel, role: str) -> float:
    """The alpha with which `role` is attached.

    Raises:
        ContractError: Unknown role.
    """
    if role not in model.peft_config:
        raise ContractError(f"no adapter for role {role!r}; attached are {sorted(model.peft_config)}.")
    return float(model.peft_config[role].to_dict()["lora_alpha"])


def parameters(model: PeftModel, role: str) -> dict[str, nn.Parameter]:
    """The live parameters of `role`: the LoRA pairs, sorted by the name they have on disk, then `log_logit_scale` if it has one.

    Raises:
        ContractError: Unknown role.
    """
    marks = (f".lora_A.{role}.weight", f".lora_B.{role}.weight")
    found = {
        name.removesuffix(f".{role}.weight") + ".weight": parameter
        for name, parameter in model.named_parameters()
        if name.endswith(marks)
    }
    if not found:
        raise ContractError(f"no adapter for role {role!r}; attached are {sorted(model.peft_config)}.")
    scale = _log_logit_scales(model).get(role)
    return dict(sorted(found.items())) | ({} if scale is None else {LOG_LOGIT_SCALE: scale})


def state(model: PeftModel, role: str) -> dict[str, Tensor]:
    """A copy of `role`'s parameters on the CPU, in the dtype of the model's (fp32 after `attach`)."""
    return {name: p.detach().to("cpu", copy=True) for name, p in parameters(model, role).items()}


def load_state(model: PeftModel, role: str, tensors: Mapping[str, Tensor]) -> None:
    """Overwrite `role`'s parameters in place.

    Raises:
        ModelError: Missing or unexpected names, or other shapes. Nothing is written then.
    """
    live = parameters(model, role)
    if live.keys() != tensors.keys():
        odd = sorted(live.keys() ^ tensors.keys())
        raise ModelError(f"adapter tensors do not fit role {role!r}: {len(odd)} names differ, first {odd[0]!r}.")
    for name, parameter in live.items():
        if parameter.shape != tensors[name].shape:
            raise ModelError(
                f"adapter tensor {name!r} has shape {tuple(tensors[name].shape)}, the model wants {tuple(parameter.shape)}. "
                "Attach with the rank the adapter was trained with."
            )
    with torch.no_grad():
        for name, parameter in live.items():
            parameter.copy_(tensors[name])


class Snapshot:
    """A frozen CPU copy of one adapter: the reference policy of a KL term, or a state to return to."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}

    @classmethod
    def take(cls, model: PeftModel, role: str) -> Snapshot:
        """Copy `role`'s present weights."""
        return cls(state(model, role))

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Name -> tensor. Treat as read-only."""
        return self._tensors

    @contextmanager
    def applied(self, model: PeftModel, role: str) -> Iterator[None]:
        """Put these weights in place of `role`'s for the duration of a `with` block.

        The former weights come back bit for bit, also after an exception.

        Raises:
            ContractError: A snapshot is applied to this role already; restoring in the wrong order would lose weights.
        """
        # The mark lives on the model it describes, so two models never disturb each other.
        applied: set[str] = model.__dict__.setdefault("_onthejob_snapshot_roles", set())
        if role in applied:
            raise ContractError(f"a snapshot is applied to role {role!r} already; leave its `with` block first.")
        kept = state(model, role)
        load_state(model, role, self._tensors)
        applied.add(role)
        try:
            yield
        finally:
            load_state(model, role, kept)
            applied.discard(role)


def weight_delta(a: Snapshot | Mapping[str, Tensor], b: Snapshot | Mapping[str, Tensor]) -> WeightDelta:
    """Distance between two adapters of the same shape; (0, 0) exactly when they are equal.

    Raises:
        ModelError: Different names.
    """
    first = a.tensors if isinstance(a, Snapshot) else a
    second = b.tensors if isinstance(b, Snapshot) else b
    if first.keys() != second.keys():
        raise ModelError("the two adapters have different tensors; compare adapters of one base and spec.")
    squares, largest = 0.0, 0.0
    for name, tensor in first.items():
        difference = tensor.detach().cpu().double() - second[name].detach().cpu().double()
        squares += float(difference.square().sum())
        largest = max(largest, float(difference.abs().max()))
    return WeightDelta(math.sqrt(squares), largest)


def _log_logit_scales(model: PeftModel) -> Mapping[str, nn.Parameter]:
    """By role; empty when roles have none. Held by the PEFT model itself, as PEFT has no kind of adapter for them."""
    held: Any = model._modules.get("log_logit_scales", {})
    return held


def _initialise(model: PeftModel, role: str, seed: int) -> None:
    key = np.random.SeedSequence(seed, spawn_key=tuple(role.encode())).generate_state(1, np.uint64)
    generator = torch.Generator().manual_seed(int(key[0]))
    with torch.no_grad():
        for name, parameter in parameters(model, role).items():
            parameter.data = parameter.data.float()
            if ".lora_B." in name:
                parameter.zero_()
                continue
            bound = 1 / math.sqrt(parameter.shape[1])  # kaiming_uniform_(a=sqrt(5)), PEFT's default
            parameter.copy_(torch.rand(parameter.shape, generator=generator) * 2 * bound - bound)
