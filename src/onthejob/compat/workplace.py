"""What a server needs to know of an environment to seat strangers in it: its seats, its tasks and who may sit beside them.

One `Workplace` per environment; the code that serves it (`seat`, `openenv`) knows no environment by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from onthejob.envs.office.env import MAX_DAYS, SEATS, OfficeConfig, OfficeEnvironment
from onthejob.envs.office.policies import as_reply, players
from onthejob.envs.office.scenarios import SHIPPED
from onthejob.envs.office.tasks import FIRST_SEED, office_tasks, split_of
from onthejob.errors import ConfigError
from onthejob.types import Environment, Observation, Split, Task

Reply = Callable[[Observation, int], str]
"""A scripted player: a pure function of the request and a seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """One environment as it is served."""

    name: str
    """Also the name in paths, e.g. `/office/splits`."""
    description: str
    make: Callable[[], Environment]
    """Cheap, without side effects: servers also call it only to describe the environment."""
    seats: tuple[str, ...]
    """Actors that a client may play; the first is the default. Others belong to the environment."""
    players: Mapping[str, Reply] = field(default_factory=dict)
    """Name -> scripted player for the seats that the client does not take."""
    default_player: str = ""
    counts: Mapping[Split, int]
    """Tasks per split, >= 1."""
    task_at: Callable[[Split, int, Mapping[str, Any]], Task]
    """(split, index in 0..count-1, options) -> task. Raises ConfigError on an unknown option or value."""
    task_of: Callable[[int, Mapping[str, Any]], Task]
    """(seed >= 0, options) -> task. Raises ConfigError on an unknown option or value."""
    seeds: range
    """Training seeds, from which a reset without a seed draws one."""
    inline: bool = False
    """True when a step is a few milliseconds of computing and never waits: it is then run without a thread."""

    def __post_init__(self) -> None:
        if not self.seats:
            raise ConfigError(f"workplace {self.name!r} has no seats. Name the actors that a client may play.")
        if self.players and self.default_player not in self.players:
            raise ConfigError(
                f"workplace {self.name!r}: default player {self.default_player!r} is none of {', '.join(self.players)}."
            )

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


OFFICE_SEEDS: Mapping[Split, int] = MappingProxyType({Split.TRAIN: 2_000, Split.DEV: 50, Split.TEST: 100})
"""Seeds per scenario that are published as tasks; any other seed can be asked for by number."""


def office(config: OfficeConfig | None = None) -> Workplace:
    """The office: six seats, the customer belongs to the environment.

    Options of a task: `scenario` (a shipped name; not with an index, which names one) and `days` (1 to 90).
    """
    config = config or OfficeConfig()
    return Workplace(
        name="office",
        description=(
            "A startup of seven roles, simulated for 30 days of 14 turns. Take one role beside scripted colleagues, or all six. "
            "The reward is what the decisions do to the company; the same seed gives the same company, luck included."
        ),
        make=partial(OfficeEnvironment, config),
        seats=SEATS,
        players={name: as_reply(player) for name, player in players(held_out=False).items()},
        default_player="heuristic",
        counts={split: count * len(SHIPPED) for split, count in OFFICE_SEEDS.items()},
        task_at=partial(_office_at, config.days),
        task_of=partial(_office_of, config.days),
        seeds=range(FIRST_SEED[Split.TRAIN], FIRST_SEED[Split.TRAIN] + 10**9),
        inline=True,
    )


def _office_at(default_days: int, split: Split, index: int, options: Mapping[str, Any]) -> Task:
    days = _days(options, default_days, allowed=("days",))
    position, scenario = divmod(index, len(SHIPPED))
    return office_tasks(split, seeds=1, days=days, first=position)[scenario]


def _office_of(default_days: int, seed: int, options: Mapping[str, Any]) -> Task:
    days = _days(options, default_days, allowed=("scenario", "days"))
    scenario = options.get("scenario", SHIPPED[0])
    # Only names: a path would let a stranger read the server's files.
    if scenario not in SHIPPED:
        raise ConfigError(f"scenario must be one of {', '.join(SHIPPED)}, got {scenario!r}.")
    payload = {"scenario": scenario, "days": days}
    return Task(id=f"office-{scenario}-{seed}-d{days}", env="office", split=split_of(seed), seed=seed, payload=payload)


def _days(options: Mapping[str, Any], default: int, *, allowed: tuple[str, ...]) -> int:
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise ConfigError(f"unknown option {', '.join(unknown)}; allowed here: {', '.join(allowed)}.")
    days = options.get("days", default)
    if isinstance(days, bool) or not isinstance(days, int) or not 1 <= days <= MAX_DAYS:
        raise ConfigError(f"days must be a whole number in 1..{MAX_DAYS}, got {days!r}.")
    return days
