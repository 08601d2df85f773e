"""A run's setup, which stays, and the state of the loop, which changes from iteration to iteration."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onthejob.errors import ConfigError
from onthejob.learn.sharing import adapter_sets
from onthejob.rollout.branch import Scales
from onthejob.rollout.episode import Encoder
from onthejob.rollout.library import Entry, SnapshotLibrary
from onthejob.rollout.opponents import Opponents
from onthejob.rollout.pool import TaskPool
from onthejob.rollout.reward import RewardFunction
from onthejob.rollout.scales import Legal, legal_of_view
from onthejob.rollout.stand_ins import StandIns
from onthejob.train.config import TrainConfig, check_advantages, check_opponents
from onthejob.train.reports import IterationReport
from onthejob.types import Adapter, Environment, KeepsVersions, Learner, Policy, Sampler

if TYPE_CHECKING:
    from onthejob.learn.lora import Snapshot
    from onthejob.record.store import Run
    from onthejob.rollout.judge import Judge

log = logging.getLogger(__name__)

Evaluate = Callable[[int, Mapping[str, Adapter]], Mapping[str, float]]
"""(iteration, current adapters) -> named results on the dev split; `TrainConfig.best_metric` chooses the best iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """All that `train` is given, unchanged for the whole run.

    Raises:
        ConfigError: options or parts that cannot work together.
    """

    config: TrainConfig
    make_env: Callable[[], Environment]
    """Creates an environment; importable by name when `config.workers` > 0."""
    pool: TaskPool
    """Training tasks."""
    learner: Learner
    """Holds one adapter per trained role, which are changed."""
    sampler: Sampler
    """On the same base, in this process or on a server; every new version is published to it."""
    encoder: Encoder
    """Messages -> token ids, of the same tokenizer."""
    run: Run
    """Open for writing; empty, or the run to resume."""
    partners: Mapping[str, Policy]
    """Actor -> scripted policy; needed for every actor that is not trained, and for segments among partners."""
    roles: tuple[str, ...]
    """Trained actors, each an adapter of `learner`."""
    base_digest: str = ""
    """Of the base's weights, written into every adapter."""
    legal: Legal = legal_of_view
    """Legal replies of a state, for measuring the scales."""
    evaluate: Evaluate | None = None
    """Called at the start and every `config.eval_every` iterations."""
    judge: Judge | None = None
    """Adds its opinion to rewards, with the weight it was made with; at weight 0 it is only recorded."""
    reward: RewardFunction | None = None
    """Gives every trajectory a return in the place of the environment's, before the judge adds its opinion."""
    collected: tuple[Entry, ...] = ()
    """Training states, some of every trained role, that fill the library in the place of those that the partners reach, and stay
    in it. A run that is resumed has them in its checkpoint."""
    on_progress: Callable[[IterationReport], None] | None = None
    """Called after every committed iteration."""

    def __post_init__(self) -> None:
        if not self.roles or len(set(self.roles)) != len(self.roles):
            raise ConfigError(f"roles must be one or more different actors, got {list(self.roles)}.")
        if self.config.eval_every > 0 and self.evaluate is None:
            raise ConfigError(
                f"eval_every is {self.config.eval_every} but there is nothing to evaluate with. Pass evaluate=..., or 0."
            )
        check_advantages(self.config)
        check_opponents(self.config, self.roles)
        self.adapter_sets  # noqa: B018  # Refuses sets that cannot be.

    @property
    def adapter_sets(self) -> dict[str, tuple[str, ...]]:
        """First role of each set that shares an adapter -> all roles of the set."""
        return adapter_sets(self.config.adapters, self.roles)


@dataclass(slots=True, kw_only=True)
class LoopState:
    """Everything that changes between iterations and is not inside the learner."""

    iteration: int
    """The last committed one."""
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
    """Iteration with the best evaluation so far, and its score."""


def adapter_policies(setup: Setup, adapters: Mapping[str, Adapter]) -> dict[str, Policy]:
    """Role -> the policy that its published adapter is."""
    from onthejob.models.adapter_policy import AdapterPolicy

    sampler = setup.sampler
    return {role: AdapterPolicy(sampler, sampler.chat, adapter=adapter.name) for role, adapter in adapters.items()}


def publish(setup: Setup, role: str, version: int, *, parent: str | None) -> Adapter:
    """Save the adapter of `role` as it is now in the run, and let the sampler play it."""
    from onthejob.learn.adapter_files import save_adapter

    adapter = save_adapter(
        setup.learner.model,
        role,
        setup.run.adapter_path(role, version).parent,
        version=version,
        parent=parent,
        base_digest=setup.base_digest,
        # Of fewer bits another policy would sample than the one that is trained.
        dtype="float32",
    )
    let_play(setup, role, [*setup.run.adapters(role), adapter])
    return adapter


def share_state(learner: Learner, members: Sequence[str]) -> None:
    """Give the first role's weights, and all that its next update depends on, to the others that share its adapter."""
    for role in members[1:]:
        learner.import_state(role, learner.export_state(members[0]))


def let_play(setup: Setup, role: str, versions: Sequence[Adapter]) -> None:
    """Let the sampler play the newest of `versions`, and those before it that opponents are drawn from."""
    if not setup.config.past:
        setup.sampler.publish(versions[-1])
        return
    sampler, kept = _keeps(setup), versions[-1 - setup.config.past :]
    for adapter in kept:
        sampler.publish(adapter, keep=True)
    names = {adapter.name for adapter in kept}
    for name in [name for name in sampler.published if name.startswith(f"{role}@") and name not in names]:
        sampler.withdraw(name)


def past_opponents(setup: Setup, present: Mapping[str, Policy]) -> Opponents | None:
    """The versions in which the trained roles meet each other; None where they meet as they are now.

    Args:
        setup: of the run.
        present: trained role -> who plays it now.
    """
    from onthejob.models.adapter_policy import AdapterPolicy

    if not setup.config.past:
        return None
    sampler = setup.sampler
    before = {role: setup.run.adapters(role)[-1 - setup.config.past : -1] for role in setup.roles}
    earlier = {
        role: [AdapterPolicy(sampler, sampler.chat, adapter=adapter.name) for adapter in adapters]
        for role, adapters in before.items()
    }
    return Opponents(versions={role: [*earlier[role], present[role]] for role in setup.roles})


def _keeps(setup: Setup) -> KeepsVersions:
    """The sampler, which keeps several versions of a role.

    Raises:
        ConfigError: it is one that does not.
    """
    if not isinstance(setup.sampler, KeepsVersions):
        raise ConfigError(
            f"--opponents {setup.config.opponents} plays several versions of a role, and a {type(setup.sampler).__name__} has "
            "one of each. Set --sampler in-process, or leave it out."
        )
    return setup.sampler


def evaluate(setup: Setup, state: LoopState, iteration: int) -> dict[str, float]:
    """Results of the adapters as they are, with the best iteration so far, which is kept in `state`.

    Empty in iterations without an evaluation.

    Raises:
        ConfigError: the metric that chooses is not among them.
    """
    every = setup.config.eval_every
    if setup.evaluate is None or not every or iteration % every:
        return {}
    results, best_metric = dict(setup.evaluate(iteration, state.adapters)), setup.config.best_metric
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
