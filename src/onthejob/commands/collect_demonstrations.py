"""`onthejob collect`: a player's episodes as conversations, one JSONL file per role, which `sft` imitates.

What the office and the claw write is in `collect_office` and `collect_claw`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from onthejob.checkout import missing_player
from onthejob.commands.conversations import Conversation, Listened
from onthejob.commands.env_options import EnvOptions, starting
from onthejob.commands.named_env import Workplace
from onthejob.commands.outputs import check_folder
from onthejob.commands.player_specs import ACCOUNT_COLUMNS, HostedOptions, HostedSeats, account_rows
from onthejob.commands.prompt_lengths import Fit
from onthejob.commands.terminal import Output, Terminal, table
from onthejob.errors import ConfigError
from onthejob.files import published_file
from onthejob.models.catalogue import is_hosted
from onthejob.rollout.play import occurrences, play
from onthejob.testing.env_check import is_users
from onthejob.texts import encodable_in
from onthejob.types import Environment, Policy, Sampling, Split, StopReason, Task

CHUNK = 64
"""Episodes in lock step."""
RANDOM = "random"
"""Name of the player whose conversations are marked so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collecting(ABC):
    """Options of `onthejob collect` in every environment."""

    env: str = "office"
    """Workplace: `office`, `claw`, or an environment of your own, as for `train`. Its training tasks are played."""
    own: EnvOptions = None
    """Options of the environment; None for its defaults."""
    out: Path = Path("demonstrations")
    """Folder of the files."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    @classmethod
    def starting(cls, env: str) -> Collecting:
        """The defaults in workplace `env`."""
        return cls(env=env)

    def run(self, terminal: Terminal) -> int:
        """Play; the files appear when all are complete."""
        check_folder(self.out, "--out")
        return self.collect(terminal, self.place)

    @property
    def place(self) -> Workplace:
        """The workplace of these options."""
        return Workplace(ref=self.env, env=starting(self.env, "Collect") if self.own is None else self.own)

    @abstractmethod
    def collect(self, terminal: Terminal, place: Workplace) -> int:
        """Write the files; returns the exit code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collect(Collecting):
    """Play training tasks and write what every role saw and replied: one JSONL file per role, which `sft` imitates.

    A line is one conversation of one role, as a model would have it in its context; a fresh request begins another one. A
    conversation with an unusable reply is marked `negative`.
    """

    policy: str = ""
    """Player of all roles: a scripted player (see `play`), or a hosted model (`openai:URL`, `anthropic:MODEL`, `bedrock:MODEL`).
    Empty for the environment's usual player."""
    count: int = 300
    """Number of episodes, spread over the training tasks; with fewer tasks, each is played several times, which makes a
    difference for a player whose replies depend on its seed."""
    hosted: HostedOptions = field(default_factory=HostedOptions)
    """Bounds of the hosted model, when one plays."""

    def collect(self, terminal: Terminal, place: Workplace) -> int:
        return collect(terminal, place, who=self.policy, count=self.count, out=self.out, hosted=self.hosted)


def collect(terminal: Terminal, place: Workplace, *, who: str, count: int, out: Path, hosted: HostedOptions) -> int:
    """Play `count` episodes of training tasks and write every role's conversations.

    Args:
        terminal: where the counts are shown.
        place: the environment.
        who: plays all roles: a scripted player or a hosted model; empty for the environment's usual player.
        count: episodes, spread over the training tasks; when there are fewer tasks, each is played again with another seed of the
            player.
        out: folder of the files, one per role that replied.
        hosted: bounds of a hosted model.

    Returns:
        The exit code: 1 when an episode failed; what the others said is written.
    """
    if count < 1:
        raise ConfigError(f"count must be >= 1 episode, got {count}. Set --count 300.")
    place.check()
    tasks = spread(place.tasks(Split.TRAIN), count)
    fit = Fit(env=place.env, reply=place.env.max_new_tokens)
    with closing(HostedSeats(hosted, schema=None, fit=fit)) as seats, place.opened() as make_env:
        policy = player_of(place, who, tasks, seats)
        found, failed = _conversations(terminal, place, make_env, policy, tasks)
        accounts = seats.accounts
    if not found:
        raise ConfigError(f"none of the {count} episodes of {place.name} could be played. The log above says why.")
    files = _write(out, place, found, version=policy.version)
    counts = {role: _counted([one for _, one in found if one.role == role]) for role in place.roles}
    rows = [(role, *counts[role].values(), str(files.get(role, "-"))) for role in place.roles]
    columns = ("role", "conversations", "replies", "not usable", "mean reward", "file")
    tables = [table(columns, rows)]
    if accounts:
        tables.append(table(ACCOUNT_COLUMNS, account_rows(accounts), title="hosted models"))
    data = {
        "out": out,
        "policy": policy.version,
        "episodes": count - failed,
        "failed": failed,
        "counts": counts,
        "hosted": accounts,
    }
    if failed:
        terminal.warn(f"{failed} of {count} episodes failed and are not among the demonstrations")
    terminal.result(data, *tables)
    return 1 if failed else 0


