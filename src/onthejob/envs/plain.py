"""The state of an episode as text, and back: safely, because records travel, and exactly, because forks must not differ.

Plain is what has one meaning: None, truth values, numbers, texts, bytes, lists, tuples, sets, dictionaries, enums, dataclasses
and `random.Random`. Reading it back makes no other object and runs no code of the record's: classes are only those that the
environment's own modules hold. What is not plain is refused with the place where it stands.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import random
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from onthejob.errors import ContractError

VOCABULARY = "onthejob.types"
"""The package whose classes every snapshot may hold."""
_MUTABLE = (list, dict, set, bytearray, deque, random.Random)


class NotPlain(ContractError):
    """A value that cannot be written; the message says where it stands and what it is."""


class _Writing(NamedTuple):
    """What is known while a state is written."""

    modules: frozenset[str]
    seen: dict[int, str]
    """Identity of what can change -> where it stands."""


def dump(state: Mapping[str, Any], modules: Iterable[str]) -> str:
    """`state` as JSON.

    `modules` are those whose dataclasses and enums `load` will make.

    Raises:
        NotPlain: a value has no plain form, or the same list, dictionary or object stands in two places.
    """
    doing = _Writing(frozenset(modules), {})
    try:
        rows = {name: _write(value, f"self.{name}", doing) for name, value in state.items()}
        return json.dumps(rows, separators=(",", ":"))
    except RecursionError as error:
        raise NotPlain("self holds values nested too deeply, which cannot be copied") from error


def load(text: str, modules: Iterable[str]) -> dict[str, Any]:
    """The inverse of `dump`.

    `modules` are the imported ones whose dataclasses and enums may be made.

    Raises:
        ContractError: the text was not written by `dump`, or names another class.
    """
    try:
        return {name: _read(value, frozenset(modules)) for name, value in json.loads(text).items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ContractError(f"a snapshot cannot be read: {type(error).__name__}: {error}.") from error


def _write(value: Any, where: str, doing: _Writing) -> Any:
    kind = type(value)
    if value is None or kind in (bool, str, int):
        return value
    if kind is float:
        # JSON has no infinities, and every finite float survives its repr.
        return value if value - value == 0.0 else ["float", repr(value)]
    if isinstance(value, enum.Enum):
        return ["enum", _named(kind, where, doing.modules), value.name]
    if _changes(value):
        if id(value) in doing.seen:
            raise NotPlain(f"{where} and {doing.seen[id(value)]} are the same {kind.__name__}, which a copy would separate")
        doing.seen[id(value)] = where
    if kind in (bytes, bytearray):
        return [kind.__name__, value.hex()]
    if kind in (list, tuple, deque):
        items = [_write(item, f"{where}[{index}]", doing) for index, item in enumerate(value)]
        return ["deque", items, value.maxlen] if kind is deque else [kind.__name__, items]
    if kind in (set, frozenset):
        # Sorted, so that equal sets are equal texts.
        return [kind.__name__, sorted((_write(item, f"an item of {where}", doing) for item in value), key=json.dumps)]
    if kind is dict:
        return ["dict", [[_write(k, f"a key of {where}", doing), _write(v, f"{where}[{k!r}]", doing)] for k, v in value.items()]]
    if kind is random.Random:
        return ["random", _write(value.getstate(), where, doing)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        if extra := sorted(set(getattr(value, "__dict__", {})) - set(fields)):
            raise NotPlain(f"{where} has attributes besides its fields: {', '.join(extra)}")
        named = _named(kind, where, doing.modules)
        return ["data", named, [[name, _write(item, f"{where}.{name}", doing)] for name, item in fields.items()]]
    raise NotPlain(f"{where} is a {kind.__module__}.{kind.__qualname__}, which cannot be copied")


def _changes(value: Any) -> bool:
    """Whether it matters that two places hold the same object."""
    return isinstance(value, _MUTABLE) or (dataclasses.is_dataclass(value) and not isinstance(value, type))


def _named(kind: type, where: str, modules: frozenset[str]) -> str:
    # The vocabulary is named by its package, which has all its classes: their files may move.
    module = VOCABULARY if kind.__module__.startswith(f"{VOCABULARY}.") else kind.__module__
    if module not in modules:
        raise NotPlain(
            f"{where} is a {kind.__module__}.{kind.__qualname__}, a class that the environment's module does not define"
        )
    if "<locals>" in kind.__qualname__:
        raise NotPlain(f"{where} is of class {kind.__qualname__}, which is defined inside a function")
    return f"{module}:{kind.__qualname__}"


def _read(value: Any, modules: frozenset[str]) -> Any:
    if not isinstance(value, list):
        return value
    kind, *rest = value
    match kind:
        case "float":
            return float(rest[0])
        case "bytes" | "bytearray":
            made = bytes.fromhex(rest[0])
            return made if kind == "bytes" else bytearray(made)
        case "list" | "tuple" | "set" | "frozenset":
            items = [_read(item, modules) for item in rest[0]]
            return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind](items)
        case "deque":
            return deque((_read(item, modules) for item in rest[0]), maxlen=rest[1])
        case "dict":
            return {_read(key, modules): _read(item, modules) for key, item in rest[0]}
        case "random":
            made = random.Random()
            made.setstate(_read(rest[0], modules))
            return made
        case "enum":
            return _class(rest[0], modules)[rest[1]]
        case "data":
            kind_of = _class(rest[0], modules)
            made = object.__new__(kind_of)
            for name, item in rest[1]:
                object.__setattr__(made, name, _read(item, modules))
            return made
    raise ValueError(f"unknown kind {kind!r}")


def _class(named: str, modules: frozenset[str]) -> Any:
    module, _, path = named.partition(":")
    if module not in modules or module not in sys.modules:
        raise ValueError(f"class {named} is of no module of the environment")
    found: Any = sys.modules[module]
    for part in path.split("."):
        found = getattr(found, part)
    if not (isinstance(found, type) and (issubclass(found, enum.Enum) or dataclasses.is_dataclass(found))):
        raise ValueError(f"{named} is no dataclass and no enum")
    return found
