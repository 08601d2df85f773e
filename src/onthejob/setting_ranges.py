"""Ranges of settings, declared where a setting is, and checked with one message for all.

    @dataclass(frozen=True, kw_only=True)
    class BranchConfig:
        group_size: Annotated[int, Ge(2), Reason("to have a baseline")] = 8
        continuation: Literal["partners", "policy"] = "partners"

        def __post_init__(self) -> None:
            check_ranges(self, "--branch.")

    BranchConfig(group_size=1)
    # ConfigError: group_size must be >= 2 to have a baseline, got 1. Set --branch.group-size 8.

The words for a range are those of `annotated_types`, which pydantic and hypothesis read too: `Ge`, `Gt`, `Le`, `Lt`, `Interval`,
`MinLen` and `IsFinite`. A number with a range must be finite. `None` is allowed where the type says so.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt, MinLen, Predicate

from onthejob.errors import ConfigError

_COMPARED = {Ge: ">=", Gt: ">", Le: "<=", Lt: "<"}


@dataclass(frozen=True, slots=True)
class Reason:
    """Why the range is as it is: words between it and the value met."""

    text: str


@dataclass(frozen=True, slots=True)
class Usual:
    """A sentence on what to take, in the place of the default."""

    text: str


@dataclass(frozen=True, slots=True)
class SettingRange:
    """What one setting may be."""

    low: Ge | Gt | None = None
    high: Le | Lt | None = None
    least: int = 0
    """Members of a collection at least."""
    members: SettingRange | None = None
    """What each member of a collection may be."""
    choices: tuple[Any, ...] = ()
    finite: bool = False
    whole: bool = False
    optional: bool = False
    """None is allowed."""
    reason: str = ""
    usual: str = ""

    @property
    def empty(self) -> bool:
        stated = (self.low, self.high, self.members)
        return all(one is None for one in stated) and not (self.least or self.choices or self.finite)

    def allows(self, value: Any) -> bool:
        if value is None:
            return self.optional
        if self.choices:
            return value in self.choices
        if self.least or self.members is not None:
            return len(value) >= self.least and (self.members is None or all(map(self.members.allows, value)))
        ends = (one for one in (self.low, self.high) if one is not None)
        # A whole number is finite, also one beyond the largest float.
        number = isinstance(value, int) or not self.finite or math.isfinite(float(value))
        return number and all(_holds(one, value) for one in ends) and (not self.whole or value == int(value))

    def __str__(self) -> str:
        """`in 1..90`, `in (0, 1]`, `>= 2`, `finite and > 0`, `one of std, none`."""
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        if self.least:
            return f"of length >= {self.least}{'' if self.members is None else f', each {self.members}'}"
        if self.members is not None:
            return str(self.members)
        ends = [one for one in (self.low, self.high) if one is not None]
        if len(ends) == 2:
            low, high = map(_number, ends)
            opened, closed = "[" if isinstance(ends[0], Ge) else "(", "]" if isinstance(ends[1], Le) else ")"
            return f"in {low}..{high}" if self.whole else f"in {opened}{low}, {high}{closed}"
        compared = "".join(f"{_COMPARED[type(one)]} {_number(one)}" for one in ends)
        return compared if self.whole else " and ".join(filter(None, ("finite", compared)))


def check_ranges(settings: Any, option: str = "") -> None:
    """Refuse the first setting of a dataclass that its annotation does not allow.

    Args:
        settings: an instance of a dataclass.
        option: beginning of these settings' names on the command line, e.g. `--branch.`; without it a message names the default
            alone.

    Raises:
        ConfigError: names the setting, what is allowed, the value met, and what to take.
    """
    for name, allowed in declared(type(settings)):
        value = getattr(settings, name)
        if not allowed.allows(value):
            reason = f" {allowed.reason}" if allowed.reason else ""
            shown = repr(value) if isinstance(value, str) else value
            advice = advice_on(type(settings), name, option)
            raise ConfigError(f"{name} must be {allowed}{reason}, got {shown}. {advice}".rstrip())


def advice_on(kind: type[Any], name: str, option: str = "") -> str:
    """The sentence that ends a refusal of a setting: what is usual, else the option with its default; empty without either."""
    usual = dict(declared(kind))[name].usual
    default = next(one.default for one in fields(kind) if one.name == name)
    if usual or default is MISSING:
        return usual
    if default is None:
        return "Leave it out."
    shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
    return f"Set {option}{name.replace('_', '-')} {shown}." if option else f"The default is {shown}."


@cache
def declared(kind: type[Any]) -> tuple[tuple[str, SettingRange], ...]:
    """Name and range of the settings of a dataclass that have one."""
    hints = get_type_hints(kind, include_extras=True)
    found = ((one.name, _range_of(hints[one.name])) for one in fields(kind) if one.init)
    return tuple((name, allowed) for name, allowed in found if not allowed.empty)


def _range_of(hint: Any, metadata: tuple[Any, ...] = ()) -> SettingRange:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _range_of(args[0], (*args[1:], *metadata))
    if origin in (Union, UnionType):
        named = [one for one in args if one is not NoneType]
        # Of several types none is checked: what is written as a string may be a name of the user's.
        return replace(_range_of(named[0], metadata), optional=NoneType in args) if len(named) == 1 else SettingRange()
    stated = list(_flat(metadata))
    low = next((one for one in stated if isinstance(one, Ge | Gt)), None)
    high = next((one for one in stated if isinstance(one, Le | Lt)), None)
    members = _range_of(args[0]) if origin in (tuple, list, frozenset, set) and args else None
    return SettingRange(
        low=low,
        high=high,
        least=next((one.min_length for one in stated if isinstance(one, MinLen)), 0),
        members=None if members is None or members.empty else members,
        choices=args if origin is Literal else (),
        finite=low is not None
        or high is not None
        or any(isinstance(one, Predicate) and one.func is math.isfinite for one in stated),
        whole=hint is int,
        reason=next((one.text for one in stated if isinstance(one, Reason)), ""),
        usual=next((one.text for one in stated if isinstance(one, Usual)), ""),
    )


def _flat(metadata: Iterable[Any]) -> Iterator[Any]:
    for one in metadata:
        if isinstance(one, GroupedMetadata):
            yield from one
        else:
            yield one


def _number(end: Ge | Gt | Le | Lt) -> Any:
    value: Any = getattr(end, type(end).__name__.lower())
    return int(value) if value == int(value) else value


def _holds(end: Ge | Gt | Le | Lt, value: Any) -> bool:
    compare = {Ge: operator.ge, Gt: operator.gt, Le: operator.le, Lt: operator.lt}[type(end)]
    return bool(compare(value, _number(end)))
