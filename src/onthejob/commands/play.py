"""`onthejob play`: one episode, turn by turn. The office is played here, the claw in `play_claw`, all others in `play_own`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from onthejob.commands.claw import Claw
from onthejob.commands.office import Office
from onthejob.commands.outputs import check_writable
from onthejob.commands.own import Own
from onthejob.commands.seats import (
    ACCOUNT_COLUMNS,
    PARTNER,
    HostedOptions,
    HostedSeats,
    ModelOptions,
    account_rows,
    local_sources,
    names_and_sources,
    teams,
)
from onthejob.commands.terminal import Output, Terminal, jsonable, table
from onthejob.commands.workplace import refuse_foreign, refuse_unused
from onthejob.commands.workplaces import OWN_PLACE, EnvOptions, check_parsed, is_own, placed, starting
from onthejob.envs.office.env import SEATS, OfficeConfig
from onthejob.errors import ConfigError, OnTheJobError
from onthejob.models.catalogue import is_hosted
from onthejob.types import Message, Sampling, ToolSpec

if TYPE_CHECKING:
    from onthejob.evaluate.teams import Team
    from onthejob.models.chat import ChatEncoder
    from onthejob.models.hosted import Account
    from onthejob.rollout.episode import Episode, LiveEpisode
    from onthejob.rollout.seats import Orders, Seats
    from onthejob.stack import Stack
    from onthejob.types import Completion, Policy, Step

HUMAN = "human"
"""The policy that reads from the terminal."""
OWN = {
    "office": ("team", "seat", "role", "replay", "orders"),
    "claw": ("task",),
    OWN_PLACE: ("seat", "task", "split"),
}
"""Options that not every workplace has."""
UNUSED = ("seeds", "first", "partner", "curriculum")
"""Options of the office that one episode, whose seed is --seed, does not depend on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """Play one episode and show every turn: who did what, whether it was possible, and what it was worth."""

    workplace: tyro.conf.Positional[str] = "office"
    """Which workplace: `office`, `claw`, or an environment of your own, as for `train`. Name it before the options."""
    env: str = ""
    """The workplace, when it is not the first word."""
    own: EnvOptions = None
    """Options of the environment; None for its defaults. The office is played in one of its scenarios, e.g. `--env.scenarios
    churn`, for `--env.days 5`."""
    team: str = "heuristic"
    """Office: who sits in all seats: a scripted player (heuristic, expert, ...), `base`, a run, a folder of adapters, or a hosted
    model: `openai:URL`, `openai:MODEL`, `anthropic:MODEL`, `bedrock:MODEL`."""
    seat: tuple[str, ...] = ()
    """Office and your own environment: somebody else in one seat, as `role=who`, e.g. `--seat sales=expert ceo=base`."""
    role: Literal["ceo", "dev", "marketing", "sales", "content", "hr"] | None = None
    """Office: the seat that --policy takes."""
    policy: str | None = None
    """Office: who takes the seat of --role; `human` is you, with undo and a replay file; otherwise as for --seat.
    Claw: who works; `human` is you, `gold` (the default), `noop`, `idle`, `base` (or `llm`), a run (`RUN:best`), a folder of
    adapters, or a hosted model as for --team.
    Your own environment: who plays all roles that --seat does not name: `human`, one of its scripted players (the default is its
    usual one), `base`, a run, a folder of adapters, or a hosted model."""
    replay: Path = Path("replay.json")
    """Office: where a game with --policy human is written at its end; `onthejob runs replay` plays it again."""
    seed: int = 1_000
    """Office: of the episode; 1000 and up are dev, 50000 and up test, 100000 and up training seeds. Elsewhere: of the replies."""
    task: str = ""
    """Claw and your own environment: a task id or a family (`onthejob tasks list`); by default the first training task."""
    split: Literal["train", "dev", "test"] | None = None
    """Your own environment: the split in which the task is looked for; None looks into all of them."""
    temperature: float = 0.0
    """Of the model's replies; 0 decodes greedily."""
    max_new_tokens: int | None = None
    """Limit of a reply in tokens. None takes the workplace's usual one (office 32, claw 192), and for a hosted model the
    catalogue's, 256 or more, where that is longer."""
    orders: Path | None = None
    """Office: watch this file, which `onthejob policy swap` writes: seats change hands while the episode runs."""
    transcript: Path | None = None
    """Also write every turn as one JSON line into this file."""
    model: ModelOptions = field(default_factory=ModelOptions)
    """The language model, when one plays."""
    hosted: HostedOptions = field(default_factory=HostedOptions)
    """Hosted models, when one plays."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Play, printing turns as they happen; then the figures."""
        if self.env not in ("", self.workplace):
            raise ConfigError(f"the workplace is named twice: {self.workplace} and --env {self.env}. Leave one of them out.")
        options = starting(self.workplace, "Play") if self.own is None else self.own
        check_parsed(self.workplace, options, "play")
        place = placed(self.workplace, options)
        refuse_foreign(self, OWN_PLACE if is_own(self.workplace) else self.workplace, OWN)
        tokens = place.max_new_tokens
        sampling = Sampling(
            temperature=self.temperature, max_new_tokens=tokens if self.max_new_tokens is None else self.max_new_tokens
        )
        if not 0.0 <= sampling.temperature < float("inf") or sampling.max_new_tokens < 1:
            got = f"{sampling.temperature} and {sampling.max_new_tokens}"
            raise ConfigError(f"temperature must be finite and >= 0 and max_new_tokens >= 1, got {got}.")
        if self.transcript is not None:
            check_writable(self.transcript, "--transcript")
        if isinstance(place, Own):
            from onthejob.commands.play_own import play_own

            return play_own(
                terminal,
                place,
                self.policy,
                others=self.seat,
                wanted=self.task,
                split=self.split,
                sampling=sampling,
                seed=self.seed,
                model=self.model,
                hosted=self.hosted,
                exact=self.max_new_tokens is not None,
                transcript=self.transcript,
            )
        if isinstance(options, Claw):
            from onthejob.commands.play_claw import play_claw

            return play_claw(
                terminal,
                options,
                self.policy or "gold",
                wanted=self.task,
                sampling=sampling,
                seed=self.seed,
                model=self.model,
                hosted=self.hosted,
                exact=self.max_new_tokens is not None,
                transcript=self.transcript,
            )
        return self._play_office(terminal, options, sampling)

    @classmethod
    def starting(cls, env: str) -> Play:
        """The defaults in workplace `env`."""
        return cls(workplace=env)

    def _play_office(self, terminal: Terminal, place: Office, sampling: Sampling) -> int:
        from onthejob.commands.office import make_office, scenarios_named
        from onthejob.envs.office.tasks import split_of
        from onthejob.rollout.play import play
        from onthejob.rollout.room import check_room
        from onthejob.rollout.seats import Orders, Seats
        from onthejob.types import Task

        refuse_unused(place, Office.starting("Play"), UNUSED, "play")
        place.check()
        scenarios = scenarios_named(place.scenarios)
        if len(scenarios) != 1:
            raise ConfigError(f"play takes one scenario, got {', '.join(scenarios)}. Choose one: --env.scenarios {scenarios[0]}.")
        (scenario,) = scenarios
        others = seated_apart(self.seat, SEATS)
        if (self.role is None) != (self.policy is None):
            raise ConfigError("--role and --policy go together, e.g. --role sales --policy human.")
        by_hand = self.policy == HUMAN
        if by_hand and (terminal.json or self.transcript):
            raise ConfigError("a game by hand is shown in the terminal and written as --replay. Drop --json and --transcript.")
        if self.role is not None and self.policy is not None and not by_hand:
            others[self.role] = self.policy
        specs = [self.team, *others.values()]
        place = place.fitted(model=self.model.name, hosted=any(is_hosted(spec.rpartition("=")[2]) for spec in specs))
        config = place.config
        if by_hand and config != OfficeConfig(retries=config.retries):
            raise ConfigError(
                "a game by hand has the usual prompts and rewards. Drop --env.profile, --env.prompt-budget, --env.reflect, "
                "--env.reader and --env.no-crisis-bonus."
            )
        named, shipped = names_and_sources(specs), Office().players(())
        models = [source for _, source in named if source not in shipped]
        # Whom --orders will seat is not known yet.
        place.check_players(
            local=bool(local_sources(named, shipped) or self.orders),
            models=bool(models or self.orders),
        )
        seats = HostedSeats(self.hosted, exact=self.max_new_tokens is not None)
        rest = [role for role in SEATS if role not in others] or SEATS
        parts = [rest, *([role] for role in others)]
        make_env = make_office(config, model=place.tokenizer)
        task = Task(
            id=f"office-{scenario}-{self.seed}",
            env="office",
            split=split_of(self.seed),
            seed=self.seed,
            payload={"scenario": scenario, "days": place.days},
        )
        local = set(local_sources(named, shipped))
        actors = {role for (_, source), taken in zip(named, parts, strict=True) if source in local for role in taken}

        def check(chat: ChatEncoder) -> None:
            check_room(chat, make_env, task, actors=actors, partners=dict.fromkeys(SEATS, shipped[PARTNER]), sampling=sampling)

        made, stack = self._teams(specs, parts, seats, terminal, check)
        policies: dict[str, Policy] = dict(made[0].policies)
        for role, team in zip(others, made[1:], strict=True):
            policies[role] = team.policies[role]

        if by_hand and self.role is not None:
            from onthejob.commands.human import play_by_hand

            check_writable(self.replay, "--replay")
            return play_by_hand(terminal, task, self.role, policies, self.replay)

        table_seats, encoder = Seats(policies), LateEncoder(stack.chat if stack else None)
        orders = Orders(self.orders) if self.orders is not None else None

        def on_turn(episode: LiveEpisode, completion: Completion, step: Step) -> None:
            if not terminal.json:
                terminal.say(line(episode, completion, step))
            if orders is not None:
                self._obey(orders, table_seats, encoder, seats, terminal)

        try:
            (episode,) = play(
                [make_env()],
                [task],
                table_seats,
                sampling,
                seed=self.seed,
                encoder=encoder,
                max_turns=place.max_turns,
                on_turn=on_turn,
            )
            accounts = seats.accounts
        finally:
            seats.close()
        if self.transcript is not None:
            write_transcript(self.transcript, episode)
        return report(terminal, episode, accounts)

    def _teams(
        self,
        specs: Sequence[str],
        parts: Sequence[Sequence[str]],
        hosted: HostedSeats,
        terminal: Terminal,
        check: Callable[[ChatEncoder], None] | None = None,
    ) -> tuple[list[Team], Stack | None]:
        shipped = Office().players(())
        return teams(specs, self.model, terminal.progress, seats=SEATS, shipped=shipped, hosted=hosted, parts=parts, check=check)

    def _obey(self, orders: Orders, table_seats: Seats, encoder: LateEncoder, hosted: HostedSeats, terminal: Terminal) -> None:
        """Do what somebody ordered; an order that cannot be done is said and changes nothing."""
        try:
            for role, who in orders.new().items():
                (team,), stack = self._teams([who], [[role]], hosted, terminal)
                if stack is not None:
                    encoder.chat = stack.chat
                before = table_seats.swap(role, team.policies[role])
                terminal.progress(f"{role}: {team.policies[role].version} instead of {before.version}")
        except OnTheJobError as error:
            terminal.warn(str(error))


