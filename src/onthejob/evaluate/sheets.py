"""The tables of a matched comparison, as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from onthejob.evaluate.charts import describe
from onthejob.evaluate.compare import OVERALL, Comparison
from onthejob.evaluate.matched import Sheet, grouped, kind_difference, kind_rate, kinds, outcomes, stop_shares
from onthejob.types import Task


def matched_sheets(
    comparison: Comparison, groupings: Mapping[str, Callable[[Task], str]], metrics: Sequence[str], *, featured: str
) -> list[Sheet]:
    """Parts of tasks by kind, ends of episodes, the featured team against the others, and the metrics per group of tasks.

    Args:
        comparison: of all teams.
        groupings: name -> what tasks are told apart by.
        metrics: the first is what counts; those that the comparison lacks are left out.
        featured: the team that the others are compared with.
    """
    metrics = [metric for metric in metrics if metric in comparison.metrics]
    sheets = [_kinds(comparison), _stops(comparison)] if kinds(comparison) else [_stops(comparison)]
    if len(comparison.teams) > 1:
        sheets.append(_against(comparison, metrics, featured))
    sheets += [_groups(comparison, name, by, metric) for name, by in groupings.items() for metric in metrics[:2]]
    return sheets


def _kinds(comparison: Comparison) -> Sheet:
    rows = []
    for kind in (OVERALL, *kinds(comparison)):
        found = [kind_rate(comparison, team, kind) for team in comparison.teams]
        rows.append((kind, str(found[0].n), *map(describe, found)))
    return Sheet(title="Assertions that hold, by kind", columns=("kind", "tasks", *comparison.teams), rows=tuple(rows))


def _stops(comparison: Comparison) -> Sheet:
    shares = {team: stop_shares(comparison, team) for team in comparison.teams}
    reasons = sorted({reason for found in shares.values() for reason in found})
    rows = tuple((reason, *(f"{shares[team].get(reason, 0.0):.1%}" for team in comparison.teams)) for reason in reasons)
    return Sheet(title="How episodes end", columns=("stop", *comparison.teams), rows=rows)


def _against(comparison: Comparison, metrics: Sequence[str], featured: str) -> Sheet:
    others = [team for team in comparison.teams if team != featured]
    rows: list[tuple[str, ...]] = []
    for metric in metrics:
        rows.append((metric, *(describe(comparison.difference(featured, team, metric)) for team in others)))
        tests = [outcomes(comparison, featured, team, metric) for team in others]
        if all(test is not None for test in tests):
            shown = (f"+{t.only_first} -{t.only_second}, p = {t.p:.2g}" for t in tests if t is not None)
            rows.append((f"{metric}, McNemar", *shown))
    if kinds(comparison):
        rows.append(("per assertion", *(describe(kind_difference(comparison, featured, team)) for team in others)))
    title = f"{featured} minus others, paired by task, 95 % intervals"
    return Sheet(title=title, columns=("", *(f"- {team}" for team in others)), rows=tuple(rows))


def _groups(comparison: Comparison, name: str, by: Callable[[Task], str], metric: str) -> Sheet:
    split = grouped(comparison, by)
    rows = []
    for group in dict.fromkeys(split.strata[task.id] for task in split.tasks):
        found = [split.estimate(team, metric, group) for team in split.teams]
        rows.append((group, str(found[0].n), *map(describe, found)))
    return Sheet(title=f"{metric}, by {name}", columns=(name, "tasks", *split.teams), rows=tuple(sorted(rows)))
