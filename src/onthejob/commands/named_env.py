"""An environment as the commands play, train and judge in it: an `onthejob.Env` and the reference that named it.

Nothing below the commands knows references: the loop, the comparison and the rest are handed what they need.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from onthejob.checkout import missing_player
from onthejob.commands.options import overlay
from onthejob.commands.terminal import jsonable
from onthejob.envs.declared import options_of
from onthejob.envs.described import partner_named, players_of, tasks_of
from onthejob.envs.env import Env, name_of
from onthejob.envs.exchange import Reply
from onthejob.errors import ConfigError, ContractError
from onthejob.evaluate.cache import source_fingerprint
from onthejob.models.scripted import ScriptedPolicy
from onthejob.plugins import BUILT_IN, anchored, resolve
from onthejob.rollout.apart import Apart
from onthejob.rollout.branch import BranchConfig
from onthejob.rollout.collect import CollectConfig
from onthejob.train.config import TrainConfig
from onthejob.types import Environment, Policy, Sampling, Split, Task

if TYPE_CHECKING:
    from onthejob.models.hosted import SchemaOf


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """One environment, as commands play, train and judge in it."""

    ref: str
    env: Env
    """With its options; it plays no episode itself."""

    @property
    def name(self) -> str:
        return name_of(type(self.env))

    @property
    def roles(self) -> tuple[str, ...]:
        """Actors that can be trained."""
        return tuple(self.env.roles)

    def why_not(self, unknown: Collection[str]) -> str:
        """End of a message that refuses these roles: what the environment says of them; else empty."""
        return "".join(f" {reason}" for role in unknown if (reason := self.env.why_untrained(role)))

    @property
    def shown(self) -> tuple[str, ...]:
        """Metrics of an episode that a table shows."""
        by_role = tuple(f"reward/{role}" for role in self.roles) if len(self.roles) > 1 else ()
        usual = (*self.headline, *by_role, "turns", "invalid", "completion_tokens", "wall_s")
        return tuple(self.env.shown_metrics) or tuple(dict.fromkeys(usual))

    @property
    def headline(self) -> tuple[str, ...]:
        """Those of which differences are shown."""
        return tuple(self.env.headline)

    @property
    def plain(self) -> bool:
        """Episodes are played by the Env's own `reset` and `step`."""
        return type(self.env).make_environment is Env.make_environment

    @property
    def workers(self) -> int:
        """Threads that step environments when whole episodes are played; more than 1 where stepping waits."""
        return max(self.env.threads, self.env.processes)

    @property
    def forkable(self) -> bool:
        """Decisions can be branched; else only whole episodes are compared."""
        return self.env.forks != "no"

    @property
    def fingerprint(self) -> str:
        """Of code and rules: results are cached under it."""
        # By what a name means, not by how it is spelt: an absolute path and a relative one play the same.
        settings = sorted({**options_of(self.env), **self.env.anchored()}.items())
        own = self.env.full_fingerprint()
        return own or source_fingerprint(type(self.env), settings=f"{settings!r}{self.env.fingerprint()}")

    @property
    def schema(self) -> SchemaOf | None:
        """What replies of hosted models must look like; None where they are free text."""
        if type(self.env).reply_schema is Env.reply_schema:
            return None
        return lambda context: self.env.reply_schema(context.observation)

    @property
    def partner(self) -> str:
        """Name of the usual scripted player; empty where there is none."""
        return partner_named(self.env)

    def loop(self) -> TrainConfig:
        """Defaults of the training loop."""
        env, episodes = self.env, self.env.usual_grouping == "episodes"
        usual = TrainConfig()
        return dataclasses.replace(
            usual,
            grouping=env.usual_grouping,
            collect=CollectConfig(episodes=8) if episodes else usual.collect,
            branch=BranchConfig(group_size=env.usual_group_size),
            sampling=Sampling(max_new_tokens=env.max_new_tokens),
            max_turns=usual.max_turns if self.ref in BUILT_IN else env.max_turns,
            workers=self.workers if episodes else usual.workers,
            best_metric=env.best_metric,
        )

    def fitted(self, *, model: str = "", hosted: bool = False) -> Self:
        """As `Env.fitted`."""
        return dataclasses.replace(self, env=self.env.fitted(model=model, hosted=hosted))

    def check(self, *, training: bool = False) -> None:
        """Refuse what cannot work, before anything is loaded.

        Args:
            training: also that with which nothing can be trained.
        """
        if unknown := [name for name in self.headline if not isinstance(name, str) or not name]:
            raise ConfigError(f"{type(self.env).__name__}.headline must name metrics, got {unknown[0]!r}.")
        self.env.check_options(training=training)
        if self.env.processes and not self.plain:
            raise ConfigError(
                f"processes must be 0 for {self.ref}, which brings an environment of its own; got {self.env.processes}."
            )
        if self.env.partner and not self.env.hosted_partner:
            known = [*self.env.players(), *(["random"] if self.plain else [])]
            if self.env.partner not in known:
                option = "--env.partner" if "partner" in options_of(self.env) else f"{type(self.env).__name__}.partner"
                raise ConfigError(
                    missing_player(self.env.partner)
                    or f"{option} is {self.env.partner!r}, and its players are {', '.join(dict.fromkeys(known))}."
                )
        if type(self.env).check_options is Env.check_options:
            # Nothing but its tasks says whether it can be played.
            self.tasks(Split.TRAIN)

    def tasks(self, split: Split) -> list[Task]:
        """The tasks of a split; errors as of `tasks_of`."""
        return tasks_of(self.env, split)

    def splits(self) -> dict[Split, list[Task]]:
        """The tasks of every split that has any."""
        return {split: self.tasks(split) for split in self.env.task_splits()}

    @contextmanager
    def opened(self) -> Iterator[Callable[[], Environment]]:
        """What makes environments, for as long as the context lasts."""
        self.env.open()
        try:
            self._check_shadowed()
            maker = Maker(self.ref, self.env)
            if not self.env.processes:
                yield maker
                return
            with closing(Apart(maker, self.env.processes, limit_s=self.env.step_limit_s)) as apart:
                yield apart
        finally:
            self.env.close()

    def _check_shadowed(self) -> None:
        """Refuse an Env in which `open` has put a value in the place of a method."""
        if wrong := [name for name in vars(self.env) if callable(getattr(Env, name, None))]:
            kind = type(self.env).__name__
            raise ContractError(f"{kind}.open sets self.{wrong[0]}, which is a method of every Env. Keep it under another name.")

    def replies(self, tasks: Sequence[Task]) -> Mapping[str, Reply]:
        """Name -> scripted player as a function, for these tasks."""
        return players_of(self.env, tasks)

    def players(self, tasks: Sequence[Task]) -> Mapping[str, Policy]:
        """Name -> scripted player of any role, for these tasks."""
        return {name: ScriptedPolicy(reply, version=name) for name, reply in self.replies(tasks).items()}

    def partners(self) -> Mapping[str, Policy]:
        """Role -> its player when it is not trained; empty where there is none, or where none is needed."""
        if len(self.roles) == 1 and not self.forkable:
            return {}
        known, name = self.players(()), self.partner
        if known and name not in known:
            raise ConfigError(f"the partner {name!r} is no scripted player of {self.name}, which has {', '.join(known)}.")
        return dict.fromkeys(self.roles, known[name]) if known else {}


class Maker:
    """Makes the environments of an episode; a worker process that is given one resolves and opens its own."""

    def __init__(self, ref: str, env: Env) -> None:
        self._ref, self._env = ref, env

    def __call__(self) -> Environment:
        return self._env.make_environment()

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


def refuse_unused(place: Any, start: Any, names: Sequence[str], command: str) -> None:
    """Refuse options of an environment that were given although a command does not use them.

    Args:
        place: the options.
        start: those with which the command begins.
        names: options that have no effect in it.
        command: its words, for the message.
    """
    if given := [f"--env.{name.replace('_', '-')}" for name in names if getattr(place, name) != getattr(start, name)]:
        raise ConfigError(f"{', '.join(given)} has no effect in `{command}`. Leave it out.")


def changed(command: Any, field: dataclasses.Field[Any]) -> bool:
    """True when an option is not at its default."""
    default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    return getattr(command, field.name) != default
