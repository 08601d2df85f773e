"""Any `onthejob.Env` as it is served: what `office` and `claw` of `workplace` are for the built-in ones."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from onthejob.compat.workplace import Reply, Workplace
from onthejob.envs.env import Env, name_of
from onthejob.envs.running import running
from onthejob.errors import ConfigError
from onthejob.types import Split, Task


def own(
    env: Env, tasks: Mapping[Split, Sequence[Task]], *, players: Mapping[str, Reply] | None = None, default_player: str = ""
) -> Workplace:
    """An environment of the user's own: a client takes one of its roles, or all of them.

    Clients see a task's id, seed and family; the rest of its payload may hold what no role is to know.

    Args:
        env: with its options, and open as long as sessions are.
        tasks: by split, of which training must have some; a reset with a seed gives a training task, dev and test tasks are asked
            for by index.
        players: name -> scripted player for the roles that the client does not take.
        default_player: one of them.

    Raises:
        ConfigError: no training task, or no such default player.
    """
    training = tasks.get(Split.TRAIN)
    if not training:
        raise ConfigError(f"{type(env).__name__} has no training task, which a reset with a seed gives. Return some from tasks.")
    name = name_of(type(env))
    return Workplace(
        name=name,
        description=_described(env),
        make=partial(running, env),
        seats=tuple(env.roles),
        players=dict(players or {}),
        default_player=default_player,
        counts={split: len(held) for split, held in tasks.items() if held},
        task_at=partial(_at, name, tasks),
        task_of=partial(_of, name, training),
        seeds=range(len(training)),
        public=lambda task: {"family": env.family(task)},
        # In the server's own thread, so that an environment that asks for one thread is never stepped by two.
        inline=env.threads == 1,
    )


def _described(env: Env) -> str:
    """The first paragraph of the class's docstring, else its roles."""
    said = inspect.getdoc(type(env)) if "__doc__" in vars(type(env)) else None
    # A dataclass without a docstring is given its signature as one.
    if not said or said.startswith(f"{type(env).__name__}("):
        return f"{type(env).__name__}, with the roles {', '.join(env.roles)}."
    return " ".join(said.split("\n\n")[0].split())


def _at(name: str, tasks: Mapping[Split, Sequence[Task]], split: Split, index: int, options: Mapping[str, Any]) -> Task:
    _no_options(name, options)
    return tasks[split][index]


def _of(name: str, training: Sequence[Task], seed: int, options: Mapping[str, Any]) -> Task:
    _no_options(name, options)
    return training[seed % len(training)]


def _no_options(name: str, options: Mapping[str, Any]) -> None:
    if options:
        raise ConfigError(f"unknown option {', '.join(sorted(options))}; {name} has none of its own for a task.")
