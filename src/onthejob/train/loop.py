"""train: collect, score, update, publish, record; one iteration after another.

    pool.sample -> Collector.collect (play, branch, score) -> advantages -> Learner.update -> save adapter -> publish -> record

This module knows no environment: what it plays, who plays along and on what a result is judged are arguments. An iteration is
recorded in one transaction after its checkpoint is complete, and everything random in it is keyed by (seed, iteration), so a
run that was killed at any moment continues bit for bit (on the CPU) from its last committed iteration.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from onthejob.errors import ConfigError, RecordError, TrainingError
from onthejob.keys import keyed_seed
from onthejob.learn.sharing import adapter_sets, joined
from onthejob.rollout.branch import BranchScorer
from onthejob.rollout.collect import Collection, Collector
from onthejob.rollout.collect_episodes import collect_episodes
from onthejob.rollout.episode import Encoder
from onthejob.rollout.judge import add_opinion
from onthejob.rollout.library import Entry
from onthejob.rollout.origin import origin_facts
from onthejob.rollout.pool import TaskPool
from onthejob.rollout.reward import RewardFunction
from onthejob.rollout.scales import Legal, legal_of_view
from onthejob.rollout.summary import sampled_tokens, summarise
from onthejob.train.attempt import attempt_update
from onthejob.train.config import TrainConfig, check_advantages, check_opponents
from onthejob.train.fruitless import check_fruitful, warn_of_losses
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
from onthejob.train.resume import checkpoint_files, resumed
from onthejob.train.start import begin, reached
from onthejob.train.state import Evaluate, Parts, State, evaluated, past_opponents, playing, publish, share_state
from onthejob.types import Adapter, Environment, Group, Learner, Policy, Sampler, StopReason

if TYPE_CHECKING:
    from onthejob.learn.advantage import Estimate
    from onthejob.record.iteration import Iteration
    from onthejob.record.store import Run
    from onthejob.rollout.judge import Judge
    from onthejob.scale.runtime import Runtime

log = logging.getLogger(__name__)


def train(
    config: TrainConfig,
    *,
    make_env: Callable[[], Environment],
    pool: TaskPool,
    learner: Learner,
    sampler: Sampler,
    encoder: Encoder,
    run: Run,
    partners: Mapping[str, Policy],
    trained_roles: Sequence[str],
    base_digest: str = "",
    legal: Legal = legal_of_view,
    evaluate: Evaluate | None = None,
    judge: Judge | None = None,
    reward: RewardFunction | None = None,
    collected: Sequence[Entry] = (),
    on_progress: Callable[[IterationReport], None] | None = None,
    resume: bool = False,
    runtime: Runtime | None = None,
) -> TrainResult:
    """Train `trained_roles` until `config.iterations` are done, `config.minutes` are up or the pool has converged.

    Iteration 0 of the record is the start: the adapters as they are in `learner` (fresh, or after a warm start), the measured
    scales and the first snapshot library. Iterations 1.. are updates; iteration n publishes version n of each role it changed.

    Args:
        config: options of the loop.
        make_env: creates an environment; importable by name when `config.workers` > 0.
        pool: training tasks.
        learner: holds the PEFT model with one adapter per trained role; its adapters are changed.
        sampler: on the same base, in this process or on a server; every new version is published to it.
        encoder: messages -> token ids, of the same tokenizer.
        run: open for writing; empty, or with `resume` the run to continue.
        partners: actor -> scripted policy; needed for every actor that is not trained, and for segments among partners.
        trained_roles: actors that are trained, each an adapter of `learner`.
        base_digest: of the base's weights, written into every adapter.
        legal: legal replies of a state, for measuring the scales.
        evaluate: called at the start and every `config.eval_every` iterations.
        judge: adds its opinion to one-turn trajectories, with the weight it was made with; at weight 0 it is only recorded.
        reward: gives every trajectory a return in the place of the environment's, before the judge adds its opinion.
        collected: training states, some of every trained role, that fill the library in the place of those that the partners
            reach, and stay in it. A run that is resumed has them in its checkpoint.
        on_progress: called after every committed iteration.
        resume: continue `run` after its last committed iteration, with the settings that it was made with; only iterations,
            minutes, workers and the learner's `max_tokens` and `gradient_checkpointing` may differ.
        runtime: scores branches and has the environments of whole episodes; None takes `config.workers` of this machine.

    Returns:
        How it ended; `exit_code` is 3 when the pool has converged.

    Raises:
        ConfigError: options or arguments that cannot work.
        RecordError: `run` is not empty without `resume`, or cannot be continued.
        ContractError: the environment broke its contract.
        TrainingError: every episode of an iteration failed, no group could be scored, three iterations in a row had no group or
            no valid reply, the judge is silent or cannot be believed, or at the end: every update was skipped because its numbers
            were not finite.
    """
    until = time.monotonic() + 60.0 * config.minutes if config.minutes else math.inf
    if not trained_roles or len(set(trained_roles)) != len(trained_roles):
        raise ConfigError(f"trained_roles must be one or more different actors, got {list(trained_roles)}.")
    if config.eval_every > 0 and evaluate is None:
        raise ConfigError(f"eval_every is {config.eval_every} but there is nothing to evaluate with. Pass evaluate=..., or 0.")
    check_advantages(config)
    check_opponents(config, trained_roles)
    adapter_sets(config.adapters, trained_roles)
    if runtime is not None and config.grouping == "episodes":
        make_env, config = runtime.environments(make_env), replace(config, workers=max(config.workers, runtime.threads))
    parts = Parts(
        config=config,
        make_env=make_env,
        pool=pool,
        learner=learner,
        sampler=sampler,
        encoder=encoder,
        run=run,
        partners=partners,
        roles=tuple(trained_roles),
        base_digest=base_digest,
        legal=legal,
        evaluate=evaluate,
        judge=judge,
        reward=reward,
        collected=tuple(collected),
    )
    if config.grouping == "episodes":
        state, last = _enter(parts, None, until, resume=resume)
        return _loop(parts, state, None, last, until, on_progress)
    with BranchScorer(make_env, workers=config.workers, runtime=runtime) as scorer:
        state, last = _enter(parts, scorer, until, resume=resume)
        collector = Collector(
            make_env,
            scorer,
            config=config.collect,
            branch=config.branch,
            scales=state.scales,
            trained=parts.roles,
            partners=partners,
            encoder=encoder,
        )
        return _loop(parts, state, collector, last, until, on_progress)


def _enter(parts: Parts, scorer: BranchScorer | None, until: float, *, resume: bool) -> tuple[State, int]:
    """The state from which the next iteration starts, and the last committed iteration."""
    last = parts.run.last_iteration()
    if last is None:
        return begin(parts, scorer, until=until), 0
    if resume:
        return resumed(parts), parts.run.last_iteration() or 0
    raise RecordError(f"run {parts.run.path} has {last} iterations already. Pass resume=True (--resume), or create a new run.")


def _loop(
    parts: Parts,
    state: State,
    collector: Collector | None,
    last: int,
    until: float,
    on_progress: Callable[[IterationReport], None] | None,
) -> TrainResult:
    config = parts.config
    paces: list[float] = []
    iteration, report = last, None
    while iteration < config.iterations and not parts.pool.converged:
        if paces and time.monotonic() + median(paces) > until:
            break
        iteration += 1
        started = time.monotonic()
        report = _iterate(parts, state, collector, iteration)
        if not config.dry_run:
            check_fruitful(parts.run, parts.roles)
        paces.append(time.monotonic() - started)
        if on_progress is not None:
            left = (config.iterations - iteration) * median(paces)
            on_progress(replace(report, seconds=paces[-1], eta_s=max(0.0, min(left, until - time.monotonic()))))
    skipped = parts.run.read_events(kind="update_skipped")
    if skipped and not any(adapter.version for adapter in state.adapters.values()):
        raise TrainingError(
            f"none of the updates of run {parts.run.path} was made: {len(skipped)} skipped, the last one of "
            f"{skipped[-1].payload['role']} for a {skipped[-1].payload['reason']}; numbers must be finite. "
            "Load the model in float32, or look at the groups with `onthejob runs show`."
        )
    return TrainResult(
        stop="pool_converged" if parts.pool.converged else "iterations" if iteration >= config.iterations else "minutes",
        iterations=iteration,
        adapters=dict(state.adapters),
        best_iteration=None if state.best is None else state.best[0],
        best_score=None if state.best is None else state.best[1],
        collapsed=parts.pool.converged and report is not None and report.collapsed,
    )


def _iterate(parts: Parts, state: State, collector: Collector | None, iteration: int) -> IterationReport:
    """One iteration from the first prompt to the commit."""
    from onthejob.learn.advantage import Signal, estimate

    config, started = parts.config, time.perf_counter()
    collection = _collect(parts, state, collector, iteration)
    collect_s = time.perf_counter() - started
    opinion: dict[str, float] = {}
    paid: dict[str, float] = {}
    if parts.reward is not None:
        played = [episode.task for episode in collection.episodes]
        groups, paid = parts.reward.rewarded(collection.groups, played, parts.sampler.chat.decode)
        collection = replace(collection, groups=groups)
    if parts.judge is not None:
        groups, opinion = add_opinion(collection.groups, parts.judge, parts.sampler.chat.decode)
        collection = replace(collection, groups=groups)
    estimates = {group.key: estimate(group, config.advantage) for group in collection.groups}
    taught = {key for key, one in estimates.items() if one.advantages is not None}
    alive = taught if config.advantage.own else {key for key, one in estimates.items() if one.signal is not Signal.DEAD}
    parts.pool.observe([(group, group.key in alive) for group in collection.groups])
    state.stand_ins.add(collection.habits)
    state.library.add(reached(parts, state, iteration))
    state.library.add(collection.visited)

    updates: dict[str, _Update] = {}
    for members in adapter_sets(config.adapters, parts.roles).values():
        groups = joined(collection.groups, members)
        teaching = any(group.key in taught for group in groups)
        known = [estimates[group.key] for group in groups]
        update = _update(parts, state, members, groups, known, iteration) if teaching and not config.dry_run else _Update()
        updates |= dict.fromkeys(members, update)
    reports: list[RoleReport] = []
    for role in parts.roles:
        groups = [group for group in collection.groups if group.actor == role]
        reports.append(
            RoleReport(
                role=role,
                summary=summarise(groups, alive=sum(group.key in alive for group in groups)),
                scores=reply_scores(collection, groups),
                update=updates[role].metrics,
                adapter=state.adapters[role].name,
                published=bool(updates[role].adapters),
            )
        )

    evaluation: dict[str, float] = {}
    if config.eval_every and iteration % config.eval_every == 0:
        evaluation = evaluated(parts, state, iteration)
    tokens = sampled_tokens(collection.groups) + collection.continued
    clock = {"collect_s": collect_s, "iteration_s": time.perf_counter() - started, "tokens_per_s": tokens / max(collect_s, 1e-9)}
    parts.run.write_checkpoint(iteration, checkpoint_files(parts, state))
    loop = loop_metrics(collection, library=len(state.library), pool=parts.pool)
    with parts.run.iteration(iteration) as record:
        record.groups(collection.groups, [estimates[group.key].advantages for group in collection.groups])
        record_episodes(record, collection, branched=collector is not None)
        for report in reports:
            record.metrics(f"train/{report.role}", {**role_metrics(report), **report.update})
        record.metrics("loop", loop)
        for family, statistics in parts.pool.statistics().items():
            record.metrics(f"pool/{family}", pool_metrics(statistics))
        record.metrics("time", clock)
        if paid:
            record.metrics("reward", paid)
        if opinion:
            record.metrics("judge", opinion)
        if evaluation:
            record.metrics("eval", evaluation)
        _record_updates(record, [updates[lead] for lead in adapter_sets(config.adapters, parts.roles)])
    return IterationReport(
        iteration=iteration,
        iterations=config.iterations,
        roles=tuple(reports),
        seconds=clock["iteration_s"],
        tokens_per_second=clock["tokens_per_s"],
        eta_s=0.0,
        evaluation=evaluation,
        loop=loop,
        collapsed=collapsed(collection.groups),
    )


def _collect(parts: Parts, state: State, collector: Collector | None, iteration: int) -> Collection:
    config, policies = parts.config, playing(parts, state.adapters)
    opponents = past_opponents(parts, policies)
    tasks = parts.pool.sample(config.collect.episodes, iteration=iteration)
    seed, prefix = keyed_seed(config.seed, "iteration", iteration), f"it{iteration:04d}"
    if collector is not None:
        collection = collector.collect(
            tasks,
            policies,
            config.sampling,
            library=state.library,
            partner_library=state.partner_library,
            seed=seed,
            prefix=prefix,
            stand_ins=state.stand_ins.rates(),
            opponents=opponents,
        )
    else:
        distinct = list({task.id: task for task in tasks}.values())
        collection = collect_episodes(
            parts.make_env,
            distinct,
            {**parts.partners, **policies},
            config.sampling,
            group_size=config.branch.group_size,
            trained=parts.roles,
            encoder=parts.encoder,
            max_turns=config.max_turns,
            seed=seed,
            prefix=prefix,
            workers=max(1, config.workers),
            opponents=opponents,
        )
    failed = [episode for episode in collection.episodes if episode.stop is StopReason.ERROR]
    if len(failed) == len(collection.episodes):
        raise TrainingError(f"all {len(failed)} episodes of iteration {iteration} failed, e.g. {failed[0].error}.")
    if collection.failure and not collection.groups:
        raise TrainingError(f"no group of iteration {iteration} could be scored: {collection.failure}.")
    warn_of_losses(collection, parts.roles, iteration)
    return collection


class _Update(NamedTuple):
    """What updating the adapter of one or more roles gave; all empty when it was not updated."""

    metrics: Mapping[str, float] = {}
    adapters: tuple[Adapter, ...] = ()
    """The new version of each role, already published."""
    warning: tuple[str, dict[str, Any]] | None = None
    """Kind and payload of the event that tells why there is no new version."""


def _update(
    parts: Parts,
    state: State,
    members: Sequence[str],
    groups: Sequence[Group],
    estimates: Sequence[Estimate],
    iteration: int,
) -> _Update:
    """Update the adapter that `members` share; without a new version it is back in the state of the last published one.

    Args:
        parts: of the run.
        state: its adapters are replaced.
        members: roles, of which the first is updated and the others are given the result.
        groups: all as groups of the first.
        estimates: what each of them teaches.
        iteration: number of the new version.
    """
    lead = members[0]
    metrics, problem = attempt_update(parts.learner, members, groups, estimates, reference=state.references[lead])
    if problem is not None:
        kept = state.adapters[lead].name
        log.warning("%s: %s in iteration %d is not published and continues from %s", problem, lead, iteration, kept)
        payload = {"role": lead, "kept": kept, "reason": metrics.skipped, "kl": metrics.kl}
        return _Update(metrics=metrics.as_dict(), warning=(problem, payload))
    share_state(parts.learner, members)
    for role in members:
        state.adapters[role] = publish(parts, role, iteration, parent=state.adapters[role].name)
    return _Update(metrics=metrics.as_dict(), adapters=tuple(state.adapters[role] for role in members))


def record_episodes(record: Iteration, collection: Collection, *, branched: bool) -> None:
    """Record what was played turn by turn; with `branched` also where each segment began, to look into its branches later."""
    for index, episode in enumerate(collection.episodes):
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
                **(origin_facts(episode, collection.stand_ins) if branched else {}),
            },
        )


def _record_updates(record: Iteration, updates: Sequence[_Update]) -> None:
    for update in updates:
        for adapter in update.adapters:
            record.adapter(adapter)
    for update in updates:
        if update.warning is not None:
            kind, payload = update.warning
            record.event(kind, payload)