def seated_apart(given: Sequence[str], roles: Sequence[str]) -> dict[str, str]:
    """Role -> who takes its seat, from `role=who` of --seat.

    Raises:
        ConfigError: another form, an unknown role, or a role that is named twice.
    """
    found = dict(part.split("=", 1) for part in given if "=" in part)
    if len(found) != len(given) or set(found) - set(roles):
        raise ConfigError(f"--seat takes role=who with a role of {', '.join(roles)}, got {' '.join(given)!r}.")
    return found


class LateEncoder:
    """The encoder of a model that may be loaded only while the episode runs."""

    def __init__(self, chat: ChatEncoder | None) -> None:
        self.chat = chat

    def _loaded(self) -> ChatEncoder:
        if self.chat is None:
            raise ConfigError("no model is loaded, so nobody can read tokens. Seat `base` or an adapter.")
        return self.chat

    @property
    def window(self) -> int | None:
        """Of the model that is loaded."""
        return None if self.chat is None else self.chat.window

    def encode(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> tuple[int, ...]:
        """As `ChatEncoder.encode`."""
        return self._loaded().encode(messages, tools)

    def extend(self, context_ids: Sequence[int], completion_ids: Sequence[int], messages: Sequence[Message]) -> tuple[int, ...]:
        """As `ChatEncoder.extend`."""
        return self._loaded().extend(context_ids, completion_ids, messages)


def write_transcript(path: Path, episode: Episode) -> None:
    """Write every turn as one JSON line."""
    path.write_text("".join(json.dumps(jsonable(asdict(turn))) + "\n" for turn in episode.transcript), encoding="utf-8")


def line(episode: LiveEpisode, completion: Completion, step: Step) -> str:
    """One turn as people read it."""
    actor = str(step.facts.get("actor", ""))
    reward = step.rewards.get(actor, 0.0)
    did = completion.text.strip() if step.valid else f"{completion.text.strip()!r} (unusable: {step.facts.get('why', '')})"
    notes = "; ".join(str(note) for note in step.facts.get("notes", ()))
    return f"{episode.turn:4d} {actor:<10} {reward:+7.2f}  {did}{'  | ' + notes if notes else ''}"


def report(terminal: Terminal, episode: Episode, accounts: Mapping[str, Account]) -> int:
    """Print the end of an episode; 1 when that was an error."""
    counts = {actor: {"turns": c.turns, "valid": c.valid, "retries": c.retries} for actor, c in episode.actors.items()}
    data = {
        "task": episode.task.id,
        "stop": episode.stop,
        "error": episode.error,
        "turns": episode.turns,
        "metrics": episode.metrics,
        "actors": counts,
        "hosted": accounts,
    }
    tables = [table(ACCOUNT_COLUMNS, account_rows(accounts), title="hosted models")] if accounts else []
    terminal.result(
        data,
        "",
        f"{episode.task.id}: {episode.stop} after {episode.turns} turns" + (f" ({episode.error})" if episode.error else ""),
        table(("metric", "value"), list(episode.metrics.items())),
        *tables,
    )
    return 1 if episode.error else 0
