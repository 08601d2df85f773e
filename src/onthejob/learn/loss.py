"""Policy-gradient losses over the terms of a packed row.

Every loss is `per-token value * weight`, summed, with weights that depend on the whole update and not on how it is cut into
rows; so gradients accumulated over rows equal those of one row. Names and formulas follow TRL 1.16's `_compute_loss`, against
which they are tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple, get_args

import numpy as np
import torch
import tyro
from annotated_types import Ge, Gt, Interval, IsFinite
from torch import Tensor

from onthejob.errors import ConfigError, TrainingError
from onthejob.learn.batch import Batch
from onthejob.learn.own import LossTerms, own_loss
from onthejob.setting_ranges import Usual, check_ranges

Name = Literal["grpo", "dr_grpo", "dapo", "cispo", "gspo", "reinforce", "expected"]
Correction = Literal["auto", "none", "token_truncate", "sequence_mask"]
_WITHOUT_RATIO = ("reinforce", "expected")
CORRECTION_MAX = 3.0
"""Upper bound of a correction's weight, TRL's."""
_PER_TERM = ("trajectory", "sampled", "advantage", "length", "group", "copies", "size", "legal")
"""Arrays of a batch with a value for each term."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """Which loss, and its constants."""

    loss: Annotated[Name | str, tyro.conf.arg(aliases=("--loss",))] = "grpo"
    """grpo: mean over a trajectory's tokens, then over trajectories. dapo: mean over all tokens of the update. dr_grpo: sum over
    tokens / (trajectories * the sampling limit of a reply). gspo: grpo with one ratio per trajectory. cispo: dapo weights, the
    clipped ratio multiplies the log-probability. reinforce: advantage times log-probability summed over a trajectory, no
    ratio. expected: mean over groups of the advantage that the policy expects among
    the group's different legal replies, each weighed by its present probability (over theirs together) and not by how often it
    was sampled; plus the invalid replies' share of the samples, by how likely each still is, times their advantage. The same
    groups can be learned from again as the policy moves. For short replies to one prompt: of long ones a single one holds all of
    the probability. Or a function of yours, `path/to/file.py:name` or `package.module:name`: see `onthejob.learn.own`."""
    epsilon_low: Annotated[float, Interval(ge=0, lt=1)] = 0.2
    """Ratios below 1 - epsilon_low get no gradient (negative advantage). Not used by cispo, reinforce and expected."""
    epsilon_high: Annotated[float, Gt(0)] = 0.2
    """Ratios above 1 + epsilon_high get no gradient (positive advantage); larger than epsilon_low is DAPO's clip-higher. In
    cispo the ratio is capped at epsilon_high itself, usually 5."""
    beta: Annotated[float, Ge(0), Usual("0 trains without a reference.")] = 0.0
    """Weight of the KL divergence to the reference policy; 0 needs no reference. It is estimated from the sampled token by
    Schulman's k3 = q/p - 1 - log(q/p), which is unbiased and never negative."""
    entropy: IsFinite[float] = 0.0
    """Weight of the policy's entropy, as a bonus when above 0 (keeps exploring) and as a cost when below 0 (becomes more certain
    of what it would say anyway, good or not). 0 leaves it to the rewards."""
    correction: Correction = "auto"
    """Weight terms by exp(trainer - sampler), as the ratio compares with the trainer's own log-probabilities before the update.
    token_truncate cuts a token's weight at 3 (TIS), sequence_mask sets that of a trajectory to 0 above 3 (MIS). A token without a
    recorded log-probability counts as equal. auto: none, but token_truncate in a training run that samples through vLLM, with
    every loss that takes one."""
    max_completion_tokens: Annotated[int | None, Ge(1), tyro.conf.Suppress, tyro.conf.Fixed] = None
    """dr_grpo's constant denominator, in tokens; in `onthejob train` the sampling limit of a reply."""

    def __post_init__(self) -> None:
        check_ranges(self, "--learner.loss.")
        self._check_choices()
        if self.loss == "expected" and self.corrects:
            raise ConfigError(
                "a correction has no effect with expected, which asks for the present probabilities alone. Set correction='none'."
            )
        if self.loss != "dr_grpo" and self.max_completion_tokens is not None:
            raise ConfigError(
                f"max_completion_tokens belongs to dr_grpo, got {self.max_completion_tokens} with loss={self.loss!r}. Leave it "
                "out."
            )

    def check_complete(self) -> None:
        """Refuse a loss that lacks what only its user knows.

        Raises:
            ConfigError: dr_grpo without its denominator.
        """
        if self.loss == "dr_grpo" and self.max_completion_tokens is None:
            raise ConfigError("dr_grpo needs its constant denominator. Set max_completion_tokens to the sampling limit.")

    def _check_choices(self) -> None:
        choices = {
            "loss": (self.loss, get_args(Name)),
            "correction": (self.correction, get_args(Correction)),
        }
        for name, (value, allowed) in choices.items():
            if value not in allowed and not (name == "loss" and self.own):
                yours = ", or path/to/file.py:function" if name == "loss" else ""
                raise ConfigError(f"{name} must be one of {', '.join(allowed)}{yours}; got {value!r}.")

    @property
    def own(self) -> bool:
        """True when the loss is a function of the user's."""
        return ":" in self.loss

    @property
    def corrects(self) -> bool:
        """True when terms are weighed by a correction; auto is none until it is settled."""
        return self.correction not in ("auto", "none")

    def settled(self, *, exact: bool) -> LossConfig:
        """These constants without `auto`.

        Args:
            exact: The sampler's log-probabilities are the trainer's own.
        """
        if self.correction != "auto":
            return self
        return replace(self, correction="token_truncate" if self.loss != "expected" and not exact else "none")

    @property
    def by_advantage(self) -> bool:
        """True when what has no advantage has no part in the gradient."""
        return self.beta == 0 and self.entropy == 0 and not self.by_group and not self.own

    @property
    def by_group(self) -> bool:
        """True when some term needs all terms of its group, also those of trajectories whose advantage is 0, in the same row."""
        return self.loss == "expected"

    @property
    def by_trajectory(self) -> bool:
        """True when some term needs all terms of its trajectory in the same row."""
        return self.loss == "gspo" or self.correction == "sequence_mask"


