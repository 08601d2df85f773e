"""Workplaces by reference: what `--env REF` and its options `--env.NAME` mean on a command line, in a file and in a record.

A command declares two fields, `env` (the reference) and `own` (the options of that environment). Its line is parsed by a subclass
in which `own` has the environment's own options (`typed`), so that no command names an option of an environment; an environment
may also put a class of its own in the place of a command. Files and records hold both as a table: `[env]` with `ref` and the
options.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Annotated, Any, Protocol, TypeVar

import tyro

from onthejob.claw import Claw
from onthejob.commands.named_env import Workplace
from onthejob.commands.options import from_table, overlay
from onthejob.commands.terminal import jsonable
from onthejob.envs.declared import options_of
from onthejob.envs.env import Env, name_of
from onthejob.errors import ConfigError
from onthejob.office import Office
from onthejob.plugins import anchored, found, resolve

log = logging.getLogger(__name__)
T = TypeVar("T")
EnvOptions = Annotated[Any, tyro.conf.Suppress]
"""Type of a command's field `own`; `typed` puts the environment's class in its place."""
OFFICE, CLAW = name_of(Office), name_of(Claw)


class Placed(Protocol):
    """A command that plays in one workplace."""

    @property
    def own(self) -> Any: ...
    def place(self) -> Workplace: ...


P = TypeVar("P", bound=Placed)


def starting(ref: str, command: str) -> Env:
    """The environment's options with which a command begins."""
    return resolve(ref).starting_options(command)


def check_parsed(ref: str, own: object, command: str) -> None:
    """Refuse an environment whose options were not read because its name stood behind other options."""
    if not isinstance(own, resolve(ref)):
        raise ConfigError(f"name the environment before the options: `onthejob {command} {ref} ...`.")


def typed(command: type[T], ref: str) -> type[T]:
    """`command`, or what the environment that `ref` names puts in its place, with the environment's options as `--env.NAME`."""
    kind, name = resolve(ref), command.__name__
    # The environment's own form of a command has the command's fields, and may have others.
    form: Any = found(kind.own_commands[name], "--env") if name in kind.own_commands else command
    own = ("own", Annotated[kind, tyro.conf.arg(name="env")], dataclasses.field(default_factory=lambda: starting(ref, name)))
    made = dataclasses.make_dataclass(name, [own], bases=(form,), frozen=True, kw_only=True)
    made.__doc__ = form.__doc__
    return made


def as_table(ref: str, own: Env, *, fingerprint: str = "") -> dict[str, Any]:
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
    claw = data.get(CLAW)
    rest = {name: value for name, value in data.items() if name not in (*flat, CLAW)}
    stated = {OFFICE: flat, CLAW: claw if isinstance(claw, Mapping) else {}}.get(ref, {})
    return rest | ({"own": stated} if stated else {})


def read_options(command: type[P], data: Mapping[str, Any], where: str) -> P:
    """The options of a command that a record states, those of its environment among them; says when its source has changed."""
    flat, recorded = from_table(data, where, earlier, OFFICE)
    ref = str(flat.get("env", OFFICE))
    kind: Any = typed(command, ref)
    # A record states all options.
    read = overlay(kind(env=ref), flat, where=where)
    if recorded and recorded != (now := read.place().fingerprint):
        log.warning("%s: the source of %s has changed since (fingerprint %s, now %s)", where, ref, recorded, now)
    return read
