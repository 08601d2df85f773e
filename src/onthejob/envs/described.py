"""An Env's own description, checked: its tasks, its scripted players, and its default player."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence

from onthejob.envs.env import Env
from onthejob.envs.exchange import Reply
from onthejob.envs.running import random_legal
from onthejob.errors import ConfigError
from onthejob.types import Split, Task


def tasks_of(env: Env, split: Split) -> list[Task]:
    """The tasks of a split.

    Raises:
        ConfigError: there are none, one is of another split, or two have one id.
    """
    found, kind = env.tasks(split), type(env).__name__
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


def players_of(env: Env, tasks: Sequence[Task] = ()) -> dict[str, Reply]:
    """Name -> scripted player for these tasks; `random` is among them where the first request lists legal replies."""
    found = dict(env.players_for(tasks))
    # One that brings an environment of its own names all of its players itself.
    if "random" not in found and type(env).make_environment is Env.make_environment and _shows_legal(env, tasks):
        found["random"] = random_legal
    return found


def partner_named(env: Env) -> str:
    """Name of the usual scripted player; empty where there is none."""
    return env.partner or next(iter(env.players() or players_of(env)), "")


def description_of(env: Env) -> str:
    """The first paragraph of the class's docstring (all of it where it brings an environment of its own), else its roles."""
    said = inspect.getdoc(type(env)) if "__doc__" in vars(type(env)) else None
    # A dataclass without a docstring is given its signature as one.
    if not said or said.startswith(f"{type(env).__name__}("):
        return f"{type(env).__name__}, with the roles {', '.join(env.roles)}."
    brings = type(env).make_environment is not Env.make_environment
    return " ".join((said if brings else said.split("\n\n")[0]).split())


def _shows_legal(env: Env, tasks: Sequence[Task]) -> bool:
    """Whether the first request of an episode lists legal replies; asked of an instance of its own, opened for it."""
    task = tasks[0] if tasks else tasks_of(env, Split.TRAIN)[0]
    other = dataclasses.replace(env)  # type: ignore[type-var]
    other.open()
    try:
        return bool(other.make_environment().reset(task).view.get("legal"))
    finally:
        other.close()
