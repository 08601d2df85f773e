"""Whole episodes, matched: every team plays the same tasks with the same seeds and the same decoding.

What can be equal is equal, so a difference between two teams is paired by task and its interval is that of the mean
difference. Episodes are cached one by one: a killed comparison continues where it was, and adding seeds or a team costs only
what is new.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self

from onthejob.errors import ConfigError
from onthejob.evaluate.behaviours import Counts, action_counts, action_of, merge
from onthejob.evaluate.cache import EvaluationCache, decoding_name
from onthejob.evaluate.states import refuse_training_tasks
from onthejob.evaluate.statistics import Estimate, mean_interval, paired_difference
from onthejob.evaluate.teams import Team
from onthejob.rollout.episode import Encoder, Episode, TurnRecord, mean_scores
from onthejob.rollout.play import play
from onthejob.types import Environment, Sampling, Task

log = logging.getLogger(__name__)

OVERALL = "all"
"""Stratum that stands for all tasks together."""
OUTCOMES = frozenset({"passed", "clean_stop"})
"""Metrics that are the outcome of a single try, 0 or 1. A mean of them on which all tasks agree has the exact interval, and so
has one of a metric named `..._rate`, which lies in [0, 1] too; of differences on which all agree, only those of outcomes."""


class Key(NamedTuple):
    """One episode of a comparison."""

    team: str
    task_id: str


class Said(NamedTuple):
    """One reply of an episode."""

    actor: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeResult:
    """What one team made of one task."""

    metrics: Mapping[str, float]
    """The environment's own metrics and those listed in docs/metrics.md under Episodes."""
    actions: Mapping[str, Counts]
    """Actor -> action -> how often."""
    stop: str
    replies: tuple[Said, ...] = ()
    """All of them, in order; none in comparisons of earlier versions."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Of JSON: the inverse of `dataclasses.asdict`."""
        return cls(**{**row, "replies": tuple(Said(*said) for said in row["replies"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Results by team and task, from which means and differences are computed."""

    teams: tuple[str, ...]
    tasks: tuple[Task, ...]
    strata: Mapping[str, str]
    """Task id -> stratum, e.g. its scenario."""
    results: Mapping[Key, EpisodeResult]
    failed: Mapping[Key, str]
    """Episodes that ended in an error, with it: their tasks are excluded from every number of every team."""
    sampling: Sampling
    seed: int
    played: int
    """Episodes played now; the others came from the cache."""
    max_turns: int = 0
    """Cut of an episode."""
    env: str = ""
    """Fingerprint of the environment's code and rules."""
    _compared: frozenset[str] = field(init=False, repr=False, compare=False)
    """Ids of the tasks that no team failed; a team that finished none has no say."""
    _estimates: dict[tuple[str, ...], Estimate] = field(init=False, repr=False, compare=False, default_factory=dict)
    """What was asked for before: tables, documents and reports ask for the same."""

    def __post_init__(self) -> None:
        finished = [{key.task_id for key in self.results if key.team == team} for team in self.teams]
        tasks = frozenset(task.id for task in self.tasks)
        object.__setattr__(self, "_compared", tasks.intersection(*(ids for ids in finished if ids)))

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that every episode has, in order of the first."""
        common = [set(result.metrics) for result in self.results.values()]
        first = next(iter(self.results.values())).metrics if self.results else {}
        return tuple(name for name in first if all(name in names for names in common))

    def strata_names(self) -> tuple[str, ...]:
        """`OVERALL` and then each stratum in order of its first task."""
        names = tuple(dict.fromkeys(self.strata[task.id] for task in self.tasks))
        return (OVERALL, *names) if len(names) > 1 else (OVERALL,)

    def values(self, team: str, metric: str, stratum: str = OVERALL) -> dict[str, float]:
        """Task id -> value, without the tasks on which this team or another failed.

        Raises:
            ConfigError: The team or metric is unknown.
        """
        if team not in self.teams:
            raise ConfigError(f"no team {team!r} in this comparison, only {list(self.teams)}. Compare it first.")
        if self.results and metric not in self.metrics:
            raise ConfigError(f"no metric {metric!r} in this comparison, only {list(self.metrics)}. Choose one of them.")
        return {task: result.metrics[metric] for task, result in self.of(team).items() if stratum in (OVERALL, self.strata[task])}

    def estimate(self, team: str, metric: str, stratum: str = OVERALL) -> Estimate:
        """Mean over tasks with its interval and its worst task. Over all tasks, scenarios count as fixed strata."""
        asked = (team, metric, stratum)
        if asked not in self._estimates:
            values = self.values(team, metric, stratum)
            strata = [self.strata[task] for task in values]
            share = metric in OUTCOMES or metric.endswith("_rate")
            self._estimates[asked] = mean_interval(list(values.values()), strata=strata, seed=self.seed, binary=share)
        return self._estimates[asked]

    def difference(self, first: str, second: str, metric: str, stratum: str = OVERALL) -> Estimate:
        """Mean of `first` minus `second`, paired by task."""
        asked = (first, second, metric, stratum)
        if asked not in self._estimates:
            a, b = self.values(first, metric, stratum), self.values(second, metric, stratum)
            shared = [task for task in a if task in b]
            self._estimates[asked] = paired_difference(
                [a[task] for task in shared],
                [b[task] for task in shared],
                strata=[self.strata[task] for task in shared],
                seed=self.seed,
                binary=metric in OUTCOMES,
            )
        return self._estimates[asked]

    def actions(self, team: str) -> dict[str, Counts]:
        """Actor -> action -> how often, over the tasks that are compared."""
        return merge(result.actions for result in self.of(team).values())

    def of(self, team: str) -> dict[str, EpisodeResult]:
        """Task id -> what `team` made of it, of the tasks on which no team failed."""
        keys = [Key(team, task.id) for task in self.tasks if task.id in self._compared]
        return {key.task_id: self.results[key] for key in keys if key in self.results}

    def as_dict(self) -> dict[str, object]:
        """JSON-serialisable: every mean, and every difference between two teams, per metric and stratum."""
        means = [
            {"team": team, "metric": metric, "stratum": stratum, **self.estimate(team, metric, stratum).as_dict()}
            for team in self.teams
            for metric in self.metrics
            for stratum in self.strata_names()
        ]
        differences = [
            {
                "first": first,
                "second": second,
                "metric": metric,
                "stratum": stratum,
                **self.difference(first, second, metric, stratum).as_dict(),
            }
            for index, second in enumerate(self.teams)
            for first in self.teams[index + 1 :]
            for metric in self.metrics
            for stratum in self.strata_names()
        ]
        failed = [{**key._asdict(), "error": error} for key, error in self.failed.items()]
        episodes = [{**key._asdict(), "stop": result.stop, **result.metrics} for key, result in self.results.items()]
        return {"means": means, "differences": differences, "failed": failed, "episodes": episodes}


def compare(
    teams: Sequence[Team],
    tasks: Sequence[Task],
    *,
    env_factory: Callable[[], Environment],
    cache: EvaluationCache,
    sampling: Sampling,
    seed: int,
    max_turns: int,
    encoder: Encoder | None = None,
    batch: int = 8,
    workers: int = 1,
    stratum: Callable[[Task], str] | None = None,
    action: Callable[[TurnRecord], str] = action_of,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> Comparison:
    """Let every team play every task, or take it from the cache.

    Args:
        teams: Rows. Roles learned alone: build the row with `one_seat`; all together: one team with all adapters.
        tasks: Held-out tasks with distinct ids.
        env_factory: Makes environments, `batch` at a time.
        cache: Where finished episodes are kept.
        sampling: The same for every team.
        seed: Root of the reply seeds (keyed by task and turn, so equal for every team) and of the intervals.
        max_turns: Cut of an episode.
        encoder: For policies that read tokens.
        batch: Episodes in lock-step; a killed comparison loses at most this many.
        workers: Threads that step the environments of a batch; of use where stepping waits.
        stratum: What to report separately; None takes the payload's `scenario`, else the environment's name.
        action: Name of a turn's action, for the distributions.
        on_progress: Called with (team, episodes done of this team, episodes of this team).

    Raises:
        ConfigError: A training task, repeated names or ids, or nothing to compare.
    """
    _check(teams, tasks, batch)
    stratum = stratum or (lambda task: str(task.payload.get("scenario", task.env)))
    settings = f"{decoding_name(sampling)}_s{seed}_m{max_turns}"
    results: dict[Key, EpisodeResult] = {}
    failed: dict[Key, str] = {}
    played = 0
    for team in teams:
        todo: list[Task] = []
        for task in tasks:
            known = cache.episode(team.fingerprint, task_key(task), settings)
            if known is None:
                todo.append(task)
            else:
                results[Key(team.name, task.id)] = EpisodeResult.from_row(known)
        for start in range(0, len(todo), batch):
            part = todo[start : start + batch]
            episodes = _play(
                team,
                part,
                env_factory,
                sampling,
                seed=seed,
                encoder=encoder,
                max_turns=max_turns,
                workers=workers,
            )
            fresh: dict[str, Mapping[str, Any]] = {}
            for task, episode in zip(part, episodes, strict=True):
                key = Key(team.name, task.id)
                if episode.error is not None:
                    failed[key] = episode.error
                    log.warning("episode %s of team %s failed and is excluded: %s", task.id, team.name, episode.error)
                    continue
                metrics = episode_metrics(episode, team.counted)
                actions = action_counts(episode.transcript, team.counted, action)
                replies = tuple(Said(turn.actor, turn.text) for turn in episode.transcript)
                results[key] = EpisodeResult(metrics=metrics, actions=actions, stop=str(episode.stop), replies=replies)
                fresh[task_key(task)] = asdict(results[key])
            cache.add_episodes(team.fingerprint, settings, fresh)
            played += len(part)
            if on_progress is not None:
                on_progress(team.name, len(tasks) - len(todo) + start + len(part), len(tasks))
    return Comparison(
        teams=tuple(team.name for team in teams),
        tasks=tuple(tasks),
        strata={task.id: stratum(task) for task in tasks},
        results=results,
        failed=failed,
        sampling=sampling,
        seed=seed,
        played=played,
        max_turns=max_turns,
        env=cache.env,
    )


def episode_metrics(episode: Episode, counted: frozenset[str]) -> dict[str, float]:
    """The environment's metrics and ours; `counted` are the actors whose replies are measured."""
    own = [counts for actor, counts in episode.actors.items() if actor in counted]
    turns = sum(counts.turns for counts in own)
    reward = sum(trajectory.ret for trajectory in episode.trajectories.values()) + sum(episode.unseated.values())
    return {
        **episode.metrics,
        **mean_scores(record for record in episode.transcript if record.actor in counted),
        "episode_reward": reward,
        "valid_rate": sum(counts.valid for counts in own) / turns if turns else 1.0,
        "turns": float(episode.turns),
        "decisions": float(turns),
        "prompt_tokens": float(sum(counts.prompt_tokens for counts in own)),
        "completion_tokens": float(sum(counts.completion_tokens for counts in own)),
        "completions/clipped_ratio": sum(counts.clipped for counts in own) / turns if turns else 0.0,
        "wall_s": episode.seconds,
    }


def task_key(task: Task) -> str:
    """Identity of a task by its content, for the cache: ids may be reused by another payload."""
    fields = [task.env, str(task.split), task.seed, dict(task.payload)]
    return f"{task.id}:{hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]}"


def settings_of(comparison: Comparison) -> dict[str, Any]:
    """What must be equal for two comparisons to be matched, in addition to the tasks."""
    return settings_for(comparison.sampling, seed=comparison.seed, max_turns=comparison.max_turns, env=comparison.env)


def settings_for(sampling: Sampling, *, seed: int, max_turns: int, env: str) -> dict[str, Any]:
    """As `settings_of`, of a comparison that is still to be played."""
    return {
        "temperature": sampling.temperature,
        "max_new_tokens": sampling.max_new_tokens,
        "seed": seed,
        "max_turns": max_turns,
        "env": env,
    }


def _play(
    team: Team,
    tasks: Sequence[Task],
    env_factory: Callable[[], Environment],
    sampling: Sampling,
    *,
    seed: int,
    encoder: Encoder | None,
    max_turns: int,
    workers: int,
) -> list[Episode]:
    envs = [env_factory() for _ in tasks]
    try:
        return play(
            envs,
            tasks,
            team.policies,
            sampling,
            seed=seed,
            encoder=encoder,
            max_turns=max_turns,
            workers=workers,
            what=team.name,
        )
    finally:
        for env in envs:
            env.close()


def _check(teams: Sequence[Team], tasks: Sequence[Task], batch: int) -> None:
    if not teams or not tasks:
        raise ConfigError(f"a comparison needs teams and tasks, got {len(teams)} and {len(tasks)}. Name at least one of each.")
    if batch < 1:
        raise ConfigError(f"batch must be >= 1, got {batch}. Use 8.")
    names, ids = [team.name for team in teams], [task.id for task in tasks]
    for what, keys in (("team names", names), ("task ids", ids)):
        if len(set(keys)) != len(keys):
            repeated = sorted({key for key in keys if keys.count(key) > 1})
            raise ConfigError(f"{what} must be distinct, got {repeated} more than once. Rename or drop them.")
    refuse_training_tasks(tasks)
