"""What a report shows, as plain data, and how to take the parts of it from a run's record.

Nothing here renders and nothing needs a model: a report can be written from a record alone, on another machine, years later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from onthejob.errors import ConfigError
from onthejob.evaluate.behaviours import Shift
from onthejob.evaluate.compare import Comparison
from onthejob.evaluate.scores import QualityResult
from onthejob.record.reading import Metric
from onthejob.types import Group

TRAIN_SCOPE = "train/"
"""Scopes of training metrics are this and the role: `train/sales`."""


class Panel(NamedTuple):
    """One chart of the training section."""

    metric: str
    title: str
    meaning: str
    """One sentence for the reader, also the chart's description."""


PANELS = (
    Panel("reward", "Return", "Mean branch value of the sampled replies, in standard deviations between legal replies."),
    Panel("frac_alive", "Groups alive", "Share of groups whose replies differ in return; only these teach anything."),
    Panel("kl", "KL to the reference", "Divergence from the policy at the start of GRPO, in nats per token."),
    Panel("clip_ratio/region_mean", "Clip fraction", "Share of tokens whose probability ratio left the trust region."),
    Panel(
        "sampling/sampling_logp_difference/mean",
        "Sampler mismatch",
        "Mean absolute difference between the sampler's and the trainer's log-probabilities of the same tokens.",
    ),
    Panel("valid_rate", "Valid replies", "Share of sampled replies that were parsed and legal."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One metric of one role over training."""

    role: str
    metric: str
    points: tuple[tuple[int, float], ...]
    """(iteration, value), ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatedReply:
    """One of the K replies to a prompt."""

    text: str
    valid: bool
    value: float
    """Branch value: mean of `by_world`."""
    by_world: tuple[float, ...]
    advantage: float | None
    """None when the group taught nothing."""
    chosen: bool
    """True when play went on from this reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatedTurn:
    """One decision of training, with everything that was compared."""

    key: str
    """The group's key."""
    role: str
    policy: str
    prompt: str
    replies: tuple[AnnotatedReply, ...]
    worlds: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All parts of report.html; a part that is None or empty is said to be missing."""

    title: str
    lead: str = ""
    """One or two sentences: what was run."""
    config: Mapping[str, Any] = field(default_factory=dict)
    curves: Sequence[Curve] = ()
    panels: Sequence[Panel] = PANELS
    quality: QualityResult | None = None
    comparison: Comparison | None = None
    shifts: Sequence[Shift] = ()
    shift_names: tuple[str, str] = ("before", "after")
    turns: Sequence[AnnotatedTurn] = ()
    featured: str = ""
    """The team whose differences to the others are shown, e.g. `grpo`; empty takes the last team."""
    headline: Sequence[str] = ("company_value", "team_reward")
    """Metrics whose paired differences are shown per stratum; those an environment lacks are left out."""
    notes: Sequence[str] = ()
    """Sentences shown under the summary: limits, negative results."""


class RunReader(Protocol):
    """The part of `onthejob.record.store.Run` that a report needs."""

    def read_metrics(
        self, scope: str | None = None, *, iteration: int | None = None, name: str | None = None
    ) -> list[Metric]: ...

    def read_groups(self, iteration: int | None = None, actor: str | None = None) -> Iterator[Group]: ...

    def read_advantages(
        self, iteration: int | None = None, actor: str | None = None
    ) -> dict[str, npt.NDArray[np.float64] | None]: ...


def training_curves(run: RunReader, panels: Sequence[Panel] = PANELS) -> list[Curve]:
    """The recorded training metrics that the panels show, by panel and role."""
    wanted = {panel.metric: number for number, panel in enumerate(panels)}
    points: dict[tuple[int, str, str], list[tuple[int, float]]] = {}
    for metric in run.read_metrics():
        if metric.scope.startswith(TRAIN_SCOPE) and metric.name in wanted:
            key = (wanted[metric.name], metric.name, metric.scope.removeprefix(TRAIN_SCOPE))
            points.setdefault(key, []).append((metric.iteration, metric.value))
    return [Curve(role=role, metric=name, points=tuple(sorted(values))) for (_, name, role), values in sorted(points.items())]


def annotated_turns(run: RunReader, *, decode: Callable[[Sequence[int]], str], count: int = 5) -> list[AnnotatedTurn]:
    """`count` telling decisions of a run, from as many roles as possible.

    Per role the group with the most distinct replies, and among those with the clearest differences, is taken first; late
    iterations win ties because they show what training has become.

    Args:
        run: An open record.
        decode: Token ids of a prompt to text.
        count: How many to take, >= 1.
    """
    if count < 1:
        raise ConfigError(f"count must be >= 1, got {count}. Use 5.")
    advantages = run.read_advantages()
    best: dict[str, list[tuple[tuple[float, ...], Group]]] = {}
    for number, group in enumerate(run.read_groups()):
        given = advantages.get(group.key)
        if given is None or "by_world" not in group.facts:
            continue
        distinct = len(set(group.facts["keys"]))
        ranked = best.setdefault(group.actor, [])
        ranked.append(((float(min(distinct, 4)), round(float(np.std(given)), 3), float(number)), group))
        ranked.sort(key=lambda item: item[0], reverse=True)
        del ranked[count:]
    chosen = _one_of_each(([group for _, group in best[actor]] for actor in sorted(best)), count)
    return [annotate(group, advantages[group.key], decode=decode) for group in chosen]


def annotate(
    group: Group, advantages: npt.NDArray[np.float64] | None, *, decode: Callable[[Sequence[int]], str]
) -> AnnotatedTurn:
    """A branch group as recorded, for reading.

    Raises:
        ConfigError: The group was not scored by branches.
    """
    facts = group.facts
    if "by_world" not in facts or "keys" not in facts:
        raise ConfigError(f"group {group.key} has no branch values per world. Annotate groups whose source is 'branch'.")
    replies = []
    for index, trajectory in enumerate(group.trajectories):
        turn = trajectory.turns[0]
        replies.append(
            AnnotatedReply(
                text=turn.completion.text,
                valid=turn.valid,
                value=trajectory.ret,
                by_world=tuple(float(value) for value in facts["by_world"][facts["keys"][index]]),
                advantage=None if advantages is None else float(advantages[index]),
                chosen=facts.get("chosen") == index,
            )
        )
    first = group.trajectories[0].turns[0]
    return AnnotatedTurn(
        key=group.key,
        role=group.actor,
        policy=first.policy_version,
        prompt=decode(first.prompt_ids),
        replies=tuple(replies),
        worlds=tuple(int(world) for world in facts["worlds"]),
    )


def flat_config(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested configuration as (dotted name, value) rows."""
    rows: list[tuple[str, str]] = []
    for name, value in config.items():
        if isinstance(value, Mapping):
            rows += flat_config(value, f"{prefix}{name}.")
        elif isinstance(value, (list, tuple)):
            rows.append((f"{prefix}{name}", ", ".join(map(str, value)) or "none"))
        else:
            rows.append((f"{prefix}{name}", str(value)))
    return rows


def verdicts(report: Report) -> list[str]:
    """The results in sentences: in how many roles, and by how much, the featured team is better than each other one."""
    sentences: list[str] = []
    if report.quality is not None and len(report.quality.teams) > 1:
        quality = report.quality
        featured = featured_team(report.featured, quality.teams)
        decoding = quality.decodings[0]
        for other in quality.teams:
            cells = [cell for cell in quality.cells if cell.team == featured and cell.decoding == decoding]
            pairs = [(cell, cell._replace(team=other)) for cell in cells if cell._replace(team=other) in quality.cells]
            if other == featured or not pairs:
                continue
            differences = [quality.difference(first, second) for first, second in pairs]
            above, below = sum(d.above_zero for d in differences), sum(d.below_zero for d in differences)
            sentences.append(
                f"Decision quality of {featured} ({decoding_words(decoding)}) is above {other} in {above} of "
                f"{len(pairs)} roles and below in {below}, counting only intervals that exclude 0."
            )
    if report.comparison is not None and len(report.comparison.teams) > 1:
        comparison = report.comparison
        featured = featured_team(report.featured, comparison.teams)
        metric = next((name for name in report.headline if name in comparison.metrics), None)
        for other in comparison.teams:
            if other == featured or metric is None:
                continue
            difference = comparison.difference(featured, other, metric)
            word = "above" if difference.above_zero else "below" if difference.below_zero else "not clearly different from"
            sentences.append(f"Over whole episodes {featured} is {word} {other} in {metric} ({difference.n} matched tasks).")
    return sentences


def featured_team(name: str, teams: Sequence[str]) -> str:
    """`name`, or the last of `teams` when it is empty or not among them."""
    return name if name in teams else teams[-1]


def decoding_words(decoding: str) -> str:
    temperature = decoding.removeprefix("t").split("_")[0]
    return "greedy" if math.isclose(float(temperature), 0.0) else f"at temperature {temperature}"


def _one_of_each(lists: Iterable[Sequence[Group]], count: int) -> list[Group]:
    """The first of every list, then the second of every list, ... until there are `count`."""
    columns = [list(groups) for groups in lists]
    ranked = [group for rank in range(count) for column in columns for group in column[rank : rank + 1]]
    return ranked[:count]
