"""verdict: what a paired difference shows, in words that follow from its interval alone."""

from __future__ import annotations

import math
from enum import StrEnum
from statistics import NormalDist

from onthejob.evaluate.numbers import describe
from onthejob.evaluate.statistics import BOOTSTRAP_CLUSTERS, IntervalEstimate

POWER = 0.8
"""Share of repeated comparisons that would show a difference, at the size that `needed` returns."""


class Verdict(StrEnum):
    """The outcome of a paired comparison."""

    BETTER = "better"
    WORSE = "worse"
    NOT_SHOWN = "no difference shown"
    TOO_FEW = "too few to say"


def verdict(difference: IntervalEstimate) -> Verdict:
    """BETTER or WORSE when the whole interval of `difference` (higher is better) lies on one side of 0, else NOT_SHOWN.

    TOO_FEW when there is no interval: of a single unit, or of fewer than `BOOTSTRAP_CLUSTERS` that all agree.
    """
    if not (math.isfinite(difference.low) and math.isfinite(difference.high)):
        return Verdict.TOO_FEW
    if difference.above_zero:
        return Verdict.BETTER
    return Verdict.WORSE if difference.below_zero else Verdict.NOT_SHOWN


def needed(difference: IntervalEstimate) -> int | None:
    """Units that would show a difference as large as the measured one in 80 % of comparisons; None where it cannot be said.

    The half width of an interval shrinks with the root of the units. A mean of (z + z_power) standard errors is shown with
    that power. Where there is no interval, this is the number of units from which there always is one.

    Source: Cohen, Statistical Power Analysis (1988), chapter 2, for paired means.
    """
    found = verdict(difference)
    if found is Verdict.TOO_FEW:
        return BOOTSTRAP_CLUSTERS
    half = (difference.high - difference.low) / 2.0
    if found is not Verdict.NOT_SHOWN or math.isclose(difference.mean, 0.0) or half <= 0.0:
        return None
    z, normal = NormalDist().inv_cdf((1.0 + difference.level) / 2.0), NormalDist()
    growth = ((z + normal.inv_cdf(POWER)) / z * half / abs(difference.mean)) ** 2
    return max(difference.clusters + 1, math.ceil(difference.clusters * growth))


def signed(difference: IntervalEstimate) -> str:
    """A paired difference with its sign, e.g. `+0.77 [0.51, 1.02]`."""
    return f"{'+' if difference.mean > 0 else ''}{describe(difference)}"


def advice(difference: IntervalEstimate, other: str, unit: str) -> str:
    """Number of units that would show the difference from team `other`; empty where it is shown, or nothing differs.

    Args:
        difference: paired, over `difference.clusters` units.
        other: name of the other team.
        unit: name of a unit, in the singular.
    """
    count, most = needed(difference), MOST * difference.clusters
    if count is None:
        return ""
    if verdict(difference) is Verdict.TOO_FEW:
        return f"{_count(difference.clusters, unit)} cannot say: an interval needs {_count(count, unit)}."
    if count > most:
        return f"A difference from {other} as small as {signed(difference)} takes more than {_count(most, unit)} to show."
    enough = _count(_round(count), unit)
    return f"To show a difference of this size from {other} takes about {enough} instead of {difference.clusters}."


MOST = 1000
"""Times the units at hand beyond which a number of them says nothing more."""


def _count(number: int, unit: str) -> str:
    return f"{number:,} {unit}{'s' * (number != 1)}"


def _round(count: int) -> int:
    """Two digits: more are not known."""
    grain = 10 ** max(0, len(str(count)) - 2)
    return -(-count // grain) * grain
