"""Evaluation results as rich tables, for the terminal. The report has the same numbers and more.

A table has one row per team: a column per team cannot be shown on a usual terminal, and names would be cut to make room.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onthejob.evaluate.comparison import Comparison
from onthejob.evaluate.findings import About, Findings
from onthejob.evaluate.numbers import decoding_words, describe, featured_team, number
from onthejob.evaluate.pass_fail import Sheet
from onthejob.evaluate.scores import Cell, QualityResult
from onthejob.evaluate.statistics import IntervalEstimate
from onthejob.evaluate.verdict import Verdict

STYLES = {Verdict.BETTER: "green", Verdict.WORSE: "red", Verdict.NOT_SHOWN: "", Verdict.TOO_FEW: "dim"}


def findings_block(findings: Findings) -> Group:
    """The verdict in words, then its lines by part, at most 80 columns wide unless a name is longer."""
    answer = Text.assemble(
        (findings.question, "bold"), "  ", (findings.answer.upper(), f"bold {STYLES[findings.answer]}".strip())
    )
    parts: list[RenderableType] = [answer]
    for part, heading in findings.headings.items():
        if part is About.NEXT:
            continue
        lines = findings.of(part)
        parts.append(Padding(Text(heading, style="dim"), (0, 0, 0, 2), expand=False))
        grid = Table.grid(padding=(0, 2))
        grid.add_column(overflow="fold")
        worded = any(line.word is not None for line in lines)
        if worded:
            grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for line in lines:
            word = [Text(line.word or "", style=STYLES[line.word] if line.word else "")] if worded else []
            grid.add_row(line.subject, *word, line.text)
        parts.append(Padding(grid, (0, 0, 0, 4), expand=False))
    parts += [Padding(Text(line.text), (0, 0, 0, 2), expand=False) for line in findings.of(About.NEXT)]
    return Group(*parts)


def quality_table(quality: QualityResult, *, decoding: str | None = None) -> Table:
    """Decision quality per role and team; `decoding` is a cache name such as `t0_n32`, None takes the first."""
    decoding = decoding or quality.decodings[0]
    title = f"Decision quality, {decoding_words(decoding)} (0 random legal, 1 best of {quality.config.candidates})"
    table = _table(title, names="role, team", numbers=("quality [95 % interval]", "valid", "states"))
    for actor in quality.actors:
        states = str(len(quality.yardsticks[actor].episodes))
        cells = [cell for team in quality.teams if (cell := Cell(team, actor, decoding)) in quality.cells]
        _section(table, actor, [(c.team, describe(quality.score(c)), f"{quality.valid_rate(c):.1%}", states) for c in cells])
    return table


def quality_differences_table(quality: QualityResult, *, featured: str = "", decoding: str | None = None) -> Table:
    """The featured team (default: the last) minus each other, paired by state; green and red where the interval excludes 0."""
    decoding = decoding or quality.decodings[0]
    featured = featured_team(featured, quality.teams)
    title = f"Decision quality of {featured} minus others, {decoding_words(decoding)}, paired by state"
    table = _table(title, names="role, minus", numbers=("difference [95 % interval]",))
    for actor in quality.actors:
        own = Cell(featured, actor, decoding)
        others = [own._replace(team=team) for team in quality.teams if team != featured]
        known = [other for other in others if own in quality.cells and other in quality.cells]
        _section(table, actor, [(other.team, _colored(quality.difference(own, other))) for other in known])
    return table


def comparison_table(comparison: Comparison, *, metrics: Sequence[str] = ()) -> Table:
    """Mean with interval and minimum per metric and team, over all tasks; no names means all metrics."""
    title = f"{len(comparison.tasks)} matched tasks"
    table = _table(title, names="metric, team", numbers=("mean [95 % interval]", "smallest"))
    for metric in metrics or comparison.metrics:
        estimates = {team: comparison.estimate(team, metric) for team in comparison.teams}
        _section(table, metric, [(team, describe(found), number(found.minimum)) for team, found in estimates.items()])
    return table


def differences_table(comparison: Comparison, metric: str, *, featured: str = "", stratum: str = "scenario") -> Table:
    """The featured team (default: the last) minus each other, overall and per `stratum`, paired by task."""
    featured = featured_team(featured, comparison.teams)
    title = f"{metric} of {featured} minus others, paired by task"
    table = _table(title, names=f"{stratum}, minus", numbers=("tasks", "difference [95 % interval]"))
    for name in comparison.strata_names():
        others = [team for team in comparison.teams if team != featured]
        found = {team: comparison.difference(featured, team, metric, name) for team in others}
        _section(table, name, [(team, str(each.n), _colored(each)) for team, each in found.items()])
    return table


def sheet_table(sheet: Sheet) -> Table:
    """A table of `matched_sheets`."""
    table = _table(sheet.title, names=", ".join(sheet.columns[:2]), numbers=sheet.columns[2:])
    for name, rows in groupby(sheet.rows, key=lambda row: row[0]):
        _section(table, name, [row[1:] for row in rows])
    return table


def _colored(difference: IntervalEstimate) -> Text:
    style = "green" if difference.above_zero else "red" if difference.below_zero else ""
    return Text(describe(difference), style=style)


def _table(title: str, *, names: str, numbers: Sequence[str]) -> Table:
    """Names on the left, folded where the terminal is narrow; numbers on the right, which are never broken or cut."""
    table = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    table.add_column(names, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _section(table: Table, name: str, rows: Sequence[Sequence[str | Text]]) -> None:
    """Add a line with `name` and, indented below it, one row per team; without rows nothing."""
    if not rows:
        return
    table.add_row(Text(name, style="bold"))
    for team, *numbers in rows:
        table.add_row(Padding(team, (0, 0, 0, 2)), *numbers)
