"""Environments of the user's own as the commands know them: `--env REF` and its options `--env.NAME`.

`Own` is the `Workplace` of any `onthejob.Env`; the command line is parsed by a subclass of the command whose field `own` has the
environment's own options. Files and records hold both as a table: `[env]` with `ref` and the options.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, get_type_hints

import tyro

from onthejob.commands.options import from_table, overlay
from onthejob.commands.terminal import jsonable
from onthejob.envs.env import Env, Reply, name_of, options_of
from onthejob.envs.running import Running, partner_of, random_legal, running
from onthejob.errors import ConfigError
from onthejob.evaluate.cache import source_fingerprint
from onthejob.models.scripted import ScriptedPolicy
from onthejob.plugins import BUILT_IN, anchored, resolve
from onthejob.rollout.branch import BranchConfig
from onthejob.rollout.collect import CollectConfig
from onthejob.train.config import TrainConfig
from onthejob.types import Environment, Policy, Sampling, Split, Task

log = logging.getLogger(__name__)
T = TypeVar("T")
OWN_PLACE = "own"
"""Key of a command's table `OWN` under which it lists options that every environment of the user's own has."""
OwnEnv = Annotated[Any, tyro.conf.Suppress]
"""Type of a command's field `own`; `typed` puts the environment's class in its place."""


def is_own(ref: str) -> bool:
    """True for a reference that is no built-in workplace."""
    return ref not in BUILT_IN


def check_parsed(ref: str, own: object, command: str) -> None:
    """Refuse an environment whose options were not read because its name stood behind other options.

    Raises:
        ConfigError: says where to write it.
    """
    if own is None and is_own(ref):
        raise ConfigError(f"name the environment before the options: `onthejob {command} {ref} ...`.")


def typed(command: type[T], ref: str) -> type[T]:
    """`command` with the options of the environment that `ref` names, as `--env.NAME`.

    Raises:
        ConfigError: as `resolve`.
    """
    kind = resolve(ref)
    own = ("own", Annotated[kind, tyro.conf.arg(name="env")], dataclasses.field(default_factory=kind))
    # What only the built-in workplaces have is not offered.
    by_place: Mapping[str, Sequence[str]] = getattr(sys.modules[command.__module__], "OWN", {})
    foreign = {name for names in by_place.values() for name in names} - set(by_place.get(OWN_PLACE, ()))
    hints = get_type_hints(command, include_extras=True)
    hidden = [
        (one.name, Annotated[hints[one.name], tyro.conf.Suppress], _like(one))
        for one in dataclasses.fields(command)  # type: ignore[arg-type]
        if one.name in foreign
    ]
    made = dataclasses.make_dataclass(command.__name__, [own, *hidden], bases=(command,), frozen=True, kw_only=True)
    made.__doc__ = command.__doc__
    return made


def _like(one: dataclasses.Field[Any]) -> Any:
    """A field with the same default."""
    if one.default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=one.default_factory)
    return dataclasses.field(default=one.default)


def as_table(ref: str, own: Env, *, fingerprint: str = "") -> dict[str, Any]:
    """`[env]`: what a file or a record says of an environment."""
    found: dict[str, Any] = {"ref": anchored(ref)}
    if fingerprint:
        found["fingerprint"] = fingerprint
    return found | jsonable({**options_of(own), **own.anchored()})


def read_options(command: type[T], data: Mapping[str, Any], where: str, starting: Callable[[type[T], str], T]) -> T:
    """The options of a command that a record states, those of its environment among them; says when its source has changed.

    Raises:
        ConfigError: an environment that is gone, or options that are not this version's.
    """
    flat, recorded = from_table(data, where)
    ref = str(flat.get("env", "office"))
    if not is_own(ref):
        return overlay(starting(command, "office"), flat, where=where)
    read = overlay(starting(typed(command, ref), ref), flat, where=where)
    now = Own(ref=ref, env=read.own).fingerprint  # type: ignore[attr-defined]
    if recorded and recorded != now:
        log.warning("%s: the source of %s has changed since (fingerprint %s, now %s)", where, ref, recorded, now)
    return read


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """An environment of the user's own; a `Workplace` for the commands."""

    ref: str
    env: Env
    """With its options; no episode is played on it."""

    @property
    def name(self) -> str:
        return name_of(type(self.env))

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(self.env.roles)

    @property
    def shown(self) -> tuple[str, ...]:
        by_role = tuple(f"reward/{role}" for role in self.roles) if len(self.roles) > 1 else ()
        return tuple(dict.fromkeys((*self.headline, *by_role, "turns", "invalid", "completion_tokens", "wall_s")))

    @property
    def headline(self) -> tuple[str, ...]:
        return tuple(self.env.headline)

    @property
    def max_new_tokens(self) -> int:
        return self.env.max_new_tokens

    @property
    def threads(self) -> int:
        return self.env.threads

    @property
    def forkable(self) -> bool:
        return self.env.forks != "no"

    @property
    def goes_on(self) -> bool:
        return True

    @property
    def max_turns(self) -> int:
        return self.env.max_turns

    @property
    def fingerprint(self) -> str:
        # By what a name means, not by how it is spelt: an absolute path and a relative one play the same.
        settings = sorted({**options_of(self.env), **self.env.anchored()}.items())
        return source_fingerprint(type(self.env), settings=f"{settings!r}{self.env.fingerprint()}")

    def loop(self) -> TrainConfig:
        return TrainConfig(
            grouping="episodes",
            collect=CollectConfig(episodes=8),
            branch=BranchConfig(group_size=8),
            sampling=Sampling(max_new_tokens=self.max_new_tokens),
            max_turns=self.max_turns,
            workers=self.threads,
            best_metric="episode_reward",
        )

    def check(self) -> None:
        if unknown := [name for name in self.headline if not isinstance(name, str) or not name]:
            raise ConfigError(f"{type(self.env).__name__}.headline must name metrics, got {unknown[0]!r}.")
        if self.env.partner:
            partner_of(self.env)
        self.tasks(Split.TRAIN)

    def tasks(self, split: Split) -> list[Task]:
        found, kind = self.env.tasks(split), type(self.env).__name__
        if not isinstance(found, Sequence) or not found:
            raise ConfigError(f"{kind}.tasks({split!s}) returned {found!r:.60}. Return a list of tasks, e.g. self.seeded(split).")
        for task in found:
            if not isinstance(task, Task):
                raise ConfigError(f"{kind}.tasks({split!s}) holds {task!r:.60}, which is no Task. Use self.seeded(split).")
            if task.split is not split:
                raise ConfigError(f"{kind}.tasks({split!s}) holds {task.id} of split {task.split!s}. Give each its own tasks.")
        if len({task.id for task in found}) != len(found):
            raise ConfigError(f"{kind}.tasks({split!s}) holds two tasks of one id. Give every task an id of its own.")
        return list(found)

    def splits(self) -> dict[Split, list[Task]]:
        """The tasks of every split."""
        return {split: self.tasks(split) for split in Split}

    def family(self, task: Task) -> str:
        return self.env.family(task)

    def groupings(self) -> Mapping[str, Callable[[Task], str]]:
        return self.env.groupings()

    def grow(self) -> None:
        return None

    def curriculum(self, iterations: int) -> None:
        return None

    @contextmanager
    def opened(self) -> Iterator[Callable[[], Environment]]:
        self.env.open()
        try:
            yield Maker(self.ref, self.env)
        finally:
            self.env.close()

    def replies(self, tasks: Sequence[Task]) -> Mapping[str, Reply]:
        """Name -> scripted player as a function; `random` is among them where the first request lists legal replies."""
        found = dict(self.env.players())
        if "random" not in found and self._shows_legal(tasks):
            found["random"] = random_legal
        return found

    def players(self, tasks: Sequence[Task]) -> Mapping[str, Policy]:
        return {name: ScriptedPolicy(reply, version=name) for name, reply in self.replies(tasks).items()}

    @property
    def partner(self) -> str:
        """Name of the usual scripted player; empty where there is none."""
        return self.env.partner or next(iter(self.env.players() or self.replies(())), "")

    def partners(self, split: Split) -> Mapping[str, Policy]:
        known = self.players(())
        return dict.fromkeys(self.roles, known[self.partner]) if known else {}

    def _shows_legal(self, tasks: Sequence[Task]) -> bool:
        """Whether the first request of an episode lists legal replies; asked of an instance of its own, opened for it."""
        task = tasks[0] if tasks else self.tasks(Split.TRAIN)[0]
        env = dataclasses.replace(self.env)  # type: ignore[type-var]
        env.open()
        try:
            return bool(running(env).reset(task).view.get("legal"))
        finally:
            env.close()


class Maker:
    """Makes the environments of an episode; a worker process that is given one resolves and opens its own."""

    def __init__(self, ref: str, env: Env) -> None:
        self._ref, self._env = ref, env

    def __call__(self) -> Running:
        return running(self._env)

    def __reduce__(self) -> tuple[Any, ...]:
        return _maker, (anchored(self._ref), json.dumps(jsonable(options_of(self._env))))


def _maker(ref: str, options: str) -> Maker:
    return Maker(ref, _opened(ref, options))


@cache
def _opened(ref: str, options: str) -> Env:
    """The environment of a worker process; open until it ends."""
    kind = resolve(ref)
    env = overlay(kind(), json.loads(options), where=f"the options of {ref}")
    env.open()
    atexit.register(env.close)
    return env
