"""`onthejob eval`: single decisions of teams, side by side on held-out states."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from onthejob.commands.outputs import check_writable
from onthejob.commands.seats import HostedOptions, HostedSeats, ModelOptions, teams
from onthejob.commands.terminal import Output, Terminal
from onthejob.errors import ConfigError
from onthejob.types import Sampling, Split

if TYPE_CHECKING:
    from onthejob.evaluate.states import HeldOutState
    from onthejob.evaluate.teams import Team

CACHE = Path("runs/evaluation.sqlite")
"""Where results are kept between evaluations."""

COLLECTING = {"per_role": 200, "episodes": 4, "first": 0, "days": 30}
"""Options of `onthejob eval` that say which states are collected, as they are when neither they nor a file say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eval:
    """Decision quality: how much of what one decision can win, a team wins (0 a random legal reply, 1 the best of many).

    Judged on a file of held-out states, which is collected when it does not exist yet, half of it from the heuristic's play and
    half from that of the first learned team. Values are cached; only what is new costs time.
    """

    teams: tyro.conf.Positional[tuple[str, ...]]
    """Rows: `base`, a scripted player, a run (`RUN:best`), a folder of adapters, a hosted model (`openai:URL`, `anthropic:MODEL`,
    `bedrock:MODEL`), or `NAME=` one of these."""
    states: Path | None = None
    """File of held-out states, collected when it does not exist; runs/states-dev.bin or runs/states-test.bin by default."""
    split: Literal["dev", "test"] = "dev"
    """Split of the states. Try things on dev; test is for the final table."""
    per_role: int | None = None
    """States per role, 200 by default. This and the next three say how states are collected; a file that exists is refused when
    it was made otherwise."""
    episodes: int | None = None
    """Episodes per scenario and source, 4 by default."""
    first: int | None = None
    """Skip this many seeds of each scenario, 0 by default."""
    days: int | None = None
    """Length of those episodes in days, 30 by default."""
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
    temperature: float = 1.0
    """Of the sampled replies, beside which every policy is also judged greedily: that of its training."""
    max_new_tokens: int | None = None
    """Limit of a reply in tokens; None: 32, for a hosted model the catalogue's, 256 or more."""
    cache: Path = CACHE
    """Where values, replies and episodes are kept between evaluations."""
    model: ModelOptions = field(default_factory=ModelOptions)
    """The language model, when one is judged."""
    hosted: HostedOptions = field(default_factory=HostedOptions)
    """Hosted models, when one is judged."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Collect states if need be, judge, print the differences to the last team and the scores."""
        from onthejob.commands.office import Office, check_days, make_office, scenarios_named
        from onthejob.envs.office.env import SEATS, OfficeEnvironment
        from onthejob.envs.office.tasks import office_tasks
        from onthejob.evaluate.cache import EvaluationCache, source_fingerprint
        from onthejob.evaluate.collect import collect_states
        from onthejob.evaluate.quality import decision_quality
        from onthejob.evaluate.scores import QualityConfig
        from onthejob.evaluate.states import save_states
        from onthejob.evaluate.tables import quality_differences_table, quality_table
        from onthejob.evaluate.teams import scripted_team
        from onthejob.players import scripted

        roles = self.roles or SEATS
        if unknown := [role for role in roles if role not in SEATS]:
            raise ConfigError(f"roles must be some of {', '.join(SEATS)}, got {', '.join(unknown)}.")
        check_teams(self.teams)
        asked = {name: getattr(self, name) for name in COLLECTING}
        collecting = {name: COLLECTING[name] if value is None else value for name, value in asked.items()}
        check_days(collecting["days"])
        if not 0 < self.temperature < math.inf:
            raise ConfigError(f"temperature must be above 0, got {self.temperature}; greedy replies are judged anyway. Usual: 1.")
        tokens = Office.max_new_tokens if self.max_new_tokens is None else self.max_new_tokens
        config = QualityConfig(
            worlds=tuple(range(10_000, 10_000 + self.worlds)),
            turns=self.turns,
            candidates=self.candidates,
            decodings=(
                Sampling(temperature=0.0, max_new_tokens=tokens),
                Sampling(temperature=self.temperature, max_new_tokens=tokens),
            ),
            seed=self.seed,
            workers=self.workers,
        )
        file = self.states or Path(f"runs/states-{self.split}.bin")
        known = states_of(file, self.split, asked) if file.exists() else []
        if not known:
            check_writable(file, "--states")
        seats = HostedSeats(self.hosted, exact=self.max_new_tokens is not None)
        shipped = Office().players(())
        made, stack = teams(self.teams, self.model, terminal.progress, seats=SEATS, shipped=shipped, hosted=seats)
        check_learned(made, roles, "--roles")
        encoder = stack.chat if stack else None
        env_factory = make_office()
        with closing(seats), EvaluationCache(self.cache, env=source_fingerprint(OfficeEnvironment)) as cache:
            if not known:
                every = scenarios_named(["all"])
                tasks = office_tasks(
                    Split(self.split),
                    seeds=collecting["episodes"],
                    scenarios=every,
                    days=collecting["days"],
                    first=collecting["first"],
                )
                heuristic = scripted_team("heuristic", scripted("heuristic"), SEATS)
                learned = [team for team in made if team.name != "heuristic"]
                known = collect_states(
                    tasks,
                    [heuristic, *learned[:1]],
                    actors=SEATS,
                    per_role=collecting["per_role"],
                    env_factory=env_factory,
                    sampling=Sampling(temperature=self.temperature, max_new_tokens=tokens),
                    seed=self.seed,
                    max_turns=14 * collecting["days"],
                    encoder=encoder,
                    on_progress=steps(terminal, "episodes for states"),
                )
                save_states(file, known, collecting)
            states = [state for state in known if state.actor in roles]
            terminal.progress(f"judging {len(states)} states of split {self.split}, {file}")
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
        tables = [quality_differences_table(quality, decoding=decoding) for decoding in quality.decodings if len(made) > 1]
        tables += [quality_table(quality, decoding=decoding) for decoding in quality.decodings]
        terminal.result(quality.as_dict(), *tables)
        return 0


