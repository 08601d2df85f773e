"""`onthejob compare`: whole episodes of teams, matched and paired."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from onthejob.commands.compare_report import check_names, complete, run_behind, runs_of, trained_from
from onthejob.commands.env_options import EnvOptions, as_table, starting
from onthejob.commands.evaluation import CACHE, check_learned, check_teams, steps
from onthejob.commands.named_env import NamedEnv
from onthejob.commands.outputs import check_plain_name, check_writable
from onthejob.commands.player_specs import (
    ACCOUNT_COLUMNS,
    HostedOptions,
    HostedSeats,
    ModelOptions,
    account_rows,
    local_model,
    local_sources,
    names_and_sources,
    teams,
)
from onthejob.commands.prompt_lengths import Fit
from onthejob.commands.runs import RUNS
from onthejob.commands.terminal import Output, Terminal, jsonable, table
from onthejob.errors import ConfigError
from onthejob.models.catalogue import is_hosted
from onthejob.types import Sampling, Split, Task

if TYPE_CHECKING:
    from rich.console import RenderableType

    from onthejob.evaluate.pass_fail import EarlierComparison
    from onthejob.models.chat import ChatEncoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """Whole episodes: every team plays the same held-out tasks with the same decoding; differences are paired by task.

    Finished episodes are cached: a killed comparison continues where it was, and more tasks or teams cost only what is new.
    """

    teams: tyro.conf.Positional[tuple[str, ...]]
    """Rows: `base`, a scripted player, a run (`RUN:best`), a folder of adapters, a hosted model (`openai:URL`, `anthropic:MODEL`,
    `bedrock:MODEL`), or `NAME=` one of these."""
    env: str = "office"
    """Workplace: `office`, `claw`, or an environment of your own, as for `train`."""
    own: EnvOptions = None
    """Options of the environment; None for its defaults."""
    alone: tuple[str, ...] = ()
    """With several roles: also judge each of these roles of a learned team against fixed opponents: the scripted partner plays
    all other seats, e.g. `--alone sales dev`."""
    split: Literal["dev", "test"] = "dev"
    """Try things on dev; test is for the final table."""
    limit: int = 0
    """Play only so many of the tasks, chosen by --seed; 0 plays all."""
    temperature: float = 0.0
    """Sampling temperature of every model; 0 decodes greedily."""
    max_new_tokens: int | None = None
    """Limit of a reply in tokens. None takes the workplace's usual one (office 48, claw 192), and for a hosted model the
    catalogue's, 256 or more, where that is longer."""
    batch: int = 8
    """Episodes in lock step."""
    seed: int = 0
    """Random seed of the replies and of the intervals."""
    featured: str = ""
    """The team whose differences to the others are shown; by default the last one that is a model."""
    beside: Path | None = None
    """Show an earlier comparison's teams too: the file holds what `compare --json` printed. Refused when its tasks differ."""
    cache: Path = CACHE
    """File in which finished episodes are kept."""
    name: str = ""
    """Keep the result as `comparisons/NAME.json` next to the runs, with all replies, where `onthejob view` shows it and
    `onthejob runs rescore` reads it."""
    report: Path | None = None
    """Also write a self-contained HTML report here; of a run also its curves, settings, groups and episodes."""
    before: str = ""
    """The team that --featured was trained from: the first one it is compared with, and whose actions are shown before its own.
    By default the one from which the run was started, when it is among the teams."""
    quality: Path | None = None
    """Also show decision quality; the file holds what `eval --json` printed."""
    model: ModelOptions = field(default_factory=ModelOptions)
    """The language model, when one plays."""
    hosted: HostedOptions = field(default_factory=HostedOptions)
    """Hosted models, when one plays."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    @classmethod
    def starting(cls, env: str) -> Compare:
        """The defaults in workplace `env`."""
        return cls(teams=tyro.MISSING, env=env)

    def place(self) -> NamedEnv:
        """The workplace of these options."""
        own = starting(self.env, "Compare") if self.own is None else self.own
        named = names_and_sources(self.teams)
        hosted = any(is_hosted(source) for _, source in named)
        return NamedEnv(ref=self.env, env=own).fitted(model=local_model(named, own, self.model), hosted=hosted)

    def run(self, terminal: Terminal) -> int:
        """Play what is not cached, then print paired differences and means. 1 when an episode ended in an error."""
        from onthejob.api.one_file import NOT_BUILT, is_built
        from onthejob.api.report import Report, write_report
        from onthejob.evaluate.cache import EvaluationCache
        from onthejob.evaluate.comparison import compare
        from onthejob.evaluate.findings import findings_of
        from onthejob.evaluate.pass_fail import document, joined, keep, kept_path, kinds, matched_dict
        from onthejob.evaluate.quality_file import read_quality
        from onthejob.evaluate.sheets import matched_sheets
        from onthejob.evaluate.teams import Team, one_seat
        from onthejob.evaluate.terminal_tables import comparison_table, differences_table, findings_block, sheet_table
        from onthejob.rollout.room import check_room

        place = self.place()
        self._check(place)
        tasks, partners = self._tasks(place), place.partners()
        shipped, named = place.players(tasks), names_and_sources(self.teams)
        local = local_sources(named, shipped)
        learned = [name for name, source in named if source not in shipped]
        place.env.check_players(models=bool(learned))
        learned_alone = [f"{name}:{role}" for name in learned for role in self.alone]
        featured = self.featured or (learned_alone or learned or [name for name, _ in named])[-1]
        tokens = place.env.max_new_tokens if self.max_new_tokens is None else self.max_new_tokens
        sampling = Sampling(temperature=self.temperature, max_new_tokens=tokens)
        # Everything that can be refused is refused before a model is loaded and hours are played.
        quality = read_quality(self.quality) if self.quality is not None else None
        if quality is not None and self.report is None and featured not in quality.teams:
            raise ConfigError(f"--quality has no effect: {self.quality} judges {', '.join(quality.teams)}, and not {featured}.")
        earlier = self._earlier(place, tasks, sampling, featured, names=[name for name, _ in named] + learned_alone)
        if self.report is not None:
            check_writable(self.report, "--report")
            if not is_built():
                raise ConfigError(f"--report: {NOT_BUILT}")
        if self.name:
            check_writable(kept_path(RUNS, self.name), "--name")
        fit = Fit(env=place.env, reply=tokens)
        hosted = HostedSeats(self.hosted, schema=place.schema, exact=self.max_new_tokens is not None, fit=fit)
        groupings = place.env.groupings()
        with closing(hosted), place.opened() as make_env:

            def check(chat: ChatEncoder) -> None:
                check_room(
                    chat, make_env, tasks[0], actors=place.roles, partners=partners, sampling=sampling, budget=fit.local(chat)
                )

            made, stack = teams(
                self.teams,
                self.model,
                terminal.progress,
                seats=place.roles,
                shipped=shipped,
                hosted=hosted,
                goes_on=place.env.goes_on,
                fit=fit,
                check=check,
            )
            check_learned(made, self.alone, "--alone")
            around = Team(
                name="partners", policies=partners, fingerprints={role: policy.version for role, policy in partners.items()}
            )
            rows = [*made, *(one_seat(team, around, role) for team in made if team.learned for role in self.alone)]
            with EvaluationCache(self.cache, env=place.fingerprint) as cache:
                comparison = compare(
                    rows,
                    tasks,
                    env_factory=make_env,
                    cache=cache,
                    sampling=sampling,
                    seed=self.seed,
                    max_turns=place.env.max_turns,
                    encoder=stack.chat if stack else None,
                    batch=self.batch,
                    workers=place.workers,
                    stratum=next(iter(groupings.values())),
                    on_progress=lambda team, done, total: steps(terminal, team)(done, total),
                )
            accounts = hosted.accounts
        if earlier is not None:
            comparison = joined(comparison, earlier)
        shown = tuple(metric for metric in place.shown if metric in comparison.metrics)
        # Groups and kinds say something where tasks are passed or failed; scenarios are strata of every table already.
        detailed = bool(kinds(comparison))
        sheets = matched_sheets(comparison, groupings, place.headline, featured=featured) if detailed else []
        tables: list[RenderableType] = [sheet_table(sheet) for sheet in sheets]
        if not detailed and len(comparison.teams) > 1:
            stratum = next(iter(groupings))
            tables = [differences_table(comparison, metric, featured=featured, stratum=stratum) for metric in place.headline]
        tables.append(comparison_table(comparison, metrics=shown))
        folder = run_behind(featured, named, local)
        start = self.before or trained_from(folder, named, made, stack)
        # With these `runs rescore` finds the tasks and the rules again, and the viewer the run and what was judged.
        data: dict[str, Any] = {
            "env": as_table(self.env, place.env, fingerprint=place.fingerprint),
            "split": self.split,
            "runs": runs_of(named, local),
            "scripted": [name for name, source in named if source in shipped],
            "featured": featured,
            "start": "" if start == featured else start,
            "headline": place.headline,
            **({"quality": quality.as_dict()} if quality is not None else {}),
            **document(comparison),
        }
        found = findings_of(jsonable(data))
        if found is not None:
            data |= {"verdict": found.as_dict()}
            tables.insert(0, findings_block(found))
        if accounts:
            data |= {"hosted": accounts}
            tables.append(table(ACCOUNT_COLUMNS, account_rows(accounts), title="hosted models"))
        if detailed:
            data |= matched_dict(comparison, groupings, place.headline)
        if self.name:
            terminal.progress(f"wrote {keep(RUNS, self.name, jsonable(data))}")
        if self.report is not None:
            report = Report(
                title="onthejob compare",
                lead=f"{len(tasks)} {self.split} tasks of the {place.name} per team, temperature {self.temperature:g}.",
                quality=quality,
                comparison=comparison,
                headline=place.headline,
                featured=featured,
                sheets=sheets,
                start=data["start"],
            )
            report = complete(report, run_folder=folder, made=made, before=start)
            terminal.progress(f"wrote {write_report(self.report, report)}")
        terminal.result(data, *tables)
        return 1 if comparison.failed else 0

    def _check(self, place: NamedEnv) -> None:
        if self.alone and len(place.roles) == 1:
            raise ConfigError(f"--alone has no effect in {place.name}, which has one role. Leave it out.")
        if unknown := [role for role in self.alone if role not in place.roles]:
            raise ConfigError(
                f"--alone takes some of {', '.join(place.roles)}, got {', '.join(unknown)}.{place.why_not(unknown)}"
            )
        check_teams(self.teams)
        if self.name:
            check_plain_name(self.name, "a comparison's name")
        if self.limit < 0 or (self.max_new_tokens is not None and self.max_new_tokens < 1):
            raise ConfigError(f"limit must be >= 0 and max_new_tokens >= 1, got {self.limit} and {self.max_new_tokens}.")
        place.check()

    def _earlier(
        self, place: NamedEnv, tasks: Sequence[Task], sampling: Sampling, featured: str, *, names: Sequence[str]
    ) -> EarlierComparison | None:
        """The comparison of `--beside`, if any, after a check that it matches the teams `names`; all names are known."""
        from onthejob.evaluate.comparison import settings_for
        from onthejob.evaluate.pass_fail import read_comparison

        earlier = read_comparison(self.beside) if self.beside is not None else None
        if earlier is not None:
            settings = settings_for(sampling, seed=self.seed, max_turns=place.env.max_turns, env=place.fingerprint)
            earlier.refuse_unmatched(tasks, settings, names)
        check_names(featured, self.before, names, earlier.teams if earlier is not None else ())
        return earlier

    def _tasks(self, place: NamedEnv) -> list[Task]:
        from onthejob.keys import keyed_sample

        tasks = place.tasks(Split(self.split))
        if not 0 < self.limit < len(tasks):
            return tasks
        chosen = keyed_sample(range(len(tasks)), self.limit, self.seed, "limit")
        return [tasks[index] for index in sorted(chosen)]
