"""report.html: results with their intervals, and the recorded run behind them, as the viewer's pages in one file.

The file asks for nothing: its Content-Security-Policy forbids every request, so that it opens the same from a mail attachment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onthejob import __version__
from onthejob.api import run_routes
from onthejob.api.comparisons import view
from onthejob.api.exported import answers
from onthejob.api.one_file import PAGES, single_file
from onthejob.api.run_rows import Runs
from onthejob.api.watching import describe as configuration
from onthejob.errors import ConfigError, RecordError
from onthejob.evaluate.behaviours import UNNAMED, Counts, Shift, shifts
from onthejob.evaluate.comparison import Comparison
from onthejob.evaluate.findings import Findings, findings_of
from onthejob.evaluate.numbers import decoding_words, describe, featured_team
from onthejob.evaluate.pass_fail import Sheet, document, matched_dict
from onthejob.evaluate.scores import Cell, Quality
from onthejob.evaluate.statistics import IntervalEstimate
from onthejob.files import published_file

GROUPS, EPISODES = 60, 8
"""Of the run: groups that are held whole, and episodes that are held turn by turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A chart: one dot with its interval per row."""

    title: str
    unit: str
    """Label of the axis."""
    rows: Sequence[tuple[str, IntervalEstimate]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All parts of report.html; a part that is None or empty is omitted."""

    title: str
    lead: str = ""
    """One or two sentences: what was run."""
    quality: Quality | None = None
    comparison: Comparison | None = None
    shifts: Sequence[Shift] = ()
    shift_names: tuple[str, str] = ("before", "after")
    featured: str = ""
    """The team whose differences to the others are shown, e.g. `grpo`; empty takes the last team."""
    start: str = ""
    """The team that the featured one was trained from: the first that it is compared with; empty for none."""
    findings: Findings | None = None
    """The verdict, where it is not that of the comparison."""
    headline: Sequence[str] = ("company_value", "value_less_luck", "team_reward")
    """Metrics that count, the first one most; those an environment lacks are omitted."""
    sheets: Sequence[Sheet] = ()
    """More tables about whole episodes, see `onthejob.evaluate.sheets`."""
    pictures: Sequence[Picture] = ()
    """Charts of the summary."""
    notes: Sequence[str] = ()
    """Sentences shown under the summary: limits, negative results."""
    run: Path | None = None
    """Folder of the recorded run whose curves, groups, episodes and settings are shown."""


