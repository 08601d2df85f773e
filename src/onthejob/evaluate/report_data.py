"""What a report shows, as plain data: rendered by `onthejob.evaluate.report`, read from a run by `onthejob.evaluate.recorded`.

Nothing here renders and nothing needs a model: a report can be written from a record alone, on another machine, years later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onthejob.evaluate.behaviours import Shift
from onthejob.evaluate.comparison import Comparison
from onthejob.evaluate.pass_fail import Sheet
from onthejob.evaluate.scores import Quality
from onthejob.evaluate.statistics import Estimate


class Panel(NamedTuple):
    """One chart of the training section."""

    metric: str
    title: str
    meaning: str
    """One sentence for the reader, also the chart's description."""
    complement: bool = False
    """Show 1 - value."""


PANELS = (
    Panel("reward", "Return", "Mean branch value of the sampled replies, on the role's frozen scales."),
    Panel(
        "frac_reward_zero_std",
        "Groups alive",
        "Share of groups whose replies differ in value; only these teach anything.",
        complement=True,
    ),
    Panel("kl", "KL to the reference", "Divergence from the policy at the start of GRPO, in nats per token."),
    Panel("clip_ratio/region_mean", "Clip fraction", "Share of tokens whose probability ratio left the trust region."),
    Panel(
        "sampling/sampling_logp_difference/mean",
        "Sampler mismatch",
        "Mean absolute difference of the sampler's and the trainer's log-probability of the same token, in nats.",
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
    """True when play continued from this reply."""


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
class Picture:
    """A chart of the summary: one dot with its interval per row."""

    title: str
    unit: str
    """Label of the axis."""
    rows: tuple[tuple[str, Estimate], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All parts of report.html; a part that is None or empty is said to be missing."""

    title: str
    lead: str = ""
    """One or two sentences: what was run."""
    config: Mapping[str, Any] = field(default_factory=dict)
    curves: Sequence[Curve] = ()
    panels: Sequence[Panel] = PANELS
    quality: Quality | None = None
    comparison: Comparison | None = None
    shifts: Sequence[Shift] = ()
    shift_names: tuple[str, str] = ("before", "after")
    turns: Sequence[AnnotatedTurn] = ()
    featured: str = ""
    """The team whose differences to the others are shown, e.g. `grpo`; empty takes the last team."""
    headline: Sequence[str] = ("company_value", "value_less_luck", "team_reward")
    """Metrics whose paired differences are shown per stratum; those an environment lacks are omitted."""
    sheets: Sequence[Sheet] = ()
    """More tables about whole episodes, see `onthejob.evaluate.sheets`."""
    pictures: Sequence[Picture] = ()
    """Charts of the summary."""
    notes: Sequence[str] = ()
    """Sentences shown under the summary: limits, negative results."""


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
    """A decoding's cache name for people: `greedy`, `at temperature 1`."""
    temperature = decoding.removeprefix("t").split("_")[0]
    return "greedy" if math.isclose(float(temperature), 0.0) else f"at temperature {temperature}"
