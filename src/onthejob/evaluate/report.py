"""report.html: one file with what was run, its results and their intervals.

No script, no request, no font from elsewhere: a Content-Security-Policy in the file itself forbids all of them, so that it opens
the same in ten years, from a mail attachment, in light or dark, on a telephone. Every text that came from a model or a file
is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from onthejob.errors import RecordError
from onthejob.evaluate.charts import (
    Line,
    Pair,
    Whisker,
    describe,
    interval_chart,
    legend,
    line_chart,
    number,
    pair_chart,
    smoothed,
)
from onthejob.evaluate.comparison import OVERALL, Comparison
from onthejob.evaluate.report_data import AnnotatedTurn, Report, decoding_words, featured_team, flat_config, verdicts
from onthejob.evaluate.report_style import STYLE
from onthejob.evaluate.scores import Cell, Quality
from onthejob.evaluate.statistics import Estimate
from onthejob.files import published_file
from onthejob.texts import encodable

_SMOOTHING = 0.6
_ACTIONS_SHOWN = 10


def write_report(path: Path, report: Report) -> Path:
    """Write report.html atomically; returns its path.

    Raises:
        RecordError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with published_file(path) as temporary:
            temporary.write_text(encodable(render(report)), encoding="utf-8")
    except OSError as error:
        raise RecordError(f"cannot write the report to {path}: {error}. Free space or choose another place.") from error
    return path


def render(report: Report) -> str:
    """The whole page."""
    sections = [
        ("summary", "Summary", _summary(report)),
        ("quality", "Decision quality", _quality(report)),
        ("episodes", "Whole episodes", _episodes(report)),
        ("training", "Training", _training(report)),
        ("actions", "What they do", _actions(report)),
        ("turns", "Turns, annotated", _turns(report)),
        ("configuration", "Configuration", _configuration(report)),
    ]
    nav = "".join(f'<a href="#{id}">{escape(name)}</a>' for id, name, _ in sections)
    body = "".join(f'<section id="{id}"><h2>{escape(name)}</h2>{html}</section>' for id, name, html in sections)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "
        "form-action 'none'\">"
        f"<title>{escape(report.title)}</title><style>{STYLE}</style></head><body>"
        f'<header><h1>{escape(report.title)}</h1><p class="lead">{escape(report.lead)}</p><nav aria-label="Sections">{nav}</nav>'
        f"</header><main>{body}</main></body></html>\n"
    )


def _summary(report: Report) -> str:
    found = verdicts(report)
    results = "".join(f"<li>{escape(sentence)}</li>" for sentence in found)
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in report.notes)
    intervals = (
        '<p class="hint">Intervals are 95 % bootstrap intervals (expanded BCa; below six units Student’s t) that resample whole '
        "episodes; differences are paired, by state or by task. A result counts only when its interval excludes 0.</p>"
    )
    charts = "".join(_figure(picture.title, interval_chart(
        [Whisker(label=label, estimate=estimate, slot=slot) for slot, (label, estimate) in enumerate(picture.rows)],
        id=f"picture-{number_}",
        title=picture.title,
        description="; ".join(f"{label} {describe(estimate)}" for label, estimate in picture.rows),
        x_label=picture.unit,
    )) for number_, picture in enumerate(report.pictures))  # fmt: skip
    pictures = f'<div class="grid-of-charts">{charts}</div>' if charts else ""
    return pictures + (f"<ul>{results}</ul>" if found else "<p>No two teams were compared.</p>") + notes + intervals


