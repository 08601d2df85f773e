"""`onthejob eval`: single decisions of teams, side by side on held-out states."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from onthejob.commands.env_options import EnvOptions, as_table, starting
from onthejob.commands.named_env import NamedEnv
from onthejob.commands.options import overlay
from onthejob.commands.outputs import check_writable
from onthejob.commands.player_specs import HostedOptions, HostedSeats, ModelOptions, local_model, names_and_sources, teams
from onthejob.commands.prompt_lengths import Fit
from onthejob.commands.terminal import Output, Terminal
from onthejob.errors import ConfigError, OnTheJobError
from onthejob.types import Sampling, Split

if TYPE_CHECKING:
    from onthejob.evaluate.states import HeldOutState
    from onthejob.evaluate.teams import Team
    from onthejob.rollout.episode import Encoder
    from onthejob.types import Forkable, Task

CACHE = Path("runs/evaluation.sqlite")
"""Where results are kept between evaluations."""

PER_ROLE = 200
"""States per role that are collected where --per-role does not say."""
EARLIER_ENV = "office"
"""Whose states those files hold that name no environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eval:
    """Decision quality: how much of what one decision can win, a team wins (0 a random legal reply, 1 the best of many).

    Judged on a file of held-out states, which is collected when it does not exist yet, half of it from play of the environment's
    usual partner and half from that of the first learned team. Values are cached; only what is new costs time.
    """

    teams: tyro.conf.Positional[tuple[str, ...]]
    """Rows: `base`, a scripted player, a run (`RUN:best`), a folder of adapters, a hosted model (`openai:URL`, `anthropic:MODEL`,
    `bedrock:MODEL`), or `NAME=` one of these."""
    env: str = "office"
    """Workplace: `office`, or an environment of your own that can be forked and lists legal replies, as for `train`."""
    own: EnvOptions = None
    """Options of the environment; None for its defaults. Of a file of states that exists its own hold, and others are refused."""
    states: Path | None = None
    """File of held-out states, collected when it does not exist; by default runs/states-SPLIT.bin for the office, and
    runs/states-NAME-SPLIT.bin for an environment of another name."""
    split: Literal["dev", "test"] = "dev"
    """Split of the states. Try things on dev; test is for the final table."""
    per_role: int | None = None
    """States per role, 200 by default, from episodes of all tasks that the options of the environment give, which each of the two
    plays once. A file that exists is refused when it holds another number."""
    roles: tuple[str, ...] = ()
    """Roles whose decisions are judged; none means all."""
    worlds: int = 8
    """Evaluation worlds over which a value is averaged; even."""
    turns: int = 140
    """Horizon of a branch in turns."""
    candidates: int = 16
    """Random legal replies per state of which the best is the yardstick."""
    workers: int = 0
    """Processes that play branches; 0 plays them in this one."""
    seed: int = 0
    """Random seed of candidates, sampling and resampling."""
    temperature: float = 1.0
    """Sampling temperature, by default that of training. Every policy is judged greedily too."""
    max_new_tokens: int | None = None
    """Limit of a reply in tokens. None takes the workplace's usual one (office 48), and for a hosted model the catalogue's, 256
    or more, where that is longer."""
    cache: Path = CACHE
    """File in which values, replies and episodes are kept between evaluations."""
    model: ModelOptions = field(default_factory=ModelOptions)
    """The language model, when one is judged."""
    hosted: HostedOptions = field(default_factory=HostedOptions)
    """Hosted models, when one is judged."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    @classmethod
    def starting(cls, env: str) -> Eval:
        """The defaults in workplace `env`."""
        return cls(teams=tyro.MISSING, env=env)

    def place(self) -> NamedEnv:
        """The workplace of these options."""
        # Without retries also where hosted models play: a decision is what is replied at first.
        model = local_model(names_and_sources(self.teams), self._own, self.model)
        return NamedEnv(ref=self.env, env=self._own).fitted(model=model)

    @property
    def _own(self) -> Any:
        return starting(self.env, "Eval") if self.own is None else self.own

    def run(self, terminal: Terminal) -> int:
        """Collect states if need be, judge, print the differences to the last team and the scores."""
        from onthejob.evaluate.cache import EvaluationCache
        from onthejob.evaluate.quality import decision_quality
        from onthejob.evaluate.scores import QualityConfig
        from onthejob.evaluate.terminal_tables import quality_differences_table, quality_table
        from onthejob.rollout.branch import forkable

        check_teams(self.teams)
        if not 0 < self.temperature < math.inf:
            raise ConfigError(f"temperature must be above 0, got {self.temperature}; greedy replies are judged anyway. Usual: 1.")
        file = self._file()
        options, known = self._with_states_of(file) if file.exists() else (self, [])
        place = options.place()
        roles = options._checked(place)
        tokens = place.env.max_new_tokens if self.max_new_tokens is None else self.max_new_tokens
        sampled = Sampling(temperature=self.temperature, max_new_tokens=tokens)
        config = QualityConfig(
            worlds=tuple(range(10_000, 10_000 + self.worlds)),
            turns=self.turns,
            candidates=self.candidates,
            decodings=(Sampling(temperature=0.0, max_new_tokens=tokens), sampled),
            seed=self.seed,
            workers=self.workers,
        )
        if not known:
            check_writable(file, "--states")
        fit = Fit(env=place.env, reply=tokens)
        seats = HostedSeats(self.hosted, schema=place.schema, exact=self.max_new_tokens is not None, fit=fit)
        tasks = place.tasks(Split(self.split))
        shipped = place.players(tasks)
        if "random" not in shipped:
            raise ConfigError(
                f"eval measures decisions against random legal ones, and {self.env} has no player `random`. "
                "Pass legal=[...] to self.ask, or return one from players()."
            )
        try:
            made, stack = teams(
                self.teams, self.model, terminal.progress, seats=place.roles, shipped=shipped, hosted=seats, fit=fit
            )
        except OnTheJobError:
            seats.close()
            raise
        check_learned(made, roles, "--roles")
        encoder = stack.chat if stack else None
        with closing(seats), place.opened() as make_env, EvaluationCache(self.cache, env=place.fingerprint) as cache:
            make_fork = partial(forkable, make_env)
            if not known:
                known = options._collected(file, place, tasks, made, make_fork, sampled, encoder, terminal)
            states = [state for state in known if state.actor in roles]
            terminal.progress(f"judging {len(states)} states of split {self.split}, {file}")
            quality = decision_quality(
                states,
                made,
                random=shipped["random"],
                env_factory=make_fork,
                cache=cache,
                config=config,
                encoder=encoder,
                on_progress=lambda what, done, total: steps(terminal, what)(done, total),
            )
        tables = [quality_differences_table(quality, decoding=decoding) for decoding in quality.decodings if len(made) > 1]
        tables += [quality_table(quality, decoding=decoding) for decoding in quality.decodings]
        terminal.result(quality.as_dict(), *tables)
        return 0

    def _file(self) -> Path:
        name = self.place().name
        return self.states or Path("runs") / f"states-{'' if name == EARLIER_ENV else f'{name}-'}{self.split}.bin"

    def _checked(self, place: NamedEnv) -> tuple[str, ...]:
        """The roles that are judged; refuses options that cannot work."""
        roles = self.roles or place.roles
        if unknown := [role for role in roles if role not in place.roles]:
            raise ConfigError(
                f"roles must be some of {', '.join(place.roles)}, got {', '.join(unknown)}.{place.why_not(unknown)}"
            )
        if not place.forkable:
            raise ConfigError(f"eval branches single decisions, and {self.env} cannot be forked. Use `onthejob compare`.")
        place.check()
        return roles

    def _with_states_of(self, file: Path) -> tuple[Eval, list[HeldOutState]]:
        """The held-out states in `file`, and these options with the environment's as they were when it was collected.

        Raises:
            ConfigError: the file holds states of another split or environment, or others than were asked for.
            RecordError: it cannot be read.
        """
        from onthejob.evaluate.states import load_collection

        states, collected = load_collection(file)
        if others := sorted({str(state.task.split) for state in states} - {self.split}):
            held = ", ".join(others)
            raise ConfigError(f"{file} holds states of split {held}, --split is {self.split}. Name another file or split.")
        if self.per_role is not None:
            _refuse_other(file, "--per-role", collected.get("per_role"), self.per_role)
        asked, usual = as_table(self.env, self._own), as_table(self.env, starting(self.env, "Eval"))
        recorded = dict(collected.get("env") or _earlier(collected))
        if (ref := recorded.pop("ref")) != asked["ref"]:
            raise ConfigError(f"{file} holds states of {ref}, --env is {self.env}. Name another --states file.")
        for name, value in asked.items():
            if name != "ref" and value != usual.get(name) and value != recorded.get(name, usual.get(name)):
                _refuse_other(file, f"--env.{name.replace('_', '-')}", recorded.get(name, usual.get(name)), value)
        own = overlay(self._own, recorded, where=f"the options of {file}")
        return dataclasses.replace(self, own=own), states

    def _collected(
        self,
        file: Path,
        place: NamedEnv,
        tasks: Sequence[Task],
        made: Sequence[Team],
        make_env: Callable[[], Forkable],
        sampling: Sampling,
        encoder: Encoder | None,
        terminal: Terminal,
    ) -> list[HeldOutState]:
        """New held-out states, written to `file`."""
        from onthejob.evaluate.held_out import collect_states
        from onthejob.evaluate.states import save_states
        from onthejob.evaluate.teams import scripted_team

        partner = place.partners()[place.roles[0]]
        usual = scripted_team(partner.version, partner, place.roles)
        learned = [team for team in made if team.name != usual.name]
        per_role = PER_ROLE if self.per_role is None else self.per_role
        states = collect_states(
            tasks,
            [usual, *learned[:1]],
            actors=place.roles,
            per_role=per_role,
            env_factory=make_env,
            sampling=sampling,
            seed=self.seed,
            max_turns=place.env.max_turns,
            encoder=encoder,
            on_progress=steps(terminal, "episodes for states"),
        )
        save_states(file, states, {"per_role": per_role, "env": as_table(self.env, self._own)})
        return states


def _earlier(collected: Mapping[str, Any]) -> dict[str, Any]:
    """The table `[env]` of a file from the time when only the office's states were judged."""
    names = {"episodes": "seeds", "first": "first", "days": "days"}
    return {"ref": EARLIER_ENV} | {name: collected[key] for key, name in names.items() if key in collected}


def _refuse_other(file: Path, option: str, made: object, value: object) -> None:
    """Refuse states other than those that the options ask for."""
    if value != made:
        said = "one that it does not say" if made is None else made
        raise ConfigError(
            f"{file} was collected with {option} {said}, got {option} {value}. Leave the option out, or name another "
            "--states file, which is then collected."
        )


def check_teams(specs: tuple[str, ...]) -> None:
    """Refuse an empty list of teams."""
    if not specs:
        raise ConfigError("name at least one team, e.g. `base heuristic expert`, got none.")


def check_learned(teams: Sequence[Team], roles: Sequence[str], option: str) -> None:
    """Refuse to judge as a team's own decision what another player decides in a seat for which the team has no adapter."""
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
