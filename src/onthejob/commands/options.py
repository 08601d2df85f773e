"""Options of a command from a TOML file: defaults < file < command line.

A file has the shape of the options: top-level keys are flags, tables are nested groups (`[learner]` holds `--learner.lr`).
`onthejob train --print-config > my.toml` writes one that can be edited and given back with `--config my.toml`.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import tomllib
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import tyro
from pydantic import ConfigDict, TypeAdapter, ValidationError

from onthejob.errors import ConfigError
from onthejob.files import where_kept

T = TypeVar("T")


Earlier = Callable[[Mapping[str, Any], str], dict[str, Any]]
"""(options without a table `[env]`, the environment where they name none) -> options with the environment's under `own`."""
Check = Callable[[Mapping[str, Any], Any, str], dict[str, Any]]
"""(options, the defaults below them, the file) -> options without those of earlier versions."""


def from_toml(default: T, path: Path, earlier: Earlier | None = None, env: str = "", check: Check | None = None) -> T:
    """`default` (a dataclass) with the values that the file states.

    Args:
        default: the options below it.
        path: the file.
        earlier: reads a file from the time before `[env]`; None for options that have none.
        env: the environment of `default`.
        check: refuses options of earlier versions, or takes them out; None where there are none.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        remedy = where_kept(path) or f"`--print-config > {path}` writes one."
        raise ConfigError(f"--config {path} does not exist. {remedy}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"--config {path} is not TOML: {error}") from error
    flat, _ = from_table(data, str(path), earlier, env)
    return overlay(default, flat if check is None else check(flat, default, str(path)), where=str(path))


def from_table(data: Mapping[str, Any], where: str, earlier: Earlier | None = None, env: str = "") -> tuple[dict[str, Any], str]:
    """A file's or record's options with the table `[env]` as the fields `env` and `own`, and the fingerprint that it states."""
    table = data.get("env")
    if not isinstance(table, Mapping):
        return dict(data) if earlier is None else earlier(data, env), ""
    options = dict(table)
    ref, fingerprint = options.pop("ref", None), options.pop("fingerprint", "")
    if not isinstance(ref, str) or not ref:
        raise ConfigError(f'{where}: [env] names no environment. Add ref = "path/to/file.py:Class".')
    return {**data, "env": ref} | ({"own": options} if options or "own" in data else {}), str(fingerprint)


def stated_env(path: Path) -> str:
    """The environment that the file states; empty without one. What is wrong with a file, `from_toml` says."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8")).get("env", "")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return ""
    found = found.get("ref", "") if isinstance(found, Mapping) else found
    return found if isinstance(found, str) else ""


def overlay(default: T, data: Mapping[str, Any], *, where: str) -> T:
    """`default` with the values of `data`, nested tables included; types are checked, unknown keys refused."""
    hints = get_type_hints(type(default))
    fields = {field.name: field for field in dataclasses.fields(default)}  # type: ignore[arg-type]
    changed: dict[str, Any] = {}
    for key, value in data.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            meant = f" Did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{where}: unknown key {key!r}; known: {', '.join(fields)}.{meant}")
        current = getattr(default, key)
        if dataclasses.is_dataclass(current) and not isinstance(current, type):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{where}: {key} must be a table ([{key}]), got {value!r}.")
            changed[key] = overlay(current, value, where=f"{where}: [{key}]")
            continue
        try:
            changed[key] = TypeAdapter(hints[key], config=ConfigDict(arbitrary_types_allowed=True)).validate_python(value)
        except ValidationError as error:
            problem = error.errors()[0]
            raise ConfigError(f"{where}: {key} = {value!r}: {problem['msg']}.") from error
    return dataclasses.replace(default, **changed)  # type: ignore[type-var]


def to_toml(options: Any, *, without: Collection[str] = (), table: str = "", first: Mapping[str, str] | None = None) -> str:
    """The TOML text from which `from_toml` gives `options` back.

    Options that are None are omitted, as TOML has no null, and so are settings that no command line states.

    Args:
        options: a dataclass, nested or not.
        without: top-level fields to omit.
        table: put everything below this table.
        first: keys that stand before the options, in the table.
    """
    lines: list[str] = []
    _write(options, (table,) if table else (), lines, without)
    begin = 1 if table else 0
    lines[begin:begin] = [f"{name} = {_value(value)}" for name, value in (first or {}).items()]
    return "\n".join(lines).strip() + "\n"


def _write(options: Any, prefix: tuple[str, ...], lines: list[str], without: Collection[str] = ()) -> None:
    nested = []
    if prefix:
        lines.append(f"\n[{'.'.join(prefix)}]")
    hints = get_type_hints(type(options), include_extras=True)
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if field.name in without or tyro.conf.Fixed in getattr(hints[field.name], "__metadata__", ()):
            continue
        if dataclasses.is_dataclass(value):
            nested.append((field.name, value))
        elif value is not None:
            lines.append(f"{field.name} = {_value(value)}")
    for name, value in nested:
        _write(value, (*prefix, name), lines)


def _value(value: Any) -> str:
    if isinstance(value, Enum):
        return _value(value.value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_value(item) for item in value)}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {_value(item)}" for key, item in value.items()) + "}"
    # JSON strings are TOML basic strings, except that TOML wants DEL escaped too.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
