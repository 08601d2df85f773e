"""Scenarios are files: five ship with the package, users add their own. This module loads, checks and lists them.

A scenario moves starting stocks and the calendar of events; it holds no code. Days are counted from 1 as in the seed; an event may
also give `day90` for the 90-day preset.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from onthejob.envs.office.events import EVENTS
from onthejob.envs.office.state import SEGMENTS
from onthejob.errors import ConfigError

SHIPPED = ("baseline", "competitor", "series_a", "churn", "viral")
PRESSURES = ("low", "high", "critical", "chaotic")
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """One event of the calendar."""

    day: int
    """Day of a 30-day episode, counted from 1."""
    kind: str
    day90: int | None = None
    """Day of a 90-day episode; the same as `day` when absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Starting stocks and calendar of one episode family."""

    name: str
    title: str
    pressure: str
    cash: int
    """Dollars at the start."""
    traffic: int
    """Visits per day at the start."""
    segment_mix: tuple[float, ...]
    """Shares of the traffic per segment; sums to 1."""
    competitor: float
    """Pressure on closes, [0, 1]."""
    hazard: float
    """Multiplier on the churn hazard, >= 0."""
    event_rate: float
    """Chance of a random event per day, [0, 1]."""
    leads: int
    """Leads waiting on the first morning."""
    customers: int
    """Paying customers on the first morning."""
    satisfaction: float
    """Of the first customers, and the market's prior, [0, 1]."""
    bugs: dict[str, int]
    debt: float
    schedule: tuple[Scheduled, ...]
    board_rate: int = 1000
    """Dollars a day that the board releases for the CEO to allocate."""
    payroll: int = 1000
    """Dollars a day of wages and rent."""
    mrr_goal: float = 0.0
    """Factor on the first MRR that the board asks for; 0 means no such goal."""


def load(name_or_path: str | Path) -> Scenario:
    """The scenario of this name, or from this TOML file.

    Raises:
        ConfigError: no such scenario, or the file does not pass `lint`.
    """
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = _HERE / f"{name_or_path}.toml"
        if str(name_or_path) not in SHIPPED:
            raise ConfigError(
                f"unknown scenario {str(name_or_path)!r}; known are {', '.join(SHIPPED)}, or give the path of a .toml file."
            )
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"scenario file {path} does not exist. Give the path of a .toml file or one of {', '.join(SHIPPED)}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"scenario file {path} is not valid TOML: {error}.") from error
    problems = lint(data)
    if problems:
        raise ConfigError(f"scenario file {path}: " + "; ".join(problems) + ".")
    return Scenario(**{
        **data,
        "segment_mix": tuple(float(share) for share in data["segment_mix"]),
        "schedule": tuple(Scheduled(**event) for event in data["schedule"]),
    })


def lint(data: dict[str, Any], *, days: int = 30) -> list[str]:
    """What is wrong with a scenario's data, in plain sentences; empty when nothing is."""
    problems: list[str] = []
    known = {field.name: field for field in fields(Scenario)}
    problems += [f"unknown key {key!r}, allowed are {', '.join(known)}" for key in data if key not in known]
    required = ("board_rate", "payroll", "mrr_goal")
    missing = [key for key in known if key not in data and key not in required]
    if missing:
        return [*problems, f"missing keys: {', '.join(missing)}"]

    def check(key: str, low: float, high: float) -> None:
        value = data.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high):
            problems.append(f"{key} must be a number in [{low:g}, {high:g}], got {value!r}")

    check("cash", 1_000, 10_000_000)
    check("traffic", 1, 100_000)
    check("competitor", 0, 1)
    check("hazard", 0, 10)
    check("event_rate", 0, 1)
    check("satisfaction", 0, 1)
    check("debt", 0, 1)
    check("leads", 0, 15)
    check("customers", 0, 15)
    check("board_rate", 0, 100_000)
    check("payroll", 0, 100_000)
    check("mrr_goal", 0, 100)
    if data["pressure"] not in PRESSURES:
        problems.append(f"pressure must be one of {', '.join(PRESSURES)}, got {data['pressure']!r}")
    mix = data["segment_mix"]
    if not isinstance(mix, list) or len(mix) != len(SEGMENTS) or any(not isinstance(x, int | float) or x < 0 for x in mix):
        problems.append(f"segment_mix must hold {len(SEGMENTS)} shares >= 0 for {', '.join(SEGMENTS)}, got {mix!r}")
    elif abs(sum(mix) - 1) > 1e-6:
        problems.append(f"segment_mix must sum to 1, got {sum(mix):g}")
    bugs = data["bugs"]
    if not isinstance(bugs, dict) or set(bugs) != {"critical", "major", "minor"} or any(not isinstance(n, int) or n < 0 for n in bugs.values()):
        problems.append(f"bugs must give counts >= 0 for critical, major and minor, got {bugs!r}")
    for event in data["schedule"]:
        if not isinstance(event, dict) or not {"day", "kind"} <= set(event) <= {"day", "kind", "day90"}:
            problems.append(f"an event needs day and kind (and may give day90), got {event!r}")
            continue
        if event["kind"] not in EVENTS:
            problems.append(f"unknown event kind {event['kind']!r}, allowed are {', '.join(EVENTS)}")
        if not isinstance(event["day"], int) or not 1 <= event["day"] <= days:
            problems.append(f"event {event['kind']!r} is on day {event['day']!r}, which is outside 1..{days}")
    return problems