class LossOutput(NamedTuple):
    """One row's share of the update."""

    loss: Tensor
    """Scalar; the sum over rows is the update's loss."""
    sums: dict[str, float]
    """Metric -> sum over the row's terms (to be divided by the number of terms of the update)."""
    maxima: dict[str, float]
    """Metric -> largest value in the row."""


def policy_loss(
    logprobs: Tensor,
    batch: Batch,
    config: LossConfig,
    *,
    old: Tensor | None = None,
    reference: Tensor | None = None,
    entropy: Tensor | None = None,
    others: Sequence[tuple[Batch, Tensor]] = (),
) -> LossOutput:
    """The loss of one row.

    Args:
        logprobs: Of the present policy, with gradient.  # (N,)
        batch: Terms of the row.
        config: Loss and constants.
        old: Trainer's log-probabilities before the update (N,); None means the update has just begun, so they are `logprobs`.
        reference: Log-probabilities of the reference policy (N,), needed for beta > 0; without beta it is only measured.
        entropy: Of the present policy at each term (N,), with gradient; needed for its weight.
        others: For `expected`, where a group is spread over rows: the rows that hold the rest of it, with what the present policy
            gives their terms. They count as constants here; the gradients of all rows sum to that of the whole group.

    Raises:
        TrainingError: A trajectory-level loss meets a trajectory that is spread over several rows, or `expected` such a group
            without its other rows.
        ConfigError: beta > 0 without a reference, a weight of the entropy without it, or dr_grpo without its constant.

    Source: GRPO 2402.03300, Dr. GRPO 2503.20783, DAPO 2503.14476, CISPO 2506.13585, GSPO 2507.18071, TIS/MIS as in TRL 1.16;
    expected: the all-action policy gradient (Sutton et al. 2000; Expected Policy Gradients, 1801.03326) over the distinct
    samples, normalised over them; compare 2002.06043 for samples without replacement.
    """
    if config.by_trajectory and not batch.complete:
        raise TrainingError(
            f"{config.loss} with correction={config.correction!r} needs each trajectory in one row; some are longer than "
            "max_tokens. Raise max_tokens or use a token-level loss."
        )
    if config.by_group and not batch.whole and not others:
        raise TrainingError(
            "expected needs all rows of a group; some are longer than max_tokens. Pass `others`, or raise max_tokens."
        )
    if config.beta > 0 and reference is None:
        raise ConfigError(f"beta={config.beta} needs a reference snapshot. Pass one, or set beta=0.")
    if config.entropy != 0 and entropy is None:
        raise ConfigError(f"entropy={config.entropy} needs the terms' entropy. Pass `entropy`, or set its weight to 0.")
    terms = _Terms(batch, logprobs.device)
    trainer_old = logprobs.detach() if old is None else old.detach()
    log_ratio = logprobs - trainer_old
    if config.loss == "gspo":
        log_ratio = terms.trajectory_mean(log_ratio)
    ratio = torch.exp(log_ratio)  # (N,)
    correction = _correction(trainer_old, terms, config)
    if config.loss == "expected":
        loss, value, clipped = _expected(logprobs, batch, others), torch.zeros_like(logprobs), {}
    elif config.own:
        loss, clipped = logprobs.new_zeros(()), {}
        given = LossTerms(
            logprobs=logprobs,
            old=trainer_old,
            sampled=terms.sampled,
            advantage=terms.advantage,
            trajectory=terms.place,
            length=terms.length,
            reference=None if reference is None else reference.detach(),
            entropy=entropy,
        )
        value = own_loss(config.loss, given) * correction
    else:
        loss = logprobs.new_zeros(())
        value, clipped = _surrogate(ratio, logprobs, terms.advantage, config)
        value = value * correction
    sums = clipped | terms.mismatch(trainer_old)
    if reference is not None:
        gap = reference.detach() - logprobs
        kl = torch.exp(gap) - gap - 1
        sums["kl"] = kl.detach().sum().item()
        value = value + config.beta * kl if config.beta > 0 else value
    if config.entropy != 0 and entropy is not None:
        value = value - config.entropy * entropy
    sums["ratio"] = ratio.detach().sum().item()
    sums["sampling/importance_sampling_ratio/mean"] = correction.sum().item()
    maxima = {"ratio_max": ratio.detach().max().item(), "sampling/importance_sampling_ratio/max": correction.max().item()}
    return LossOutput(loss + (value * terms.weight(config)).sum(), sums, maxima)


