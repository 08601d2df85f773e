"""Group returns to advantages: who did better than the others from the same start, and by how much.

The only multi-agent opinion of the algorithm is the group. Nothing here touches tensors or a model, so that dead groups are
known before any forward pass is paid for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import tyro
from annotated_types import Ge, Gt, Lt

from onthejob.errors import ConfigError, ContractError
from onthejob.learn.own import own_advantages
from onthejob.setting_ranges import Reason, Usual, check_ranges
from onthejob.types import Group, StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageConfig:
    """How returns of one group become advantages."""

    estimator: Annotated[str, tyro.conf.arg(aliases=("--advantage",))] = "group"
    """`group`: the return less the mean of the group, as the other options here say; or a function of yours,
    `path/to/file.py:name` or `package.module:name`: (returns (K,), usable (K,) of bool) -> advantages (K,), NumPy arrays over a
    group's trajectories that did not end in an error. Groups for which it gives only zeros are not trained on."""
    scale: Literal["std", "none"] = "std"
    """`std` divides by the sample standard deviation (ddof = 1) of the legal replies (GRPO); `none` only subtracts the mean
    (Dr. GRPO), so that groups with a small spread weigh less."""
    eps: Annotated[float, Gt(0), Usual("TRL's value is 1e-4.")] = 1e-4
    """Added to the standard deviation; the value TRL uses."""
    shrink: bool = False
    """Multiply the advantages of a branch group's legal replies by the share of their spread that luck does not explain,
    max(0, 1 - noise / spread), both estimated from the values per world: in most states little is at stake, and what is seen
    there is the worlds' noise. A group in which all of it may be noise teaches at most the format."""
    bound: Annotated[float | None, Gt(0), Usual("Leave it out to cut nothing.")] = None
    """Advantages of legal replies are cut to [-bound, bound]; None cuts nothing. For `scale="none"`, where one large stake would
    outweigh everything else in an update."""
    invalid_gap: Annotated[float, Ge(0)] = 1.0
    """How far below the worst legal reply an invalid one is placed."""
    invalid_ceiling: Annotated[float, Lt(0), Reason("to be below the legal ones")] = -2.0
    """An invalid reply's advantage is never above this."""

    def __post_init__(self) -> None:
        check_ranges(self, "--advantage.")
        if self.estimator != "group" and not self.own:
            raise ConfigError(f"estimator must be group or path/to/file.py:function, got {self.estimator!r}.")
        if self.own and (idle := [f.name for f in fields(self) if f.name != "estimator" and getattr(self, f.name) != f.default]):
            raise ConfigError(f"no effect with the estimator {self.estimator}: {', '.join(idle)}. Leave it out.")

    @property
    def own(self) -> bool:
        """True when the estimator is a function of the user's."""
        return ":" in self.estimator


class Signal(StrEnum):
    """What a group can teach."""

    RETURN = "return"
    """Legal replies differ in return."""
    FORMAT = "format"
    """Legal replies are equal, but some reply was invalid: only the format can be learned."""
    DEAD = "dead"
    """Nothing: all equal, none legal, or fewer than two usable trajectories. Never forwarded."""


