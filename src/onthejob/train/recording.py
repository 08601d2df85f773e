"""The record of an iteration: groups, episodes, metrics, adapters and events in one transaction, after its checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from onthejob.record.listing import ENDED
from onthejob.rollout.collect import Collection
from onthejob.rollout.origin import origin_facts
from onthejob.rollout.summary import sampled_tokens, summarise
from onthejob.scale.timeline import DRIVER
from onthejob.train.clock import Clock
from onthejob.train.fruitless import warn_of_losses
from onthejob.train.reports import (
    IterationReport,
    RoleReport,
    TrainResult,
    collapsed,
    loop_metrics,
    pool_metrics,
    reply_scores,
    role_metrics,
)
from onthejob.train.resume import checkpoint_files
from onthejob.train.state import LoopState, Setup
from onthejob.types import Adapter

if TYPE_CHECKING:
    from onthejob.learn.advantage import Estimate
    from onthejob.learn.learner import UpdateMetrics
    from onthejob.record.iteration import Iteration
    from onthejob.record.store import Run

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated:
    """What updating the adapter of one or more roles gave."""

    metrics: UpdateMetrics
    counts: Mapping[str, float]
    """Groups by what they teach, see `count_signals`."""
    kept: str
    """Name of the first role's adapter before."""
    adapters: tuple[Adapter, ...]
    """The new version of each role; none where the update was taken back."""

    def values(self) -> dict[str, float]:
        """All numbers by name."""
        return {**self.counts, **self.metrics.as_dict()}


def record_iteration(
    setup: Setup,
    state: LoopState,
    iteration: int,
    played: Collection,
    estimates: Mapping[str, Estimate],
    updates: Mapping[str, Updated],
    scores: Mapping[str, Mapping[str, float]],
    clock: Clock,
) -> IterationReport:
    """Write the checkpoint, commit the iteration, and describe it.

    Args:
        setup: of the run.
        state: after the iteration; its number becomes `iteration`.
        iteration: its number.
        played: what was collected, with the rewards that were trained on.
        estimates: group -> what it teaches.
        updates: first role of each set that was updated -> how.
        scores: scope -> further metrics.
        clock: running.
    """
    warn_of_losses(played, setup.roles, iteration)
    reports = [_report(role, setup, state, played, estimates, updates) for role in setup.roles]
    loop = loop_metrics(played, library=len(state.library), pool=setup.pool)
    times = clock.metrics(sampled_tokens(played.groups) + played.continued)
    if setup.runtime is not None:
        timeline, whole = setup.runtime.logs.timeline, times["iteration_s"]
        timeline.did(DRIVER, f"iteration {iteration}", whole)
        timeline.did(DRIVER, "play and score", times["collect_s"], ago=whole - times["collect_s"])
    setup.run.write_checkpoint(iteration, checkpoint_files(setup, state))
    with setup.run.iteration(iteration) as record:
        record.groups(played.groups, [estimates[group.key].advantages for group in played.groups])
        record_episodes(record, played, branched=setup.config.grouping == "branch")
        for report in reports:
            record.metrics(f"train/{report.role}", {**role_metrics(report), **report.update})
        record.metrics("loop", loop)
        for family, statistics in setup.pool.statistics().items():
            record.metrics(f"pool/{family}", pool_metrics(statistics))
        record.metrics("time", times)
        for scope, values in scores.items():
            if values:
                record.metrics(scope, values)
        record_updates(record, updates)
    state.iteration = iteration
    return IterationReport(
        iteration=iteration,
        iterations=setup.config.iterations,
        roles=tuple(reports),
        seconds=times["iteration_s"],
        tokens_per_second=times["tokens_per_s"],
        eta_s=0.0,
        evaluation=scores.get("eval", {}),
        loop=loop,
        collapsed=collapsed(played.groups),
    )


def _report(
    role: str,
    setup: Setup,
    state: LoopState,
    played: Collection,
    estimates: Mapping[str, Estimate],
    updates: Mapping[str, Updated],
) -> RoleReport:
    own = [group for group in played.groups if group.actor == role]
    lead = next(lead for lead, members in setup.adapter_sets.items() if role in members)
    update = updates.get(lead)
    return RoleReport(
        role=role,
        summary=summarise(own, alive=sum(estimates[group.key].alive for group in own)),
        scores=reply_scores(played, own),
        update={} if update is None else update.values(),
        adapter=state.adapters[role].name,
        published=update is not None and bool(update.adapters),
    )


def record_episodes(record: Iteration, played: Collection, *, branched: bool) -> None:
    """Record what was played turn by turn; with `branched` also where each segment began, to look into its branches later."""
    for index, episode in enumerate(played.episodes):
        record.episode(
            f"s{index:02d}/{episode.task.id}",
            policies={turn.actor: turn.policy for turn in episode.transcript},
            metrics=episode.metrics,
            timeline=[asdict(turn) for turn in episode.transcript],
            facts={
                "task": episode.task.id,
                "stop": str(episode.stop),
                "error": episode.error,
                "unseated": episode.unseated,
                **(origin_facts(episode, played.stand_ins) if branched else {}),
            },
        )


def record_updates(record: Iteration, updates: Mapping[str, Updated]) -> None:
    """Record the new adapters, and why others have no new version."""
    for update in updates.values():
        for adapter in update.adapters:
            record.adapter(adapter)
    for lead, update in updates.items():
        if (problem := update.metrics.problem) is not None:
            log.warning("%s: %s in iteration %d is not published and continues from %s", problem, lead, record.n, update.kept)
            payload = {"role": lead, "kept": update.kept, "reason": update.metrics.skipped, "kl": update.metrics.kl}
            record.event(problem, payload)


def record_end(run: Run, result: TrainResult) -> TrainResult:
    """Note next to the iterations that the run came to its own end, which lists of runs show; returns `result`."""
    run.live(ENDED, {"stop": result.stop, "iteration": result.iterations})
    return result
