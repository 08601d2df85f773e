"""The office as the commands know it: scenario options, and environments that worker processes can make."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import ClassVar, Literal

from onthejob.envs.office.curriculum import Rising
from onthejob.envs.office.env import SEATS, OfficeConfig, OfficeEnvironment
from onthejob.envs.office.episode import OnTurn
from onthejob.envs.office.memory import REFLECTION_TURNS
from onthejob.envs.office.policies import players
from onthejob.envs.office.scenarios import HELD_OUT, SHIPPED, as_data, load
from onthejob.envs.office.sections import Count, cached
from onthejob.envs.office.tasks import office_tasks
from onthejob.envs.office.vaporware import Reader
from onthejob.errors import ConfigError
from onthejob.evaluate.cache import source_fingerprint
from onthejob.files import where_kept
from onthejob.models.base import weights_digest
from onthejob.models.catalogue import is_hosted
from onthejob.players import scripted, team, training_team
from onthejob.rollout.pool import Curriculum
from onthejob.train.config import TrainConfig
from onthejob.types import Environment, Policy, Split, Task


def make_office(config: OfficeConfig | None = None, *, model: str = "") -> Callable[[], OfficeEnvironment]:
    """A maker of environments that can be pickled; `model` is the one whose tokenizer counts a prompt's budget."""
    return partial(office_of, config or OfficeConfig(), model=model)


def office_of(config: OfficeConfig, *, model: str = "", on_turn: OnTurn | None = None) -> OfficeEnvironment:
    """An environment with the reader that its configuration names, and the tokenizer of `model` where prompts have a budget."""
    count = partial(_count, model) if config.budget is not None and model else None
    return OfficeEnvironment(config, count_tokens=count, on_turn=on_turn, reader=reader_of(config))


def _count(model: str, text: str) -> int:
    # Only now: worker processes and players who read no prompt need no tokenizer, and a record can be replayed without it.
    return counter(model)(text)


@lru_cache(maxsize=2)
def counter(model: str) -> Count:
    """What counts tokens as `model` does; one per tokenizer and process."""
    from onthejob.models.counting import token_counter

    return cached(token_counter(model))


def check_prompts(budget: int | None, reflect: bool, *, local: bool, models: bool) -> None:
    """Refuse options of a model's prompts where no model reads them.

    Args:
        budget: `--prompt-budget`.
        reflect: `--reflect`.
        local: whether a model of this machine plays, whose tokenizer counts.
        models: whether any model plays, hosted ones included.

    Raises:
        ConfigError: the option has no effect.
    """
    if budget is not None and not local:
        raise ConfigError(
            "--prompt-budget has no effect without a model of this machine, whose tokenizer counts: scripted players read no "
            "prompt. Seat `base`, a run or adapters, or leave it out."
        )
    if reflect and not models:
        raise ConfigError("--reflect has no effect without a model: scripted players do not reflect. Seat one, or leave it out.")


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


def _files_digests(names: Sequence[str]) -> list[str]:
    """What the scenario files among `names` say, in 12 hex digits each, in any order of theirs."""
    said = [as_data(load(name)) for name in scenarios_named(names) if name not in (*SHIPPED, *HELD_OUT)]
    return sorted(hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12] for data in said)


def check_days(days: int) -> None:
    """Refuse a length that no episode can have, before anything is loaded.

    Raises:
        ConfigError: not in the range that the office allows.
    """
    OfficeConfig(days=days)


def most_turns(days: int, *, retries: int, reflect: bool) -> int:
    """Replies after which an episode is over in any case: 14 turns a day, corrections, and every seat's reflections."""
    played = 14 * days
    return played * (1 + retries) + (len(SEATS) * (played // REFLECTION_TURNS) if reflect else 0)


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
        "completions/clipped_ratio",
        "rule_score",
        "completion_tokens",
        "wall_s",
    )
    headline: ClassVar[tuple[str, ...]] = ("company_value", "value_less_luck", "team_reward")
    max_new_tokens: ClassVar[int] = 32
    threads: ClassVar[int] = 1
    forkable: ClassVar[bool] = True
    goes_on: ClassVar[bool] = False

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
    budget: int | None = None
    """Tokens of a prompt's user message, counted by the tokenizer of `model`; None means no limit."""
    reflect: bool = False
    """Ask the seats themselves to reflect every 70 turns."""
    model: str = ""
    """Whose tokenizer counts."""

    @classmethod
    def loop(cls) -> TrainConfig:
        return TrainConfig(best_metric="company_value")

    @property
    def max_turns(self) -> int:
        return most_turns(self.days, retries=self.retries, reflect=self.reflect)

    @property
    def fingerprint(self) -> str:
        # Allowing retries or showing more is another workplace: its episodes are kept apart.
        own = (f"+retries{self.retries}" if self.retries else "") + (f"+{self.profile}" if self.profile != "compact" else "")
        if self.reader:
            own += f"+reader {_reader_digest(Path(self.reader))}"
        if self.budget is not None:
            own += f"+budget{self.budget} by {self.model}"
        own += "+reflect" if self.reflect else ""
        # A file of one's own can be edited under the same path; those of the package are among the sources.
        own += "".join(f"+{digest}" for digest in _files_digests(self.scenarios))
        return source_fingerprint(OfficeEnvironment) + own

    @property
    def config(self) -> OfficeConfig:
        """How the office presents itself."""
        return OfficeConfig(
            crisis_bonus=self.crisis_bonus,
            retries=self.retries,
            profile=self.profile,
            reader=self.reader,
            budget=self.budget,
            reflect=self.reflect,
        )

    def check(self) -> None:
        check_days(self.days)
        _ = self.config  # it says what is wrong with it
        if self.reader and not (Path(self.reader) / SETTINGS).is_file():
            raise ConfigError(
                f"reader {self.reader!r} has no {SETTINGS}. "
                + (
                    where_kept(self.reader)
                    or "Name the folder of a trained one, e.g. adapters/claims of the project's repository."
                )
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
        return nullcontext(make_office(self.config, model=self.model))

    def players(self, tasks: Sequence[Task]) -> Mapping[str, Policy]:
        return {name: scripted(name) for name in players()}

    def partners(self, split: Split) -> Mapping[str, Policy]:
        return training_team(self.partner) if split is Split.TRAIN else team(self.partner)
