"""The tables of a matched comparison, as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from onthejob.evaluate.comparison import OVERALL, Comparison
from onthejob.evaluate.numbers import describe
from onthejob.evaluate.pass_fail import Sheet, grouped, kind_difference, kind_rate, kinds, outcomes, stop_shares
from onthejob.types import Task


def matched_sheets(
    comparison: Comparison, groupings: Mapping[str, Callable[[Task], str]], metrics: Sequence[str], *, featured: str
) -> list[Sheet]:
    """The featured team against the others, parts of tasks by kind, ends of episodes, and the metrics per group of tasks.

    Each row is of one team, so that no table is wider than a usual terminal.

    Args:
        comparison: of all teams.
        groupings: name -> the property that groups tasks.
        metrics: the first is what counts; those that the comparison lacks are omitted.
        featured: the team that the others are compared with.
    """
    metrics = [metric for metric in metrics if metric in comparison.metrics]
    sheets = [_against(comparison, metrics, featured)] if len(comparison.teams) > 1 else []
    sheets += [_kinds(comparison), _stops(comparison)] if kinds(comparison) else [_stops(comparison)]
    sheets += [_groups(comparison, name, by, metric) for name, by in groupings.items() for metric in metrics[:2]]
    return sheets


def _kinds(comparison: Comparison) -> Sheet:
    found = [
        (kind, team, kind_rate(comparison, team, kind)) for kind in (OVERALL, *kinds(comparison)) for team in comparison.teams
    ]
    rows = tuple((kind, team, str(rate.n), describe(rate)) for kind, team, rate in found)
    return Sheet(title="Assertions that hold, by kind", columns=("kind", "team", "tasks", "share [95 % interval]"), rows=rows)


def _stops(comparison: Comparison) -> Sheet:
    shares = {team: stop_shares(comparison, team) for team in comparison.teams}
    reasons = sorted({reason for found in shares.values() for reason in found})
    rows = tuple((reason, team, f"{shares[team].get(reason, 0.0):.1%}") for reason in reasons for team in comparison.teams)
    return Sheet(title="How episodes end", columns=("stop", "team", "share"), rows=rows)


def _against(comparison: Comparison, metrics: Sequence[str], featured: str) -> Sheet:
    others = [team for team in comparison.teams if team != featured]
    rows: list[tuple[str, ...]] = []
    for metric in metrics:
        rows += [(metric, team, describe(comparison.difference(featured, team, metric))) for team in others]
        tests = {team: test for team in others if (test := outcomes(comparison, featured, team, metric)) is not None}
        rows += [
            (f"{metric}, McNemar", team, f"+{test.only_first} -{test.only_second}, p = {test.p:.2g}")
            for team, test in tests.items()
        ]
    if kinds(comparison):
        rows += [("per assertion", team, describe(kind_difference(comparison, featured, team))) for team in others]
    title = f"{featured} minus others, paired by task"
    return Sheet(title=title, columns=("metric", "minus", "difference [95 % interval]"), rows=tuple(rows))


def _groups(comparison: Comparison, name: str, by: Callable[[Task], str], metric: str) -> Sheet:
    split = grouped(comparison, by)
    groups = sorted({split.strata[task.id] for task in split.tasks})
    found = [(group, team, split.estimate(team, metric, group)) for group in groups for team in split.teams]
    rows = tuple((group, team, str(each.n), describe(each)) for group, team, each in found)
    return Sheet(title=f"{metric}, by {name}", columns=(name, "team", "tasks", "mean [95 % interval]"), rows=rows)
