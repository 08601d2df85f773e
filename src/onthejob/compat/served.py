"""What a server needs to know of an environment to seat strangers in it: its seats, its tasks and the players of the other seats.

The code that serves it (`seat_session`, `openenv`) knows no environment by name; `served` makes one of any `onthejob.Env`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from onthejob.envs.described import description_of, players_of, tasks_of
from onthejob.envs.env import Env, name_of
from onthejob.envs.exchange import Options, Reply, ServedTasks
from onthejob.errors import ConfigError
from onthejob.types import Environment, Split, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One environment as it is served."""

    name: str
    """Also the name in paths, e.g. `/office/splits`."""
    description: str
    make: Callable[[], Environment]
    """Cheap: servers also call it only to describe the environment."""
    seats: tuple[str, ...]
    """Actors that a client may play; the first is the default. Others belong to the environment."""
    players: Mapping[str, Reply] = field(default_factory=dict)
    """Name -> scripted player for the seats that the client does not take."""
    default_player: str = ""
    counts: Mapping[Split, int]
    """Tasks per split, >= 1."""
    task_at: Callable[[Split, int, Options], Task]
    """(split, index in 0..counts-1, options) -> task. Raises ConfigError on an unknown option or value."""
    task_of: Callable[[int, Options], Task]
    """(seed >= 0, options) -> task. Raises ConfigError on an unknown option or value."""
    seeds: range
    """Training seeds, from which a reset without a seed draws one."""
    public: Callable[[Task], Mapping[str, Any]] = lambda task: dict(task.payload)
    """What a client may know of a task in addition to its id and seed."""
    inline: bool = False
    """True when a step is a few milliseconds of computing and never waits: it is then run without a thread."""

    def __post_init__(self) -> None:
        if not self.seats:
            raise ConfigError(f"{self.name!r} has no seats. Name the actors that a client may play.")
        if self.players and self.default_player not in self.players:
            raise ConfigError(f"{self.name!r}: default player {self.default_player!r} is none of {', '.join(self.players)}.")

    def count(self, split: str) -> int:
        """Number of tasks of a split.

        Raises:
            ConfigError: no such split.
        """
        return self.counts[self.split(split)]

    def split(self, name: object) -> Split:
        """The split of this name.

        Raises:
            ConfigError: there is none.
        """
        known = [str(split) for split in self.counts]
        if not isinstance(name, str) or name not in known:
            raise ConfigError(f"split must be one of {', '.join(known)}, got {name!r}.")
        return Split(name)


def over(offered: ServedTasks, **described: Any) -> Served:
    """What is served of these tasks and players; `described` are the other fields of `Served`."""
    return Served(
        players=offered.players,
        default_player=offered.partner,
        counts=offered.counts,
        task_at=offered.task_at,
        task_of=offered.task_of,
        seeds=offered.seeds,
        **described,
    )


def served(env: Env) -> Served:
    """An environment as clients meet it: one takes one of its roles, or all of them.

    Args:
        env: with its options; it must be open as long as sessions are.

    Raises:
        ConfigError: no training task, or no such partner.
    """
    return over(
        env.served_tasks() or _all_tasks(env),
        name=name_of(type(env)),
        description=description_of(env),
        make=env.make_environment,
        seats=tuple(env.roles),
        public=env.public_facts,
        inline=env.steps_inline,
    )


def _all_tasks(env: Env) -> ServedTasks:
    """All tasks and players: a reset with a seed gives a training task, the others are asked for by index."""
    tasks = {split: tasks_of(env, split) for split in env.task_splits()}
    name, training = name_of(type(env)), tasks.get(Split.TRAIN, [])
    if not training:
        raise ConfigError(f"a reset with a seed gives a training task, and {name} has none. Add some, e.g. as train.jsonl.")
    players = players_of(env, training)
    return ServedTasks(
        counts={split: len(held) for split, held in tasks.items()},
        task_at=partial(_at, name, tasks),
        task_of=partial(_of, name, training),
        seeds=range(len(training)),
        players=players,
        partner=env.partner or next(iter(players), ""),
    )


def _at(name: str, tasks: Mapping[Split, Sequence[Task]], split: Split, index: int, options: Options) -> Task:
    _no_options(name, options)
    return tasks[split][index]


def _of(name: str, training: Sequence[Task], seed: int, options: Options) -> Task:
    _no_options(name, options)
    return training[seed % len(training)]


def _no_options(name: str, options: Options) -> None:
    if options:
        raise ConfigError(f"unknown option {', '.join(sorted(options))}; {name} has none of its own for a task.")
