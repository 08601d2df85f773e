"""Scenarios are files: five ship with the package, users add their own. This module loads, checks and lists them.

A scenario moves starting stocks and the calendar of events; it holds no code. Days are counted from 1 as in the seed; an event
may also give `day90` for the 90-day preset.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from onthejob.envs.office.company_state import HELD_OUT, SEGMENTS, SEVERITIES
from onthejob.envs.office.events import EVENTS, HELD_OUT_EVENTS
from onthejob.envs.office.scenarios.goals import MEASURES
from onthejob.envs.office.scenarios.ranges import FOUNDED, RANGES
from onthejob.errors import ConfigError

SHIPPED = ("baseline", "competitor", "series_a", "churn", "viral")
PRESSURES = ("low", "high", "critical", "chaotic")
LONGEST = 90
"""Days of the longest episode."""
_HERE = Path(__file__).parent
_SHARES = ("competitor", "hazard", "event_rate", "satisfaction", "debt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """One event of the calendar."""

    day: int
    """Day of a 30-day episode, counted from 1."""
    kind: str
    day90: int | None = None
    """Day of a 90-day episode; `day` scaled to the horizon, as for every other length, when absent."""


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
    goal: Mapping[str, float] = field(default_factory=dict)
    """What counts as success at the end: lower bounds on measures (`goals.MEASURES`). The CEO's prompt states them, and no reward
    pays them; empty for none."""


def load(name_or_path: str | Path) -> Scenario:
    """The scenario of this name, or from this TOML file.

    Raises:
        ConfigError: no such scenario, or the file does not pass `lint`.
    """
    path = Path(name_or_path)
    if path.suffix != ".toml":
        name = str(name_or_path)
        path = _HERE / f"{name}.toml" if name in SHIPPED else _HERE / "held_out" / f"{name}.toml"
        if name not in (*SHIPPED, *HELD_OUT):
            raise ConfigError(
                f"unknown scenario {name!r}; known are {', '.join(SHIPPED)}; held out from training: {', '.join(HELD_OUT)}; "
                "or give the path of a .toml file."
            )
    try:
        data = _parsed(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"scenario file {path} cannot be read: {error.strerror}. "
            f"Give the path of a .toml file or one of {', '.join(SHIPPED)}."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"scenario file {path} is not valid TOML: {error}.") from error
    return from_data(data, where=f"scenario file {path}")


@lru_cache(maxsize=64)
def _parsed(text: str) -> Mapping[str, Any]:
    """Of TOML; shared, so not to be changed. Every task and episode names its scenario: a few files are read very often."""
    return tomllib.loads(text)


def from_data(data: Mapping[str, Any], *, where: str = "scenario") -> Scenario:
    """The scenario that `data` describes, the keys of which are the fields of `Scenario`.

    Raises:
        ConfigError: `data` does not pass `lint`.
    """
    problems = lint(data)
    if problems:
        raise ConfigError(f"{where}: " + "; ".join(problems) + ".")
    return Scenario(
        **{
            **data,
            **{key: float(data[key]) for key in _SHARES if key in data},
            "segment_mix": tuple(float(share) for share in data["segment_mix"]),
            "schedule": tuple(Scheduled(**event) for event in data["schedule"]),
        }
    )


def as_data(scenario: Scenario) -> dict[str, Any]:
    """JSON-serialisable: what `from_data` turns into an equal scenario."""
    data = asdict(scenario)
    data["segment_mix"] = list(scenario.segment_mix)
    data["schedule"] = [{key: value for key, value in asdict(event).items() if value is not None} for event in scenario.schedule]
    return data


def is_held_out(scenario: Scenario) -> bool:
    """True for a held-out family, and for any scenario whose calendar holds an event that only they have."""
    return scenario.name in HELD_OUT or any(event.kind in HELD_OUT_EVENTS for event in scenario.schedule)


def lint(data: Mapping[str, Any], *, days: int = 30) -> list[str]:
    """What is wrong with a scenario's data, in plain sentences; empty when nothing is."""
    known = {field.name: field for field in fields(Scenario)}
    problems = [f"unknown key {key!r}, allowed are {', '.join(known)}" for key in data if key not in known]
    missing = [
        key for key, field in known.items() if key not in data and field.default is MISSING and field.default_factory is MISSING
    ]
    if missing:
        return [*problems, f"missing keys: {', '.join(missing)}"]
    return [*problems, *_numbers(data), *_texts(data), *_stocks(data), *_calendar(data["schedule"], days)]


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return _whole(value) or (isinstance(value, float) and math.isfinite(value))


def _numbers(data: Mapping[str, Any]) -> Iterator[str]:
    for key, (low, high) in RANGES.items():
        if key in data:
            value, fits = data[key], _number if key in _SHARES else _whole
            if not fits(value) or not low <= value <= high:
                kind = "a number" if key in _SHARES else "a whole number"
                yield f"{key} must be {kind} in [{low:g}, {high:g}], got {value!r}"


def _texts(data: Mapping[str, Any]) -> Iterator[str]:
    for key in ("name", "title"):
        if not isinstance(data[key], str) or not data[key].strip():
            yield f"{key} must be a text, got {data[key]!r}"
    if data["pressure"] not in PRESSURES:
        yield f"pressure must be one of {', '.join(PRESSURES)}, got {data['pressure']!r}"


def _stocks(data: Mapping[str, Any]) -> Iterator[str]:
    mix, bugs = data["segment_mix"], data["bugs"]
    if not isinstance(mix, list) or len(mix) != len(SEGMENTS) or not all(_number(x) and x >= 0 for x in mix):
        yield f"segment_mix must hold {len(SEGMENTS)} shares >= 0 for {', '.join(SEGMENTS)}, got {mix!r}"
    elif abs(sum(mix) - 1) > 1e-6:
        yield f"segment_mix must sum to 1, got {sum(mix):g}"
    if not isinstance(bugs, dict) or set(bugs) != set(SEVERITIES) or not all(_whole(n) and 0 <= n <= 100 for n in bugs.values()):
        yield f"bugs must give counts in [0, 100] for {', '.join(SEVERITIES)}, got {bugs!r}"
    goal = data.get("goal", {})
    if not isinstance(goal, dict) or not set(goal) <= set(MEASURES) or not all(_number(x) and x >= 0 for x in goal.values()):
        yield f"goal must give lower bounds >= 0 on some of {', '.join(MEASURES)}, got {goal!r}"
    if _whole(data["leads"]) and _whole(data["customers"]) and data["leads"] + data["customers"] > FOUNDED:
        yield f"leads and customers together must be at most {FOUNDED}, got {data['leads'] + data['customers']}"


def _calendar(schedule: Any, days: int) -> Iterator[str]:
    if not isinstance(schedule, list):
        yield f"schedule must be a list of events, got {schedule!r}"
        return
    for event in schedule:
        if not isinstance(event, dict) or not {"day", "kind"} <= set(event) <= {"day", "kind", "day90"}:
            yield f"an event needs day and kind (and may give day90), got {event!r}"
            continue
        kind = event["kind"]
        if not isinstance(kind, str) or kind not in EVENTS:
            yield f"unknown event kind {kind!r}, allowed are {', '.join(EVENTS)}"
        for key, last in (("day", days), ("day90", LONGEST)):
            if key in event and not (_whole(event[key]) and 1 <= event[key] <= last):
                yield f"event {kind!r} has {key} {event[key]!r}, which is outside 1..{last}"
