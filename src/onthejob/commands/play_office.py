"""`onthejob play office`: one company, turn by turn, with a person in a seat, and with seats that change hands while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from onthejob.commands.collected_runs import collected_folder, free_seed, modes_of, office_place, open_collected
from onthejob.commands.named_env import NamedEnv, refuse_unused
from onthejob.commands.office_lines import OfficeLines
from onthejob.commands.outputs import check_writable
from onthejob.commands.play_episode import HUMAN, Playing, report, seated_apart, write_transcript
from onthejob.commands.player_specs import PARTNER, HostedSeats, local_model, local_sources, names_and_sources, teams
from onthejob.commands.prompt_lengths import Fit
from onthejob.commands.terminal import Terminal
from onthejob.envs.office.env import CUSTOMER, SEATS, OfficeConfig, OfficeEnvironment
from onthejob.errors import ConfigError, OnTheJobError
from onthejob.models.catalogue import is_hosted
from onthejob.office import PLAYED_CUSTOMER, Office, check_customer, make_office, office_of, scenarios_named
from onthejob.office_players import scripted_players
from onthejob.rollout.seats import Mode
from onthejob.train.collected import TEMPERATURE, refuse_evaluation
from onthejob.types import Message, Sampling, Task, ToolSpec

if TYPE_CHECKING:
    from onthejob.commands.play_collect import Keeping
    from onthejob.evaluate.teams import Team
    from onthejob.models.chat import ChatEncoder
    from onthejob.rollout.episode import LiveEpisode
    from onthejob.rollout.seats import Orders, Seats
    from onthejob.stack import Stack
    from onthejob.types import Completion, Step

UNUSED = ("seeds", "first", "partner", "curriculum")
"""Options of the office that one episode, whose seed is --seed, does not depend on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayOffice(Playing):
    """Play one episode and show every turn: who did what, whether it was possible, and what it was worth.

    One of the office's scenarios is played, e.g. `--env.scenarios churn`, for `--env.days 5`.
    """

    team: str = "heuristic"
    """Player in all seats: a scripted player (heuristic, expert, ...), `base`, a run, a folder of adapters, or a hosted
    model: `openai:URL`, `openai:MODEL`, `anthropic:MODEL`, `bedrock:MODEL`."""
    seat: tuple[str, ...] = ()
    """Another player in one seat, as `role=who`, e.g. `--seat sales=expert ceo=base`. The customer is played by its script unless
    a model (`base` or a hosted one) is named for `customer`."""
    role: Literal["ceo", "dev", "marketing", "sales", "content", "hr"] | None = None
    """The seat that --policy takes."""
    policy: str | None = None
    """Player in the seat of --role: `human` is you, with undo and a replay file; otherwise as for --seat."""
    replay: Path = Path("replay.json")
    """File to which a game with --policy human is written at its end; `onthejob runs replay` plays it again."""
    seed: int | None = None  # type: ignore[assignment]
    """Seed of the episode; 1000 and up are dev, 50000 and up test, 100000 and up training seeds. None takes 1000, with a seat in
    training mode the first training seed of which --collect holds no turn."""
    temperature: float | None = None  # type: ignore[assignment]
    """Sampling temperature of the model; 0 decodes greedily. None takes 0, with a seat in training mode 1, as `train` does."""
    orders: Path | None = None
    """Watch this file, which `onthejob policy swap` writes: seats change hands while the episode runs."""
    mode: tuple[str, ...] = ()
    """Mode of the seats: `training` keeps the turns of all seats with a model of this machine in --collect, and
    `--mode sales=training` those of one. Without it such a model is in `inference`, a hosted one in `llm`."""
    collect: str = ""
    """With a seat in training mode: the run to which its turns are added (a folder, or a name in `runs/`), for
    `train --collected` and `sft --collected`."""

    def play(self, terminal: Terminal, place: NamedEnv, sampling: Sampling) -> int:
        from onthejob.envs.office.tasks import split_of
        from onthejob.rollout.play import play, require_trainable
        from onthejob.rollout.room import check_room
        from onthejob.rollout.seats import Orders, Seats

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
        if by_hand and (self.mode or self.collect):
            raise ConfigError("--mode and --collect have no effect on a game by hand. Leave them out.")
        if by_hand and (terminal.json or self.transcript):
            raise ConfigError("a game by hand is shown in the terminal and written as --replay. Drop --json and --transcript.")
        if self.role is not None and self.policy is not None and not by_hand:
            others[self.role] = self.policy
        specs, shipped = [self.team, *others.values()], scripted_players()
        training = self._training({role: others.get(role, self.team) for role in SEATS}, office)
        folder = collected_folder(self.collect) if training else None
        seed = self.seed if self.seed is not None else 1_000 if folder is None else free_seed(folder)
        if training and CUSTOMER in others:
            raise ConfigError(PLAYED_CUSTOMER)
        if training:
            sampling = replace(sampling, temperature=TEMPERATURE if self.temperature is None else self.temperature)
            office = replace(office, retries=0)
        named = names_and_sources(specs)
        # Whom --orders will seat is not known yet.
        model = self.model.name if self.orders is not None else local_model(named, office, self.model)
        office = office.fitted(model=model, hosted=any(is_hosted(source) for _, source in named))
        config = replace(office.config, customer_asked=CUSTOMER in others)
        if by_hand and config != OfficeConfig(retries=config.retries):
            raise ConfigError(
                "a game by hand has the usual prompts and rewards, and a scripted customer. Drop --env.profile, "
                "--env.prompt-budget, --env.reflect, --env.reader, --env.no-crisis-bonus and --seat customer=WHO."
            )
        # The customer has no memories, so it reflects on nothing.
        reflecting = zip(named, ("", *others), strict=True)
        models = [source for (_, source), role in reflecting if source not in shipped and role != CUSTOMER]
        office.check_players(models=bool(models or self.orders))
        fit = Fit(env=office, reply=sampling.max_new_tokens)
        seats = HostedSeats(self.hosted, exact=self.exact, fit=fit)
        rest = [role for role in SEATS if role not in others] or SEATS
        parts = [rest, *([role] for role in others)]
        lines = OfficeLines(width=terminal.out.width)
        make_env = make_office(config, model=office.tokenizer)
        task = Task(
            id=f"office-{scenario}-{seed}",
            env="office",
            split=split_of(seed),
            seed=seed,
            payload={"scenario": scenario, "days": office.days},
        )
        env = office_of(config, model=office.tokenizer, on_turn=None if terminal.json else lines)
        if training:
            refuse_evaluation([task])
            env.reset(task)  # it refuses what is kept for evaluation
        local = set(local_sources(named, shipped))
        actors = {role for (_, source), taken in zip(named, parts, strict=True) if source in local for role in taken}

        def check(chat: ChatEncoder) -> None:
            partners = dict.fromkeys(SEATS, shipped[PARTNER])
            check_room(chat, make_env, task, actors=actors, partners=partners, sampling=sampling, budget=fit.local(chat))

        try:
            made, stack = self._teams(specs, parts, seats, terminal, fit, check)
        except OnTheJobError:
            seats.close()
            raise
        policies, fingerprints = dict(made[0].policies), dict(made[0].fingerprints)
        for role, team in zip(others, made[1:], strict=True):
            policies[role], fingerprints[role] = team.policies[role], team.fingerprints[role]

        if by_hand and self.role is not None:
            from onthejob.commands.human import play_by_hand

            check_writable(self.replay, "--replay")
            return play_by_hand(terminal, task, self.role, policies, self.replay)

        for role in training:
            require_trainable(role, policies[role])
        encoder = LateEncoder(stack.chat if stack else None)
        orders = Orders(self.orders) if self.orders is not None else None
        try:
            # As the viewer's seats do, so that both may add to one run.
            budget = fit.local(stack.chat) if stack is not None else None
            read = office if budget is None else replace(office, prompt_budget=budget.tokens, tokenizer=self.model.name)
            with self._keeping(folder, read, env, task, sampling, terminal) as keeping:
                if keeping is not None:
                    policies |= {role: keeping.policy(role, policies[role], fingerprints[role]) for role in training}
                table_seats = Seats(policies, trained=tuple(training))

                def on_turn(episode: LiveEpisode, completion: Completion, step: Step) -> None:
                    if not terminal.json:
                        terminal.say("\n".join(told(lines.take(), completion, step)))
                    if keeping is not None:
                        keeping.on_turn(episode)
                    if orders is not None:
                        self._obey(orders, table_seats, encoder, seats, terminal, fit, keeping)

                (episode,) = play(
                    [env],
                    [task],
                    table_seats,
                    sampling,
                    seed=seed,
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

    def _training(self, seated: Mapping[str, str], office: Office) -> list[str]:
        """Roles whose seats are in training mode."""
        players = {role: spec.rpartition("=")[2] for role, spec in seated.items()}
        modes = modes_of(self.mode, players, scripted_players())
        training = [role for role, mode in modes.items() if mode is Mode.TRAINING]
        if bool(training) != bool(self.collect):
            raise ConfigError("--mode training and --collect RUN go together: the run is where the turns are kept. Give both.")
        if training and office.retries:
            raise ConfigError(
                f"--env.retries must be 0 with a seat in training mode, got {office.retries}: a reply is worth what it is at "
                "first. Leave it out."
            )
        return training

    @contextmanager
    def _keeping(
        self, folder: Path | None, office: Office, env: OfficeEnvironment, task: Task, sampling: Sampling, terminal: Terminal
    ) -> Iterator[Keeping | None]:
        """A writer of the turns to the run in `folder`; None without one."""
        if folder is None:
            yield None
            return
        from onthejob.commands.play_collect import Keeping
        from onthejob.train.collected import TurnRecorder

        model = self.model
        run = open_collected(
            folder, office_place(office), model=model.name, template_arguments=model.template_arguments, sampling=sampling
        )
        with closing(TurnRecorder(run)) as recorder:
            terminal.progress(f"seed {task.seed}; turns of seats in training mode go to {folder}")
            yield Keeping(recorder, env, task, sampling)

    def _teams(
        self,
        specs: Sequence[str],
        parts: Sequence[Sequence[str]],
        hosted: HostedSeats,
        terminal: Terminal,
        fit: Fit,
        check: Callable[[ChatEncoder], None] | None = None,
    ) -> tuple[list[Team], Stack | None]:
        shipped = scripted_players()
        return teams(
            specs, self.model, terminal.progress, seats=SEATS, shipped=shipped, hosted=hosted, parts=parts, fit=fit, check=check
        )

    def _obey(
        self,
        orders: Orders,
        table_seats: Seats,
        encoder: LateEncoder,
        hosted: HostedSeats,
        terminal: Terminal,
        fit: Fit,
        keeping: Keeping | None,
    ) -> None:
        """Carry out new orders; one that cannot be carried out is reported and changes nothing.

        A seat in training mode stays in it when its next player can be trained.
        """
        try:
            for role, who in orders.new().items():
                if role == CUSTOMER:
                    check_customer(who)
                (team,), stack = self._teams([who], [[role]], hosted, terminal, fit)
                if stack is not None:
                    encoder.chat = stack.chat
                policy, mode = team.policies[role], None
                if keeping is not None and table_seats.mode(role) is Mode.TRAINING and policy.reads == "tokens":
                    policy, mode = keeping.policy(role, policy, team.fingerprints[role]), Mode.TRAINING
                before = table_seats.swap(role, policy, mode)
                terminal.progress(f"{role}: {policy.version} instead of {before.version}")
        except OnTheJobError as error:
            terminal.warn(str(error))


class LateEncoder:
    """The encoder of a model that may be loaded only while the episode runs."""

    def __init__(self, chat: ChatEncoder | None) -> None:
        self.chat = chat

    def _loaded(self) -> ChatEncoder:
        if self.chat is None:
            raise ConfigError("no model is loaded, so no seat can read tokens. Seat `base` or an adapter.")
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


def told(lines: list[str], completion: Completion, step: Step) -> list[str]:
    """A step in the terminal: its turn, and the customer's and the night after it; or a correction or reflection."""
    actor, said = str(step.facts.get("actor", "")), completion.text.strip()
    if step.valid:
        return lines or [f"      {actor:<10} reflects: {said}"]
    why = f"      {actor:<10} replied {said!r}: {step.facts.get('why', '')}"
    # The first line of a turn may be the heading of its phase.
    after = 2 if lines and lines[0].startswith("Day ") else 1
    return [*lines[:after], why, *lines[after:]]
