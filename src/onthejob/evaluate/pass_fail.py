"""Figures of a comparison of passed and failed tasks in addition to means: parts of tasks, ends, groups of tasks, McNemar.

Works on any comparison. A metric that is 0 or 1 gets McNemar's test in addition to its paired interval; metrics `passed/KIND` and
`total/KIND` are pooled into the rate of a kind, a ratio of sums over the tasks that have it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from onthejob.errors import ConfigError, RecordError
from onthejob.evaluate.comparison import OVERALL, Comparison, EpisodeReply, EpisodeResult, Key, settings_of, task_key
from onthejob.evaluate.statistics import IntervalEstimate, ratio_interval
from onthejob.files import published_file
from onthejob.texts import encodable
from onthejob.types import Task

PASSED, TOTAL = "passed/", "total/"
COMPARISONS = "comparisons"
"""Folder next to the runs in which comparisons are kept."""


class McNemar(NamedTuple):
    """Two teams on the same tasks, each passed or failed."""

    only_first: int
    only_second: int
    both: int
    neither: int
    p: float
    """Exact two-sided probability of so unequal a split of the tasks on which they differ, if they were equally good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A table as text: printed in a terminal and in report.html alike."""

    title: str
    columns: tuple[str, ...]
    """Two that name a row, the second by its team, and then numbers."""
    rows: tuple[tuple[str, ...], ...]


def mcnemar(first: Mapping[str, float], second: Mapping[str, float]) -> McNemar:
    """Compare two teams' outcomes (task -> 0 or 1).

    Raises:
        ConfigError: they are not of the same tasks, or a value is neither 0 nor 1.

    Source: McNemar (1947), in its exact binomial form.
    """
    refuse_unmatched(first, second)
    for value in (*first.values(), *second.values()):
        if value not in (0.0, 1.0):
            raise ConfigError(f"McNemar's test needs outcomes of 0 and 1, got {value}. Use a paired difference.")
    pairs = Counter((first[task], second[task]) for task in first)
    gained, lost = pairs[1.0, 0.0], pairs[0.0, 1.0]
    return McNemar(gained, lost, pairs[1.0, 1.0], pairs[0.0, 0.0], binomial_p(min(gained, lost), gained + lost))


def binomial_p(fewer: int, count: int) -> float:
    """Probability of at most `fewer` heads, or as few tails, in `count` throws of a fair coin."""
    tail = sum(math.comb(count, k) for k in range(fewer + 1)) / 2**count
    return min(1.0, 2.0 * tail)


def refuse_unmatched(first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    """Refuse results of different tasks: their difference would be one of tasks as well.

    Raises:
        ConfigError: says how many and which.
    """
    alone = sorted(set(first) ^ set(second))
    if alone:
        raise ConfigError(
            f"results of different tasks are not compared: {len(alone)} of {len(set(first) | set(second))} are only on one side, "
            f"e.g. {alone[0]}. Let both sides play the same tasks."
        )


def kinds(comparison: Comparison) -> tuple[str, ...]:
    """Kinds of parts that tasks were judged by, in the order in which they occur."""
    found = {
        name.removeprefix(TOTAL) for result in comparison.results.values() for name in result.metrics if name.startswith(TOTAL)
    }
    return tuple(sorted(found))


def kind_rate(comparison: Comparison, team: str, kind: str = OVERALL) -> IntervalEstimate:
    """Share of the parts of one kind (or of all) that hold, over the tasks that have any."""
    rows = _parts(comparison, team, kind)
    return ratio_interval([row[0] for row in rows.values()], [row[1] for row in rows.values()], seed=comparison.seed)


def kind_difference(comparison: Comparison, first: str, second: str, kind: str = OVERALL) -> IntervalEstimate:
    """`kind_rate` of `first` minus that of `second`, paired by task."""
    a, b = _parts(comparison, first, kind), _parts(comparison, second, kind)
    shared = [task for task in a if task in b]
    gains = [a[task][0] - b[task][0] for task in shared]
    return ratio_interval(gains, [a[task][1] for task in shared], seed=comparison.seed)


def stop_shares(comparison: Comparison, team: str) -> dict[str, float]:
    """How a team's episodes ended: reason -> share, in [0, 1], by name."""
    counts = Counter(result.stop for result in comparison.of(team).values())
    return {stop: count / counts.total() for stop, count in sorted(counts.items())}


