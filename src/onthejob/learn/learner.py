"""The learner: batches in, one better adapter out.

Holds one optimizer per role, so a role's update moves that role and nothing else. What it does not do: collect groups, estimate
advantages, publish adapters or decide about a suspicious update; it reports, the loop decides.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Annotated, Any

import torch
from annotated_types import Ge, Interval
from peft import PeftModel
from torch import Tensor

from onthejob.errors import ConfigError, ContractError, TrainingError
from onthejob.learn import lora
from onthejob.learn.batch import Advantages, Batch, collate
from onthejob.learn.forward import Layout, choose_layout, score, scoring
from onthejob.learn.lora import Snapshot, weight_delta
from onthejob.learn.loss import LossConfig, policy_loss
from onthejob.learn.optimize import KlWatch, Optimizer, Totals, make_optimizer, moments, optimizer_step, restore
from onthejob.learn.trust_region import policy_kl, share_within, trajectory_changes
from onthejob.models.adapter_weights import LOG_LOGIT_SCALE
from onthejob.models.window import context_window
from onthejob.progress import Progress
from onthejob.setting_ranges import Usual, check_ranges
from onthejob.types import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerConfig:
    """How an update is made; the same for every role."""

    lr: Annotated[float, Ge(0), Usual("1e-4 is usual for LoRA.")] = 1e-4
    """Peak learning rate of AdamW; 0 changes nothing, exactly."""
    logit_scale_lr: Annotated[float, Ge(0)] = 0.05
    """The same of the logarithm of a role's logit scale, where roles have one (`lora.logit_scale`); it takes `lr`'s schedule."""
    warmup: Annotated[int, Ge(0)] = 0
    """Updates over which the rate rises linearly to `lr`."""
    decay: Annotated[int, Ge(0)] = 0
    """Updates after `warmup` over which the rate falls linearly to 0, and stays there; 0 keeps it at `lr`."""
    optimizer: Optimizer = Optimizer.ADAMW
    """`adamw_8bit` keeps the moments of all roles' adapters in a quarter of the memory, for large models; needs bitsandbytes."""
    betas: tuple[Annotated[float, Interval(ge=0, lt=1)], Annotated[float, Interval(ge=0, lt=1)]] = (0.9, 0.999)
    """Decay of Adam's moments."""
    epochs: Annotated[int, Ge(1)] = 1
    """Passes over the same groups (mu), each an optimizer step."""
    max_kl: Annotated[float, Ge(0), Usual("0.1 nats is a small step, 0 bounds nothing.")] = 0.0
    """How far one update may move the policy: its KL divergence from the policy before, nats per trajectory, estimated on the
    update's own replies. A longer way is shortened along the line between the two adapters (a trust region with backtracking;
    Schulman et al. 2015, 1502.05477). Roles with little at stake do not run away while others still have far to go. 0 bounds
    nothing and costs nothing, otherwise two or three forward passes more."""
    max_tokens: Annotated[int, Ge(2)] = 2048
    """Nodes of one packed row, i.e. of one forward and backward pass; bounds memory, never changes the gradient."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: about a third more time, a fraction of the memory."""
    loss: LossConfig = field(default_factory=LossConfig)

    def __post_init__(self) -> None:
        check_ranges(self, "--learner.")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetrics:
    """What one update did."""

    role: str
    update: int
    """Number of this update of the role, from 1."""
    trajectories: int
    """In live groups, without errors."""
    tokens: int
    """Tokens of their replies."""
    nodes: int
    """Tokens actually forwarded, after sharing; without a KL or an entropy term, replies whose advantage is 0 are not."""
    rows: int
    """Forward and backward passes of one epoch."""
    skipped: str
    """Why no further step was taken; empty when all were. After `steps` > 0 the weights and moments are those of the last one."""
    steps: int
    """Optimizer steps taken, at most `epochs`."""
    lr: float
    loss: float
    """Mean over steps."""
    grad_norm: float
    """Before clipping, of the last step."""
    delta_l2: float
    """Distance the adapter moved."""
    delta_max: float
    """Largest change of one weight."""
    entropy: float
    """Mean over the scored tokens, nats."""
    kl: float | None
    """Mean KL estimate to the reference; None without one."""
    kl_spike: bool
    """True when the KL (to the reference, else to the sampler) is above 100 times its running median."""
    values: Mapping[str, float]
    """Ratios, clip fractions and the mismatch between trainer and sampler, under TRL's names; `logit_scale`, if learned; with
    `max_kl`, `step_kl` (the policy before from that after, nats per trajectory) and `step_share` (of the way it went)."""
    wall_s: float

    @property
    def problem(self) -> str | None:
        """`update_skipped` or `kl_spike` where the result should not be used; None for a good update."""
        return "update_skipped" if self.skipped else "kl_spike" if self.kl_spike else None

    def as_dict(self) -> dict[str, float]:
        """Every number by name, for a record; `role` and `skipped` aside (`skipped` becomes 0 or 1)."""
        flat = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("role", "skipped", "kl", "values")}
        flat |= {"skipped": bool(self.skipped)} | dict(self.values) | ({} if self.kl is None else {"kl": self.kl})
        return {name: float(value) for name, value in flat.items()}


