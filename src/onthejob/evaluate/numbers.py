"""Results in words and digits, for tables, pictures and progress."""

from __future__ import annotations

import math
from collections.abc import Sequence

from onthejob.evaluate.statistics import IntervalEstimate


def describe(estimate: IntervalEstimate) -> str:
    """`0.42 [0.31, 0.55]`, with only as many digits as the interval's width supports."""
    if not math.isfinite(estimate.mean):
        return "not defined"
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return f"{number(estimate.mean)} (one unit: no interval)"
    width = estimate.high - estimate.low
    if width <= 0.0:
        return f"{number(estimate.mean)} (no spread)"
    if estimate.above_zero or estimate.below_zero:
        # An end that is shown as 0 would say that the interval holds it.
        width = min(width, 20.0 * min(abs(estimate.low), abs(estimate.high)))
    return f"{number(estimate.mean, width)} [{number(estimate.low, width)}, {number(estimate.high, width)}]"


def number(value: float, precision: float | None = None) -> str:
    """A number for people: rounded to a tenth of `precision`, or to about three digits; thousands are separated."""
    if not math.isfinite(value):
        return "–"
    grain = abs(value) / 100.0 if precision is None else precision / 10.0
    digits = min(6, max(0, math.ceil(-math.log10(grain)))) if grain > 0.0 else 0
    return f"{round(value, digits) + 0.0:,.{digits}f}"  # + 0.0 turns a rounded -0.0 into 0.0


def featured_team(name: str, teams: Sequence[str]) -> str:
    """`name`, or the last of `teams` when it is empty or not among them."""
    return name if name in teams else teams[-1]


def decoding_words(decoding: str) -> str:
    """A decoding's cache name for people: `greedy`, `at temperature 1`."""
    temperature = decoding.removeprefix("t").split("_")[0]
    return "greedy" if math.isclose(float(temperature), 0.0) else f"at temperature {temperature}"
