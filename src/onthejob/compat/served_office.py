"""The office as it is served: its published tasks, and all of it for servers that have nothing of what training needs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from onthejob.compat.served import Served, over
from onthejob.envs.exchange import ServedTasks
from onthejob.envs.office.env import SEATS, OfficeConfig, OfficeEnvironment
from onthejob.envs.office.policies import as_reply, players
from onthejob.envs.office.scenarios import SHIPPED
from onthejob.envs.office.tasks import FIRST_SEED, MAX_DAYS, office_tasks, split_of
from onthejob.errors import ConfigError
from onthejob.types import Split, Task

DESCRIPTION = (
    "A startup of seven roles, run day by day for 30 days of 14 turns; what a decision does to its value is the reward. Take one "
    "role among scripted colleagues, or all six. The same seed gives the same company, luck included."
)
SERVED_SEEDS: Mapping[Split, int] = MappingProxyType({Split.TRAIN: 2_000, Split.DEV: 50, Split.TEST: 100})
"""Seeds per scenario that a server publishes as tasks; any other seed can be asked for by number."""


def office_tasks_served(days: int) -> ServedTasks:
    """Any seed of a shipped scenario, `days` long unless a client says otherwise, with the players that are not held out."""
    return ServedTasks(
        counts={split: count * len(SHIPPED) for split, count in SERVED_SEEDS.items()},
        task_at=partial(_task_at, days),
        task_of=partial(_task_of, days),
        seeds=range(FIRST_SEED[Split.TRAIN], FIRST_SEED[Split.TRAIN] + 10**9),
        players={name: as_reply(player) for name, player in players(held_out=False).items()},
        partner="heuristic",
    )


def served_office() -> Served:
    """The office with its usual options, as `served(Office())`; it imports nothing but the simulator."""
    config = OfficeConfig()
    return over(
        office_tasks_served(config.days),
        name="office",
        description=DESCRIPTION,
        make=partial(OfficeEnvironment, config),
        seats=SEATS,
        inline=True,
    )


def _task_at(usual_days: int, split: Split, index: int, options: Mapping[str, Any]) -> Task:
    days = _days(options, usual_days, allowed=("days",))
    position, scenario = divmod(index, len(SHIPPED))
    return office_tasks(split, seeds=1, days=days, first=position)[scenario]


def _task_of(usual_days: int, seed: int, options: Mapping[str, Any]) -> Task:
    days = _days(options, usual_days, allowed=("scenario", "days"))
    scenario = options.get("scenario", SHIPPED[0])
    # Only names: a path would let a stranger read the server's files.
    if scenario not in SHIPPED:
        raise ConfigError(f"scenario must be one of {', '.join(SHIPPED)}, got {scenario!r}.")
    payload = {"scenario": scenario, "days": days}
    return Task(id=f"office-{scenario}-{seed}-d{days}", env="office", split=split_of(seed), seed=seed, payload=payload)


def _days(options: Mapping[str, Any], usual: int, *, allowed: tuple[str, ...]) -> int:
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise ConfigError(f"unknown option {', '.join(unknown)}; allowed here: {', '.join(allowed)}.")
    days = options.get("days", usual)
    if isinstance(days, bool) or not isinstance(days, int) or not 1 <= days <= MAX_DAYS:
        raise ConfigError(f"days must be a whole number in 1..{MAX_DAYS}, got {days!r}.")
    return days