@dataclass(slots=True, kw_only=True)
class _RoleState:
    optimizer: torch.optim.Optimizer
    names: tuple[str, ...]
    updates: int = 0
    watch: KlWatch = field(default_factory=KlWatch)


class LocalLearner:
    """Trains the adapters of one PEFT model, role by role."""

    at_once = 1

    def __init__(
        self, model: PeftModel, roles: Sequence[str], *, config: LearnerConfig, seed: int = 0, layout: Layout | None = None
    ) -> None:
        """Prepare one optimizer per role.

        Args:
            model: From `lora.attach`; any PEFT model whose adapters are named by role.
            roles: Which adapters are trained.
            config: For all roles.
            seed: Root of whatever is random in training (the order of SFT examples); updates themselves draw nothing.
            layout: How rows are given to the model; None takes the tree, or padding where the model cannot do it.

        Raises:
            ConfigError: dr_grpo without its denominator.
            ContractError: A role without an adapter.
            ModelError: The model cannot be scored token by token (see `choose_layout`).
        """
        config.loss.check_complete()
        self.model = model
        self.config = config
        self.seed = seed
        self._roles = {role: self._new_state(role) for role in roles}
        self.window = context_window(model.config)
        """Tokens of the longest context that the model was made for; None where it states none."""
        # Without weights (device meta) nothing can be tried here: who makes the updates chooses.
        held = next(iter(model.get_base_model().parameters())).device.type != "meta"
        self.layout = layout or (choose_layout(model) if held else Layout.TREE)
        if config.gradient_checkpointing:
            with warnings.catch_warnings():  # Renamed in transformers 5.23; the old name works in all versions we accept.
                warnings.filterwarnings("ignore", message="`gradient_checkpointing_enable`", category=FutureWarning)
                base: Any = model.get_base_model()
                base.gradient_checkpointing_enable({"use_reentrant": False})
        # transformers checkpoints in train mode only; the two modes do not differ otherwise, as dropout is 0.
        model.train(config.gradient_checkpointing)
        self.collate: Callable[[Sequence[Group], Sequence[Advantages | None]], list[Batch]] = partial(
            collate,
            max_tokens=config.max_tokens,
            share=self.layout is Layout.TREE,
            skip_zero=config.loss.by_advantage,
            window=self.window,
        )
        """Groups and their advantages -> the batches that `update` takes, see `learn.batch.collate`."""

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles this learner trains."""
        return tuple(self._roles)

    def update(self, role: str, batches: Sequence[Batch], *, reference: Snapshot | None = None) -> UpdateMetrics:
        """Train `role` on `batches` and report; leaves the base and every other adapter as they are, bit for bit.

        A non-finite loss or gradient ends the update without its step: weights and moments stay as they were then, the report
        says why.

        Args:
            role: Whose adapter.
            batches: From `collate`: all rows of the update.
            reference: Policy of the KL term. Needed for beta > 0; with beta = 0 the KL is measured and not trained on.

        Raises:
            ContractError: Unknown role.
            ConfigError: beta > 0 without a reference.
        """
        started = time.perf_counter()
        state = self._state(role)
        if self.config.loss.beta > 0 and reference is None:
            raise ConfigError(f"beta={self.config.loss.beta} needs a reference snapshot. Pass one, or set beta=0.")
        lora.activate(self.model, role)
        before = Snapshot.take(self.model, role)
        share = _schedule(state.updates, self.config)
        totals, old = self._descend(state, role, batches, reference, share)
        region = self._shorten(role, batches, old, before) if self.config.max_kl > 0 and old is not None else {}
        delta = weight_delta(before, Snapshot.take(self.model, role))
        state.updates += 1
        values = totals.means() | region
        kl = values.pop("kl", None)
        if (scale := lora.log_logit_scale(self.model)) is not None:
            values["logit_scale"] = math.exp(scale.item())
        return UpdateMetrics(
            role=role,
            update=state.updates,
            trajectories=batches[0].trajectories if batches else 0,
            tokens=batches[0].tokens if batches else 0,
            nodes=sum(len(batch.row) for batch in batches),
            rows=len(batches),
            skipped=totals.skipped,
            steps=totals.steps,
            lr=self.config.lr * share,
            loss=totals.loss,
            grad_norm=totals.grad_norm,
            delta_l2=delta.l2,
            delta_max=delta.max_abs,
            entropy=values.pop("entropy", 0.0),
            kl=kl,
            kl_spike=state.watch.spikes(values.get("sampling/kl") if kl is None else kl),
            values=values,
            wall_s=time.perf_counter() - started,
        )

    def logprobs(self, role: str, batches: Sequence[Batch]) -> list[Tensor]:
        """Log-probabilities of the terms of each batch under `role`'s present weights, no gradient, shape each (N,)."""
        lora.activate(self.model, role)
        return self._scored(batches)

    def _scored(self, batches: Sequence[Batch]) -> list[Tensor]:
        """`logprobs` of the role that is active."""
        with torch.no_grad():
            return [score(self.model, batch.row, layout=self.layout).logprobs for batch in batches]

    def export_state(self, role: str) -> dict[str, Tensor]:
        """All that the next update of `role` depends on: fp32 masters, Adam's moments, counters, KL history. CPU copies."""
        state = self._state(role)
        tensors = {f"lora/{name}": tensor for name, tensor in lora.state(self.model, role).items()}
        for name, parts in zip(state.names, moments(state.optimizer), strict=True):
            tensors |= {f"adam/{part}/{name}": value for part, value in parts.items()}
        tensors["updates"] = torch.tensor(state.updates, dtype=torch.int64)
        tensors["kls"] = torch.tensor(state.watch.history, dtype=torch.float64)
        return tensors

    def import_state(self, role: str, tensors: Mapping[str, Tensor]) -> None:
        """Continue from `export_state`; on the CPU the continuation equals the uninterrupted one bit for bit.

        Raises:
            ModelError: The adapter has other names or shapes.
            TrainingError: Optimizer moments or counters are missing.
        """
        state = self._state(role)
        remembered: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith("adam/"):
                _, part, key = name.split("/", 2)
                remembered.setdefault(state.names.index(key), {})[part] = tensor
        if not {"updates", "kls"} <= tensors.keys() or len(remembered) not in (0, len(state.names)):
            raise TrainingError(f"the saved state of {role!r} is incomplete; resume from an older checkpoint.")
        lora.load_state(self.model, role, {n.removeprefix("lora/"): t for n, t in tensors.items() if n.startswith("lora/")})
        state.optimizer = self._new_state(role).optimizer
        restore(state.optimizer, remembered)
        state.updates = int(tensors["updates"])
        state.watch = KlWatch(history=tensors["kls"].tolist())

    def revert(self, role: str, before: Mapping[str, Tensor]) -> None:
        """Take an update back: `role` is as `export_state` told before it, and only the KL history remembers it.

        Its divergence was measured before the update, so forgetting it would refuse every later one too.
        """
        self.import_state(role, {**before, "kls": self.export_state(role)["kls"]})

    def _descend(
        self, state: _RoleState, role: str, batches: Sequence[Batch], reference: Snapshot | None, share: float
    ) -> tuple[Totals, list[Tensor] | None]:
        """One optimizer step per epoch; returns too the log-probabilities before the first one, or None when none was taken."""
        totals = Totals()
        if not batches:
            totals.skipped = "no live group"
            return totals, None
        references: Sequence[Tensor | None] = [None] * len(batches)
        if reference is not None:
            with reference.applied(self.model, role):
                references = self.logprobs(role, batches)
        old: list[Tensor] | None = None
        progress, rows = Progress(f"update of {role}"), self.config.epochs * len(batches)
        for epoch in range(self.config.epochs):
            progress.count(epoch * len(batches), rows, "rows")
            # In the first step the old policy is the present one: its own pass says what the later ones compare with.
            present = self._epoch(state, batches, old or [None] * len(batches), references, totals, share)
            if present is None:
                break
            old = old or present
        state.optimizer.zero_grad(set_to_none=True)
        return totals, old

    def _shorten(self, role: str, batches: Sequence[Batch], old: list[Tensor], before: Snapshot) -> dict[str, float]:
        """Go back towards `before` until the policy is within `max_kl` of it; returns its distance and the share of the way."""
        after = {name: tensor.clone() for name, tensor in lora.state(self.model, role).items()}
        start = {name: tensor.to(after[name].device) for name, tensor in before.tensors.items()}

        def kl_at(share: float) -> float:
            if share < 1.0:  # The whole way is where the weights are, to the bit.
                between = {name: tensor + share * (after[name] - tensor) for name, tensor in start.items()}
                lora.load_state(self.model, role, between if share > 0 else start)
            return policy_kl(trajectory_changes(batches, old, self._scored(batches)))

        share, kl = share_within(self.config.max_kl, kl_at)
        return {"step_kl": kl, "step_share": share}

    def _epoch(
        self,
        state: _RoleState,
        batches: Sequence[Batch],
        olds: Sequence[Tensor | None],
        references: Sequence[Tensor | None],
        totals: Totals,
        share: float,
    ) -> list[Tensor] | None:
        """Forward, loss and backward for every row, then one optimizer step.

        Returns:
            The log-probabilities before the step, or None when it was not taken.
        """
        state.optimizer.zero_grad(set_to_none=True)
        split = [batch for batch in batches if self.config.loss.by_group and not batch.whole]
        present = list(zip(split, self._scored(split), strict=True))
        before: list[Tensor] = []
        for batch, old, reference in zip(batches, olds, references, strict=True):
            others = [] if batch.whole else [(other, values) for other, values in present if other is not batch]
            with scoring(self.model, layout=self.layout):
                scores = score(self.model, batch.row, layout=self.layout)
                output = policy_loss(
                    scores.logprobs,
                    batch,
                    self.config.loss,
                    old=old,
                    reference=reference,
                    entropy=scores.entropy,
                    others=others,
                )
                output.loss.backward()
            sums = output.sums | {"entropy": scores.entropy.detach().sum().item()}
            totals.add(output.loss.item(), sums, output.maxima, terms=len(batch))
            before.append(scores.logprobs.detach())
        taken = optimizer_step(state.optimizer, totals, share=share)
        return before if taken else None

    def _state(self, role: str) -> _RoleState:
        if role not in self._roles:
            raise ContractError(f"this learner does not train {role!r}; it trains {sorted(self._roles)}.")
        return self._roles[role]

    def _new_state(self, role: str) -> _RoleState:
        live = lora.parameters(self.model, role)
        rates = {name: self.config.logit_scale_lr if name == LOG_LOGIT_SCALE else self.config.lr for name in live}
        optimizer = make_optimizer(
            self.config.optimizer,
            # In the order of the names, which is that of the moments in a checkpoint.
            {rate: [live[name] for name in live if rates[name] == rate] for rate in dict.fromkeys(rates.values())},
            betas=self.config.betas,
        )
        return _RoleState(optimizer=optimizer, names=tuple(live))


def _schedule(update: int, config: LearnerConfig) -> float:
    """Share of the peak rate in the update of this number, counted from 0."""
    if update < config.warmup:
        return (update + 1) / config.warmup
    return max(0.0, 1.0 - (update - config.warmup) / config.decay) if config.decay else 1.0