class _Terms:
    """A batch's arrays on the device of its log-probabilities."""

    def __init__(self, batch: Batch, device: torch.device) -> None:
        self.batch = batch
        self.sampled = torch.from_numpy(batch.sampled).to(device)
        self.advantage = torch.from_numpy(batch.advantage).to(device)
        self.length = torch.from_numpy(batch.length).to(device)
        self.group = torch.from_numpy(batch.group).to(device)
        self.copies = torch.from_numpy(batch.copies).to(device)
        self.size = torch.from_numpy(batch.size).to(device)
        self.legal = torch.from_numpy(batch.legal).to(device)
        _, self.place = torch.from_numpy(batch.trajectory).to(device).unique(return_inverse=True)

    def trajectory_sum(self, values: Tensor) -> Tensor:
        """Per term, the sum over its trajectory's terms in this row, shape (N,)."""
        totals = values.new_zeros(int(self.place.max()) + 1).index_add(0, self.place, values)
        return totals[self.place]

    def trajectory_mean(self, values: Tensor) -> Tensor:
        return self.trajectory_sum(values) / self.length

    def expected(self, logprobs: Tensor) -> Tensor:
        """Minus each trajectory's part of what the policy expects in its group / all groups, shape (trajectories,)."""
        count = int(self.place.max()) + 1
        # All terms of a trajectory agree in these, so it does not matter which of them is written last.
        advantage, copies, size, group, legal = (
            values.new_zeros(count).index_copy(0, self.place, values)
            for values in (self.advantage, self.copies, self.size, self.group, self.legal)
        )
        present = logprobs.new_zeros(count).index_add(0, self.place, logprobs)  # (trajectories,)
        # Among legal replies: which one, given that it is one of these. Their share of all replies is the last term's matter.
        _, group = group.unique(return_inverse=True)
        groups = int(group.max()) + 1
        share = (present - copies.log()).masked_fill(~legal, -torch.inf)
        highest = share.detach().new_full((groups,), -torch.inf).scatter_reduce(0, group, share.detach(), "amax")
        odds = (share - highest[group]).exp().masked_fill(~legal, 0.0)
        totals = odds.new_zeros(groups).index_add(0, group, odds)
        chosen = odds / totals[group] * advantage
        # What is wrong is wrong in a hundred rare ways, of which a few came up: counted by their probability alone, these would
        # hardly weigh. So each stands for its share of the samples, times how much likelier it has become since.
        start = logprobs.new_zeros(count).index_add(0, self.place, self.sampled)
        start = torch.where(start.isnan(), present.detach(), start)
        likelier = (present - start).masked_fill(legal, 0.0).exp()  # Masked first: an overflow times 0 is no number.
        wrong = (likelier * advantage / size).masked_fill(legal, 0.0)
        return -(chosen + wrong) / self.batch.groups

    def weight(self, config: LossConfig) -> Tensor:
        """Share of each term in the update; independent of how the update is cut into rows, shape (N,)."""
        if config.loss in ("grpo", "gspo") or config.own:
            return 1 / (self.length * self.batch.trajectories)
        if config.loss == "dr_grpo":
            config.check_complete()
            assert config.max_completion_tokens is not None
            return torch.full_like(self.length, 1 / (self.batch.trajectories * config.max_completion_tokens))
        if config.loss in _WITHOUT_RATIO:
            return torch.full_like(self.length, 1 / self.batch.trajectories)
        return torch.full_like(self.length, 1 / self.batch.tokens)

    def mismatch(self, trainer: Tensor) -> dict[str, float]:
        """How far the trainer is from what the sampler recorded."""
        gap = (trainer - self.sampled).nan_to_num(nan=0.0)
        return {
            "sampling/sampling_logp_difference/mean": gap.abs().sum().item(),
            # k3 of trainer against sampler, where tokens come from the sampler.
            "sampling/kl": (torch.exp(gap) - 1 - gap).sum().item(),
        }


