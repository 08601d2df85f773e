"""The page: training as a loop of tasks, play, score, advantages, collate, loss, publish, evaluate, record.

    tasks -> play -> (reward, judge) -> estimate -> Learner.collate -> Learner.update -> publish -> record

It calls each of them by name and holds no idea of its own: docs/architecture.md follows one turn through them. Nothing here knows
an environment or a tensor. The parts that `train` is given stand behind the protocols of `onthejob.types`, so that sampling may
happen on a server and updates on another machine.

Everything random is keyed by (seed, iteration), and an iteration is one transaction: a run that was killed at any moment
continues bit for bit (on the CPU) from its last committed iteration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onthejob.errors import TrainingError
from onthejob.learn.advantage import count_signals, estimate
from onthejob.rollout.collect import Collection
from onthejob.rollout.judge import add_opinion
from onthejob.rollout.play import each
from onthejob.train.clock import Clock
from onthejob.train.fruitless import check_fruitful, check_updated
from onthejob.train.reached import remember
from onthejob.train.recording import Updated, record_end, record_iteration
from onthejob.train.reports import IterationReport, TrainResult
from onthejob.train.rollouts import Rollouts
from onthejob.train.start import begin
from onthejob.train.state import LoopState, Setup, evaluate, publish, share_state
from onthejob.types import Learner, StopReason

if TYPE_CHECKING:
    from onthejob.learn.learner import UpdateMetrics


def train(setup: Setup, *, resume: bool = False) -> TrainResult:
    """Train the roles of `setup` until all iterations are done, the time is up, or the tasks have nothing more to teach.

    Iteration 0 of the record is the start: the adapters as they are in the learner, the measured scales and the first snapshot
    library. Iterations 1.. are updates; iteration n publishes version n of each role it changed.

    Args:
        setup: options and parts of the run.
        resume: continue the run after its last committed iteration, with the settings that it was made with; only iterations,
            minutes, workers and the learner's `max_tokens` and `gradient_checkpointing` may differ.

    Returns:
        How it ended; `exit_code` is 3 when the pool has converged.

    Raises:
        ConfigError: options or arguments that cannot work.
        RecordError: the run is not empty without `resume`, or cannot be continued.
        ContractError: the environment broke its contract.
        TrainingError: every episode of an iteration failed, no group could be scored, three iterations in a row had no group or
            no valid reply, the judge is silent or cannot be believed, or at the end: every update was skipped because its numbers
            were not finite.
    """
    config, learner, clock, report = setup.config, setup.learner, Clock(setup.config.minutes), None
    with Rollouts(setup) as rollouts:
        state = begin(setup, rollouts.scorer, resume=resume, until=clock.until)
        while state.iteration < config.iterations and not setup.pool.converged and clock.allows_another():
            n = state.iteration + 1
            clock.start()

            # 1 Play tasks: groups of trajectories that share a baseline (K replies to one prompt, or K episodes of one task).
            tasks = setup.pool.sample(config.collect.episodes, iteration=n)
            play = rollouts.seat(state, n)
            played = play(tasks)
            _check_played(played, n)
            clock.played()

            # 2 Score: the environment has paid; a reward function or a judge of the user's may change what counts.
            scores: dict[str, Mapping[str, float]] = {}
            if setup.reward is not None:
                met = [episode.task for episode in played.episodes]
                groups, scores["reward"] = setup.reward.rewarded(played.groups, met, setup.sampler.chat.decode)
                played = replace(played, groups=groups)
            if setup.judge is not None:
                groups, scores["judge"] = add_opinion(played.groups, setup.judge, setup.sampler.chat.decode)
                played = replace(played, groups=groups)

            # 3 Advantages, once: these are trained on and recorded.
            estimates = {group.key: estimate(group, config.advantage) for group in played.groups}

            # 4 Collate: the tokens of the groups of each adapter, with their advantages. Rows that nothing teaches are none.
            taught, batches = {}, {}
            for lead, members in setup.adapter_sets.items():  # one role each, where none share an adapter
                own = [group for role in members for group in played.groups if group.actor == role]
                taught[lead] = [estimates[group.key] for group in own]
                if not config.dry_run:
                    batches[lead] = learner.collate(own, [one.advantages for one in taught[lead]])
            leads = [lead for lead in batches if batches[lead]]

            # 5 Loss: forward, loss, backward and optimizer step, of several roles at once where there are several learners.
            before = {lead: learner.export_state(lead) for lead in leads}
            found = _updated(learner, {lead: batches[lead] for lead in leads}, state.references)

            updates: dict[str, Updated] = {}
            for lead, metrics in zip(leads, found, strict=True):
                members, kept = setup.adapter_sets[lead], state.adapters[lead].name
                # An update whose numbers went wrong is taken back.
                if metrics.problem:
                    learner.revert(lead, before[lead])
                share_state(learner, members)

                # 6 Publish: from now on the roles play with their new versions.
                made = [] if metrics.problem else [publish(setup, role, n, parent=state.adapters[role].name) for role in members]
                state.adapters |= {adapter.role: adapter for adapter in made}
                updates[lead] = Updated(metrics=metrics, counts=count_signals(taught[lead]), kept=kept, adapters=tuple(made))

            # 7 Keep what later iterations need, evaluate, and record it all in one transaction.
            remember(setup, state, n, played, estimates)
            scores["eval"] = evaluate(setup, state, n)
            report = record_iteration(setup, state, n, played, estimates, updates, scores, clock)
            if not config.dry_run:
                check_fruitful(setup.run, setup.roles)
            clock.stop()
            if setup.on_progress is not None:
                setup.on_progress(replace(report, seconds=clock.pace, eta_s=clock.left(config.iterations - n)))
    check_updated(setup.run, state.adapters)
    return record_end(setup.run, _result(setup, state, report))


def _updated(learner: Learner, batches: Mapping[str, Sequence[Any]], references: Mapping[str, Any]) -> list[UpdateMetrics]:
    """What the updates of all roles of `batches` measured, in order."""

    def update(lead: str) -> UpdateMetrics:
        return learner.update(lead, batches[lead], reference=references[lead])

    with each(learner.at_once) as over:
        return over(update, list(batches))


def _check_played(played: Collection, iteration: int) -> None:
    """Refuse an iteration in which everything failed."""
    failed = [episode for episode in played.episodes if episode.stop is StopReason.ERROR]
    if len(failed) == len(played.episodes):
        raise TrainingError(f"all {len(failed)} episodes of iteration {iteration} failed, e.g. {failed[0].error}.")
    if played.failure and not played.groups:
        raise TrainingError(f"no group of iteration {iteration} could be scored: {played.failure}.")


def _result(setup: Setup, state: LoopState, report: IterationReport | None) -> TrainResult:
    """How the run ended; `report` is that of the last iteration, None where none was made."""
    done, converged = state.iteration >= setup.config.iterations, setup.pool.converged
    return TrainResult(
        stop="pool_converged" if converged else "iterations" if done else "minutes",
        iterations=state.iteration,
        adapters=dict(state.adapters),
        best_iteration=None if state.best is None else state.best[0],
        best_score=None if state.best is None else state.best[1],
        collapsed=converged and report is not None and report.collapsed,
    )
