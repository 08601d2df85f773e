"""train: collect, score, update, publish, record; one iteration after another.

    pool.sample -> Collector.collect (play, branch, score) -> advantages -> Learner.update -> save adapter -> publish -> record

This module knows no environment: what it plays, who plays along and on what a result is judged are arguments. An iteration is
recorded in one transaction after its checkpoint is complete, and everything random in it is keyed by (seed, iteration), so a
run that was killed at any moment continues bit for bit (on the CPU) from its last committed iteration.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from onthejob.errors import ConfigError, RecordError, TrainingError
from onthejob.rollout.branch import BranchConfig, BranchScorer, Scales, forkable
from onthejob.rollout.collect import CollectConfig, Collection, Collector, collect_episodes
from onthejob.rollout.episode import Encoder
from onthejob.rollout.keys import keyed_sample, keyed_seed
from onthejob.rollout.library import SnapshotLibrary, visit
from onthejob.rollout.pool import TaskPool
from onthejob.rollout.scales import Legal, legal_of_view, measure_scales
from onthejob.rollout.summary import GroupSummary, sampled_tokens, summarise
from onthejob.types import Adapter, Environment, Group, Policy, Sampling, StopReason

if TYPE_CHECKING:
    from onthejob.learn.learner import Learner
    from onthejob.learn.lora import Snapshot
    from onthejob.models.sampler import Sampler
    from onthejob.record.iteration import Iteration
    from onthejob.record.store import Run

log = logging.getLogger(__name__)

_LOOP, _LIBRARY = "loop.json", "library.bin"

Evaluate = Callable[[int, Mapping[str, Adapter]], Mapping[str, float]]
"""(iteration, current adapters) -> named results on the dev split; `TrainConfig.best_metric` chooses the best iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Options of the loop. Model, adapters and learner have options of their own."""

    seed: int = 0
    """Root of everything random."""
    iterations: int = 30
    """Updates per role; the run stops earlier when the pool has converged."""
    grouping: Literal["branch", "episodes"] = "branch"
    """`branch`: replies to one prompt, scored in forks. `episodes`: whole episodes of one task, where nothing can be forked."""
    collect: CollectConfig = field(default_factory=CollectConfig)
    """What is played in one iteration."""
    branch: BranchConfig = field(default_factory=BranchConfig)
    """How replies are scored; `group_size` also counts the episodes per task when grouping by episodes."""
    sampling: Sampling = field(default_factory=Sampling)
    """Temperature must be > 0: greedy replies are all alike and teach nothing."""
    max_turns: int = 1_000
    """Turn limit of whole episodes (grouping `episodes`, and filling the snapshot library)."""
    workers: int = 0
    """Processes for branch scoring; 0 scores in the main process."""
    library_per_day: int = 16
    """Snapshots kept per day of an episode (grouping `branch`)."""
    library_tasks: int = 8
    """Tasks that the partners play at the start to fill the snapshot library; 0 starts with an empty library."""
    library_share: float = 0.2
    """Share of the states of those tasks that is kept, in (0, 1]."""
    scale_states: int = 200
    """States from which the value scales of the roles are measured; 0 sets all scales to 1."""
    adapter_dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of saved and published adapters; float32 samples exactly what is trained."""
    eval_every: int = 0
    """Iterations between evaluations; 0 never evaluates."""
    best_metric: str = "score"
    """Which result of the evaluation chooses the best iteration (larger is better)."""
    dry_run: bool = False
    """Collect and score without any update."""

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ConfigError(f"iterations must be >= 1, got {self.iterations}. Set --iterations 30.")
        if not 0.0 < self.sampling.temperature < float("inf"):
            raise ConfigError(f"temperature must be > 0 to train, got {self.sampling.temperature}. Set --sampling.temperature 1.")
        if self.sampling.max_new_tokens < 1 or self.max_turns < 1:
            raise ConfigError(f"max_new_tokens and max_turns must be >= 1, got {self.sampling.max_new_tokens}, {self.max_turns}.")
        if self.eval_every < 0 or self.library_tasks < 0 or self.scale_states < 0:
            raise ConfigError("eval_every, library_tasks and scale_states must be >= 0.")
        if not 0.0 < self.library_share <= 1.0:
            raise ConfigError(f"library_share must be in (0, 1], got {self.library_share}. Set --library-share 0.2.")
        if self.grouping == "branch" and self.library_tasks == 0 and self.scale_states > 0:
            raise ConfigError("scales are measured in the states of the library. Set --library-tasks 8, or --scale-states 0.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleReport:
    """One role in one iteration."""

    role: str
    summary: GroupSummary
    """Of the groups it collected: mean return, alive share, valid rate, ..."""
    update: Mapping[str, float]
    """What the learner reported: `kl`, `clip_ratio`, ...; empty when there was no update."""
    adapter: str
    """Name of the adapter that plays on."""
    published: bool
    """True when this iteration made a new version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationReport:
    """What `on_progress` is told after an iteration was committed."""

    iteration: int
    iterations: int
    roles: tuple[RoleReport, ...]
    seconds: float
    tokens_per_second: float
    """Sampled tokens over the time of collecting."""
    eta_s: float
    """Seconds that the remaining iterations take at the median pace so far."""
    evaluation: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """How a run ended."""

    stop: Literal["iterations", "pool_converged"]
    iterations: int
    """Last committed iteration."""
    adapters: Mapping[str, Adapter]
    """Role -> its newest published adapter."""
    best_iteration: int | None = None
    """By `best_metric` on dev; None without an evaluation."""
    best_score: float | None = None

    @property
    def exit_code(self) -> int:
        """0, or 3 when the pool has converged (a result, not a failure)."""
        return 3 if self.stop == "pool_converged" else 0


@dataclass(slots=True, kw_only=True)
class _State:
    """Everything that changes between iterations and is not inside the learner."""

    adapters: dict[str, Adapter]
    library: SnapshotLibrary
    scales: dict[str, Scales]
    references: dict[str, Snapshot]
    """Role -> the weights it had in iteration 0; the KL term, when it has a weight, pulls towards them."""
    best: tuple[int, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
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
    on_progress: Callable[[IterationReport], None] | None = None,
    resume: bool = False,
) -> TrainResult:
    """Train `trained_roles` until `config.iterations` are done or the pool has converged.

    Iteration 0 of the record is the start: the adapters as they are in `learner` (fresh, or after a warm start), the measured
    scales and the first snapshot library. Iterations 1.. are updates; iteration n publishes version n of each role it changed.

    Args:
        config: options of the loop.
        make_env: creates an environment; importable by name when `config.workers` > 0.
        pool: training tasks.
        learner: holds the PEFT model with one adapter per trained role; its adapters are changed.
        sampler: on the same base; every new version is published to it.
        encoder: messages -> token ids, of the same tokenizer.
        run: open for writing; empty, or with `resume` the run to go on with.
        partners: actor -> scripted policy; needed for every actor that is not trained, and for segments among partners.
        trained_roles: actors that are trained, each an adapter of `learner`.
        base_digest: of the base's weights, written into every adapter.
        legal: legal replies of a state, for measuring the scales.
        evaluate: called every `config.eval_every` iterations.
        on_progress: called after every committed iteration.
        resume: continue `run` after its last committed iteration.

    Returns:
        How it ended; `exit_code` is 3 when the pool has converged.

    Raises:
        ConfigError: options or arguments that cannot work.
        RecordError: `run` is not empty without `resume`, or cannot be continued.
        TrainingError: every episode of an iteration failed.
    """
    if not trained_roles or len(set(trained_roles)) != len(trained_roles):
        raise ConfigError(f"trained_roles must be one or more different actors, got {list(trained_roles)}.")
    if config.eval_every > 0 and evaluate is None:
        raise ConfigError(f"eval_every is {config.eval_every} but there is nothing to evaluate with. Pass evaluate=..., or 0.")
    parts = _Parts(
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
    )
    if config.grouping == "episodes":
        state, last = _enter(parts, None, resume=resume)
        return _loop(parts, state, None, last, on_progress)
    with BranchScorer(make_env, workers=config.workers) as scorer:
        state, last = _enter(parts, scorer, resume=resume)
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
        return _loop(parts, state, collector, last, on_progress)


def _loop(
    parts: _Parts,
    state: _State,
    collector: Collector | None,
    last: int,
    on_progress: Callable[[IterationReport], None] | None,
) -> TrainResult:
    config, paces = parts.config, []
    iteration = last
    while iteration < config.iterations and not parts.pool.converged:
        iteration += 1
        started = time.perf_counter()
        report = _iterate(parts, state, collector, iteration)
        paces.append(time.perf_counter() - started)
        if on_progress is not None:
            remaining = config.iterations - iteration
            on_progress(replace(report, seconds=paces[-1], eta_s=remaining * median(paces)))
    return TrainResult(
        stop="pool_converged" if parts.pool.converged else "iterations",
        iterations=iteration,
        adapters=dict(state.adapters),
        best_iteration=None if state.best is None else state.best[0],
        best_score=None if state.best is None else state.best[1],
    )


def _iterate(parts: _Parts, state: _State, collector: Collector | None, iteration: int) -> IterationReport:
    """One iteration from the first prompt to the commit."""
    from onthejob.learn.advantage import advantages as advantages_of

    config, started = parts.config, time.perf_counter()
    collection = _collect(parts, state, collector, iteration)
    collect_s = time.perf_counter() - started
    by_role = {role: [group for group in collection.groups if group.actor == role] for role in parts.roles}
    advantages = {group.key: advantages_of(group, parts.learner.config.advantage) for group in collection.groups}
    parts.pool.observe([(group, advantages[group.key] is not None) for group in collection.groups])
    state.library.add(collection.visited)

    reports: list[RoleReport] = []
    saved: list[Adapter] = []
    events: list[tuple[str, dict[str, Any]]] = []
    for role, groups in by_role.items():
        alive = sum(advantages[group.key] is not None for group in groups)
        values: dict[str, float] = {}
        published = False
        if alive and not config.dry_run:
            values, adapter, event = _update(parts, state, role, groups, iteration)
            events += [event] if event else []
            if adapter is not None:
                saved.append(adapter)
                published = True
        summary = summarise(groups, alive=alive)
        kept = state.adapters[role].name
        reports.append(RoleReport(role=role, summary=summary, update=values, adapter=kept, published=published))

    evaluation: dict[str, float] = {}
    if parts.evaluate is not None and config.eval_every and iteration % config.eval_every == 0:
        evaluation = _evaluate(parts, state, iteration)
    tokens = sampled_tokens(collection.groups)
    clock = {"collect_s": collect_s, "iteration_s": time.perf_counter() - started, "tokens_per_s": tokens / max(collect_s, 1e-9)}
    parts.run.write_checkpoint(iteration, _checkpoint(parts, state))
    with parts.run.iteration(iteration) as record:
        record.groups(collection.groups, [advantages[group.key] for group in collection.groups])
        _record_episodes(record, collection)
        for report in reports:
            record.metrics(f"train/{report.role}", {**_role_metrics(report), **report.update})
        record.metrics("loop", _loop_metrics(collection, state))
        record.metrics("time", clock)
        if evaluation:
            record.metrics("eval", evaluation)
        for adapter in saved:
            record.adapter(adapter)
        for kind, payload in events:
            record.event(kind, payload)
    return IterationReport(
        iteration=iteration,
        iterations=config.iterations,
        roles=tuple(reports),
        seconds=clock["iteration_s"],
        tokens_per_second=clock["tokens_per_s"],
        eta_s=0.0,
        evaluation=evaluation,
    )


def _collect(parts: _Parts, state: _State, collector: Collector | None, iteration: int) -> Collection:
    from onthejob.models.sampler import InProcessPolicy

    config = parts.config
    policies: dict[str, Policy] = {
        role: InProcessPolicy(parts.sampler, parts.sampler.chat, adapter=adapter.name) for role, adapter in state.adapters.items()
    }
    tasks = parts.pool.sample(config.collect.episodes, iteration=iteration)
    seed, prefix = keyed_seed(config.seed, "iteration", iteration), f"it{iteration:04d}"
    if collector is not None:
        collection = collector.collect(tasks, policies, config.sampling, library=state.library, seed=seed, prefix=prefix)
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
        )
    failed = [episode for episode in collection.episodes if episode.stop is StopReason.ERROR]
    if len(failed) == len(collection.episodes):
        raise TrainingError(f"all {len(failed)} episodes of iteration {iteration} failed, e.g. {failed[0].error}.")
    return collection


def _update(
    parts: _Parts, state: _State, role: str, groups: Sequence[Group], iteration: int
) -> tuple[dict[str, float], Adapter | None, tuple[str, dict[str, Any]] | None]:
    """Update one role.

    Returns:
        Metrics; the new version, already published, or None; a warning event, or None. Without a new version the role is back
        in the state of its last published adapter.
    """
    learner = parts.learner
    before = learner.export_state(role)
    metrics = learner.update(role, groups, reference=state.references[role])
    values = metrics.as_dict()
    problem = "update_skipped" if metrics.skipped else "kl_spike" if metrics.kl_spike else None
    if problem is not None:
        learner.import_state(role, before)
        kept = state.adapters[role].name
        log.warning("%s: %s in iteration %d is not published and goes on from %s", problem, role, iteration, kept)
        payload = {"role": role, "kept": kept, "reason": metrics.skipped, "kl": metrics.kl}
        return values, None, (problem, payload)
    adapter = _publish(parts, role, iteration, parent=state.adapters[role].name)
    state.adapters[role] = adapter
    return values, adapter, None


def _publish(parts: _Parts, role: str, version: int, *, parent: str | None) -> Adapter:
    from onthejob.learn.lora import save_adapter

    adapter = save_adapter(
        parts.learner.model,
        role,
        parts.run.adapter_path(role, version).parent,
        version=version,
        parent=parent,
        base_digest=parts.base_digest,
        # Version 0 is also the reference of the KL term after a resume, so it must hold every bit.
        dtype="float32" if version == 0 else parts.config.adapter_dtype,
    )
    parts.sampler.publish(adapter)
    return adapter


def _enter(parts: _Parts, scorer: BranchScorer | None, *, resume: bool) -> tuple[_State, int]:
    """The state from which the next iteration starts, and the last committed iteration."""
    last = parts.run.last_iteration()
    if resume and last is not None:
        return _resume(parts), parts.run.last_iteration() or 0
    if last is not None:
        raise RecordError(
            f"run {parts.run.path} has {last} iterations already. Pass resume=True (--resume), or create a new run."
        )
    return _begin(parts, scorer), 0


def _begin(parts: _Parts, scorer: BranchScorer | None) -> _State:
    """Iteration 0: publish what the learner holds, fill the library, measure the scales."""
    from onthejob.learn.lora import Snapshot

    config = parts.config
    adapters = {role: _publish(parts, role, 0, parent=None) for role in parts.roles}
    library = SnapshotLibrary(per_day=config.library_per_day)
    scales = {role: Scales() for role in parts.roles}
    if scorer is not None and config.library_tasks > 0:
        visited = visit(
            parts.make_env,
            parts.pool.sample(config.library_tasks, iteration=0),
            parts.partners,
            seed=keyed_seed(config.seed, "library"),
            share=config.library_share,
            max_turns=config.max_turns,
            encoder=parts.encoder,
            sampling=config.sampling,
        )
        library.add(visited)
        if config.scale_states > 0:
            ours = [entry for entry in visited if entry.actor in parts.roles]
            states = keyed_sample(ours, min(config.scale_states, len(ours)), config.seed, "scale states")
            scales = measure_scales(
                scorer,
                forkable(parts.make_env),
                states,
                config=config.branch,
                actors=parts.roles,
                seed=keyed_seed(config.seed, "scales"),
                legal=parts.legal,
            )
    references = {role: Snapshot.take(parts.learner.model, role) for role in parts.roles}
    state = _State(adapters=adapters, library=library, scales=scales, references=references)
    parts.run.write_checkpoint(0, _checkpoint(parts, state))
    with parts.run.iteration(0) as record:
        for role in parts.roles:
            record.adapter(adapters[role])
            record.metrics(f"scales/{role}", {"outcome": scales[role].outcome, "return": scales[role].ret})
        record.metrics("loop", {"library": float(len(library))})
    return state


def _resume(parts: _Parts) -> _State:
    """Load the last committed iteration; an older checkpoint, when the last is damaged, rewinds the record to it.

    Raises:
        RecordError: no intact checkpoint, or the run was made with other roles.
    """
    from onthejob.learn.lora import Snapshot, load_adapter

    run, learner = parts.run, parts.learner
    n = run.latest_checkpoint()
    if n is None:
        raise RecordError(f"run {run.path} has no intact checkpoint, so it cannot be continued. Start a new run.")
    if n != run.last_iteration():
        log.warning("the newest intact checkpoint of %s is of iteration %d; what came after is redone", run.path, n)
        run.rewind(n)
    files = run.read_checkpoint(n)
    loop = json.loads(_bytes(files, _LOOP))
    if loop["roles"] != list(parts.roles):
        asked = list(parts.roles)
        raise RecordError(f"run {run.path} trains {loop['roles']}, asked for {asked}. Resume with the same roles.")
    parts.pool.load_state(loop["pool"])
    adapters: dict[str, Adapter] = {}
    references: dict[str, Snapshot] = {}
    for role in parts.roles:
        recorded = run.adapters(role)
        load_adapter(learner.model, role, recorded[0])
        references[role] = Snapshot.take(learner.model, role)
        learner.import_state(role, _tensors(files, _learner_file(role)))
        adapters[role] = recorded[-1]
        parts.sampler.publish(recorded[-1])
    best = None if loop["best"] is None else (int(loop["best"][0]), float(loop["best"][1]))
    scales = {role: Scales(**values) for role, values in loop["scales"].items()}
    library = SnapshotLibrary.from_bytes(_bytes(files, _LIBRARY))
    return _State(adapters=adapters, library=library, scales=scales, references=references, best=best)


def _checkpoint(parts: _Parts, state: _State) -> dict[str, Any]:
    """Everything that `_resume` needs beside the adapters."""
    loop = {
        "roles": list(parts.roles),
        "pool": parts.pool.state(),
        "scales": {role: asdict(scales) for role, scales in state.scales.items()},
        "best": state.best,
    }
    learners = {_learner_file(role): parts.learner.export_state(role) for role in parts.roles}
    return {_LOOP: json.dumps(loop, sort_keys=True).encode(), _LIBRARY: state.library.to_bytes(), **learners}


def _evaluate(parts: _Parts, state: _State, iteration: int) -> dict[str, float]:
    if parts.evaluate is None:
        return {}
    results = dict(parts.evaluate(iteration, state.adapters))
    if parts.config.best_metric not in results:
        raise ConfigError(f"the evaluation gave no {parts.config.best_metric!r}, only {sorted(results)}. Set --best-metric.")
    score = results[parts.config.best_metric]
    if state.best is None or score > state.best[1]:
        state.best = (iteration, score)
    return results


def _role_metrics(report: RoleReport) -> dict[str, float]:
    summary = report.summary
    return {
        "reward": summary.mean_return,
        "reward_std": summary.return_std,
        "frac_reward_zero_std": 1.0 - summary.alive_share,
        "valid_rate": summary.valid_rate,
        "groups": float(summary.groups),
        "completions/mean_length": summary.mean_length,
        "published": float(report.published),
    }


def _loop_metrics(collection: Collection, state: _State) -> dict[str, float]:
    failed = sum(episode.stop is StopReason.ERROR for episode in collection.episodes)
    return {
        "groups": float(len(collection.groups)),
        "groups_dropped": float(collection.dropped),
        "episodes": float(len(collection.episodes)),
        "episodes_failed": float(failed),
        "library": float(len(state.library)),
        **{f"starts_{origin}": float(count) for origin, count in collection.starts.items()},
    }


def _record_episodes(record: Iteration, collection: Collection) -> None:
    for index, episode in enumerate(collection.episodes):
        record.episode(
            f"s{index:02d}/{episode.task.id}",
            policies={turn.actor: turn.policy for turn in episode.transcript},
            metrics=episode.metrics,
            timeline=[asdict(turn) for turn in episode.transcript],
            facts={"task": episode.task.id, "stop": str(episode.stop), "error": episode.error, "unseated": episode.unseated},
        )


def replay_update(
    run: Run,
    iteration: int,
    role: str,
    *,
    learner: Learner,
    init: Adapter | None = None,
    reference: Adapter | None = None,
) -> dict[str, float]:
    """Perform one recorded update again, from the groups as they were sampled.

    Args:
        run: the record.
        iteration: whose groups of `role` are used.
        role: which role.
        learner: of the same base and shape; its adapter of `role` is changed.
        init: weights to start from, with a fresh optimizer. None continues from the checkpoint before `iteration`, optimizer
            included, which repeats the recorded update bit for bit on the CPU.
        reference: weights of the KL term's reference; None takes the run's version 0.

    Returns:
        The update's metrics; the new weights are in `learner`.

    Raises:
        RecordError: the iteration has no alive groups of the role, or its checkpoint was pruned.
    """
    from onthejob.learn.advantage import advantages
    from onthejob.learn.lora import Snapshot, load_adapter

    groups = [group for group in run.read_groups(iteration, role) if advantages(group, learner.config.advantage) is not None]
    if not groups:
        raise RecordError(f"iteration {iteration} of {run.path} has no alive group of {role!r}. `runs show` lists what there is.")
    recorded = run.adapters(role)
    start = reference or (recorded[0] if recorded else None)
    if start is None:
        raise RecordError(f"{run.path} holds no adapter of {role!r} to use as the reference. Pass --reference.")
    load_adapter(learner.model, role, start)
    snapshot = Snapshot.take(learner.model, role)
    if init is None:
        learner.import_state(role, _tensors(run.read_checkpoint(iteration - 1), _learner_file(role)))
    else:
        load_adapter(learner.model, role, init)
    return learner.update(role, groups, reference=snapshot).as_dict()


def _learner_file(role: str) -> str:
    return f"learner-{role}.safetensors"


def _bytes(files: Mapping[str, Any], name: str) -> bytes:
    if not isinstance(files.get(name), bytes):
        raise RecordError(f"a checkpoint lacks {name!r}; it has {sorted(files)}. Use an earlier one.")
    return files[name]


def _tensors(files: Mapping[str, Any], name: str) -> Any:
    if name not in files or isinstance(files[name], bytes):
        raise RecordError(f"a checkpoint lacks the tensors {name!r}; it has {sorted(files)}. Use an earlier one.")
    return files[name]
