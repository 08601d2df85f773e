"""The office as the commands know it: scenario options, and environments that worker processes can make."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from onthejob.envs.office.curriculum import Rising
from onthejob.envs.office.env import SEATS, OfficeConfig, OfficeEnvironment
from onthejob.envs.office.episode import OnTurn
from onthejob.envs.office.policies import players
from onthejob.envs.office.scenarios import SHIPPED, load
from onthejob.envs.office.tasks import office_tasks
from onthejob.envs.office.vaporware import Reader
from onthejob.errors import ConfigError
from onthejob.evaluate.cache import source_fingerprint
from onthejob.models.base import weights_digest
from onthejob.models.catalogue import is_hosted
from onthejob.players import scripted, team, training_team
from onthejob.rollout.pool import Curriculum
from onthejob.train.config import TrainConfig
from onthejob.types import Environment, Policy, Split, Task


def make_office(config: OfficeConfig | None = None) -> Callable[[], OfficeEnvironment]:
    """A maker of environments that can be pickled."""
    return partial(office_of, config or OfficeConfig())


def office_of(config: OfficeConfig, *, on_turn: OnTurn | None = None) -> OfficeEnvironment:
    """An environment with the reader that its configuration names."""
    return OfficeEnvironment(config, on_turn=on_turn, reader=reader_of(config))


def reader_of(config: OfficeConfig) -> Reader | None:
    """The reader that a configuration names, loaded once per process; None where the linear weights judge."""
    if not config.reader:
        return None
    from onthejob.models.claims import claim_reader

    return claim_reader(config.reader)


SETTINGS = "reader.json"
"""What every folder of a trained reader holds."""


def _reader_digest(folder: Path) -> str:
    """What judgements by a trained reader depend on, in 12 hex digits."""
    weights = weights_digest(folder)
    return hashlib.sha256(weights.encode() + (folder / SETTINGS).read_bytes()).hexdigest()[:12]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    """The office as a `Workplace` for the commands."""

    name: ClassVar[str] = "office"
    roles: ClassVar[tuple[str, ...]] = SEATS
    shown: ClassVar[tuple[str, ...]] = (
        "company_value",
        "value_less_luck",
        "team_reward",
        "mrr",
        "deals_won",
        "churned",
        "nps",
        "valid_rate",
        "rule_score",
        "completion_tokens",
        "wall_s",
    )
    headline: ClassVar[tuple[str, ...]] = ("company_value", "value_less_luck", "team_reward")
    max_new_tokens: ClassVar[int] = 32
    threads: ClassVar[int] = 1

    scenarios: tuple[str, ...] = ("all",)
    """Scenario names or TOML files; `all` for the shipped ones."""
    seeds: int = 1
    """Episodes per scenario."""
    first: int = 0
    """Skip this many seeds."""
    days: int = 30
    """Length of an episode in days."""
    partner: str = "heuristic"
    """The scripted player of roles that are not trained."""
    crisis_bonus: bool = True
    """Pay the extra reward for churn prevention while satisfaction is below 0.4."""
    rising: bool = False
    """Train on a curriculum."""
    retries: int = 0
    """Times an unusable reply may be corrected, 0 to 8."""
    profile: Literal["compact", "full"] = "compact"
    """What a role is shown."""
    reader: str = ""
    """Folder of a trained reader of claims (adapters/claims) that judges what texts promise; empty for the linear weights."""

    @classmethod
    def loop(cls) -> TrainConfig:
        return TrainConfig(best_metric="company_value")

    @property
    def max_turns(self) -> int:
        return 14 * self.days * (1 + self.retries)

    @property
    def fingerprint(self) -> str:
        # Allowing retries or showing more is another workplace: its episodes are kept apart.
        own = (f"+retries{self.retries}" if self.retries else "") + (f"+{self.profile}" if self.profile != "compact" else "")
        if self.reader:
            own += f"+reader {_reader_digest(Path(self.reader))}"
        return source_fingerprint(OfficeEnvironment) + own

    def check(self) -> None:
        check_days(self.days)
        if self.reader and not (Path(self.reader) / SETTINGS).is_file():
            raise ConfigError(
                f"reader {self.reader!r} has no {SETTINGS}. Give the folder of a trained one, e.g. adapters/claims."
            )
        scenarios_named(self.scenarios)
        if not is_hosted(self.partner):
            team(self.partner)

    def tasks(self, split: Split) -> list[Task]:
        scenarios = scenarios_named(self.scenarios)
        return office_tasks(split, seeds=self.seeds, scenarios=scenarios, days=self.days, first=self.first)

    def family(self, task: Task) -> str:
        return scenario_of(task)

    def groupings(self) -> Mapping[str, Callable[[Task], str]]:
        return {"scenario": scenario_of}

    def grow(self) -> None:
        return None

    def curriculum(self, iterations: int) -> Curriculum | None:
        return Rising(iterations=iterations) if self.rising else None

    def opened(self) -> AbstractContextManager[Callable[[], Environment]]:
        config = OfficeConfig(crisis_bonus=self.crisis_bonus, retries=self.retries, profile=self.profile, reader=self.reader)
        return nullcontext(make_office(config))

    def players(self, tasks: Sequence[Task]) -> Mapping[str, Policy]:
        return {name: scripted(name) for name in players()}

    def partners(self, split: Split) -> Mapping[str, Policy]:
        return training_team(self.partner) if split is Split.TRAIN else team(self.partner)