def _expected(logprobs: Tensor, batch: Batch, others: Sequence[tuple[Batch, Tensor]]) -> Tensor:
    """Minus the advantage that the policy expects in the groups of a row, of which parts may lie in other rows.

    A trajectory's share of the value is counted where its terms are, so that the rows' losses sum to the update's.
    """
    if batch.whole:
        return _Terms(batch, logprobs.device).expected(logprobs).sum()
    rows = [batch, *(other for other, _ in others)]
    arrays = {name: np.concatenate([getattr(row, name) for row in rows]) for name in _PER_TERM}
    here = np.isin(arrays["group"], batch.group)
    joined = replace(batch, **{name: values[here] for name, values in arrays.items()}, complete=True, whole=True)
    kept = torch.from_numpy(here).to(logprobs.device)
    present = torch.cat([logprobs, *(values.detach() for _, values in others)])[kept]
    terms = _Terms(joined, logprobs.device)
    values = terms.expected(present)
    own = (torch.arange(len(present), device=present.device) < len(batch)).to(present) / terms.length
    shown = (values.detach() * values.new_zeros(len(values)).index_add(0, terms.place, own)).sum()
    return values.sum() - values.detach().sum() + shown


def _surrogate(ratio: Tensor, logprobs: Tensor, advantage: Tensor, config: LossConfig) -> tuple[Tensor, dict[str, float]]:
    if config.loss == "reinforce":
        return -advantage * logprobs, {}
    if config.loss == "cispo":
        capped = (ratio.detach() > config.epsilon_high) & (advantage > 0)
        value = -ratio.clamp(max=config.epsilon_high).detach() * advantage * logprobs
        return value, {"cispo_clip_ratio": capped.sum().item()}
    low = (ratio.detach() < 1 - config.epsilon_low) & (advantage < 0)
    high = (ratio.detach() > 1 + config.epsilon_high) & (advantage > 0)
    bounded = ratio.clamp(1 - config.epsilon_low, 1 + config.epsilon_high)
    value = -torch.min(ratio * advantage, bounded * advantage)
    counts = {
        "clip_ratio/low_mean": low.sum().item(),
        "clip_ratio/high_mean": high.sum().item(),
        "clip_ratio/region_mean": (low | high).sum().item(),
    }
    return value, counts


def _correction(trainer: Tensor, terms: _Terms, config: LossConfig) -> Tensor:
    if not config.corrects:
        return torch.ones_like(trainer)
    gap = (trainer - terms.sampled).nan_to_num(nan=0.0)
    if config.correction == "token_truncate":
        return torch.exp(gap).clamp(max=CORRECTION_MAX)
    weight = torch.exp(terms.trajectory_sum(gap))
    return weight.masked_fill(weight > CORRECTION_MAX, 0.0)
