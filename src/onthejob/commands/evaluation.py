"""`onthejob eval` (single decisions) and `onthejob compare` (whole episodes): teams side by side on held-out seeds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from onthejob.commands.seats import ACCOUNT_COLUMNS, HostedOptions, HostedSeats, ModelOptions, account_rows, retries_for, teams
from onthejob.commands.terminal import Output, Terminal, table
from onthejob.errors import ConfigError
from onthejob.types import Sampling, Split

CACHE = Path("runs/evaluation.sqlite")


@dataclass(frozen=True, slots=True, kw_only=True)
class Eval:
    """Decision quality: how much of what one decision can win, a team wins (0 a random legal reply, 1 the best of many).

    Judged on a file of held-out states, which is collected when it does not exist yet, half of it from the heuristic's play and
    half from that of the first learned team. Values are cached; only what is new costs time.
    """

    teams: tyro.conf.Positional[tuple[str, ...]]
    """Rows: `base`, a scripted player, a run, a folder of adapters, a hosted model (`openai:URL`, `anthropic:MODEL`,
    `bedrock:MODEL`), or `NAME=` one of these."""
    states: Path = Path("runs/states-dev.bin")
    """File of held-out states."""
    split: Literal["dev", "test"] = "dev"
    """Split of newly collected states. Try things on dev; test is for the final table."""
    per_role: int = 200
    """States per role when collecting."""
    episodes: int = 4
    """Episodes per scenario and source when collecting."""
    days: int = 30
    """Length of those episodes in days."""
    roles: tuple[str, ...] = ()
    """Whose decisions are judged; none means all six."""
    worlds: int = 8
    """Evaluation worlds over which a value is averaged; even."""
    turns: int = 140
    """Horizon of a branch in turns."""
    candidates: int = 16
    """Random legal replies per state of which the best is the yardstick."""
    workers: int = 0
    """Processes that play branches; 0 plays them in this one."""
    seed: int = 0
    """Of candidates, sampling and resampling."""
    max_new_tokens: int = 32
    """Limit of a reply."""
    cache: Path = CACHE
    """Where values, replies and episodes are kept between evaluations."""
    model: ModelOptions = field(default_factory=ModelOptions)
    """The language model, when one is judged."""
    hosted: HostedOptions = field(default_factory=HostedOptions)
    """Hosted models, when one is judged."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Collect states if need be, judge, print the table and the differences to the last team."""
        from onthejob.commands.office import check_days, make_office, scenarios_named
        from onthejob.envs.office.env import SEATS, OfficeEnvironment
        from onthejob.envs.office.tasks import office_tasks
        from onthejob.evaluate.cache import EvaluationCache, source_fingerprint
        from onthejob.evaluate.collect import collect_states
        from onthejob.evaluate.quality import decision_quality
        from onthejob.evaluate.scores import QualityConfig
        from onthejob.evaluate.states import load_states, save_states
        from onthejob.evaluate.tables import quality_differences_table, quality_table
        from onthejob.evaluate.teams import scripted_team
        from onthejob.players import scripted

        roles = self.roles or SEATS
        if unknown := [role for role in roles if role not in SEATS]:
            raise ConfigError(f"roles must be some of {', '.join(SEATS)}, got {', '.join(unknown)}.")
        _check_teams(self.teams)
        check_days(self.days)
        config = QualityConfig(
            worlds=tuple(range(10_000, 10_000 + self.worlds)),
            turns=self.turns,
            candidates=self.candidates,
            decodings=(
                Sampling(temperature=0.0, max_new_tokens=self.max_new_tokens),
                Sampling(temperature=1.0, max_new_tokens=self.max_new_tokens),
            ),
            seed=self.seed,
            workers=self.workers,
        )
        seats = HostedSeats(self.hosted)
        made, stack = teams(self.teams, self.model, terminal.progress, seats)
        encoder = stack.chat if stack else None
        env_factory = make_office()
        if not self.states.exists():
            tasks = office_tasks(Split(self.split), seeds=self.episodes, scenarios=scenarios_named(["all"]), days=self.days)
            heuristic = scripted_team("heuristic", scripted("heuristic"), SEATS)
            learned = [team for team in made if team.name != "heuristic"]
            collected = collect_states(
                tasks,
                [heuristic, *learned[:1]],
                actors=SEATS,
                per_role=self.per_role,
                env_factory=env_factory,
                sampling=Sampling(max_new_tokens=self.max_new_tokens),
                seed=self.seed,
                max_turns=14 * self.days,
                encoder=encoder,
                on_progress=steps(terminal, "episodes for states"),
            )
            self.states.parent.mkdir(parents=True, exist_ok=True)
            save_states(self.states, collected)
        states = [state for state in load_states(self.states) if state.actor in roles]
        with closing(seats), EvaluationCache(self.cache, env=source_fingerprint(OfficeEnvironment)) as cache:
            quality = decision_quality(
                states,
                made,
                random=scripted("random"),
                env_factory=env_factory,
                cache=cache,
                config=config,
                encoder=encoder,
                on_progress=lambda what, done, total: steps(terminal, what)(done, total),
            )
        tables = [quality_table(quality, decoding=decoding) for decoding in quality.decodings]
        if len(made) > 1:
            tables += [quality_differences_table(quality, decoding=decoding) for decoding in quality.decodings]
        terminal.result(quality.as_dict(), *tables)
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """Whole episodes: every team plays the same held-out seeds with the same decoding; differences are paired by episode.

    Finished episodes are cached: a killed comparison goes on where it was, and more seeds or teams cost only what is new.
    """

    teams: tyro.conf.Positional[tuple[str, ...]]
    """Rows: `base`, a scripted player, a run, a folder of adapters, a hosted model (`openai:URL`, `anthropic:MODEL`,
    `bedrock:MODEL`), or `NAME=` one of these."""
    scenarios: tuple[str, ...] = ("all",)
    """Scenario names or TOML files; `all` for the shipped ones."""
    seeds: int = 4
    """Episodes per scenario."""
    first: int = 0
    """Skip this many seeds."""
    split: Literal["dev", "test"] = "dev"
    """Try things on dev; test is for the final table."""
    days: int = 30
    """Length of an episode in days."""
    alone: tuple[str, ...] = ()
    """Also show each learned team with only this role among heuristics, e.g. `--alone sales dev`."""
    temperature: float = 0.0
    """Of every model's replies; 0 decodes greedily."""
    max_new_tokens: int = 32
    """Limit of a reply."""
    batch: int = 8
    """Episodes in lock step."""
    seed: int = 0
    """Of the replies and of the intervals."""
    cache: Path = CACHE
    """Where finished episodes are kept."""
    retries: int | None = None
    """Times an unusable reply may be corrected, with growing feedback, 0 to 8; default: 8 when a hosted model plays, else 0.
    The same for every team."""
    report: Path | None = None
    """Also write a self-contained HTML report here."""
    model: ModelOptions = field(default_factory=ModelOptions)
    """The language model, when one plays."""
    hosted: HostedOptions = field(default_factory=HostedOptions)
    """Hosted models, when one plays."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Play what is not cached, then print means and paired differences. 1 when an episode failed on our side."""
        from onthejob.commands.office import check_days, make_office, scenarios_named
        from onthejob.envs.office.env import SEATS, OfficeConfig, OfficeEnvironment
        from onthejob.envs.office.tasks import office_tasks
        from onthejob.evaluate.cache import EvaluationCache, source_fingerprint
        from onthejob.evaluate.compare import compare
        from onthejob.evaluate.report import write_report
        from onthejob.evaluate.report_data import Report
        from onthejob.evaluate.tables import comparison_table, differences_table
        from onthejob.evaluate.teams import one_seat, scripted_team
        from onthejob.players import scripted

        if unknown := [role for role in self.alone if role not in SEATS]:
            raise ConfigError(f"--alone takes some of {', '.join(SEATS)}, got {', '.join(unknown)}.")
        _check_teams(self.teams)
        check_days(self.days)
        tasks = office_tasks(
            Split(self.split),
            seeds=self.seeds,
            scenarios=scenarios_named(self.scenarios),
            days=self.days,
            first=self.first,
        )
        config = OfficeConfig(retries=retries_for(self.retries, self.teams))
        seats = HostedSeats(self.hosted)
        made, stack = teams(self.teams, self.model, terminal.progress, seats)
        partners = scripted_team("heuristic", scripted("heuristic"), SEATS)
        rows = [*made, *(one_seat(team, partners, role) for team in made if team.learned for role in self.alone)]
        # Allowing retries is another workplace: its episodes are kept apart.
        workplace = source_fingerprint(OfficeEnvironment) + (f"+retries{config.retries}" if config.retries else "")
        with closing(seats), EvaluationCache(self.cache, env=workplace) as cache:
            comparison = compare(
                rows,
                tasks,
                env_factory=make_office(config),
                cache=cache,
                sampling=Sampling(temperature=self.temperature, max_new_tokens=self.max_new_tokens),
                seed=self.seed,
                max_turns=14 * self.days * (1 + config.retries),
                encoder=stack.chat if stack else None,
                batch=self.batch,
                on_progress=lambda team, done, total: steps(terminal, team)(done, total),
            )
            accounts = seats.accounts
        shown = (
            "company_value",
            "team_reward",
            "mrr",
            "deals_won",
            "churned",
            "nps",
            "valid_rate",
            "completion_tokens",
            "wall_s",
        )
        shown = tuple(metric for metric in shown if metric in comparison.metrics)
        tables = [comparison_table(comparison, metrics=shown)]
        if len(rows) > 1:
            tables += [differences_table(comparison, metric) for metric in ("company_value", "team_reward")]
        if accounts:
            tables.append(table(ACCOUNT_COLUMNS, account_rows(accounts), title="hosted models"))
        data = {**comparison.as_dict(), "hosted": accounts}
        if self.report is not None:
            lead = f"{len(tasks)} episodes of {self.days} days per team, {self.split} seeds, temperature {self.temperature:g}."
            write_report(self.report, Report(title="onthejob compare", lead=lead, comparison=comparison))
            terminal.progress(f"wrote {self.report}")
        terminal.result(data, *tables)
        return 1 if comparison.failed else 0


def _check_teams(specs: tuple[str, ...]) -> None:
    if not specs:
        raise ConfigError("name at least one team, e.g. `base heuristic expert`, got none.")


def steps(terminal: Terminal, what: str) -> Callable[[int, int], None]:
    """Progress of `what` in about ten lines, however many steps there are."""

    def say(done: int, total: int) -> None:
        if done == total or done % max(1, total // 10) == 0:
            terminal.progress(f"{what}: {done}/{total}")

    return say
