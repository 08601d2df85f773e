"""What a run is made of: the parts that the caller handed over, and the state that changes from iteration to iteration."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onthejob.errors import ConfigError
from onthejob.rollout.branch import Scales
from onthejob.rollout.episode import Encoder
from onthejob.rollout.library import Entry, SnapshotLibrary
from onthejob.rollout.opponents import Opponents
from onthejob.rollout.pool import TaskPool
from onthejob.rollout.reward import RewardFunction
from onthejob.rollout.scales import Legal
from onthejob.rollout.stand_ins import StandIns
from onthejob.train.config import TrainConfig
from onthejob.types import Adapter, Environment, KeepsVersions, Learner, Policy, Sampler

if TYPE_CHECKING:
    from onthejob.learn.lora import Snapshot
    from onthejob.record.store import Run
    from onthejob.rollout.judge import Judge

log = logging.getLogger(__name__)

Evaluate = Callable[[int, Mapping[str, Adapter]], Mapping[str, float]]
"""(iteration, current adapters) -> named results on the dev split; `TrainConfig.best_metric` chooses the best iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the caller handed over, unchanged for the whole run."""

    config: TrainConfig
    make_env: Callable[[], Environment]
    pool: TaskPool
    learner: Learner
    sampler: Sampler
    encoder: Encoder
    run: Run
    partners: Mapping[str, Policy]
    roles: tuple[str, ...]
    base_digest: str
    legal: Legal
    evaluate: Evaluate | None
    judge: Judge | None = None
    reward: RewardFunction | None = None
    collected: tuple[Entry, ...] = ()
    """States to start from in the place of those that the partners reach; read at the start of a run only."""


@dataclass(slots=True, kw_only=True)
class State:
    """Everything that changes between iterations and is not inside the learner."""

    adapters: dict[str, Adapter]
    library: SnapshotLibrary
    """States that current play reaches."""
    partner_library: SnapshotLibrary
    """States that the partners reached before training; they stay."""
    scales: dict[str, Scales]
    references: dict[str, Snapshot]
    """Role -> the weights it had in iteration 0; the KL term, when it has a weight, pulls towards them."""
    stand_ins: StandIns = field(default_factory=StandIns)
    best: tuple[int, float] | None = None


def playing(parts: Parts, adapters: Mapping[str, Adapter]) -> dict[str, Policy]:
    """Who plays for the trained roles: the published adapters."""
    from onthejob.models.adapter_policy import AdapterPolicy

    return {role: AdapterPolicy(parts.sampler, parts.sampler.chat, adapter=adapter.name) for role, adapter in adapters.items()}


def publish(parts: Parts, role: str, version: int, *, parent: str | None) -> Adapter:
    """Save the adapter of `role` as it is now in the run, and let the sampler play it."""
    from onthejob.learn.adapter_files import save_adapter

    adapter = save_adapter(
        parts.learner.model,
        role,
        parts.run.adapter_path(role, version).parent,
        version=version,
        parent=parent,
        base_digest=parts.base_digest,
        # Of fewer bits another policy would sample than the one that is trained.
        dtype="float32",
    )
    let_play(parts, role, [*parts.run.adapters(role), adapter])
    return adapter


def share_state(learner: Learner, members: Sequence[str]) -> None:
    """Give the first role's weights, and all that its next update depends on, to the others that share its adapter."""
    for role in members[1:]:
        learner.import_state(role, learner.export_state(members[0]))


def let_play(parts: Parts, role: str, versions: Sequence[Adapter]) -> None:
    """Let the sampler play the newest of `versions`, and those before it that opponents are drawn from."""
    if not parts.config.past:
        parts.sampler.publish(versions[-1])
        return
    sampler, kept = _keeps(parts), versions[-1 - parts.config.past :]
    for adapter in kept:
        sampler.publish(adapter, keep=True)
    names = {adapter.name for adapter in kept}
    for name in [name for name in sampler.published if name.startswith(f"{role}@") and name not in names]:
        sampler.withdraw(name)


def past_opponents(parts: Parts, present: Mapping[str, Policy]) -> Opponents | None:
    """The versions in which the trained roles meet each other; None where they meet as they are now.

    Args:
        parts: of the run.
        present: trained role -> who plays it now.
    """
    from onthejob.models.adapter_policy import AdapterPolicy

    if not parts.config.past:
        return None
    sampler = parts.sampler
    before = {role: parts.run.adapters(role)[-1 - parts.config.past : -1] for role in parts.roles}
    earlier = {
        role: [AdapterPolicy(sampler, sampler.chat, adapter=adapter.name) for adapter in adapters]
        for role, adapters in before.items()
    }
    return Opponents(versions={role: [*earlier[role], present[role]] for role in parts.roles})


def _keeps(parts: Parts) -> KeepsVersions:
    """The sampler, which keeps several versions of a role.

    Raises:
        ConfigError: it is one that does not.
    """
    if not isinstance(parts.sampler, KeepsVersions):
        raise ConfigError(
            f"--opponents {parts.config.opponents} plays several versions of a role, and a {type(parts.sampler).__name__} has "
            "one of each. Set --sampler in-process, or leave it out."
        )
    return parts.sampler


def evaluated(parts: Parts, state: State, iteration: int) -> dict[str, float]:
    """Results of the adapters as they are, with the best iteration so far, which is kept in `state`; empty without `evaluate`.

    Raises:
        ConfigError: the metric that chooses is not among them.
    """
    if parts.evaluate is None:
        return {}
    results, best_metric = dict(parts.evaluate(iteration, state.adapters)), parts.config.best_metric
    if best_metric not in results:
        raise ConfigError(f"the evaluation gave no {best_metric!r}, only {sorted(results)}. Set --best-metric.")
    score = results[best_metric]
    log.info("evaluation of iteration %d: %s %.4g", iteration, best_metric, score)
    if failed := results.get("episodes_failed", 0.0):
        # A mean over other tasks would compare checkpoints by which of them were omitted.
        log.warning("iteration %d cannot become the best: %g of its evaluation's episodes failed", iteration, failed)
    elif state.best is None or score > state.best[1]:
        state.best = (iteration, score)
    if state.best is None:
        return results
    return {**results, "best_iteration": float(state.best[0]), "best_score": state.best[1]}
