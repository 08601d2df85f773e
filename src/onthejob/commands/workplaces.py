"""Workplaces by reference: what `--env REF` and its options `--env.NAME` mean on a command line, in a file and in a record.

A command declares two fields, `env` (the reference) and `own` (the options of that environment). Its line is parsed by a subclass
in which `own` has the environment's own options (`typed`), so that no command names an option of an environment. Files and
records hold both as a table: `[env]` with `ref` and the options.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Protocol, TypeVar, cast, get_type_hints

import tyro

from onthejob.commands.claw import Claw
from onthejob.commands.office import Office
from onthejob.commands.options import from_table, overlay
from onthejob.commands.own import Own
from onthejob.commands.terminal import jsonable
from onthejob.commands.workplace import Workplace
from onthejob.envs.env import Env, options_of
from onthejob.errors import ConfigError
from onthejob.plugins import anchored, resolve

log = logging.getLogger(__name__)
T = TypeVar("T")
WORKPLACES: MappingProxyType[str, type[Office] | type[Claw]] = MappingProxyType({kind.name: kind for kind in (Office, Claw)})
"""Name -> the options of a built-in workplace, which are the workplace."""
OWN_PLACE = "own"
"""Key of a command's table `OWN` under which it lists options that every environment of the user's own has."""
EnvOptions = Annotated[Any, tyro.conf.Suppress]
"""Type of a command's field `own`; `typed` puts the environment's class in its place."""


class Placed(Protocol):
    """A command that plays in one workplace."""

    @property
    def own(self) -> Any: ...
    def place(self) -> Workplace: ...


P = TypeVar("P", bound=Placed)


def is_own(ref: str) -> bool:
    """True for a reference that is no built-in workplace."""
    return ref not in WORKPLACES


def kind_of(ref: str) -> type[Any]:
    """The class of an environment's options: of a built-in workplace, or an `Env`.

    Raises:
        ConfigError: as `resolve`.
    """
    return WORKPLACES.get(ref) or resolve(ref)


def starting(ref: str, command: str) -> Any:
    """The environment's options with which a command begins.

    Raises:
        ConfigError: as `resolve`.
    """
    kind = WORKPLACES.get(ref)
    return resolve(ref)() if kind is None else kind.starting(command)


def placed(ref: str, own: Any) -> Workplace:
    """The workplace of a reference and its options."""
    # Class variables serve as the protocol's properties, which type checkers do not accept.
    return Own(ref=ref, env=own) if isinstance(own, Env) else cast(Workplace, own)


def check_parsed(ref: str, own: object, command: str) -> None:
    """Refuse an environment whose options were not read because its name stood behind other options.

    Raises:
        ConfigError: says where to write it.
    """
    if not isinstance(own, kind_of(ref)):
        raise ConfigError(f"name the environment before the options: `onthejob {command} {ref} ...`.")


def typed(command: type[T], ref: str) -> type[T]:
    """`command` with the options of the environment that `ref` names, as `--env.NAME`.

    Raises:
        ConfigError: as `resolve`.
    """
    kind = kind_of(ref)
    name = command.__name__
    own = ("own", Annotated[kind, tyro.conf.arg(name="env")], dataclasses.field(default_factory=lambda: starting(ref, name)))
    # What only the built-in workplaces have is not offered; they refuse each other's themselves.
    by_place: Mapping[str, Sequence[str]] = getattr(sys.modules[command.__module__], "OWN", {})
    known = {name for names in by_place.values() for name in names} if is_own(ref) else set()
    foreign = known - set(by_place.get(OWN_PLACE, ()))
    hints = get_type_hints(command, include_extras=True)
    hidden = [
        (one.name, Annotated[hints[one.name], tyro.conf.Suppress], _like(one))
        for one in dataclasses.fields(command)  # type: ignore[arg-type]
        if one.name in foreign
    ]
    made = dataclasses.make_dataclass(name, [own, *hidden], bases=(command,), frozen=True, kw_only=True)
    made.__doc__ = command.__doc__
    return made


def _like(one: dataclasses.Field[Any]) -> Any:
    """A field with the same default."""
    if one.default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=one.default_factory)
    return dataclasses.field(default=one.default)


def as_table(ref: str, own: Any, *, fingerprint: str = "") -> dict[str, Any]:
    """`[env]`: what a file or a record says of an environment."""
    found: dict[str, Any] = {"ref": anchored(ref)}
    if fingerprint:
        found["fingerprint"] = fingerprint
    return found | jsonable({**options_of(own), **own.anchored()})


def earlier(data: Mapping[str, Any], env: str) -> dict[str, Any]:
    """Options of a file or a record from the time before `[env]`, when those of the built-in workplaces were the command's own.

    Args:
        data: the options; `env`, if it is there, is a name.
        env: the environment where `data` names none.
    """
    ref = str(data.get("env", env))
    flat = {name: data[name] for name in Office.earlier if name in data}
    claw = data.get(Claw.name)
    rest = {name: value for name, value in data.items() if name not in (*flat, Claw.name)}
    stated = {Office.name: flat, Claw.name: claw if isinstance(claw, Mapping) else {}}.get(ref, {})
    return rest | ({"own": stated} if stated else {})


def read_options(command: type[P], data: Mapping[str, Any], where: str) -> P:
    """The options of a command that a record states, those of its environment among them; says when its source has changed.

    Raises:
        ConfigError: an environment that is gone, or options that are not this version's.
    """
    flat, recorded = from_table(data, where, earlier, Office.name)
    ref = str(flat.get("env", Office.name))
    kind: Any = typed(command, ref)
    # A record states all options.
    read = overlay(kind(env=ref), flat, where=where)
    if recorded and recorded != (now := read.place().fingerprint):
        log.warning("%s: the source of %s has changed since (fingerprint %s, now %s)", where, ref, recorded, now)
    return read