def write_report(path: Path, report: Report, *, pages: Path = PAGES) -> Path:
    """Write report.html atomically; returns its path.

    Raises:
        RecordError: the pages are not built, or the file cannot be written.
    """
    text = single_file(held(report), pages)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with published_file(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RecordError(f"cannot write the report to {path}: {error}. Free space or choose another place.") from error
    return path


def held(report: Report) -> dict[str, Any]:
    """The JSON that the pages show."""
    compared, run = report.comparison, report.run
    said = None if compared is None else {**document(compared), **matched_dict(compared, {}, report.headline)}
    verdict = _findings(report, said)
    found = {
        "title": report.title,
        "lead": report.lead,
        "version": __version__,
        "verdict": None if verdict is None else verdict.as_dict(),
        "notes": list(report.notes),
        "pictures": [_picture(picture) for picture in (*report.pictures, *_quality_pictures(report.quality))],
        "tables": [_table(sheet) for sheet in (*_quality_sheets(report), *report.sheets, *_shift_sheets(report))],
        "comparison": None if said is None else view("compared", said),
        "metric": "" if compared is None else next((name for name in report.headline if name in compared.metrics), ""),
        "featured": "" if compared is None else featured_team(report.featured, compared.teams),
    }
    held_run = None
    if run is not None:
        reading = run_routes.routes(Runs(run.absolute().parent))
        held_run = answers(reading, run.absolute().name, groups=GROUPS, episodes=EPISODES)
    name = "" if run is None else run.absolute().name
    return {"config": configuration((), runs=run is not None, open_run=name), "report": found, "run": held_run}


def with_shifts(report: Report, *, before: str, after: str) -> Report:
    """`report` with the action distributions, per role, of two teams of its comparison.

    Actors whose actions the environment does not name are omitted: shares of nameless actions say nothing.
    """
    comparison = report.comparison
    if comparison is None or not {before, after} <= set(comparison.teams):
        known = ", ".join(comparison.teams) if comparison is not None else "none"
        raise ConfigError(f"actions are compared of two teams of the comparison ({known}), got {before!r} and {after!r}.")
    first, second = _named(comparison.actions(before)), _named(comparison.actions(after))
    return replace(report, shifts=shifts(first, second, seed=comparison.seed), shift_names=(before, after))


def _findings(report: Report, said: Mapping[str, Any] | None) -> Findings | None:
    """The verdict on the featured team: the one that was given, else that of the comparison."""
    if report.findings is not None or said is None:
        return report.findings
    chosen = {"featured": report.featured, "start": report.start, "headline": report.headline}
    quality = {} if report.quality is None else {"quality": report.quality.as_dict()}
    return findings_of({**said, **chosen, **quality})


def _picture(picture: Picture) -> dict[str, Any]:
    rows = [{"name": name, **estimate.as_dict(), "text": describe(estimate)} for name, estimate in picture.rows]
    return {"title": picture.title, "unit": picture.unit, "rows": rows}


def _table(sheet: Sheet) -> dict[str, Any]:
    return {"title": sheet.title, "columns": list(sheet.columns), "rows": [list(row) for row in sheet.rows]}


def _quality_pictures(quality: Quality | None) -> list[Picture]:
    if quality is None:
        return []
    scored = {
        decoding: [(f"{cell.actor}, {cell.team}", quality.score(cell)) for cell in quality.cells if cell.decoding == decoding]
        for decoding in quality.decodings
    }
    return [
        Picture(title=f"Decision quality, {decoding_words(decoding)}", unit="share of attainable gain", rows=rows)
        for decoding, rows in scored.items()
    ]


def _quality_sheets(report: Report) -> list[Sheet]:
    quality = report.quality
    if quality is None:
        return []
    method = quality.method
    scores = Sheet(
        title=(
            f"Decision quality on held-out states (set {quality.digest}): 0 is a random legal reply, 1 the best of "
            f"{method.candidates} random ones; each reply is continued for up to {method.turns} turns in {method.worlds} worlds"
        ),
        columns=("role", "team", "decoding", "decision quality [95 % interval]", "valid", "states / episodes"),
        rows=tuple(
            (
                cell.actor,
                cell.team,
                decoding_words(cell.decoding),
                describe(quality.score(cell)),
                f"{quality.valid_rate(cell):.1%}",
                f"{quality.states[cell.actor]} / {quality.score(cell).clusters}",
            )
            for cell in quality.cells
        ),
    )
    featured = featured_team(report.featured, quality.teams)
    pairs = [
        (own, other)
        for other in quality.cells
        if other.team != featured and (own := Cell(featured, other.actor, other.decoding)) in quality.cells
    ]
    differences = Sheet(
        title=f"Decision quality: {featured} minus others, paired by state",
        columns=("role", "minus", "decoding", "difference [95 % interval]"),
        rows=tuple(
            (own.actor, other.team, decoding_words(own.decoding), describe(quality.difference(own, other)))
            for own, other in pairs
        ),
    )
    return [scores, differences] if pairs else [scores]


def _shift_sheets(report: Report) -> list[Sheet]:
    before, after = report.shift_names
    return [
        Sheet(
            title=(
                f"Actions of {shift.actor}, {before} and {after}: drift {shift.drift:.3f} bit, by chance {shift.noise:.3f}, "
                f"{'more' if shift.drift > 2.0 * shift.noise else 'no more'} than chance"
            ),
            columns=("action", before, after),
            rows=tuple((name, f"{first:.1%}", f"{second:.1%}") for name, first, second in shift.shares()),
        )
        for shift in report.shifts
    ]


def _named(actions: Mapping[str, Counts]) -> dict[str, Counts]:
    return {actor: counts for actor, counts in actions.items() if UNNAMED not in counts}
