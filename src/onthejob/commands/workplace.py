"""What the commands need to know of a workplace: its tasks, environments, players and figures.

One class per built-in workplace implements `Workplace` (`WORKPLACES` in `onthejob.commands.workplaces` lists them), and
`onthejob.commands.own.Own` is any environment of the user's own. An instance is a workplace as the command line described it.
Nothing below the commands knows any of this: the loop, the comparison and the rest are handed what they need.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from onthejob.errors import ConfigError
from onthejob.rollout.pool import Curriculum, Grow
from onthejob.train.config import TrainConfig
from onthejob.types import Environment, Policy, Split, Task


class Workplace(Protocol):
    """One environment, as commands play, train and judge in it."""

    @property
    def name(self) -> str: ...
    @property
    def roles(self) -> tuple[str, ...]:
        """Actors that can be trained."""
        ...

    @property
    def shown(self) -> tuple[str, ...]:
        """Metrics of an episode that a table shows."""
        ...

    @property
    def headline(self) -> tuple[str, ...]:
        """Those of which differences are shown."""
        ...

    @property
    def max_new_tokens(self) -> int:
        """Usual limit of a reply."""
        ...

    @property
    def threads(self) -> int:
        """Threads that step environments when whole episodes are played; more than 1 where stepping waits."""
        ...

    @property
    def forkable(self) -> bool:
        """Decisions can be branched; else only whole episodes are compared."""
        ...

    @property
    def goes_on(self) -> bool:
        """What a model was shown usually comes back with its reply and more behind it: samplers then keep it."""
        ...

    @property
    def free_text(self) -> bool:
        """Replies have no schema to which hosted models could be held."""
        ...

    @property
    def hosted_partner(self) -> str:
        """The hosted model that plays roles that are not trained; empty where a scripted player does."""
        ...

    def loop(self) -> TrainConfig:
        """Defaults of the training loop."""
        ...

    def fitted(self, *, model: str = "", hosted: bool = False) -> Workplace:
        """This workplace with the options that were left open as they follow from who plays.

        Args:
            model: the local model, with which the loop or a team samples.
            hosted: a hosted model plays.
        """
        ...

    def anchored(self) -> Mapping[str, Any]:
        """Options that are recorded otherwise than they were given: paths are absolute, so that every folder finds them."""
        ...

    @property
    def max_turns(self) -> int:
        """Turns after which an episode is over in any case."""
        ...

    @property
    def fingerprint(self) -> str:
        """Of code and rules: results are cached under it."""
        ...

    def check(self, *, training: bool = False) -> None:
        """Refuse options that cannot work, before anything is loaded.

        Args:
            training: also those with which nothing can be trained.

        Raises:
            ConfigError: says which.
        """
        ...

    def check_players(self, *, local: bool, models: bool) -> None:
        """Refuse options that have no effect on those who play.

        Args:
            local: a model of this machine plays.
            models: some model plays, hosted ones included.

        Raises:
            ConfigError: says which.
        """
        ...

    def tasks(self, split: Split) -> list[Task]:
        """The tasks of a split."""
        ...

    def family(self, task: Task) -> str:
        """Under which name the pool keeps the task's statistics."""
        ...

    def groupings(self) -> Mapping[str, Callable[[Task], str]]:
        """Name -> what tasks are told apart by in a comparison; the first is the one for intervals."""
        ...

    def grow(self) -> Grow | None:
        """More training tasks when the pool has nothing more to teach; None where there are none."""
        ...

    def schedule(self, iterations: int) -> Curriculum | None:
        """What changes sampled tasks in a run of so many iterations; None plays them as they are."""
        ...

    def finder(self) -> Callable[[str], Task | None]:
        """Function that finds a training task by its id, also one that the pool grew by.

        It returns None where no task has the id, or where records themselves say from which state an episode began.
        """
        ...

    def opened(self) -> AbstractContextManager[Callable[[], Environment]]:
        """What makes environments, for as long as the context lasts."""
        ...

    def players(self, tasks: Sequence[Task]) -> Mapping[str, Policy]:
        """Name -> scripted player of any role, for these tasks."""
        ...

    def partners(self, split: Split) -> Mapping[str, Policy]:
        """Role -> who plays it when it is not trained; empty where all roles are.

        Raises:
            ConfigError: nobody of that name, or for training somebody who is held out from it.
        """
        ...


def refuse_foreign(command: Any, env: str, own: Mapping[str, Sequence[str]]) -> None:
    """Refuse an option that was given although it belongs to another workplace and has no effect in this one.

    Args:
        command: a dataclass of options.
        env: the workplace that was chosen.
        own: workplace -> names of the options that only it has.

    Raises:
        ConfigError: names them.
    """
    foreign = {name for place, names in own.items() if place != env for name in names} - set(own.get(env, ()))
    given = [field.name for field in dataclasses.fields(command) if field.name in foreign and changed(command, field)]
    if given:
        flags = ", ".join("--" + name.replace("_", "-") for name in given)
        raise ConfigError(f"{flags} has no effect in the workplace {env!r}. Leave it out.")


def refuse_unused(place: Any, start: Any, names: Sequence[str], command: str) -> None:
    """Refuse options of an environment that were given although a command does not use them.

    Args:
        place: the options.
        start: those with which the command begins.
        names: options that have no effect in it.
        command: its words, for the message.

    Raises:
        ConfigError: names them.
    """
    if given := [f"--env.{name.replace('_', '-')}" for name in names if getattr(place, name) != getattr(start, name)]:
        raise ConfigError(f"{', '.join(given)} has no effect in `{command}`. Leave it out.")


def changed(command: Any, field: dataclasses.Field[Any]) -> bool:
    """True when an option is not at its default."""
    default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    return getattr(command, field.name) != default
