"""What policy-gradient and supervised updates share: the guarded optimizer step, sums over rows, the KL watch."""

from __future__ import annotations

import importlib.util
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from onthejob.errors import MissingDependency

EPS = 1e-8
"""Adam's epsilon."""
MAX_GRAD_NORM = 1.0
"""Gradients of a step are scaled down to this norm."""


@dataclass(slots=True, kw_only=True)
class Totals:
    """Sums over the rows and epochs of one update."""

    loss: float = 0.0
    """Mean over finished steps."""
    grad_norm: float = 0.0
    """Of the last step, before clipping."""
    steps: int = 0
    """Optimizer steps taken."""
    skipped: str = ""
    """Why no further step was taken; empty when all were."""
    step_loss: float = 0.0
    """Of the step in progress."""
    terms: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)

    def add(self, loss: float, sums: Mapping[str, float], maxima: Mapping[str, float], *, terms: int) -> None:
        """Count one row of `terms` scored tokens."""
        self.step_loss += loss
        self.terms += terms
        for name, value in sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        for name, value in maxima.items():
            self.maxima[name] = max(self.maxima.get(name, -math.inf), value)

    def means(self) -> dict[str, float]:
        """Sums per scored token, and the maxima."""
        return {name: value / max(1, self.terms) for name, value in self.sums.items()} | self.maxima


class Optimizer(StrEnum):
    """Who steps the adapter."""

    ADAMW = "adamw"
    """torch's, with moments in float32."""
    ADAMW_8BIT = "adamw_8bit"
    """bitsandbytes', with moments of larger tensors in 8 bits by blocks: a quarter of the memory, and other roundings."""


def make_optimizer(
    kind: Optimizer,
    parameters: Mapping[float, list[nn.Parameter]],
    *,
    betas: tuple[float, float] = (0.9, 0.999),
) -> torch.optim.Optimizer:
    """AdamW without weight decay over `parameters`, peak rate -> those with this rate; `optimizer_step` takes a share of it.

    Raises:
        MissingDependency: 8 bits without bitsandbytes.
    """
    groups: list[dict[str, Any]] = [{"params": part, "lr": peak, "peak": peak} for peak, part in parameters.items()]
    if kind is Optimizer.ADAMW:
        return torch.optim.AdamW(groups, betas=betas, eps=EPS, weight_decay=0.0, foreach=True)
    if importlib.util.find_spec("bitsandbytes") is None:
        raise MissingDependency(
            "an 8-bit optimizer needs bitsandbytes: pip install 'onthejob[quantized]'. Or set --learner.optimizer adamw."
        )
    from bitsandbytes.optim import AdamW8bit  # pyright: ignore[reportMissingImports]  # optional

    return AdamW8bit(groups, betas=betas, eps=EPS, weight_decay=0.0)


def moments(optimizer: torch.optim.Optimizer) -> list[dict[str, Tensor]]:
    """What an optimizer remembers of each parameter, in order, by its own names; empty before the first step. CPU copies."""
    states = [optimizer.state.get(parameter, {}) for group in optimizer.param_groups for parameter in group["params"]]
    return [{name: torch.as_tensor(value).detach().to("cpu", copy=True) for name, value in state.items()} for state in states]


def restore(optimizer: torch.optim.Optimizer, remembered: Mapping[int, Mapping[str, Tensor]]) -> None:
    """Give a new optimizer what `moments` told, by index of the parameter."""
    # torch counts steps in tensors, bitsandbytes in numbers.
    counts = not isinstance(optimizer, torch.optim.AdamW)
    state = {
        index: {name: int(value) if counts and name == "step" else value.clone() for name, value in parts.items()}
        for index, parts in remembered.items()
    }
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def optimizer_step(optimizer: torch.optim.Optimizer, totals: Totals, *, share: float) -> bool:
    """Clip and step, unless the loss or gradient is not finite; then nothing changes and `totals.skipped` says why.

    Args:
        optimizer: Gradients of all rows of the step are in its parameters.
        totals: The step's loss is read and moved on; norm, steps and the reason are written.
        share: Of the peak rates, for this step.

    Returns:
        True when the weights were stepped.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    loss, totals.step_loss = totals.step_loss, 0.0
    totals.grad_norm = float(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
    if totals.steps == 0 or not math.isfinite(loss):
        totals.loss = loss
    else:
        totals.loss += (loss - totals.loss) / (totals.steps + 1)
    if not math.isfinite(loss):
        totals.skipped = f"non-finite loss ({loss})"
        return False
    if not math.isfinite(totals.grad_norm):
        totals.skipped = f"non-finite gradient ({totals.grad_norm})"
        return False
    torch.nn.utils.clip_grads_with_norm_(parameters, MAX_GRAD_NORM, torch.tensor(totals.grad_norm))
    for group in optimizer.param_groups:
        group["lr"] = share * group["peak"]
    optimizer.step()
    totals.steps += 1
    return True


@dataclass(slots=True, kw_only=True)
class KlWatch:
    """Flags a KL far above what this role's updates usually show."""

    factor: float = 100.0
    """A KL above this many running medians is a spike."""
    window: int = 101
    """Past updates that the median covers."""
    minimum: int = 5
    """Updates before the median means something."""
    floor: float = 1e-2
    """Nats; medians below count as this: from the small divergences of a run's beginning, learning to stop is no spike."""
    patience: int = 3
    """Spikes in a row after which they are the policy's level and no spikes: the KL is that of the policy before the update, so
    refusing updates does not lower it."""
    history: list[float] = field(default_factory=list)

    def spikes(self, kl: float | None) -> bool:
        """True when `kl` is far above the running median, and not for the fourth time in a row, or not a number; remembers it."""
        if kl is None:
            return False
        if not math.isfinite(kl):
            return True
        median = max(statistics.median(self.history), self.floor) if len(self.history) >= self.minimum else math.inf
        limit = self.factor * median
        if kl > limit and all(past > limit for past in self.history[-self.patience :]):
            self.history = [kl]
            return False
        self.history = [*self.history, kl][-self.window :]
        return kl > limit