def spread(tasks: Sequence[Task], count: int) -> list[Task]:
    """`count` of `tasks`, evenly over the whole list; all of them several times where there are fewer."""
    rounds, rest = divmod(count, len(tasks))
    return [*list(tasks) * rounds, *(tasks[index * len(tasks) // rest] for index in range(rest))]


def player_of(place: Workplace, who: str, tasks: Sequence[Task], hosted: HostedSeats) -> Policy:
    """The player of that name; the environment's usual one without a name."""
    if is_hosted(who):
        return hosted.policy(who)
    known, name = place.players(tasks), who or place.partner
    if not known:
        kind = type(place.env).__name__
        if not is_users(place.env):
            raise ConfigError(
                f"{kind} has no scripted player. Name a hosted model as --policy, or write demonstrations yourself "
                "(ROLE.jsonl, see docs/own_environment.md) for sft."
            )
        raise ConfigError(
            f"{kind} has no scripted player. Write {kind}.players(), give legal replies (for the random player), or name a "
            "hosted model as --policy."
        )
    if name not in known:
        raise ConfigError(
            missing_player(name)
            or f"--policy {name} is no player of {place.name}, which has {', '.join(known)}. A hosted model works too."
        )
    return known[name]


def _conversations(
    terminal: Terminal, place: Workplace, make_env: Callable[[], Environment], policy: Policy, tasks: Sequence[Task]
) -> tuple[list[tuple[Task, Conversation]], int]:
    """All conversations with their tasks, in order, and the number of episodes that failed."""
    found: list[tuple[Task, Conversation]] = []
    failed, numbers = 0, occurrences(tasks)
    for first in range(0, len(tasks), CHUNK):
        chunk = tasks[first : first + CHUNK]
        with ExitStack() as opened:
            envs = [Listened(make_env()) for _ in chunk]
            for env in envs:
                opened.callback(env.close)
            episodes = play(
                envs,
                chunk,
                dict.fromkeys(place.roles, policy),
                Sampling(max_new_tokens=place.env.max_new_tokens),
                seed=0,
                max_turns=place.env.max_turns,
                workers=place.workers,
                numbers=numbers[first : first + CHUNK],
            )
        for env, episode in zip(envs, episodes, strict=True):
            if episode.stop is StopReason.ERROR:
                failed += 1
            else:
                found += [(episode.task, conversation) for conversation in env.conversations]
        terminal.progress(f"{first + len(chunk)}/{len(tasks)} episodes")
    return found, failed


def _write(out: Path, place: Workplace, found: Sequence[tuple[Task, Conversation]], *, version: str) -> dict[str, Path]:
    """Role -> its file; a role that never replied has none."""
    out.mkdir(parents=True, exist_ok=True)
    files: dict[str, Path] = {}
    for role in place.roles:
        rows = [_row(task, one, place.env.family(task), version=version) for task, one in found if one.role == role]
        if rows:
            files[role] = out / f"{role}.jsonl"
            with published_file(files[role]) as temporary, temporary.open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(encodable_in(row), ensure_ascii=False) + "\n" for row in rows)
    return files


def _row(task: Task, conversation: Conversation, family: str, *, version: str) -> dict[str, Any]:
    """One line of a file; `sft` does not imitate a conversation in which a reply could not be used."""
    return {
        "role": conversation.role,
        "task": task.id,
        "family": family,
        "messages": [message._asdict() for message in conversation.messages],
        "marked": "negative" if not conversation.valid else "random" if version == RANDOM else "expert",
        "reward": conversation.reward,
        **({"tools": [tool.function() for tool in conversation.tools]} if conversation.tools else {}),
    }


def _counted(conversations: Sequence[Conversation]) -> dict[str, float]:
    """Figures of one role."""
    number = len(conversations)
    return {
        "conversations": number,
        "replies": sum(one.replies for one in conversations),
        "negative": sum(not one.valid for one in conversations),
        "reward": sum(one.reward for one in conversations) / number if number else 0.0,
    }
