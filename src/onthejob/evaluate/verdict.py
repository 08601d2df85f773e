"""verdict: what a paired difference shows, in words that follow from its interval alone."""

from __future__ import annotations

from enum import StrEnum

from onthejob.evaluate.statistics import IntervalEstimate


class Verdict(StrEnum):
    """The outcome of a paired comparison."""

    BETTER = "better"
    WORSE = "worse"
    NOT_SHOWN = "no difference shown"


def verdict(difference: IntervalEstimate) -> Verdict:
    """BETTER or WORSE when the whole interval of `difference` (higher is better) lies on one side of 0, else NOT_SHOWN."""
    if difference.above_zero:
        return Verdict.BETTER
    return Verdict.WORSE if difference.below_zero else Verdict.NOT_SHOWN
