"""Which episodes exist: tasks per split. Training seeds are 100,000 and above, dev and test seeds are apart and below.

Training refuses dev and test tasks (`TaskPool`), their seeds under another split, and held-out scenarios (`refuse_training`);
evaluation refuses training tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from onthejob.envs.office.company_state import HELD_OUT
from onthejob.envs.office.luck import Sub, draw, mix
from onthejob.envs.office.scenarios import SHIPPED, Scenario, as_data, is_held_out, load
from onthejob.envs.office.scenarios.difficulty import at_difficulty
from onthejob.errors import ConfigError
from onthejob.types import Split, Task

FIRST_SEED: MappingProxyType[Split, int] = MappingProxyType({Split.TRAIN: 100_000, Split.DEV: 1_000, Split.TEST: 50_000})
"""Seeds of a split begin here."""
SEED_COUNT: MappingProxyType[Split, int] = MappingProxyType({Split.TRAIN: 10**9, Split.DEV: 49_000, Split.TEST: 50_000})
"""So many seeds belong to a split."""
PAYLOAD = frozenset({"scenario", "days", "world", "difficulty", "names"})
"""Keys that a task's payload may have."""
DRAWN = "drawn"
"""What a payload's `names` says where the seed draws them."""
MAX_DAYS = 90
MAX_WORLD = 2**31


def office_tasks(
    split: Split,
    *,
    seeds: int,
    scenarios: Sequence[str] = SHIPPED,
    days: int = 30,
    first: int = 0,
    drawn_names: float = 0.0,
) -> list[Task]:
    """`seeds` tasks per scenario; scenarios alternate, and no seed is shared between scenarios.

    Args:
        split: train, dev or test.
        seeds: episodes per scenario, >= 1.
        scenarios: names or TOML paths.
        days: length of the episodes.
        first: skip so many seeds per scenario, for extending an evaluation.
        drawn_names: share of the tasks, chosen by their seeds, in which features and accounts are called as the seed draws.

    Raises:
        ConfigError: no scenario, a held-out one for training, a share outside [0, 1], or the split has no such many seeds.
    """
    if seeds < 1 or first < 0 or not scenarios:
        raise ConfigError(f"office tasks need seeds >= 1, first >= 0 and a scenario, got {seeds}, {first} and {list(scenarios)}.")
    if not 0.0 <= drawn_names <= 1.0:
        raise ConfigError(
            f"the share of companies with drawn names must be in [0, 1], got {drawn_names}. Set --env.drawn-names 0.5."
        )
    if split is Split.TRAIN:
        for scenario in scenarios:
            _refuse_scenario(load(scenario))
    limit = SEED_COUNT[split]
    if (first + seeds) * len(scenarios) > limit:
        raise ConfigError(f"split {split} has {limit} seeds, asked for {(first + seeds) * len(scenarios)}. Use fewer.")
    tasks = []
    for index in range(first, first + seeds):
        for offset, scenario in enumerate(scenarios):
            seed = FIRST_SEED[split] + index * len(scenarios) + offset
            drawn = draw(mix(seed, Sub.NAME), Sub.NAME, 0, 0) < drawn_names
            payload = {"scenario": scenario, "days": days, **({"names": DRAWN} if drawn else {})}
            name = f"office-{scenario}-{seed}-d{days}" + (f"-{DRAWN}" if drawn else "")
            tasks.append(Task(id=name, env="office", split=split, seed=seed, payload=payload))
    return tasks


def refuse_training(task: Task, scenario: Scenario) -> None:
    """Refuse to train on what is kept for evaluation; tasks of other splits pass.

    Raises:
        ConfigError: a training task of a held-out scenario, or with a dev or test seed.
    """
    if task.split is not Split.TRAIN:
        return
    _refuse_scenario(scenario)
    if split_of(task.seed) is not Split.TRAIN:
        raise ConfigError(
            f"training refuses evaluation seeds: task {task.id!r} has seed {task.seed}, which is of split {split_of(task.seed)}. "
            f"Training seeds begin at {FIRST_SEED[Split.TRAIN]:,}."
        )


def _refuse_scenario(scenario: Scenario) -> None:
    if is_held_out(scenario):
        raise ConfigError(
            f"training refuses held-out scenarios, got {scenario.name!r}. Train on {', '.join(SHIPPED)} or files of your own; "
            "held-out ones are for splits dev and test."
        )


def split_of(seed: int) -> Split:
    """The split whose range `seed` lies in; seeds below all ranges belong to dev, like the lowest range.

    Raises:
        ConfigError: a negative seed.
    """
    if seed < 0:
        raise ConfigError(f"seed must be >= 0, got {seed}. Dev seeds begin at {FIRST_SEED[Split.DEV]}.")
    below = [(start, split) for split, start in FIRST_SEED.items() if start <= seed]
    return max(below)[1] if below else Split.DEV


class Start(NamedTuple):
    """How an episode begins, besides its seed."""

    scenario: Scenario
    origin: str | dict[str, Any]
    """Where the rules come from, as a snapshot says it: the name of a shipped scenario, or the data of another one."""
    days: int
    world: int
    drawn_names: bool


def read_start(task: Task, *, days: int) -> Start:
    """What the payload of `task` asks for; `days` where it names none.

    Raises:
        ConfigError: unknown scenario or payload key, a value out of range, or a training task of a held-out scenario or seed.
    """
    payload = task.payload
    if unknown := set(payload) - PAYLOAD:
        raise ConfigError(
            f"task {task.id!r} has unknown payload keys {sorted(unknown)}; allowed are {', '.join(sorted(PAYLOAD))}."
        )
    days, world = _whole(task, "days", days, 1, MAX_DAYS), _whole(task, "world", 0, 0, MAX_WORLD)
    given = payload.get("scenario", "baseline")
    if not isinstance(given, str | Path):
        raise ConfigError(f"task {task.id!r}: scenario must be a name or a path, got {given!r}.")
    drawn = "names" in payload
    if drawn and payload["names"] != DRAWN:
        raise ConfigError(f"task {task.id!r}: names must be {DRAWN!r} or absent, got {payload['names']!r}.")
    scenario = load(given)
    refuse_training(task, scenario)
    if "difficulty" in payload:
        scenario = at_difficulty(scenario, payload["difficulty"])
    elif str(given) in (*SHIPPED, *HELD_OUT):
        return Start(scenario, str(given), days, world, drawn)
    return Start(scenario, as_data(scenario), days, world, drawn)


def _whole(task: Task, key: str, default: int, low: int, high: int) -> int:
    value = task.payload.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"task {task.id!r}: {key} must be a whole number in {low}..{high}, got {value!r}.")
    return value
