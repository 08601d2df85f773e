"""`onthejob play REF`: one episode of an environment of the user's own: what each role reads, its reply, and what that pays."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from onthejob.commands.conversations import Listened
from onthejob.commands.named_env import NamedEnv
from onthejob.commands.play_episode import HUMAN, Play, Playing, report, seated_apart, write_transcript
from onthejob.commands.player_specs import HostedSeats, ModelOptions, teams
from onthejob.commands.prompt_lengths import Fit
from onthejob.commands.terminal import Terminal
from onthejob.errors import ConfigError
from onthejob.models.catalogue import is_hosted
from onthejob.models.scripted import ScriptedPolicy
from onthejob.types import Completion, Observation, Policy, Sampling, Split, Step, Task

if TYPE_CHECKING:
    from onthejob.models.chat import ChatEncoder
    from onthejob.models.hosted import HostedUsage
    from onthejob.rollout.episode import Episode, LiveEpisode
    from onthejob.stack import Stack

MOST_LEGAL = 20
"""Legal replies that a person is shown."""


def play_own(terminal: Terminal, place: NamedEnv, options: Play, sampling: Sampling, *, ask: Callable[[str], str] = input) -> int:
    """Play the task that `options` name and print every turn, then the figures; returns the exit code.

    `ask` prints its argument and returns a line; EOFError ends the game.
    """
    place.check()
    task = find_task(place, options.task, options.split)
    players = _seating(place, options.policy, options.seat)
    return play_through(terminal, place, options, task, players, sampling, Screen(terminal, ask))


def play_through(
    terminal: Terminal,
    place: NamedEnv,
    options: Playing,
    task: Task,
    players: Mapping[str, str],
    sampling: Sampling,
    screen: Screen,
) -> int:
    """Play `task`, role by role as `players` names them; returns the exit code, 1 when it ended in an error."""
    from onthejob.rollout.play import play
    from onthejob.rollout.room import check_room

    fit = Fit(env=place.env, reply=sampling.max_new_tokens)
    hosted = HostedSeats(options.hosted, schema=None, exact=options.exact, fit=fit)
    with closing(hosted) as seats, place.opened() as make_env:
        shipped = place.players([task])
        people = {role for role, name in players.items() if name == HUMAN}
        if people and terminal.json:
            raise ConfigError("a person plays in the terminal. Drop --json.")

        def check(chat: ChatEncoder) -> None:
            local = {role for role, name in players.items() if not (name in shipped or name == HUMAN or is_hosted(name))}
            check_room(
                chat,
                make_env,
                task,
                actors=local,
                partners=place.partners(),
                sampling=sampling,
                budget=fit.local(chat),
            )

        policies, stack = _policies(place, players, shipped, options.model, seats, fit, terminal, check, screen)
        env = Listened(make_env())

        def on_turn(live: LiveEpisode, completion: Completion, step: Step) -> None:
            if not terminal.json and env.answered is not None:
                screen.turn(live, env.answered, completion, step, people)

        try:
            (episode,) = play(
                [env],
                [task],
                policies,
                sampling,
                seed=options.seed,
                encoder=stack.chat if stack else None,
                max_turns=place.env.max_turns,
                on_turn=on_turn,
            )
            state = dict(env.state())
        finally:
            env.close()
        accounts = seats.accounts
    if options.transcript is not None:
        write_transcript(options.transcript, episode)
    return screen.report(episode, state, accounts)


def find_task(place: NamedEnv, wanted: str, split: str | None) -> Task:
    """The task of this id, or the first of this family; when nothing is named, the first one."""
    first = ""
    for one in place.env.task_splits() if split is None else (Split(split),):
        for task in place.tasks(one):
            if not wanted or wanted in (task.id, place.env.family(task)):
                return task
            first = first or task.id
    where = "" if split is None else f" in the split {split}"
    raise ConfigError(f"there is no task or family {wanted!r} of {place.name}{where}; its first task is {first}.")


def _seating(place: NamedEnv, who: str | None, others: Sequence[str]) -> dict[str, str]:
    """Role -> who takes its seat."""
    apart = seated_apart(others, place.roles)
    rest = [role for role in place.roles if role not in apart]
    usual = place.partner if who is None else who
    if rest and not usual:
        raise ConfigError(
            f"{place.name} has no scripted player, so name who plays {', '.join(rest)}: --policy human, base, a run, a folder of "
            "adapters or a hosted model."
        )
    if who is not None and not rest:
        raise ConfigError(f"--policy {who} has no seat: --seat names a player for every role. Leave one of them out.")
    return {role: apart.get(role, usual) for role in place.roles}


def _policies(
    place: NamedEnv,
    players: Mapping[str, str],
    shipped: Mapping[str, Policy],
    model: ModelOptions,
    hosted: HostedSeats,
    fit: Fit,
    terminal: Terminal,
    check: Callable[[ChatEncoder], None],
    screen: Screen,
) -> tuple[dict[str, Policy], Stack | None]:
    """Role -> who answers, and the model that was loaded, if any."""
    specs = [name for name in dict.fromkeys(players.values()) if name != HUMAN]
    parts = [[role for role, name in players.items() if name == spec] for spec in specs]
    made, stack = teams(
        specs,
        model,
        terminal.progress,
        seats=place.roles,
        shipped=shipped,
        hosted=hosted,
        parts=parts,
        goes_on=place.env.goes_on,
        fit=fit,
        check=check,
    )
    policies: dict[str, Policy] = {}
    for team, roles in zip(made, parts, strict=True):
        policies |= {role: team.policies[role] for role in roles}
    if HUMAN in players.values():
        terminal.say(screen.help)
        typed = ScriptedPolicy(screen.reply, version=HUMAN)
        policies |= {role: typed for role, name in players.items() if name == HUMAN}
    return policies, stack


class Screen:
    """An episode in the terminal: what a person reads and types, every turn, and the end."""

    help = "A line is a reply. Ctrl-D ends the game."

    def __init__(self, terminal: Terminal, ask: Callable[[str], str]) -> None:
        self.terminal, self.ask = terminal, ask

    def reply(self, observation: Observation, seed: int) -> str:
        """Show what a role reads, and take a line as its reply."""
        self.terminal.say(f"\n{_read(observation)}")
        if legal := observation.view.get("legal"):
            more = f" and {len(legal) - MOST_LEGAL} more" if len(legal) > MOST_LEGAL else ""
            self.terminal.say(f"possible: {', '.join(map(str, legal[:MOST_LEGAL]))}{more}")
        try:
            return self.ask(f"{observation.actor}> ")
        except EOFError as error:
            raise KeyboardInterrupt from error

    def turn(self, live: LiveEpisode, request: Observation, completion: Completion, step: Step, people: set[str]) -> None:
        """Print one turn: what the role read, its reply, and what each role was paid.

        Where a person plays, only the person's own turns: what the others read may be their secret.
        """
        if people and request.actor not in people:
            return
        if not people:
            self.terminal.say(f"\n{_read(request)}")
        said = completion.text.strip()
        reply = said if step.valid else f"{said!r} (invalid)"
        rest = {role: reward for role, reward in step.rewards.items() if role != request.actor and reward and not people}
        paid = "".join(f"  | {role} {reward:+.2f}" for role, reward in rest.items())
        self.terminal.say(f"{live.turn:4d} {request.actor:<10} {step.rewards.get(request.actor, 0.0):+7.2f}  {reply}{paid}")

    def report(self, episode: Episode, state: Mapping[str, Any], accounts: Mapping[str, HostedUsage]) -> int:
        """Print the end; returns the exit code."""
        return report(self.terminal, episode, accounts)


def _read(request: Observation) -> str:
    """What a role reads, its system prompt where a context begins."""
    texts = [message.content if message.role == "user" else f"[{message.role}] {message.content}" for message in request.messages]
    if request.fresh:
        texts += [f"[tool] {json.dumps(tool.function()['function'], ensure_ascii=False)}" for tool in request.tools]
    return f"{request.actor} reads: " + "\n".join(texts)
