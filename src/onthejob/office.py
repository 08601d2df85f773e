"""The office as an `Env`: its options, and environments that worker processes can make."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

import tyro

from onthejob.compat.served_office import office_tasks_served
from onthejob.envs.env import Env
from onthejob.envs.exchange import Reply, ServedTasks
from onthejob.envs.office.curriculum import Rising
from onthejob.envs.office.env import CUSTOMER, SEATS, OfficeConfig, OfficeEnvironment
from onthejob.envs.office.fast_play import OnTurn
from onthejob.envs.office.fitting import fitting_tokens
from onthejob.envs.office.memory import REFLECTION_TURNS
from onthejob.envs.office.policies import as_reply, players
from onthejob.envs.office.policies.partners import refuse_partner
from onthejob.envs.office.reply_schema import reply_schema
from onthejob.envs.office.scenarios import HELD_OUT, SHIPPED, as_data, load
from onthejob.envs.office.sections import Count, cached
from onthejob.envs.office.tasks import office_tasks
from onthejob.envs.office.vaporware import PromiseReader
from onthejob.errors import ConfigError
from onthejob.evaluate.cache import source_fingerprint
from onthejob.files import where_kept
from onthejob.models.base_model import weights_digest
from onthejob.models.catalogue import is_hosted
from onthejob.models.counting import estimated_tokens
from onthejob.rollout.branch import BranchConfig
from onthejob.types import Observation, PromptBudget, Rubric, Split, Task, Window

log = logging.getLogger(__name__)

JUDGED = Rubric(
    text="""You grade one decision of an employee of a small company. Judge only how sensible it is in the situation shown.
5: clearly the best use of this turn: possible now, specific, moves a deal, the product, the team or the budget forward
4: good: possible and useful, a better target existed
3: acceptable: possible, of little consequence
2: poor: possible and wasteful, or hardly fits the situation
1: bad: impossible, harmful, off-topic, or not a decision at all""",
    unit="decision",
    who="employee",
    what="decision",
    situation="You are Sam, sales. Leads: Acme is qualified and waits for a demo. Possible: RUN_DEMO Acme; UPDATE_PIPELINE.",
    good='{"action_type":"RUN_DEMO","target":"Acme"}',
)


def make_office(config: OfficeConfig | None = None, *, model: str = "") -> Callable[[], OfficeEnvironment]:
    """A maker of environments that can be pickled; `model` is the one whose tokenizer counts for a budget, empty estimates."""
    return partial(office_of, config or OfficeConfig(), model=model)


def office_of(config: OfficeConfig, *, model: str = "", on_turn: OnTurn | None = None) -> OfficeEnvironment:
    """An environment with the reader that its configuration names, and what counts tokens where prompts have a budget."""
    count = counting(model) if config.budget is not None else None
    return OfficeEnvironment(config, count_tokens=count, on_turn=on_turn, reader=reader_of(config))


def without_memories(snapshot: bytes) -> bytes:
    """A snapshot of the full profile as the compact profile takes it, which keeps no memories; one without any stays as it is."""
    size = int.from_bytes(snapshot[:4], "big")
    head, _, _ = snapshot[4 : 4 + size].partition(b"\n")
    bare = json.dumps({**json.loads(head), "memories": []}, separators=(",", ":")).encode() + b"\n"
    return b"".join((len(bare).to_bytes(4, "big"), bare, snapshot[4 + size :]))


def counting(model: str) -> Count:
    """A function that counts tokens as `model` does, whose tokenizer is loaded with the first text; empty estimates."""
    return partial(_count, model) if model else estimated_tokens


def _count(model: str, text: str) -> int:
    # Only now: worker processes and players who read no prompt need no tokenizer, and a record can be replayed without it.
    return counter(model)(text)


@lru_cache(maxsize=8)
def counter(model: str) -> Count:
    """What counts tokens as `model` does; one per tokenizer and process."""
    from onthejob.models.counting import token_counter

    return cached(token_counter(model))


def _cached_later(count: Count) -> Count:
    """`count` with a cache that is made for the first text: most prompts are never counted."""

    @cache
    def made() -> Count:
        return cached(count)

    return lambda text: made()(text)


def check_prompts(budget: int | None, reflect: bool, *, models: bool, prefix: str = "--env.") -> None:
    """Refuse options of a model's prompts where no model reads them, not even a hosted one; `prefix` is that of the options."""
    for given, option, why in ((budget is not None, "prompt-budget", "read no prompt"), (reflect, "reflect", "do not reflect")):
        if given and not models:
            raise ConfigError(
                f"{prefix}{option} has no effect without a model: scripted players {why}. Seat one, or leave it out."
            )


PLAYED_CUSTOMER = (
    "turns are collected where the script plays the customer: in training and evaluation it does. Leave --seat customer=... or "
    "training mode out."
)