def states_of(file: Path, split: str, asked: Mapping[str, int | None]) -> list[HeldOutState]:
    """The held-out states in `file`, all of `split` and collected as `asked`: nobody should judge by others than they think.

    `asked` holds options of `COLLECTING`, None where any value will do.

    Raises:
        ConfigError: the file holds states of another split, or others than were asked for.
        RecordError: it cannot be read.
    """
    from onthejob.evaluate.states import load_collection

    states, collected = load_collection(file)
    if others := sorted({str(state.task.split) for state in states} - {split}):
        raise ConfigError(f"{file} holds states of split {', '.join(others)}, --split is {split}. Name another file or split.")
    for name, value in asked.items():
        if value is not None and value != collected.get(name):
            option, made = f"--{name.replace('_', '-')}", collected.get(name, "one that it does not say")
            raise ConfigError(
                f"{file} was collected with {option} {made}, got {option} {value}. Leave the option out, or name another "
                "--states file, which is then collected."
            )
    return states


def check_teams(specs: tuple[str, ...]) -> None:
    """Refuse an empty list of teams."""
    if not specs:
        raise ConfigError("name at least one team, e.g. `base heuristic expert`, got none.")


def check_learned(teams: Sequence[Team], roles: Sequence[str], option: str) -> None:
    """Refuse to judge as a team's own decision what somebody else decides in a seat that it has no adapter for."""
    for team in teams:
        if team.learned and (missing := [role for role in roles if role not in team.learned]):
            has = ", ".join(role for role in team.policies if role in team.learned)
            raise ConfigError(f"{team.name} has no adapter of {', '.join(missing)}. Name only roles that it has: {option} {has}.")


def steps(terminal: Terminal, what: str) -> Callable[[int, int], None]:
    """Progress of `what` in about ten lines, however many steps there are."""

    def say(done: int, total: int) -> None:
        if done == total or done % max(1, total // 10) == 0:
            terminal.progress(f"{what}: {done}/{total}")

    return say