def outcomes(comparison: Comparison, first: str, second: str, metric: str) -> McNemar | None:
    """McNemar's test of a metric over the tasks that both finished; None when it is not always 0 or 1."""
    a, b = comparison.values(first, metric), comparison.values(second, metric)
    shared = [task for task in a if task in b]
    if not shared or any(values[task] not in (0.0, 1.0) for values in (a, b) for task in shared):
        return None
    return mcnemar({task: a[task] for task in shared}, {task: b[task] for task in shared})


def grouped(comparison: Comparison, by: Callable[[Task], str]) -> Comparison:
    """The same results with other strata."""
    return replace(comparison, strata={task.id: by(task) for task in comparison.tasks})


def matched_dict(
    comparison: Comparison, groupings: Mapping[str, Callable[[Task], str]], metrics: Sequence[str]
) -> dict[str, Any]:
    """JSON-serialisable: rates of kinds, ends, outcomes of every pair of teams, and the metrics per group of tasks."""
    metrics = [metric for metric in metrics if metric in comparison.metrics]
    pairs = [(first, second) for index, second in enumerate(comparison.teams) for first in comparison.teams[index + 1 :]]
    named = [*([OVERALL] if kinds(comparison) else []), *kinds(comparison)]
    tests = {(a, b, m): outcomes(comparison, a, b, m) for a, b in pairs for m in metrics}
    return {
        "kinds": [
            {"team": team, "kind": kind, **kind_rate(comparison, team, kind).as_dict()}
            for team in comparison.teams
            for kind in named
        ],
        "kind_differences": [
            {"first": a, "second": b, "kind": kind, **kind_difference(comparison, a, b, kind).as_dict()}
            for a, b in pairs
            for kind in named
        ],
        "stops": {team: stop_shares(comparison, team) for team in comparison.teams},
        "mcnemar": [
            {"first": a, "second": b, "metric": metric, **found._asdict()}
            for (a, b, metric), found in tests.items()
            if found is not None
        ],
        "groups": [
            {"grouping": name, "group": group, "team": team, "metric": metric, **by.estimate(team, metric, group).as_dict()}
            for name, key in groupings.items()
            for by in [grouped(comparison, key)]
            for group in dict.fromkeys(by.strata[task.id] for task in by.tasks)
            for team in by.teams
            for metric in metrics
        ],
    }


def document(comparison: Comparison) -> dict[str, Any]:
    """What `joined` reads: results with the tasks and settings that they belong to, and all that was said in them."""
    return {
        "settings": settings_of(comparison),
        "tasks": {task.id: task_key(task) for task in comparison.tasks},
        "strata": dict(comparison.strata),
        "actions": {team: comparison.actions(team) for team in comparison.teams},
        **comparison.as_dict(),
        "replies": [
            {**key._asdict(), "turns": [said._asdict() for said in result.replies]} for key, result in comparison.results.items()
        ],
    }


def kept_path(folder: Path, name: str) -> Path:
    """Where `keep` writes."""
    return folder / COMPARISONS / f"{name}.json"


