"""What a server needs to know of an environment to seat strangers in it: its seats, its tasks and who may sit beside them.

One `Workplace` per environment; the code that serves it (`seat`, `openenv`) knows no environment by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from onthejob.envs.claw.env import ACTOR, ClawConfig, ClawEnvironment
from onthejob.envs.claw.sandbox import SandboxHost
from onthejob.envs.office.env import MAX_DAYS, SEATS, OfficeConfig, OfficeEnvironment
from onthejob.envs.office.policies import as_reply, players
from onthejob.envs.office.scenarios import SHIPPED
from onthejob.envs.office.sections import Count
from onthejob.envs.office.tasks import FIRST_SEED, office_tasks, split_of
from onthejob.envs.office.vaporware import Reader
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
    public: Callable[[Task], Mapping[str, Any]] = lambda task: dict(task.payload)
    """What a client may know of a task beside its id and seed."""
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


def office(config: OfficeConfig | None = None, *, reader: Reader | None = None, count_tokens: Count | None = None) -> Workplace:
    """The office: six seats, the customer belongs to the environment.

    Options of a task: `scenario` (a shipped name; not with an index, which names one) and `days` (1 to 90).

    Args:
        config: presentation.
        reader: what `config.reader` names, shared by all sessions.
        count_tokens: the tokenizer for `config.budget`, shared by all sessions.
    """
    config = config or OfficeConfig()
    return Workplace(
        name="office",
        description=(
            "A startup of seven roles, simulated for 30 days of 14 turns. Take one role beside scripted colleagues, or all six. "
            "The reward is what the decisions do to the company; the same seed gives the same company, luck included."
        ),
        make=partial(OfficeEnvironment, config, reader=reader, count_tokens=count_tokens),
        seats=SEATS,
        players={name: as_reply(player) for name, player in players(held_out=False).items()},
        default_player="heuristic",
        counts={split: count * len(SHIPPED) for split, count in OFFICE_SEEDS.items()},
        task_at=partial(_office_at, config.days),
        task_of=partial(_office_of, config.days),
        seeds=range(FIRST_SEED[Split.TRAIN], FIRST_SEED[Split.TRAIN] + 10**9),
        # A reading takes longer than a server may leave its other connections waiting.
        inline=reader is None,
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


CLAW_PUBLIC = ("task_id", "family", "persona", "intent", "skills_required", "difficulty", "estimated_steps", "workspace_seed")
"""Keys of a task's record that clients see; assertions, gold commands and answers are for the grader."""


def claw(tasks: Mapping[Split, Sequence[Task]], *, host: SandboxHost, config: ClawConfig | None = None) -> Workplace:
    """The claw: one seat, each session's commands in a sandbox of its own.

    Args:
        tasks: by split, of which training must have some; a reset with a seed gives a training task, dev and test tasks are
            asked for by index.
        host: makes the sandboxes; must stay open as long as sessions do.
        config: rules.

    Raises:
        ConfigError: no training task, or a split that holds another split's.
    """
    for split, held in tasks.items():
        wrong = [task.id for task in held if task.split is not split]
        if wrong:
            raise ConfigError(f"split {split} must hold its own tasks, got {wrong[0]}.")
    if not tasks.get(Split.TRAIN):
        raise ConfigError("a reset with a seed gives a training task, and there is none. Add some, e.g. as train.jsonl.")
    return Workplace(
        name="claw",
        description=(
            "File work in a bash shell. Write one bash block per turn, and TASK_COMPLETE when the task is done. The reward is "
            "the share of assertions about the files that hold at the end, less a cost per turn."
        ),
        make=partial(ClawEnvironment, config or ClawConfig(), host=host),
        seats=(ACTOR,),
        counts={split: len(held) for split, held in tasks.items() if held},
        task_at=partial(_claw_at, tasks),
        task_of=partial(_claw_of, tasks[Split.TRAIN]),
        seeds=range(len(tasks[Split.TRAIN])),
        public=_claw_public,
    )


def _claw_at(tasks: Mapping[Split, Sequence[Task]], split: Split, index: int, options: Mapping[str, Any]) -> Task:
    _no_options(options)
    return tasks[split][index]


def _claw_of(training: Sequence[Task], seed: int, options: Mapping[str, Any]) -> Task:
    _no_options(options)
    return training[seed % len(training)]


def _no_options(options: Mapping[str, Any]) -> None:
    if options:
        raise ConfigError(f"unknown option {', '.join(sorted(options))}; the claw has none of its own.")


def _claw_public(task: Task) -> dict[str, Any]:
    return {key: task.payload[key] for key in CLAW_PUBLIC if key in task.payload}
