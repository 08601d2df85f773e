"""Difficulty: a scenario made easier or harder without becoming another one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onthejob.envs.office.scenarios.ranges import RANGES
from onthejob.errors import ConfigError

if TYPE_CHECKING:
    from onthejob.envs.office.scenarios import Scenario

MIDDLE = 0.5
"""The scenario as its file has it."""


def at_difficulty(scenario: Scenario, difficulty: Any) -> Scenario:
    """The scenario at a difficulty in [0, 1]: 0.5 is the file; what works against the company grows with it.

    At 0 the rival, the churn hazard and the debt are half, at 1 they are half as large again; at 0 there is a quarter more
    traffic, cash and satisfaction, at 1 a quarter less, within what a scenario may be. Bugs are rounded. Name, calendar and
    segments stay.

    Raises:
        ConfigError: not a number in [0, 1].
    """
    if isinstance(difficulty, bool) or not isinstance(difficulty, int | float) or not 0.0 <= difficulty <= 1.0:
        raise ConfigError(f"difficulty must be a number in [0, 1], got {difficulty!r}. 0.5 is the scenario as it is.")
    if difficulty == MIDDLE:
        return scenario
    against = 0.5 + difficulty
    with_us = 1.25 - 0.5 * difficulty
    moved = {
        "cash": round(scenario.cash * with_us),
        "traffic": round(scenario.traffic * with_us),
        "competitor": scenario.competitor * against,
        "hazard": scenario.hazard * against,
        "debt": scenario.debt * against,
        "satisfaction": scenario.satisfaction * with_us,
    }
    kept = {name: type(value)(min(max(value, RANGES[name][0]), RANGES[name][1])) for name, value in moved.items()}
    return replace(scenario, **kept, bugs={severity: round(count * against) for severity, count in scenario.bugs.items()})
