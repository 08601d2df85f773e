"""What a gate says: one number that was asked for, what was needed, and whether it held.

Intervals come from the caller (`Statistics`), because environments import nothing of the evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Interval(Protocol):
    """An estimate with the ends of its interval."""

    @property
    def mean(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


class Percent(NamedTuple):
    """An interval in percent."""

    mean: float
    low: float
    high: float


class Paired(Protocol):
    """Estimates the mean of first - second, position by position, with a 95 % interval."""

    def __call__(
        self, first: Sequence[float], second: Sequence[float], /, *, strata: Sequence[Hashable] | None = None
    ) -> Interval:
        """strata: one key per position; what differs between strata is a fixed fact and no source of error."""
        ...


class Statistics(NamedTuple):
    """How differences and rank agreement are estimated."""

    paired: Paired
    spearman: Callable[[Sequence[float], Sequence[float]], float]

    def mean(self, values: Sequence[float], strata: Sequence[Hashable] | None = None) -> Interval:
        """The mean of `values` with its interval."""
        return self.paired(values, [0.0] * len(values), strata=strata)

    def percent(self, shares: Sequence[float], strata: Sequence[Hashable] | None = None) -> Percent:
        """The mean of `shares` in percent."""
        interval = self.mean(shares, strata)
        return Percent(100.0 * interval.mean, 100.0 * interval.low, 100.0 * interval.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One number that was asked for."""

    gate: str
    what: str
    value: float
    """In `unit`; NaN when there was nothing to measure, which never passes."""
    unit: str
    low: float | None = None
    """Ends of the 95 % interval, where one was estimated."""
    high: float | None = None
    needed: str
    """What must hold, in words; empty for a number that is only reported."""
    passed: bool | None
    """None: reported only."""


def found(
    gate: str, what: str, value: float, unit: str, needed: str = "", passed: bool | None = None, interval: Interval | None = None
) -> Finding:
    """A finding, with the ends of `interval`; without `needed` it is only reported."""
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return Finding(gate=gate, what=what, value=value, unit=unit, low=low, high=high, needed=needed, passed=passed)


def above(gate: str, what: str, interval: Interval, unit: str = "$") -> Finding:
    """Holds when the interval of a difference lies above 0."""
    return found(gate, what, interval.mean, unit, "interval above 0", interval.low > 0.0, interval)


def nothing(gate: str, what: str, unit: str, needed: str) -> Finding:
    """Nothing was measured, so nothing holds."""
    return found(gate, what, float("nan"), unit, needed, False)