def _quality(report: Report) -> str:
    quality = report.quality
    if quality is None:
        return "<p>Decision quality was not measured.</p>"
    states = sum(quality.states.values())
    method = quality.method
    parts = [
        f"<p>On {states} held-out states (set <code>{escape(quality.digest)}</code>) each reply was stepped and continued for up "
        f"to {method.turns} turns in {method.worlds} worlds that training never met. 0 is a random legal reply, 1 the best "
        f"of {method.candidates} random ones.</p>"
    ]
    slots = {team: slot for slot, team in enumerate(quality.teams)}
    charts = []
    for number_, decoding in enumerate(quality.decodings):
        rows = [
            Whisker(label=team, estimate=quality.score(cell), slot=slots[team], group=actor)
            for actor in quality.actors
            for team in quality.teams
            if (cell := Cell(team, actor, decoding)) in quality.cells
        ]
        name = f"Decision quality, {decoding_words(decoding)}"
        described = "; ".join(f"{row.group} {row.label} {describe(row.estimate)}" for row in rows)
        charts.append(_figure(name, interval_chart(
            rows, id=f"quality-{number_}", title=name, description=described, x_label="share of attainable gain"
        )))  # fmt: skip
    parts.append(f'<div class="grid-of-charts">{"".join(charts)}</div>')
    parts.append(_quality_table(quality))
    if len(quality.teams) > 1:
        parts.append(_quality_differences(quality, featured_team(report.featured, quality.teams)))
    return "".join(parts)


def _quality_table(quality: Quality) -> str:
    rows = [
        [
            cell.actor,
            cell.team,
            decoding_words(cell.decoding),
            describe(quality.score(cell)),
            f"{quality.valid_rate(cell):.1%}",
            f"{quality.states[cell.actor]} / {quality.score(cell).clusters}",
        ]
        for actor in quality.actors
        for decoding in quality.decodings
        for team in quality.teams
        if (cell := Cell(team, actor, decoding)) in quality.cells
    ]
    head = ["Role", "Team", "Decoding", "Decision quality", "Valid", "States / episodes"]
    return _table("Scores", head, rows, numeric=3)


def _quality_differences(quality: Quality, featured: str) -> str:
    others = [team for team in quality.teams if team != featured]
    rows: list[list[str]] = []
    marks: list[list[str]] = []
    for actor in quality.actors:
        for decoding in quality.decodings:
            cell = Cell(featured, actor, decoding)
            if cell not in quality.cells:
                continue
            found = [
                quality.difference(cell, cell._replace(team=team)) if cell._replace(team=team) in quality.cells else None
                for team in others
            ]
            rows.append([actor, decoding_words(decoding), *("–" if d is None else describe(d) for d in found)])
            marks.append(["", "", *(_sign(d) for d in found)])
    head = ["Role", "Decoding", *(f"{featured} − {team}" for team in others)]
    return _table(f"{featured} against the others, paired by state", head, rows, numeric=2, marks=marks)


def _episodes(report: Report) -> str:
    comparison = report.comparison
    if comparison is None:
        return "<p>Whole episodes were not compared.</p>"
    temperature = comparison.sampling.temperature
    decoding = "greedy" if temperature == 0.0 else f"at temperature {temperature:g}"
    parts = [
        f"<p>{len(comparison.tasks)} held-out tasks, the same seeds and the same decoding ({decoding}) for every team. "
        "In the last table each cell holds the mean [95 % interval] and, below it, the smallest value of any task.</p>"
    ]
    if comparison.failed:
        parts.append(
            f'<p class="note">{len(comparison.failed)} episodes ended in an error and are excluded with their pairs.</p>'
        )
    featured = featured_team(report.featured, comparison.teams)
    headline = [name for name in report.headline if name in comparison.metrics]
    charts = [_difference_chart(comparison, featured, metric) for metric in headline] if len(comparison.teams) > 1 else []
    parts.append(f'<div class="grid-of-charts">{"".join(charts)}</div>')
    if len(comparison.teams) > 1:
        parts += [_difference_table(comparison, featured, metric) for metric in headline]
    for sheet in report.sheets:
        parts.append(_table(sheet.title, sheet.columns, sheet.rows, numeric=2))
    rows = [
        [metric, *(_with_minimum(comparison.estimate(team, metric)) for team in comparison.teams)]
        for metric in comparison.metrics
    ]
    parts.append(_table("All metrics, all tasks", ["Metric", *comparison.teams], rows, numeric=1))
    return "".join(parts)


