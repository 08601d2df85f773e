"""Charts as inline SVG text: no script, no image, no font, so that a report is one file that opens anywhere.

Colours come from CSS variables of the page (`--s0` to `--s7`), so that light and dark are the page's business; every series
also differs by dash and is named in a legend, because colour alone tells some readers nothing. Charts are 360 units wide and
meant for columns of about that many pixels, which keeps their text readable on a telephone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from onthejob.evaluate.statistics import Estimate

WIDTH = 360
SERIES = 8
"""Colours and dashes available; series beyond share them, told apart by the legend's order and the tooltips."""
_DASHES = ("", "6 3", "2 2", "8 3 2 3", "1 3", "10 4", "4 2 1 2", "3 5")
_MAX_MARKS = 60
"""Above this many points a line carries no tooltips: they would weigh more than the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One series of a line chart."""

    name: str
    points: tuple[tuple[float, float], ...]
    """(x, y) in rising x; points that are not finite are omitted."""
    slot: int
    """Which colour and dash, so that a role looks the same in every chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whisker:
    """One row of an interval chart."""

    label: str
    estimate: Estimate
    slot: int
    group: str = ""
    """Rows of one group stand together under this heading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One row of a before and after chart; shares in [0, 1]."""

    label: str
    before: float
    after: float


def line_chart(lines: Sequence[Line], *, id: str, title: str, description: str, x_label: str, smooth: float = 0.0) -> str:
    """Lines over a common x axis.

    Args:
        lines: Empty ones are omitted; with none at all a sentence takes the chart's place.
        id: Unique within the page.
        title: Accessible name of the chart.
        description: What a reader who cannot see it should know.
        x_label: Unit of x.
        smooth: 0 draws the points as they are; in (0, 1) draws an exponential mean over them, the points faintly behind.
    """
    lines = [Line(name=line.name, slot=line.slot, points=tuple(p for p in line.points if math.isfinite(p[1]))) for line in lines]
    lines = [line for line in lines if line.points]
    if not lines:
        return '<p class="empty">No values recorded.</p>'
    left, right, top, bottom, height = 48, 8, 10, 34, 210
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    y_ticks = ticks(min(ys), max(ys), 5)
    x_ticks = [tick for tick in ticks(min(xs), max(xs), 5, whole=True) if min(xs) <= tick <= max(xs)]
    x_of = _scale(min(xs), max(xs), left, WIDTH - right)
    y_of = _scale(y_ticks[0], y_ticks[-1], height - bottom, top)
    parts = [
        f'<line class="grid" x1="{left}" x2="{WIDTH - right}" y1="{_n(y_of(t))}" y2="{_n(y_of(t))}"/>'
        f'<text class="tick" text-anchor="end" x="{left - 5}" y="{_n(y_of(t) + 3.5)}">{label(t, y_ticks)}</text>'
        for t in y_ticks
    ]
    parts += [
        f'<text class="tick" text-anchor="middle" x="{_n(x_of(t))}" y="{height - bottom + 14}">{label(t, x_ticks)}</text>'
        for t in x_ticks
    ]
    parts.append(f'<text class="tick" text-anchor="end" x="{WIDTH - right}" y="{height - 4}">{escape(x_label)}</text>')
    for line in lines:
        style = f'stroke="var(--s{line.slot % SERIES})" stroke-dasharray="{_DASHES[line.slot % SERIES]}"'
        shown = smoothed(line.points, smooth) if smooth else line.points
        if smooth and len(line.points) > 2:
            parts.append(
                f'<polyline class="raw" stroke="var(--s{line.slot % SERIES})" points="{_path(line.points, x_of, y_of)}"/>'
            )
        parts.append(f'<polyline class="line" {style} points="{_path(shown, x_of, y_of)}"/>')
        if len(line.points) <= _MAX_MARKS:
            parts += [
                f'<circle class="{"point" if len(line.points) < 3 else "mark"}" fill="var(--s{line.slot % SERIES})" r="3" '
                f'cx="{_n(x_of(x))}" cy="{_n(y_of(y))}"><title>{escape(line.name)}, {escape(x_label)} {x:g}: {y:.4g}</title>'
                "</circle>"
                for x, y in line.points
            ]
    return _svg(id, title, description, height, parts)


def interval_chart(rows: Sequence[Whisker], *, id: str, title: str, description: str, x_label: str) -> str:
    """One dot with its interval per row, in groups; the line at 0 is where nothing is won.

    An end that is not finite (a single cluster) runs to the edge of the chart without a cap.
    """
    rows = [row for row in rows if math.isfinite(row.estimate.mean)]
    if not rows:
        return '<p class="empty">No values to show.</p>'
    left, right, row_height, head = 118, 14, 19, 20
    numbers = [0.0]
    for row in rows:
        numbers += [v for v in (row.estimate.mean, row.estimate.low, row.estimate.high) if math.isfinite(v)]
    marks = ticks(min(numbers), max(numbers), 4)
    x_of = _scale(marks[0], marks[-1], left, WIDTH - right)
    parts: list[str] = []
    y = 6.0
    group = ""
    for row in rows:
        if row.group != group:
            group = row.group
            y += head
            parts.append(f'<text class="group" x="4" y="{_n(y - 5)}">{escape(group)}</text>')
        y += row_height
        middle, estimate = y - row_height / 2, row.estimate
        low = x_of(estimate.low) if math.isfinite(estimate.low) else float(left)
        high = x_of(estimate.high) if math.isfinite(estimate.high) else float(WIDTH - right)
        caps = [x for x, end in ((low, estimate.low), (high, estimate.high)) if math.isfinite(end)]
        color = f"var(--s{row.slot % SERIES})"
        parts.append(
            f'<g stroke="{color}"><title>{escape(row.group)} {escape(row.label)}: {escape(describe(estimate))}</title>'
            f'<text class="row" text-anchor="end" x="{left - 8}" y="{_n(middle + 4)}">{escape(_short(row.label, 17))}</text>'
            f'<line class="whisker" x1="{_n(low)}" x2="{_n(high)}" y1="{_n(middle)}" y2="{_n(middle)}"/>'
            + "".join(
                f'<line class="whisker" x1="{_n(x)}" x2="{_n(x)}" y1="{_n(middle - 4)}" y2="{_n(middle + 4)}"/>' for x in caps
            )
            + _dot(row.slot, x_of(estimate.mean), middle, color)
            + "</g>"
        )
    foot = y + 8
    axis = [
        f'<line class="{"zero" if t == 0 else "grid"}" x1="{_n(x_of(t))}" x2="{_n(x_of(t))}" y1="6" y2="{_n(foot)}"/>'
        f'<text class="tick" text-anchor="middle" x="{_n(x_of(t))}" y="{_n(foot + 13)}">{label(t, marks)}</text>'
        for t in marks
    ]
    axis.append(f'<text class="tick" text-anchor="end" x="{WIDTH - right}" y="{_n(foot + 28)}">{escape(x_label)}</text>')
    return _svg(id, title, description, math.ceil(foot + 34), axis + parts)


def pair_chart(pairs: Sequence[Pair], *, id: str, title: str, description: str, before: str, after: str) -> str:
    """Two bars per row: shares before (hollow) and after (filled)."""
    if not pairs:
        return '<p class="empty">No actions recorded.</p>'
    left, right, row_height = 4, 78, 36
    longest = max(max(pair.before, pair.after) for pair in pairs) or 1.0
    parts = []
    for index, pair in enumerate(pairs):
        y = 4 + index * row_height
        wide = WIDTH - left - right
        parts.append(
            f"<g><title>{escape(pair.label)}: {escape(before)} {pair.before:.1%}, {escape(after)} {pair.after:.1%}</title>"
            f'<text class="row" x="{left}" y="{y + 10}">{escape(_short(pair.label, 46))}</text>'
            f'<rect class="before" x="{left}.5" y="{y + 14}" width="{_n(max(0.5, wide * pair.before / longest))}" height="7"/>'
            f'<rect class="after" x="{left}.5" y="{y + 23}" width="{_n(max(0.5, wide * pair.after / longest))}" height="7"/>'
            f'<text class="tick" text-anchor="end" x="{WIDTH - 2}" y="{y + 25}">{pair.before:.0%} → {pair.after:.0%}</text></g>'
        )
    return _svg(id, title, description, 6 + len(pairs) * row_height, parts)


def legend(names: Sequence[tuple[str, int]]) -> str:
    """A list of names with their line samples; slots as in the charts."""
    items = "".join(
        f'<li><svg width="30" height="10" aria-hidden="true"><line x1="1" x2="29" y1="5" y2="5" class="line" '
        f'stroke="var(--s{slot % SERIES})" stroke-dasharray="{_DASHES[slot % SERIES]}"/></svg>{escape(name)}</li>'
        for name, slot in names
    )
    return f'<ul class="legend">{items}</ul>'


def smoothed(points: Sequence[tuple[float, float]], weight: float) -> tuple[tuple[float, float], ...]:
    """Exponential mean of y with the start's bias removed, so that the first value is not given undue weight."""
    total = scale = 0.0
    result = []
    for x, y in points:
        total = weight * total + (1.0 - weight) * y
        scale = weight * scale + (1.0 - weight)
        result.append((x, total / scale))
    return tuple(result)


