"""`onthejob play office`: one company, turn by turn, with a person in a seat, and with seats that change hands while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from onthejob.commands.outputs import check_writable
from onthejob.commands.play import HUMAN, Playing, report, seated_apart, write_transcript
from onthejob.commands.seats import PARTNER, HostedSeats, local_sources, names_and_sources, teams
from onthejob.commands.terminal import Terminal
from onthejob.commands.workplace import Workplace, refuse_unused
from onthejob.envs.office.env import CUSTOMER, SEATS, OfficeConfig
from onthejob.errors import ConfigError, OnTheJobError
from onthejob.models.catalogue import is_hosted
from onthejob.office import Office, check_customer, make_office, scenarios_named
from onthejob.players import scripted_players
from onthejob.types import Message, Sampling, ToolSpec

if TYPE_CHECKING:
    from onthejob.evaluate.teams import Team
    from onthejob.models.chat import ChatEncoder
    from onthejob.rollout.episode import LiveEpisode
    from onthejob.rollout.seats import Orders, Seats
    from onthejob.stack import Stack
    from onthejob.types import Completion, Policy, Step

UNUSED = ("seeds", "first", "partner", "curriculum")
"""Options of the office that one episode, whose seed is --seed, does not depend on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayOffice(Playing):
    """Play one episode and show every turn: who did what, whether it was possible, and what it was worth.

    One of the office's scenarios is played, e.g. `--env.scenarios churn`, for `--env.days 5`.
    """

    team: str = "heuristic"
    """Who sits in all seats: a scripted player (heuristic, expert, ...), `base`, a run, a folder of adapters, or a hosted
    model: `openai:URL`, `openai:MODEL`, `anthropic:MODEL`, `bedrock:MODEL`."""
    seat: tuple[str, ...] = ()
    """Somebody else in one seat, as `role=who`, e.g. `--seat sales=expert ceo=base`. The customer is played by its script unless
    a model (`base` or a hosted one) is named for `customer`."""
    role: Literal["ceo", "dev", "marketing", "sales", "content", "hr"] | None = None
    """The seat that --policy takes."""
    policy: str | None = None
    """Who takes the seat of --role; `human` is you, with undo and a replay file; otherwise as for --seat."""
    replay: Path = Path("replay.json")
    """Where a game with --policy human is written at its end; `onthejob runs replay` plays it again."""
    seed: int = 1_000
    """Of the episode; 1000 and up are dev, 50000 and up test, 100000 and up training seeds."""
    orders: Path | None = None
    """Watch this file, which `onthejob policy swap` writes: seats change hands while the episode runs."""

    def play(self, terminal: Terminal, place: Workplace, sampling: Sampling) -> int:
        from onthejob.envs.office.tasks import split_of
        from onthejob.rollout.play import play
        from onthejob.rollout.room import check_room
        from onthejob.rollout.seats import Orders, Seats
        from onthejob.types import Task

        refuse_unused(place.env, Office.starting_options("Play"), UNUSED, "play")
        place.check()
        office: Office = place.env  # type: ignore[assignment]
        scenarios = scenarios_named(office.scenarios)
        if len(scenarios) != 1:
            raise ConfigError(f"play takes one scenario, got {', '.join(scenarios)}. Choose one: --env.scenarios {scenarios[0]}.")
        (scenario,) = scenarios
        others = seated_apart(self.seat, (*SEATS, CUSTOMER))
        if CUSTOMER in others:
            check_customer(others[CUSTOMER].rpartition("=")[2])
        if (self.role is None) != (self.policy is None):
            raise ConfigError("--role and --policy go together, e.g. --role sales --policy human.")
        by_hand = self.policy == HUMAN
        if by_hand and (terminal.json or self.transcript):
            raise ConfigError("a game by hand is shown in the terminal and written as --replay. Drop --json and --transcript.")
        if self.role is not None and self.policy is not None and not by_hand:
            others[self.role] = self.policy
        specs = [self.team, *others.values()]
        office = office.fitted(model=self.model.name, hosted=any(is_hosted(spec.rpartition("=")[2]) for spec in specs))
        config = replace(office.config, customer_asked=CUSTOMER in others)
        if by_hand and config != OfficeConfig(retries=config.retries):
            raise ConfigError(
                "a game by hand has the usual prompts and rewards, and a scripted customer. Drop --env.profile, "
                "--env.prompt-budget, --env.reflect, --env.reader, --env.no-crisis-bonus and --seat customer=WHO."
            )
        named, shipped = names_and_sources(specs), scripted_players()
        # The customer has no memories, so it reflects on nothing.
        reflecting = zip(named, ("", *others), strict=True)
        models = [source for (_, source), role in reflecting if source not in shipped and role != CUSTOMER]
        # Whom --orders will seat is not known yet.
        office.check_players(
            local=bool(local_sources(named, shipped) or self.orders),
            models=bool(models or self.orders),
        )
        seats = HostedSeats(self.hosted, exact=self.exact)
        rest = [role for role in SEATS if role not in others] or SEATS
        parts = [rest, *([role] for role in others)]
        make_env = make_office(config, model=office.tokenizer)
        task = Task(
            id=f"office-{scenario}-{self.seed}",
            env="office",
            split=split_of(self.seed),
            seed=self.seed,
            payload={"scenario": scenario, "days": office.days},
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
                max_turns=office.max_turns,
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
        shipped = scripted_players()
        return teams(specs, self.model, terminal.progress, seats=SEATS, shipped=shipped, hosted=hosted, parts=parts, check=check)

    def _obey(self, orders: Orders, table_seats: Seats, encoder: LateEncoder, hosted: HostedSeats, terminal: Terminal) -> None:
        """Carry out new orders; one that cannot be carried out is reported and changes nothing."""
        try:
            for role, who in orders.new().items():
                if role == CUSTOMER:
                    check_customer(who)
                (team,), stack = self._teams([who], [[role]], hosted, terminal)
                if stack is not None:
                    encoder.chat = stack.chat
                before = table_seats.swap(role, team.policies[role])
                terminal.progress(f"{role}: {team.policies[role].version} instead of {before.version}")
        except OnTheJobError as error:
            terminal.warn(str(error))


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


def line(episode: LiveEpisode, completion: Completion, step: Step) -> str:
    """One turn as people read it."""
    actor = str(step.facts.get("actor", ""))
    reward = step.rewards.get(actor, 0.0)
    did = completion.text.strip() if step.valid else f"{completion.text.strip()!r} (unusable: {step.facts.get('why', '')})"
    notes = "; ".join(str(note) for note in step.facts.get("notes", ()))
    return f"{episode.turn:4d} {actor:<10} {reward:+7.2f}  {did}{'  | ' + notes if notes else ''}"