def _difference_chart(comparison: Comparison, featured: str, metric: str) -> str:
    rows = [
        Whisker(label=stratum, estimate=comparison.difference(featured, team, metric, stratum), slot=slot, group=f"minus {team}")
        for slot, team in enumerate(comparison.teams)
        if team != featured
        for stratum in comparison.strata_names()
    ]
    name = f"{featured} minus each other team: {metric}"
    described = "; ".join(f"{row.group}, {row.label}: {describe(row.estimate)}" for row in rows)
    return _figure(name, interval_chart(rows, id=f"difference-{metric}", title=name, description=described, x_label=metric))


def _difference_table(comparison: Comparison, featured: str, metric: str) -> str:
    others = [team for team in comparison.teams if team != featured]
    rows, marks = [], []
    for stratum in comparison.strata_names():
        found = [comparison.difference(featured, team, metric, stratum) for team in others]
        label = "all tasks" if stratum == OVERALL else stratum
        rows.append([label, str(found[0].n), *(describe(difference) for difference in found)])
        marks.append(["", "", *(_sign(difference) for difference in found)])
    head = ["Group", "Tasks", *(f"{featured} − {team}" for team in others)]
    return _table(f"{metric}: {featured} against the others, paired by task", head, rows, numeric=1, marks=marks)


def _training(report: Report) -> str:
    if not report.curves:
        return "<p>No training metrics are recorded.</p>"
    roles = sorted({curve.role for curve in report.curves})
    slots = {role: slot for slot, role in enumerate(roles)}
    charts, rows = [], []
    for index, panel in enumerate(report.panels):
        curves = [curve for curve in report.curves if curve.metric == panel.metric]
        lines = [Line(name=curve.role, points=curve.points, slot=slots[curve.role]) for curve in curves]
        charts.append(_figure(panel.title, line_chart(
            lines, id=f"curve-{index}", title=f"{panel.title} per role over training", description=panel.meaning,
            x_label="iteration", smooth=_SMOOTHING,
        ), caption=panel.meaning))  # fmt: skip
        for curve in curves:
            values = [value for _, value in curve.points if value == value]
            if values:
                last = smoothed(curve.points[-10:], _SMOOTHING)[-1][1]
                rows.append(
                    [panel.title, curve.role, *map(number, (values[0], last, min(values), max(values))), str(len(values))]
                )
    table = _table(
        "The same as numbers", ["Metric", "Role", "First", "Last, smoothed", "Min", "Max", "Iterations"], rows, numeric=2
    )
    key = legend([(role, slots[role]) for role in roles])
    details = f"<details><summary>The curves as a table</summary>{table}</details>"
    hint = '<p class="hint">Bold: exponential mean of the recorded values; faint: the values themselves.</p>'
    return key + hint + f'<div class="grid-of-charts">{"".join(charts)}</div>' + details


def _actions(report: Report) -> str:
    if not report.shifts:
        return "<p>No action distributions were compared.</p>"
    before, after = report.shift_names
    charts, rows = [], []
    for shift in report.shifts:
        shares = sorted(shift.shares(), key=lambda row: -max(row[1:]))
        shown = shares[:_ACTIONS_SHOWN]
        if rest := shares[_ACTIONS_SHOWN:]:
            shown = [*shown, ("all others", sum(row[1] for row in rest), sum(row[2] for row in rest))]
        pairs = [Pair(label=name, before=first, after=second) for name, first, second in shown]
        verdict = "more than chance" if shift.drift > 2.0 * shift.noise else "no more than chance"
        caption = f"Drift {shift.drift:.3f} bit (chance alone {shift.noise:.3f}): {verdict}."
        charts.append(_figure(shift.actor, pair_chart(
            pairs, id=f"actions-{len(charts)}", title=f"Actions of {shift.actor}, {before} and {after}", description=caption,
            before=before, after=after,
        ), caption=caption))  # fmt: skip
        rows += [[shift.actor, name, f"{first:.1%}", f"{second:.1%}"] for name, first, second in shift.shares()]
    key = (
        f'<ul class="legend"><li><span class="swatch before"></span>{escape(before)}</li>'
        f'<li><span class="swatch after"></span>{escape(after)}</li></ul>'
    )
    table = _table("All actions", ["Role", "Action", before, after], rows, numeric=2)
    return key + f'<div class="grid-of-charts">{"".join(charts)}</div><details><summary>All shares</summary>{table}</details>'


