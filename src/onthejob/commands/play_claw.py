"""`onthejob play claw`: one task, turn by turn: what is asked, what is run, what comes of it, what holds at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onthejob.claw import Claw
from onthejob.commands.named_env import Workplace
from onthejob.commands.play_episode import HUMAN, Playing, write_transcript
from onthejob.commands.player_specs import ACCOUNT_COLUMNS, HostedOptions, HostedSeats, ModelOptions, account_rows, teams
from onthejob.commands.terminal import Terminal, table
from onthejob.envs.claw.agent_messages import DONE, block
from onthejob.envs.claw.env import ACTOR
from onthejob.envs.claw.replies import parse
from onthejob.envs.claw.script import Scanner
from onthejob.envs.claw.stops import StopTable, stop_table
from onthejob.errors import ConfigError
from onthejob.models.scripted import ScriptedPolicy
from onthejob.types import Observation, Policy, Sampling, Step, Task

if TYPE_CHECKING:
    from onthejob.models.chat import ChatEncoder
    from onthejob.models.hosted import Account
    from onthejob.rollout.episode import Episode, LiveEpisode
    from onthejob.types import Completion

HELP = f"Type a command; heredocs and open quotes may span several lines. {DONE} (or Ctrl-D) ends the task."

LLM = "llm"
"""Another name of `base`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayClaw(Playing):
    """Play one task and show every turn: what is asked, what is run, what comes of it, and what holds at the end."""

    policy: str = "gold"
    """The agent: `human` is you, `gold`, `noop`, `idle`, `base` (or `llm`), a run (`RUN:best`), a folder of adapters, or a hosted
    model: `openai:URL`, `openai:MODEL`, `anthropic:MODEL`, `bedrock:MODEL`."""
    task: str = ""
    """A task id or a family (`onthejob tasks list`); by default the first training task."""

    def play(self, terminal: Terminal, place: Workplace, sampling: Sampling) -> int:
        return play_claw(
            terminal,
            place,
            self.policy,
            wanted=self.task,
            sampling=sampling,
            seed=self.seed,
            model=self.model,
            hosted=self.hosted,
            exact=self.exact,
            transcript=self.transcript,
        )


def play_claw(
    terminal: Terminal,
    place: Workplace,
    who: str,
    *,
    wanted: str,
    sampling: Sampling,
    seed: int,
    model: ModelOptions,
    hosted: HostedOptions,
    exact: bool,
    transcript: Path | None,
    ask: Callable[[str], str] = input,
) -> int:
    """Play one task and print every turn, then the assertions.

    Args:
        terminal: where everything is shown.
        place: which tasks, under which rules.
        who: `human`, a scripted player, `base` (or `llm`), a run, a folder of adapters or a hosted model.
        wanted: id or family of the task; empty for the first training task.
        sampling: of a model's replies.
        seed: root of their seeds.
        model: the base model.
        hosted: bounds of a hosted model.
        exact: the limit of `sampling` holds for a hosted model too; else the catalogue's applies when it is longer.
        transcript: also write every turn as one JSON line into this file.
        ask: prints its argument and returns a line; EOFError ends the task.

    Returns:
        The exit code: 1 when it ended in an error.

    Raises:
        ConfigError: no such task or player.
    """
    from onthejob.rollout.play import play
    from onthejob.rollout.room import check_room

    place.check()
    if who == HUMAN and terminal.json:
        raise ConfigError("a person plays in the terminal. Drop --json.")
    task = find_task(place, wanted)
    with closing(HostedSeats(hosted, schema=None, exact=exact)) as seats, place.opened() as make_env:

        def check(chat: ChatEncoder) -> None:
            check_room(chat, make_env, task, actors=place.roles, partners={}, sampling=sampling)

        policy, encoder = _policy(place, task, who, model, seats, terminal, ask, check)
        env = make_env()
        try:
            (episode,) = play(
                [env],
                [task],
                {ACTOR: policy},
                sampling,
                seed=seed,
                encoder=encoder,
                max_turns=place.env.max_turns,
                on_turn=lambda live, completion, step: _show_turn(terminal, live, completion, step, who),
            )
            state = dict(env.state())
        finally:
            env.close()
        accounts = seats.accounts
    if transcript is not None:
        write_transcript(transcript, episode)
    return report(terminal, episode, state, accounts)