def signal(group: Group) -> Signal:
    """What `group` can teach; counts by signal tell whether a task still carries information.

    Raises:
        ContractError: As `advantages`.
    """
    returns = _returns(group)
    used, legal = _used(group), _legal(group)
    if used.sum() < 2 or not legal.any():
        return Signal.DEAD
    if not _equal(returns[legal]):
        return Signal.RETURN
    return Signal.FORMAT if (used & ~legal).any() else Signal.DEAD


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a group teaches: made once an iteration, trained on and recorded."""

    signal: Signal
    advantages: npt.NDArray[np.float64] | None
    """One per trajectory, shape (len(group),); None where they teach nothing."""
    alive: bool
    """Whether the group shows a difference, even if `AdvantageConfig.shrink` leaves no advantage of it."""


def estimate(group: Group, config: AdvantageConfig) -> Estimate:
    """What `group` teaches under `config`.

    Raises:
        ContractError, ConfigError, TrainingError: As `advantages`.
    """
    kind = signal(group)
    found = _advantages(group, kind, config)
    return Estimate(kind, found, alive=found is not None if config.own else kind is not Signal.DEAD)


def estimates(groups: Iterable[Group], config: AdvantageConfig) -> list[Estimate]:
    """`estimate` of each group."""
    return [estimate(group, config) for group in groups]


def count_signals(made: Iterable[Estimate]) -> dict[str, float]:
    """Groups of one update by what they teach, under the metric names of docs/metrics.md."""
    listed = list(made)
    counts = Counter(one.signal for one in listed)
    live = sum(one.advantages is not None for one in listed)
    return {
        "groups": float(len(listed)),
        "groups_return": float(counts[Signal.RETURN]),
        "groups_format": float(counts[Signal.FORMAT]),
        "groups_dead": float(counts[Signal.DEAD]),
        "groups_luck": float(max(0, len(listed) - live - counts[Signal.DEAD])),
    }


def advantages(group: Group, config: AdvantageConfig) -> npt.NDArray[np.float64] | None:
    """One advantage per trajectory, or None for a dead group.

    Mean and standard deviation are those of the legal replies (`Trajectory.valid`), so that a penalty for bad format does not
    move the baseline of the others; an invalid reply gets `min(min(legal) - 1, -2)`. When all legal returns are equal (up to
    1e-9 of their size) the legal replies get 0 and the invalid ones -2. That is for branches, where a trajectory is one reply. A
    whole episode counts as legal whatever it holds: its return is what it is judged by, and in it unusable replies have cost
    turns or reward already. Trajectories that stopped with ERROR are our failure: they have no part in the baseline, their entry
    is 0 and `collate` leaves them out.

    Args:
        group: Two or more trajectories from the same start.
        config: Scaling.

    Returns:
        Advantages, shape (len(group),), dimensionless with `scale="std"`, in units of return with `scale="none"`; before `bound`
        they sum to 0 over the legal replies. None when the group teaches nothing (see `Signal.DEAD`).

    Raises:
        ContractError: Group of one, or a return that is not a finite number.
        ConfigError: There is no function of this name.
        TrainingError: The user's function raises, or returns something else than a finite number for each trajectory.

    Source: DeepSeekMath (arXiv 2402.03300) eq. 21 with sample deviation; Dr. GRPO (arXiv 2503.20783) for `scale="none"`.
    """
    return estimate(group, config).advantages


def _advantages(group: Group, kind: Signal, config: AdvantageConfig) -> npt.NDArray[np.float64] | None:
    """`advantages` of a group whose signal is `kind`."""
    returns, legal = _returns(group), _legal(group)
    result = np.zeros(len(group))
    if config.own:
        used = _used(group)
        if used.any():
            result[used] = own_advantages(config.estimator, returns[used], legal[used])
        return result if result.any() else None
    if kind is Signal.DEAD:
        return None
    if kind is Signal.RETURN:
        centred = returns[legal] - returns[legal].mean()
        result[legal] = centred / (centred.std(ddof=1) + config.eps) if config.scale == "std" else centred
        if config.shrink:
            result[legal] *= reliability(group)
        if config.bound is not None:
            result[legal] = result[legal].clip(-config.bound, config.bound)
    floor = min(float(result[legal].min()) - config.invalid_gap, config.invalid_ceiling)
    result[_used(group) & ~legal] = floor
    return result if result.any() else None


def reliability(group: Group) -> float:
    """Share of the spread between a branch group's distinct legal replies that the worlds' noise does not explain, in [0, 1].

    A one-way layout with the worlds as blocks: what all replies of a world have in common is taken out first, as it is by the
    group's baseline. The positive part of an F statistic's 1 - 1 / F, which is how far James and Stein shrink.

    Raises:
        ContractError: The group does not say what its replies were worth in each world.
    """
    keys, by_world = group.facts.get("keys"), group.facts.get("by_world")
    if keys is None or by_world is None:
        raise ContractError(
            f"group {group.key!r} holds no values per world, which shrink=True needs. It is for branch groups; set it False."
        )
    legal = dict.fromkeys(key for key, is_legal in zip(keys, _legal(group), strict=True) if is_legal)
    values = np.array([by_world[key] for key in legal])  # (replies, worlds)
    replies, worlds = values.shape
    if replies < 2 or worlds < 2:
        return 0.0 if replies < 2 else 1.0
    means = values.mean(axis=1)
    residual = values - values.mean(axis=0) - (means - means.mean())[:, None]
    noise = float((residual**2).sum()) / ((replies - 1) * (worlds - 1)) / worlds
    spread = float(means.var(ddof=1))
    return max(0.0, 1.0 - noise / spread) if spread > 0.0 else 0.0


def _returns(group: Group) -> npt.NDArray[np.float64]:
    if len(group) < 2:
        raise ContractError(
            f"group {group.key!r} has {len(group)} trajectory; a baseline needs >= 2. Sample more replies per start."
        )
    for index, trajectory in enumerate(group.trajectories):
        if trajectory.stop is StopReason.ERROR:
            continue
        bad = [reward for reward in trajectory.rewards if reward is None or not math.isfinite(reward)]
        if bad:
            raise ContractError(
                f"trajectory {index} of group {group.key!r} has the reward {bad[0]!r}; rewards are finite numbers. "
                "Mark a trajectory that could not be scored with StopReason.ERROR."
            )
    return np.array([0.0 if t.stop is StopReason.ERROR else t.ret for t in group.trajectories])


def _used(group: Group) -> npt.NDArray[np.bool_]:
    return np.array([t.stop is not StopReason.ERROR for t in group.trajectories])


def _legal(group: Group) -> npt.NDArray[np.bool_]:
    return np.array([trajectory.is_legal for trajectory in group.trajectories])


def _equal(returns: npt.NDArray[np.float64]) -> bool:
    """Equal up to float noise: 0.1 + 0.2 and 0.3 teach nothing."""
    return bool(np.ptp(returns) <= 1e-9 * np.abs(returns).max())
