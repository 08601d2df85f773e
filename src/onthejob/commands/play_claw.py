"""`onthejob play claw`: one task, turn by turn: what is asked, what is run, what comes of it, what holds at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onthejob.claw import Claw
from onthejob.commands.named_env import Workplace
from onthejob.commands.play_episode import Playing, ending
from onthejob.commands.play_own import Screen, play_through
from onthejob.commands.player_specs import ACCOUNT_COLUMNS, BASE, account_rows
from onthejob.commands.terminal import Terminal, table
from onthejob.envs.claw.agent_messages import DONE, block
from onthejob.envs.claw.env import ACTOR
from onthejob.envs.claw.replies import parse
from onthejob.envs.claw.script import Scanner
from onthejob.envs.claw.stops import StopTable, stop_table
from onthejob.errors import ConfigError
from onthejob.types import Observation, Sampling, Step, Task

if TYPE_CHECKING:
    from onthejob.models.hosted import Account
    from onthejob.rollout.episode import Episode, LiveEpisode
    from onthejob.types import Completion

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
        return play_claw(terminal, place, self, sampling)


def play_claw(
    terminal: Terminal, place: Workplace, options: PlayClaw, sampling: Sampling, *, ask: Callable[[str], str] = input
) -> int:
    """Play the task that `options` name and print every turn, then the assertions; as `play_own`, but Ctrl-D ends the task."""
    place.check()
    task = find_task(place, options.task)
    who = BASE if options.policy == LLM else options.policy
    if who == "gold" and "gold" not in place.players([task]):
        raise ConfigError(f"task {task.id} has no gold commands. Choose another --policy.")
    screen = Shell(terminal, ask, stop_table(claw_of(place).rules.protocol.stops))
    return play_through(terminal, place, options, task, {ACTOR: who}, sampling, screen)


def claw_of(place: Workplace) -> Claw:
    """The claw that a workplace is."""
    if not isinstance(place.env, Claw):
        raise ConfigError(f"{place.name} is not the claw. Name `claw`, or play it with `onthejob play {place.ref}`.")
    return place.env


def find_task(place: Workplace, wanted: str) -> Task:
    """The task of this id, or the first of this family; when nothing is named, the first task of the first split that has any."""
    for split in place.env.task_splits():
        for task in place.tasks(split):
            if not wanted or wanted in (task.id, task.payload.get("family")):
                return task
    raise ConfigError(f"there is no task or family {wanted!r} here. `onthejob tasks list` shows the families.")


class Shell(Screen):
    """As an agent sees it: a command, and the answer of the shell."""

    help = f"Type a command; heredocs and open quotes may span several lines. {DONE} (or Ctrl-D) ends the task."

    def __init__(self, terminal: Terminal, ask: Callable[[str], str], stops: StopTable) -> None:
        super().__init__(terminal, ask)
        self._stops = stops

    def reply(self, observation: Observation, seed: int) -> str:
        for message in observation.messages:
            if message.role == "user":
                self.terminal.say(f"\n{message.content}")
        lines: list[str] = []
        scanner = Scanner()
        while not lines or not scanner.at_top:
            try:
                lines.append(self.ask("$ " if not lines else "> "))
            except EOFError:
                return DONE
            scanner.feed(lines[-1])
        return said("\n".join(lines), self._stops)

    def turn(self, live: LiveEpisode, request: Observation, completion: Completion, step: Step, people: set[str]) -> None:
        if not people:
            if live.turn == 1:
                self.terminal.say(str(live.task.payload.get("intent") or live.task.id))
            shown = str(step.facts.get("command") or completion.text.strip())
            self.terminal.say(f"\n{live.turn:3d} $ " + "\n      ".join(shown.splitlines()))
            if step.facts.get("observation"):
                self.terminal.say(str(step.facts["observation"]))
        elif step.stop is not None and step.facts.get("observation"):
            self.terminal.say(f"\n{step.facts['observation']}")
        if "sentinel" in step.facts:
            self.terminal.say("    (said that it is done)")

    def report(self, episode: Episode, state: Mapping[str, Any], accounts: Mapping[str, Account]) -> int:
        """Print how it ended, the assertions, the figures and what a hosted model took."""
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
        passed = "passed" if episode.metrics.get("passed") else "not passed"
        tables = [table(("assertion", "path", "holds", "why not"), rows)] if rows else []
        tables += [table(ACCOUNT_COLUMNS, account_rows(accounts), title="hosted models")] if accounts else []
        paid = ", ".join(f"{name} {value:+.3f}" for name, value in parts.items())
        reward = f"; reward {sum(parts.values()):+.3f} ({paid})" if parts else ""
        self.terminal.result(data, "", ending(episode), *tables, f"{passed}{reward}")
        return 1 if episode.error else 0


def said(text: str, stops: StopTable) -> str:
    """The reply that a person means: a declaration as it is, or a whole reply with its own block, else one command."""
    read = parse(text, stops)
    return text if read.problem is None else block(text)
