"""Goals: what a scenario asks of the company by the end, as lower bounds on named measures. Reported, never rewarded."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onthejob.envs.office.company_state import State
    from onthejob.envs.office.scenarios import Scenario

MEASURES: MappingProxyType[str, Callable[[State], float]] = MappingProxyType(
    {
        "mrr": lambda s: s.mrr() / 100.0,
        "mrr_growth": lambda s: s.mrr() / s.start_mrr if s.start_mrr else 0.0,
        "customers": lambda s: float(len(s.customers())),
        "satisfaction": lambda s: s.satisfaction(),
        "features": lambda s: float(sum(day >= 0 for day in s.feature_shipped)),
    }
)
"""Measure -> its value: dollars a month, times the first month's, customers, mean satisfaction in [0, 1], shipped features."""


UNITS: MappingProxyType[str, tuple[str, float, int]] = MappingProxyType(
    {
        "mrr": ("MRR {:g}k", 1_000.0, 1),
        "mrr_growth": ("MRR {:g} times the first", 1.0, 1),
        "customers": ("{:g} customers", 1.0, 0),
        "satisfaction": ("satisfaction {:g}", 0.01, 0),
        "features": ("{:g} features", 1.0, 0),
    }
)
"""Measure -> how the CEO's prompt says a bound on it, the unit there, and the decimal places."""


def shown(measure: str, s: State, bound: float) -> list[float]:
    """The measure now, rounded, and its bound, in the unit in which the CEO is shown both."""
    _, unit, places = UNITS[measure]
    return [round(MEASURES[measure](s) / unit, places), bound / unit]


def goal_reached(s: State, scenario: Scenario) -> bool | None:
    """Whether all bounds of the scenario's goal hold now, in a company that is alive; None when it has no goal."""
    if not scenario.goal:
        return None
    return s.done != "bankrupt" and all(MEASURES[name](s) >= bound for name, bound in scenario.goal.items())