def claw_of(place: Workplace) -> Claw:
    """The claw that a workplace is.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(place.env, Claw):
        raise ConfigError(f"{place.name} is not the claw. Name `claw`, or play it with `onthejob play {place.ref}`.")
    return place.env


def find_task(place: Workplace, wanted: str) -> Task:
    """The task of this id, or the first of this family; when nothing is named, the first task of the first split that has any.

    Raises:
        ConfigError: there is none.
    """
    for split in place.env.task_splits():
        for task in place.tasks(split):
            if not wanted or wanted in (task.id, task.payload.get("family")):
                return task
    raise ConfigError(f"there is no task or family {wanted!r} here. `onthejob tasks list` shows the families.")


def report(terminal: Terminal, episode: Episode, state: dict[str, Any], accounts: Mapping[str, Account]) -> int:
    """Print how it ended, the assertions, the figures and what a hosted model took; 1 when it ended in an error."""
    verdicts = state.get("verdicts", [])
    rows = [(v["kind"], v["path"], bool(v["passed"]), v["reason"]) for v in verdicts]
    parts = next((turn.parts.get(ACTOR, {}) for turn in reversed(episode.transcript) if turn.parts), {})
    data = {
        "task": episode.task.id,
        "stop": episode.stop,
        "error": episode.error,
        "turns": episode.turns,
        "verdicts": verdicts,
        "reward": dict(parts),
        "metrics": episode.metrics,
        "backend": state.get("backend", ""),
        "hosted": accounts,
    }
    ended = f"{episode.task.id}: {episode.stop} after {episode.turns} turns" + (f" ({episode.error})" if episode.error else "")
    passed = "passed" if episode.metrics.get("passed") else "not passed"
    tables = [table(("assertion", "path", "holds", "why not"), rows)] if rows else []
    tables += [table(ACCOUNT_COLUMNS, account_rows(accounts), title="hosted models")] if accounts else []
    paid = ", ".join(f"{name} {value:+.3f}" for name, value in parts.items())
    terminal.result(data, "", ended, *tables, f"{passed}; reward {sum(parts.values()):+.3f} ({paid})" if parts else passed)
    return 1 if episode.error else 0


class Typing:
    """A person at the terminal: shows what the agent sees, and makes a reply of what is typed."""

    def __init__(self, terminal: Terminal, ask: Callable[[str], str], stops: str) -> None:
        self._terminal, self._ask, self._stops = terminal, ask, stop_table(stops)
        terminal.say(HELP)

    def __call__(self, observation: Observation, seed: int) -> str:
        for message in observation.messages:
            if message.role == "user":
                self._terminal.say(f"\n{message.content}")
        lines: list[str] = []
        scanner = Scanner()
        while not lines or not scanner.at_top:
            try:
                lines.append(self._ask("$ " if not lines else "> "))
            except EOFError:
                return DONE
            scanner.feed(lines[-1])
        return said("\n".join(lines), self._stops)


def said(text: str, stops: StopTable) -> str:
    """The reply that a person means: a declaration as it is, or a whole reply with its own block, else one command."""
    read = parse(text, stops)
    return text if read.problem is None else block(text)


def _policy(
    place: Workplace,
    task: Task,
    who: str,
    model: ModelOptions,
    hosted: HostedSeats,
    terminal: Terminal,
    ask: Callable[[str], str],
    check: Callable[[ChatEncoder], None],
) -> tuple[Policy, Any]:
    if who == HUMAN:
        return ScriptedPolicy(Typing(terminal, ask, claw_of(place).rules.protocol.stops), version=HUMAN), None
    shipped = place.players([task])
    if who == "gold" and "gold" not in shipped:
        raise ConfigError(f"task {task.id} has no gold commands. Choose another --policy.")
    (team,), stack = teams(
        ["base" if who == LLM else who],
        model,
        terminal.progress,
        seats=place.roles,
        shipped=shipped,
        hosted=hosted,
        goes_on=place.env.goes_on,
        check=check,
    )
    return team.policies[ACTOR], stack.chat if stack else None


def _show_turn(terminal: Terminal, live: LiveEpisode, completion: Completion, step: Step, who: str) -> None:
    """One turn as people read it: the command, then the answer to the agent."""
    if terminal.json:
        return
    if who != HUMAN:
        if live.turn == 1:
            terminal.say(str(live.task.payload.get("intent") or live.task.id))
        shown = step.facts.get("command") or completion.text.strip()
        terminal.say(f"\n{live.turn:3d} $ {_indented(str(shown).splitlines())}")
        if step.facts.get("observation"):
            terminal.say(str(step.facts["observation"]))
    elif step.stop is not None and step.facts.get("observation"):
        terminal.say(f"\n{step.facts['observation']}")
    if "sentinel" in step.facts:
        terminal.say("    (said that it is done)")


def _indented(lines: Sequence[str]) -> str:
    return "\n      ".join(lines)
