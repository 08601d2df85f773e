"""Evaluation results as rich tables, for the terminal. The report has the same numbers and more."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from onthejob.evaluate.behaviours import Shift
from onthejob.evaluate.charts import describe, number
from onthejob.evaluate.compare import OVERALL, Comparison
from onthejob.evaluate.report_data import decoding_words, featured_team
from onthejob.evaluate.scores import Cell, QualityResult
from onthejob.evaluate.statistics import Estimate


def quality_table(quality: QualityResult, *, decoding: str | None = None) -> Table:
    """Decision quality per role and team; `decoding` is a cache name such as `t0_n32`, None takes the first."""
    decoding = decoding or quality.decodings[0]
    table = Table(title=f"Decision quality, {decoding_words(decoding)} (0 random legal, 1 best of {quality.config.candidates})")
    table.add_column("role")
    for team in quality.teams:
        table.add_column(team, justify="right", no_wrap=True)
    table.add_column("states", justify="right")
    for actor in quality.actors:
        cells = [Cell(team, actor, decoding) for team in quality.teams]
        texts = [f"{describe(quality.score(c))}\nvalid {quality.valid_rate(c):.1%}" if c in quality.cells else "" for c in cells]
        table.add_row(actor, *texts, str(len(quality.yardsticks[actor].episodes)))
    return table


def quality_differences_table(quality: QualityResult, *, featured: str = "", decoding: str | None = None) -> Table:
    """The featured team (default: the last) minus each other, paired by state; green and red where the interval excludes 0."""
    decoding = decoding or quality.decodings[0]
    featured = featured_team(featured, quality.teams)
    others = [team for team in quality.teams if team != featured]
    table = Table(title=f"Decision quality of {featured} minus others, {decoding_words(decoding)}, 95 % intervals")
    table.add_column("role")
    for team in others:
        table.add_column(f"- {team}", justify="right", no_wrap=True)
    for actor in quality.actors:
        cell = Cell(featured, actor, decoding)
        pairs = [(cell, cell._replace(team=team)) for team in others]
        known = [a in quality.cells and b in quality.cells for a, b in pairs]
        table.add_row(
            actor, *(_colored(quality.difference(a, b)) if ok else Text("") for ok, (a, b) in zip(known, pairs, strict=True))
        )
    return table


def comparison_table(comparison: Comparison, *, metrics: Sequence[str] = ()) -> Table:
    """Mean with interval and minimum per metric and team, over all tasks; no names means all metrics."""
    table = Table(title=f"{len(comparison.tasks)} matched tasks: mean [95 % interval], smallest value")
    table.add_column("metric")
    for team in comparison.teams:
        table.add_column(team, justify="right", no_wrap=True)
    for metric in metrics or comparison.metrics:
        estimates = [comparison.estimate(team, metric) for team in comparison.teams]
        table.add_row(metric, *(f"{describe(estimate)}\nmin {number(estimate.minimum)}" for estimate in estimates))
    return table


def differences_table(comparison: Comparison, metric: str, *, featured: str = "") -> Table:
    """The featured team (default: the last) minus each other, overall and per scenario, paired by task."""
    featured = featured_team(featured, comparison.teams)
    others = [team for team in comparison.teams if team != featured]
    table = Table(title=f"{metric} of {featured} minus others, paired by task, 95 % intervals")
    table.add_column("scenario")
    table.add_column("tasks", justify="right")
    for team in others:
        table.add_column(f"- {team}", justify="right", no_wrap=True)
    for stratum in comparison.strata_names():
        found = [comparison.difference(featured, team, metric, stratum) for team in others]
        count = str(found[0].n) if found else ""
        table.add_row("all" if stratum == OVERALL else stratum, count, *(_colored(difference) for difference in found))
    return table


def behaviour_table(shifts: Sequence[Shift], *, names: tuple[str, str] = ("before", "after"), top: int = 3) -> Table:
    """Drift per role, with the `top` actions whose share changed most."""
    table = Table(title=f"Actions, {names[0]} and {names[1]}")
    for column in ("role", "drift (bit)", "by chance", "largest changes"):
        table.add_column(column, justify="left" if column in ("role", "largest changes") else "right")
    for shift in shifts:
        changes = "\n".join(f"{name} {before:.0%} → {after:.0%}" for name, before, after in shift.shares()[:top])
        table.add_row(shift.actor, f"{shift.drift:.3f}", f"{shift.noise:.3f}", changes)
    return table


def _colored(difference: Estimate) -> Text:
    style = "green" if difference.above_zero else "red" if difference.below_zero else ""
    return Text(describe(difference), style=style)