def keep(folder: Path, name: str, data: Mapping[str, Any]) -> Path:
    """Write a comparison's document as `NAME.json` into the folder of comparisons below `folder`, atomically.

    Raises:
        RecordError: it cannot be written.
    """
    path = kept_path(folder, name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with published_file(path) as temporary:
            temporary.write_text(encodable(json.dumps(data, ensure_ascii=False)) + "\n", encoding="utf-8")
    except OSError as error:
        raise RecordError(f"cannot write the comparison to {path}: {error}. Free space or choose another place.") from error
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierComparison:
    """A comparison as its document holds it."""

    path: Path
    settings: Mapping[str, Any]
    tasks: Mapping[str, str]
    """Task id -> `task_key`."""
    results: Mapping[Key, EpisodeResult]
    failed: Mapping[Key, str]
    env: Mapping[str, Any]
    """Reference and options of the environment, as in a record's `[env]`; empty in comparisons of earlier versions."""
    split: str
    """Of the tasks; empty in comparisons of earlier versions."""

    @property
    def teams(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key.team for key in self.results))

    def refuse_unmatched(self, tasks: Sequence[Task], settings: Mapping[str, Any], teams: Sequence[str]) -> None:
        """Refuse to be shown with a comparison of these tasks, settings (see `settings_of`) and teams; it need not be played yet.

        Raises:
            ConfigError: other tasks, another decoding, seed or environment, or a team of the same name.
        """
        refuse_unmatched(self.tasks, {task.id: None for task in tasks})
        changed = [task.id for task in tasks if self.tasks[task.id] != task_key(task)]
        if changed:
            raise ConfigError(
                f"{self.path} is of other tasks: {len(changed)} have the same id and another content, e.g. {changed[0]}."
            )
        differ = [
            f"{name} {self.settings.get(name)!r} there, {value!r} here"
            for name, value in settings.items()
            if self.settings.get(name) != value
        ]
        if differ:
            raise ConfigError(f"{self.path} was played otherwise: {'; '.join(differ)}. Compare with the same settings.")
        if repeated := sorted(set(self.teams) & set(teams)):
            raise ConfigError(f"{', '.join(repeated)} is in {self.path} too. Write NAME={repeated[0]} to tell them apart.")


def read_comparison(path: Path) -> EarlierComparison:
    """The comparison in a file: JSON that `onthejob compare --json` printed.

    Raises:
        RecordError: the file holds no comparison.
    """
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        said = {
            Key(row["team"], row["task_id"]): tuple(EpisodeReply(turn["actor"], turn["text"]) for turn in row["turns"])
            for row in held.get("replies", ())
        }
        return EarlierComparison(
            path=path,
            settings=dict(held["settings"]),
            tasks=dict(held["tasks"]),
            results={
                (key := Key(row.pop("team"), row.pop("task_id"))): EpisodeResult(
                    stop=row.pop("stop"), metrics=row, actions={}, replies=said.get(key, ())
                )
                for row in held["episodes"]
            },
            failed={Key(row["team"], row["task_id"]): row["error"] for row in held.get("failed", [])},
            env=dict(held.get("env", {})),
            split=str(held.get("split", "")),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise RecordError(f"{path} holds no comparison: {error!r}. Give what `onthejob compare --json` printed.") from error


def joined(comparison: Comparison, earlier: EarlierComparison) -> Comparison:
    """`comparison` with the teams of an earlier one before its own.

    Raises:
        ConfigError: as `EarlierComparison.refuse_unmatched`.
    """
    earlier.refuse_unmatched(comparison.tasks, settings_of(comparison), comparison.teams)
    return replace(
        comparison,
        teams=(*earlier.teams, *comparison.teams),
        results={**earlier.results, **comparison.results},
        failed={**earlier.failed, **comparison.failed},
    )


def _parts(comparison: Comparison, team: str, kind: str) -> dict[str, tuple[float, float]]:
    """Task -> (parts that hold, parts) of one kind, of tasks that have any."""
    of = kinds(comparison) if kind == OVERALL else (kind,)
    found: dict[str, tuple[float, float]] = {}
    for task, result in comparison.of(team).items():
        total = sum(result.metrics.get(TOTAL + name, 0.0) for name in of)
        if total:
            found[task] = (sum(result.metrics.get(PASSED + name, 0.0) for name in of), total)
    return found