def check_customer(who: str) -> None:
    """Refuse who cannot take the customer's seat."""
    if who == "base" or who.startswith("base:") or is_hosted(who):
        return
    if who in players():
        raise ConfigError(
            f"the script plays the customer unless a model is named, got the scripted player {who!r}. Name `base` or a hosted "
            "model, or leave the customer out."
        )
    raise ConfigError(
        f"the customer's seat takes `base` or a hosted model, got {who!r}: no adapter is trained as the customer, and no person "
        "plays it. Name one of them, or leave the customer out."
    )


def reader_of(config: OfficeConfig) -> PromiseReader | None:
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
    """The scenarios that `names` mean: `all` stands for the shipped ones; files are given by their path."""
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


def most_turns(days: int, *, retries: int, reflect: bool) -> int:
    """Replies after which an episode always ends: 14 turns a day, corrections, and every seat's reflections."""
    played = 14 * days
    return played * (1 + retries) + (len(SEATS) * (played // REFLECTION_TURNS) if reflect else 0)


def scenario_of(task: Task) -> str:
    """The task's scenario, under which difficulty and results are kept."""
    return str(task.payload["scenario"])


class Office(Env):
    """A startup of seven roles, run day by day for 30 days of 14 turns; what a decision does to its value is the reward.

    Take one role among scripted colleagues, or all six; the seventh, the customer, belongs to the environment. The same seed
    gives the same company, luck included. A reply is one JSON object.
    """

    roles = SEATS
    shown_metrics = (
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
    headline = ("company_value", "value_less_luck", "team_reward")
    best_metric = "company_value"
    max_new_tokens = 48  # a proposal with a contract tier and a message takes 40 of SmolLM2's
    usual_grouping = "branch"
    usual_group_size = BranchConfig().group_size
    goes_on = False
    judge_rubric = JUDGED
    open_files = 1
    own_commands = MappingProxyType(
        {
            "Play": "onthejob.commands.play_office:PlayOffice",
            "Collect": "onthejob.commands.collect_office:CollectOffice",
            "View": "onthejob.commands.view_office:ViewOffice",
            "ServeEnv": "onthejob.commands.serve_office:EnvOffice",
        }
    )
    earlier: ClassVar[tuple[str, ...]] = (
        "scenarios",
        "seeds",
        "days",
        "partner",
        "crisis_bonus",
        "curriculum",
        "profile",
        "reader",
        "prompt_budget",
        "reflect",
    )
    """Options that stood among those of `train` in records and files without a table `[env]`."""

    scenarios: tuple[str, ...] = ("all",)
    """Scenario names or TOML files; `all` for the shipped ones."""
    seeds: int = 4
    """Episodes per scenario; in training, tasks per scenario from which episodes are drawn."""
    first: int = 0
    """Skip this many seeds."""
    days: int = 30
    """Length of an episode in days of 14 turns, 1 to 90."""
    drawn_names: float = 0.0
    """Share of companies whose features and customers have names that the seed draws, so that a model copies names."""
    partner: str = "heuristic"  # type: ignore[misc]
    """Player of the roles that are not trained, and of all others in segments among partners: a scripted player or, in
    training, a hosted model."""
    crisis_bonus: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = True
    """`--env.no-crisis-bonus` omits the extra reward for churn prevention while satisfaction is below 0.4, to test whether the
    shift to retention is learned without it; by default it is paid."""
    curriculum: bool = False
    """Training: episodes begin easier than the scenarios are and end harder; what teaches nothing is eased. With branches only
    segments that begin with a company's first day do (--collect.fresh-share): states of the library stay as they were met."""
    retries: int | None = None
    """Corrections of an unusable reply, 0 to 8, with growing feedback; default: 8 when a hosted model plays, else 0. Training
    allows none. All teams of a comparison have the same number."""
    profile: Literal["compact", "full"] = "compact"
    """Prompts of about 250 tokens for small models, or with team status, memories and reasoning, for which the limit of a reply
    must leave room. The same as in training."""
    reader: str = ""
    """Folder of a trained reader of claims (adapters/claims) that judges what texts promise, one forward pass per text; by
    default linear weights judge."""
    prompt_budget: int | None = None
    """Tokens of a prompt's user message at most, counted by --env.tokenizer; what matters least is omitted. None leaves
    each model what its context holds in addition to everything else."""
    tokenizer: str = ""
    """With --env.prompt-budget: the model whose tokenizer counts, as for `onthejob model fetch`; by default the one of this
    machine that plays. Where only hosted models do, tokens are estimated from above."""
    reflect: bool = False
    """With --env.profile full: models reflect themselves every 70 turns (raise the limit of a reply); else a template does."""

    def __post_init__(self) -> None:
        self.max_turns = most_turns(self.days, retries=self.retries or 0, reflect=self.reflect)  # type: ignore[misc]

    @classmethod
    def starting_options(cls, command: str) -> Self:
        """The options that a command begins with."""
        own: dict[str, dict[str, Any]] = {
            "Train": {"seeds": 200},
            "Play": {"scenarios": ("baseline",), "days": 5},
            "View": {"scenarios": ("baseline",)},
        }
        return cls(**own.get(command, {}))

    def make_environment(self) -> OfficeEnvironment:
        return make_office(self.config, model=self.tokenizer)()

    def tasks(self, split: Split) -> list[Task]:
        scenarios, drawn = scenarios_named(self.scenarios), self.drawn_names
        return office_tasks(split, seeds=self.seeds, scenarios=scenarios, days=self.days, first=self.first, drawn_names=drawn)

    def players(self) -> Mapping[str, Reply]:
        return {name: as_reply(player) for name, player in players().items()}

    def served_tasks(self) -> ServedTasks:
        """Any seed of a shipped scenario, with the players that are not held out."""
        return office_tasks_served(self.days)

    def public_facts(self, task: Task) -> Mapping[str, Any]:
        return dict(task.payload)

    @property
    def steps_inline(self) -> bool:
        # A reading takes longer than a server may leave its other connections waiting.
        return not self.reader

    def full_fingerprint(self) -> str:
        if type(self) is not Office:
            return ""
        # Allowing retries or showing more is another environment: its episodes are kept apart.
        own = (f"+retries{self.retries}" if self.retries else "") + (f"+{self.profile}" if self.profile != "compact" else "")
        own += "" if self.crisis_bonus else "+no-crisis-bonus"
        if self.reader:
            own += f"+reader {_reader_digest(Path(self.reader))}"
        if self.prompt_budget is not None:
            own += f"+budget{self.prompt_budget} by {self.tokenizer or 'estimate'}"
        own += "+reflect" if self.reflect else ""
        # A user's file can be edited under the same path; those of the package are among the sources.
        own += "".join(f"+{digest}" for digest in _files_digests(self.scenarios))
        return source_fingerprint(OfficeEnvironment) + own

    @property
    def config(self) -> OfficeConfig:
        """How the office presents itself."""
        return OfficeConfig(
            crisis_bonus=self.crisis_bonus,
            retries=self.retries or 0,
            profile=self.profile,
            reader=self.reader,
            budget=self.prompt_budget,
            reflect=self.reflect,
        )

    @property
    def hosted_partner(self) -> str:
        return self.partner if is_hosted(self.partner) else ""

    def fitted(self, *, model: str = "", hosted: bool = False, window: Window | None = None) -> Self:
        retries = (8 if hosted else 0) if self.retries is None else self.retries
        fitted = replace(self, retries=retries)
        if window is not None and (budget := fitted.budget_for(window)) is not None:
            fitted = replace(fitted, prompt_budget=budget.tokens)
        return replace(fitted, tokenizer=self.tokenizer or model) if fitted.prompt_budget is not None else fitted

    def budget_for(self, window: Window) -> PromptBudget | None:
        if self.prompt_budget is not None:
            return None
        tokens = fitting_tokens(window, profile=self.profile, retries=self.retries or 0, reflect=self.reflect)
        if tokens is None:
            return None
        count = window.count if window.estimated else _cached_later(window.count)
        return PromptBudget(tokens=tokens, count=count, estimated=window.estimated)

    def anchored(self) -> Mapping[str, Any]:
        # Scenario files stay as they were given: their names are part of the tasks' ids, from which all luck descends.
        return {"reader": str(Path(self.reader).expanduser().absolute())} if self.reader else {}

    def why_untrained(self, role: str) -> str:
        if role != CUSTOMER:
            return ""
        return "The customer is part of the world: its script plays it here; in `play` and `view` a model may."

    def check_players(self, *, models: bool) -> None:
        check_prompts(self.prompt_budget, self.reflect, models=models)
        if self.prompt_budget is not None and not self.tokenizer:
            log.info("the tokens of --env.prompt-budget are estimated from above: no tokenizer of a hosted model is here")

    def check_options(self, *, training: bool = False) -> None:
        if training and self.retries:
            raise ConfigError(f"--env.retries must be 0 in training, got {self.retries}: a reply is worth what it is at first.")
        if self.tokenizer and self.prompt_budget is None:
            raise ConfigError("--env.tokenizer has no effect without --env.prompt-budget, e.g. --env.prompt-budget 2000.")
        OfficeConfig(days=self.days)  # refuses a length that no episode can have
        _ = self.config  # it says what is wrong with it
        if self.reader and not (Path(self.reader) / SETTINGS).is_file():
            raise ConfigError(
                f"reader {self.reader!r} has no {SETTINGS}. "
                + (where_kept(self.reader) or "Name the folder of a trained one, e.g. adapters/claims of the repository.")
            )
        scenarios_named(self.scenarios)
        if not self.partner:
            raise ConfigError("--env.partner is empty. Name a scripted player, e.g. heuristic.")
        if training and not self.hosted_partner:
            refuse_partner(self.partner)

    def reply_schema(self, observation: Observation) -> Mapping[str, Any] | None:
        return reply_schema(observation)

    def family(self, task: Task) -> str:
        return scenario_of(task)

    def groupings(self) -> Mapping[str, Callable[[Task], str]]:
        return {"scenario": scenario_of}

    def task_schedule(self, iterations: int) -> Callable[..., Task] | None:
        return Rising(iterations=iterations) if self.curriculum else None

    def task_finder(self) -> Callable[[str], Task | None]:
        # What is sampled in training says itself where it began.
        return lambda wanted: None