def _turns(report: Report) -> str:
    if not report.turns:
        return "<p>No scored decisions are recorded.</p>"
    intro = (
        "<p>Each reply was stepped in a fork of the company and continued under the same luck; the mean over worlds is its "
        "value, and its advantage is what it was above or below the others. Play continued from the reply marked ▶, drawn "
        "independently of its value.</p>"
    )
    return intro + "".join(_turn(turn, index) for index, turn in enumerate(report.turns))


def _turn(turn: AnnotatedTurn, index: int) -> str:
    head = ["", "Reply", "Value", "Advantage", *(f"World {world}" for world in turn.worlds)]
    rows, marks = [], []
    for reply in sorted(turn.replies, key=lambda reply: -reply.value):
        text = reply.text if reply.valid else f"{reply.text}  (invalid)"
        advantage = "–" if reply.advantage is None else f"{reply.advantage:+.2f}"
        values = [number(value, 0.1) for value in (reply.value, *reply.by_world)]
        rows.append(["▶" if reply.chosen else "", text, values[0], advantage, *values[1:]])
        sign = "" if reply.advantage is None else "up" if reply.advantage > 0 else "down" if reply.advantage < 0 else ""
        marks.append(["", "reply", "", sign, *("" for _ in turn.worlds)])
    table = _table(f"Replies to {turn.key}", head, rows, numeric=2, marks=marks)
    return (
        f'<article class="turn"><h3>{index + 1}. {escape(turn.role)} '
        f"<small>{escape(turn.policy)} · {escape(turn.key)}</small></h3>"
        f'<details open><summary>Prompt</summary><pre tabindex="0">{escape(turn.prompt)}</pre></details>{table}</article>'
    )


def _configuration(report: Report) -> str:
    if not report.config:
        return "<p>No configuration was given.</p>"
    return _table("Settings of the run", ["Setting", "Value"], [list(row) for row in flat_config(report.config)], numeric=2)


def _figure(title: str, svg: str, *, caption: str = "") -> str:
    text = f'<p class="caption">{escape(caption)}</p>' if caption else ""
    return f"<figure><figcaption>{escape(title)}</figcaption>{svg}{text}</figure>"


def _table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numeric: int,
    marks: Sequence[Sequence[str]] | None = None,
) -> str:
    """A table that scrolls sideways by itself; columns from `numeric` on are right-aligned, `marks` are cell classes."""

    def cell(text: str, row: int, column: int) -> str:
        classes = [name for name in ("n" if column >= numeric else "", marks[row][column] if marks else "") if name]
        attribute = f' class="{" ".join(classes)}"' if classes else ""
        if column == 0 and text:
            return f'<th scope="row"{attribute}>{escape(text)}</th>'
        return f"<td{attribute}>{_lines(text)}</td>"

    heads = "".join(
        f'<th scope="col"{_class_n(index >= numeric)}>{escape(name) or "&nbsp;"}</th>' for index, name in enumerate(head)
    )
    body = "".join(
        "<tr>" + "".join(cell(text, number_, column) for column, text in enumerate(row)) + "</tr>"
        for number_, row in enumerate(rows)
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption>"
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _class_n(numeric: bool) -> str:
    return ' class="n"' if numeric else ""


def _lines(text: str) -> str:
    return "<br>".join(escape(part) for part in text.split("\n"))


def _with_minimum(estimate: Estimate) -> str:
    return f"{describe(estimate)}\nmin {number(estimate.minimum, abs(estimate.minimum) / 10 or 1.0)}"


def _sign(difference: Estimate | None) -> str:
    if difference is None:
        return ""
    return "up" if difference.above_zero else "down" if difference.below_zero else ""
