"""A role's view as a vector, for policies that do not read text: exactly what the view holds, in fixed places, about [-1, 1].

Of messages only counts and the pains that were asked for are kept; what else was written is in the text alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from onthejob.compat.discrete import APPROVALS, CUSTOMERS, FEATURES, LEADS, REVISIONS
from onthejob.envs.office.company_state import (
    BLOCKABLE,
    DEPARTMENTS,
    FOCI,
    KINDS,
    PAINS,
    PHASES,
    SEGMENTS,
    SEVERITIES,
    SIZES,
    STAGES,
    TIERS,
)
from onthejob.envs.office.events import EVENTS
from onthejob.envs.office.roles import Role
from onthejob.envs.office.scenarios.goals import MEASURES
from onthejob.errors import ConfigError

View = Mapping[str, Any]
LIMIT = 10.0
"""Every feature lies in [-LIMIT, LIMIT]; what is beyond is clipped."""
_SENDERS = tuple(str(role) for role in Role)
_OPEN_STAGES = STAGES[:5]


class Feature(NamedTuple):
    """One stretch of the vector."""

    names: tuple[str, ...]
    read: Callable[[View], Sequence[float]]
    """One number per name."""


def _number(key: str, scale: float) -> Feature:
    return Feature((key,), lambda view: (view[key] / scale,))


def _flag(key: str) -> Feature:
    return Feature((key,), lambda view: (float(bool(view[key])),))


def _one_of(key: str, values: Sequence[str]) -> Feature:
    """All zero when the view holds none of the values."""
    return Feature(tuple(f"{key}={value}" for value in values), lambda view: [float(view[key] == value) for value in values])


def _some_of(key: str, values: Sequence[str]) -> Feature:
    return Feature(tuple(f"{key}:{value}" for value in values), lambda view: [float(value in view[key]) for value in values])


def _table(key: str, values: Sequence[str], scale: float) -> Feature:
    """A mapping of names to numbers; 0 for a name that is not in it."""
    return Feature(
        tuple(f"{key}.{value}" for value in values), lambda view: [view[key].get(value, 0) / scale for value in values]
    )


def _count(key: str, most: int) -> Feature:
    return Feature((f"#{key}",), lambda view: (len(view[key]) / most,))


def _rows(key: str, most: int, columns: Sequence[tuple[str, Callable[[Any], float]]]) -> Feature:
    """The first `most` items of a list, one after the other; 0 where there are fewer."""

    def read(view: View) -> list[float]:
        items = view[key][:most]
        found = [column(item) for item in items for _, column in columns]
        return found + [0.0] * (len(columns) * (most - len(items)))

    return Feature(tuple(f"{key}[{row}].{name}" for row in range(most) for name, _ in columns), read)


def _is(key: str, values: Sequence[str]) -> list[tuple[str, Callable[[Any], float]]]:
    return [(f"{key}={value}", lambda item, value=value: float(item[key] == value)) for value in values]


def _inbox(view: View) -> list[float]:
    lines = [line.partition(": ") for line in view["inbox"]]
    counts = [sum(sender == who for sender, _, _ in lines) / 5.0 for who in _SENDERS]
    asked = {text.removeprefix("need ").strip() for _, _, text in lines if text.startswith("need ")}
    return counts + [float(pain in asked) for pain in PAINS]


def _goal(view: View) -> list[float]:
    """What is reached of each bound of the goal; 0 where it has none."""
    return [now / bound if bound else 0.0 for now, bound in (view["goal"].get(name, (0.0, 0.0)) for name in MEASURES)]


_COMMON = (
    Feature(("day",), lambda view: (view["day"] / view["days"],)),
    _number("days", 90),
    _one_of("phase", tuple(dict.fromkeys(PHASES))),
    _one_of("focus", FOCI),
    _flag("blocked"),
    _flag("directive"),
    _some_of("shipped", FEATURES),
    _some_of("events", tuple(EVENTS)),
    Feature((*(f"inbox from {who}" for who in _SENDERS), *(f"inbox need {pain}" for pain in PAINS)), _inbox),
)
_OWN: MappingProxyType[str, tuple[Feature, ...]] = MappingProxyType(
    {
        "ceo": (
            _number("cash", 200),
            _number("pool", 100),
            _table("envelopes", DEPARTMENTS, 100),
            _number("mrr", 200),
            _number("customers", 20),
            _number("leads", 20),
            _number("pipeline", 200),
            _number("traffic", 3000),
            _number("conversion", 50),
            _number("brand", 100),
            _number("nps", 100),
            Feature(tuple(f"goal.{name}" for name in MEASURES), _goal),
            _number("stability", 100),
            _number("satisfaction", 100),
            _number("okr_left", 10),
            _number("okr", 100),
            _count("approve", APPROVALS),
            _some_of("pivot", SEGMENTS),
            _flag("funded"),
            _one_of("directed", ("dev", "marketing", "sales", "content", "hr")),
            _number("aligned", 100),
        ),
        "dev": (
            _table("build", FEATURES, 6),
            _some_of("started", FEATURES),
            _some_of("ready", FEATURES),
            _some_of("unreviewed", FEATURES),
            _table("bugs", SEVERITIES, 10),
            _number("debt", 100),
            _number("docs", 100),
            _number("stability", 100),
            _number("velocity", 2),
        ),
        "marketing": (
            _number("envelope", 100),
            _number("cash", 200),
            _number("mrr", 200),
            _number("pipeline", 200),
            _number("nps", 100),
            _table("traffic", SEGMENTS, 1000),
            _number("conversion", 50),
            _number("brand", 100),
            _number("leads", 20),
            _number("customers", 20),
            _some_of("tired", PAINS),
            _table("tired", PAINS, 7),
            *(
                Feature(
                    tuple(f"research.{segment}={pain}" for pain in PAINS),
                    lambda view, segment=segment: [float(view["research"].get(segment) == pain) for pain in PAINS],
                )
                for segment in SEGMENTS
            ),
            _number("competitor", 100),
            _number("intel", 10),
            _flag("ad"),
            _number("stability", 100),
            _some_of("new", FEATURES),
        ),
        "sales": (
            _number("mrr", 200),
            _flag("updated"),
            _rows(
                "leads",
                LEADS,
                [
                    ("shown", lambda lead: 1.0),
                    *_is("stage", _OPEN_STAGES),
                    *_is("size", SIZES),
                    *_is("pain", PAINS),
                    ("idle", lambda lead: lead["idle"] / 10),
                    ("objections", lambda lead: lead["objections"] / 3),
                    ("approved", lambda lead: float(lead["approved"])),
                ],
            ),
            _rows(
                "customers",
                CUSTOMERS,
                [
                    ("shown", lambda customer: 1.0),
                    ("silent", lambda customer: customer["silent"] / 10),
                    ("mood", lambda customer: customer["mood"] / 10),
                    *_is("tier", TIERS),
                ],
            ),
        ),
        "content": (
            _count("drafts", 2),
            _rows("drafts", 2, [*_is("kind", KINDS), *_is("topic", PAINS), ("left", lambda draft: draft["left"] / 4)]),
            _table("evidence", PAINS, 5),
            _count("revise", REVISIONS),
            _some_of("served", PAINS),
            _number("satisfaction", 100),
            _number("visits", 500),
        ),
        "hr": (
            _number("velocity", 2),
            _number("morale", 100),
            _number("aligned", 100),
            _some_of("blockers", BLOCKABLE),
            _table("contractors", ("dev", "content"), 10),
            _number("envelope", 100),
            _number("okr_left", 10),
            _number("tracked", 9),
            _number("planned", 2),
        ),
    }
)


class Features:
    """How one role's views become vectors."""

    def __init__(self, role: str) -> None:
        """The features of `role`.

        Raises:
            ConfigError: the role is not one of the six trained ones.
        """
        if role not in _OWN:
            raise ConfigError(f"there are no features for {role!r}; there are for {', '.join(_OWN)}.")
        self._features = (*_COMMON, *_OWN[role])
        self.names: tuple[str, ...] = tuple(name for feature in self._features for name in feature.names)
        """What each place of the vector holds."""

    def __len__(self) -> int:
        return len(self.names)

    def __call__(self, view: View) -> npt.NDArray[np.float32]:
        """(n,) float32 in [-LIMIT, LIMIT]."""
        values = [value for feature in self._features for value in feature.read(view)]
        return np.clip(np.array(values, dtype=np.float32), -LIMIT, LIMIT)