def ticks(low: float, high: float, count: int, *, whole: bool = False) -> list[float]:
    """About `count` round numbers from at or below `low` to at or above `high`."""
    if high <= low:
        pad = abs(low) * 0.1 or 1.0
        low, high = (low, low + 1.0) if whole else (low - pad, high + pad)
    raw = (high - low) / max(1, count - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= raw * 0.999)
    if whole:
        step = max(1.0, float(round(step)))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def label(value: float, marks: Sequence[float]) -> str:
    """A tick's text, as precise as the distance between ticks asks for: `0.25`, `12k`, `1.5M`."""
    step = marks[1] - marks[0] if len(marks) > 1 else abs(value) or 1.0
    largest = max(abs(mark) for mark in marks)
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if largest >= 10 * unit or (unit == 1e6 and largest >= unit):
            value, step = value / unit, step / unit
            return f"{value:.{_digits(step)}f}{letter}" if value else "0"
    if largest < 1e-3 and largest > 0:
        return f"{value:.1e}" if value else "0"
    return f"{value:.{_digits(step)}f}"


def describe(estimate: Estimate) -> str:
    """`0.42 [0.31, 0.55]`, with only as many digits as the interval's width supports."""
    if not math.isfinite(estimate.mean):
        return "not defined"
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return f"{number(estimate.mean)} (one unit: no interval)"
    width = estimate.high - estimate.low
    if width <= 0.0:
        return f"{number(estimate.mean)} (no spread)"
    return f"{number(estimate.mean, width)} [{number(estimate.low, width)}, {number(estimate.high, width)}]"


