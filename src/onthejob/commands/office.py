"""What the commands know of the office: scenario options, and environments that worker processes can make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from onthejob.envs.office.env import OfficeConfig, OfficeEnvironment
from onthejob.envs.office.scenarios import SHIPPED, load
from onthejob.errors import ConfigError
from onthejob.types import Task


def make_office(config: OfficeConfig | None = None) -> Callable[[], OfficeEnvironment]:
    """A maker of environments that can be pickled."""
    return partial(OfficeEnvironment, config or OfficeConfig())


def scenarios_named(names: Sequence[str]) -> tuple[str, ...]:
    """The scenarios that `names` mean: `all` stands for the shipped ones; files are given by their path.

    Raises:
        ConfigError: an unknown name, a broken file, or none at all.
    """
    chosen = tuple(dict.fromkeys(part for name in names for part in (SHIPPED if name == "all" else (name,))))
    if not chosen:
        raise ConfigError(f"no scenario is named. Give `all` or some of {', '.join(SHIPPED)}.")
    for name in chosen:
        load(name)
    return chosen


def check_days(days: int) -> None:
    """Refuse a length that no episode can have, before anything is loaded.

    Raises:
        ConfigError: not in the range that the office allows.
    """
    OfficeConfig(days=days)


def scenario_of(task: Task) -> str:
    """The task's scenario, under which difficulty and results are kept."""
    return str(task.payload["scenario"])
