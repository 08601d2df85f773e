"""Environments of the user's own as the commands know them: `Own` is the `Workplace` of any `onthejob.Env`."""

from __future__ import annotations

import atexit
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from onthejob.commands.options import overlay
from onthejob.commands.terminal import jsonable
from onthejob.envs.env import Env, Reply, name_of, options_of
from onthejob.envs.running import Running, partner_of, random_legal, running
from onthejob.errors import ConfigError
from onthejob.evaluate.cache import source_fingerprint
from onthejob.models.scripted import ScriptedPolicy
from onthejob.plugins import anchored, resolve
from onthejob.rollout.branch import BranchConfig
from onthejob.rollout.collect import CollectConfig
from onthejob.train.config import TrainConfig
from onthejob.types import Environment, Policy, Sampling, Split, Task


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
    def free_text(self) -> bool:
        return True

    @property
    def hosted_partner(self) -> str:
        return ""

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

    def fitted(self, *, model: str = "", hosted: bool = False) -> Own:
        return self

    def anchored(self) -> Mapping[str, Any]:
        return self.env.anchored()

    def check_players(self, *, local: bool, models: bool) -> None:
        """No option depends on who plays."""

    def check(self, *, training: bool = False) -> None:
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

    def schedule(self, iterations: int) -> None:
        return None

    def finder(self) -> Callable[[str], Task | None]:
        return {task.id: task for task in self.tasks(Split.TRAIN)}.get

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