def number(value: float, precision: float | None = None) -> str:
    """A number for people: rounded to a tenth of `precision`, or to about three digits; thousands are separated."""
    if not math.isfinite(value):
        return "–"
    grain = abs(value) / 100.0 if precision is None else precision / 10.0
    digits = min(6, max(0, math.ceil(-math.log10(grain)))) if grain > 0.0 else 0
    return f"{round(value, digits) + 0.0:,.{digits}f}"  # + 0.0 turns a rounded -0.0 into 0.0


def _digits(step: float) -> int:
    """Decimals needed to tell multiples of `step` apart (2.5 needs 1, 0.25 needs 2)."""
    for digits in range(7):
        if abs(step * 10**digits - round(step * 10**digits)) < 1e-6 * 10**digits * step or step * 10**digits >= 10:
            return digits
    return 7


def _scale(low: float, high: float, start: float, end: float):
    span = high - low or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def _path(points: Sequence[tuple[float, float]], x_of, y_of) -> str:
    return " ".join(f"{_n(x_of(x))},{_n(y_of(y))}" for x, y in points)


def _n(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _dot(slot: int, x: float, y: float, color: str) -> str:
    """A mark whose shape differs between neighbouring slots."""
    match slot % 4:
        case 0:
            shape = f'<circle r="4" cx="{_n(x)}" cy="{_n(y)}"'
        case 1:
            shape = f'<rect width="7" height="7" x="{_n(x - 3.5)}" y="{_n(y - 3.5)}"'
        case 2:
            shape = f'<path d="M{_n(x)} {_n(y - 5)}l5 5l-5 5l-5-5z"'
        case _:
            shape = f'<path d="M{_n(x)} {_n(y - 4.5)}l4.5 8h-9z"'
    return f'{shape} fill="{color}"/>'


def _svg(id: str, title: str, description: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="{escape(id)}-t {escape(id)}-d">'
        f'<title id="{escape(id)}-t">{escape(title)}</title><desc id="{escape(id)}-d">{escape(description)}</desc>'
        + "".join(parts)
        + "</svg>"
    )
