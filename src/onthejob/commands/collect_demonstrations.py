"""`onthejob collect`: a player's episodes as conversations, one JSONL file per role, which `sft` imitates.

What the office and the claw write is in `collect_office` and `collect_claw`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import tyro

from onthejob.commands.conversations import Conversation, Listened
from onthejob.commands.env_options import EnvOptions, starting
from onthejob.commands.named_env import NamedEnv
from onthejob.commands.outputs import check_folder
from onthejob.commands.player_specs import ACCOUNT_COLUMNS, HostedOptions, HostedSeats, ModelOptions, account_rows, teams
from onthejob.commands.prompt_lengths import Fit
from onthejob.commands.terminal import Output, Terminal, table
from onthejob.errors import ConfigError
from onthejob.files import published_file
from onthejob.models.catalogue import is_hosted
from onthejob.rollout.play import occurrences, play
from onthejob.testing.env_check import is_users
from onthejob.texts import encodable_in
from onthejob.types import Environment, Policy, Sampling, Split, StopReason, Task

if TYPE_CHECKING:
    from onthejob.models.chat import ChatEncoder

CHUNK = 64
"""Episodes in lock step."""
RANDOM = "random"
"""Name of the player whose conversations are marked so."""
PASSED = "passed"
"""Metric of an episode that says whether it passed, where its environment reports one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectOptions(ABC):
    """Options of `onthejob collect` in every environment."""

    env: str = "office"
    """Workplace: `office`, `claw`, or an environment of your own, as for `train`. Its training tasks are played."""
    own: EnvOptions = None
    """Options of the environment; None for its defaults."""
    out: Path = Path("demonstrations")
    """Folder of the files."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    @classmethod
    def starting(cls, env: str) -> CollectOptions:
        """The defaults in workplace `env`."""
        return cls(env=env)

    def run(self, terminal: Terminal) -> int:
        """Play; the files appear when all are complete."""
        check_folder(self.out, "--out")
        return self.collect(terminal, self.place)

    @property
    def place(self) -> NamedEnv:
        """The workplace of these options."""
        return NamedEnv(ref=self.env, env=starting(self.env, "Collect") if self.own is None else self.own)

    @abstractmethod
    def collect(self, terminal: Terminal, place: NamedEnv) -> int:
        """Write the files; returns the exit code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collect(CollectOptions):
    """Play training tasks and write what every role saw and replied: one JSONL file per role, which `sft` imitates.

    A line is one conversation of one role, as a model would have it in its context; a fresh request begins another one. A
    conversation with an unusable reply is marked `negative`. A trained team's own successes (--policy RUN --passed) are
    demonstrations too: to imitate them is expert iteration, or rejection sampling.
    """

    policy: str = ""
    """Player of all roles: a scripted player (see `play`), `base`, a run (`RUN:best`), a folder of adapters, or a hosted model
    (`openai:URL`, `anthropic:MODEL`, `bedrock:MODEL`). Empty for the environment's usual player."""
    count: int = 300
    """Number of episodes, spread over the training tasks; with fewer tasks, each is played several times, which makes a
    difference for a player whose replies depend on its seed."""
    passed: bool = False
    """Write only the episodes of which the environment says that they passed."""
    temperature: float = 1.0
    """Sampling temperature of a model of this machine."""
    max_new_tokens: int | None = None
    """Limit of a reply in tokens. None takes the workplace's usual one, and for a hosted model the catalogue's where that is
    longer."""
    seed: int = 0
    """Random seed of the replies."""
    model: ModelOptions = field(default_factory=ModelOptions)
    """The language model, when one plays."""
    hosted: HostedOptions = field(default_factory=HostedOptions)
    """Bounds of the hosted model, when one plays."""

    def collect(self, terminal: Terminal, place: NamedEnv) -> int:
        """Play `count` episodes; returns 1 when one failed: what the others said is written."""
        if self.count < 1:
            raise ConfigError(f"count must be >= 1 episode, got {self.count}. Set --count 300.")
        sampling = self._sampling(place)
        place.check()
        tasks = spread(place.tasks(Split.TRAIN), self.count)
        fit = Fit(env=place.env, reply=sampling.max_new_tokens)
        exact = self.max_new_tokens is not None
        with closing(HostedSeats(self.hosted, schema=None, fit=fit, exact=exact)) as seats, place.opened() as make_env:
            player = self._player(terminal, place, tasks, seats, fit)
            played = _conversations(terminal, place, make_env, player, tasks, sampling, seed=self.seed)
            accounts = seats.accounts
        failed = self.count - len(played)
        if not played:
            raise ConfigError(f"none of the {self.count} episodes of {place.name} could be played. The log above says why.")
        if self.passed and all(one.passed is None for one in played):
            raise ConfigError(f"episodes of {place.name} report no metric `{PASSED}`, which --passed needs. Leave it out.")
        kept = [one for one in played if not self.passed or one.passed]
        if not kept:
            raise ConfigError(
                f"none of the {len(played)} episodes of {place.name} passed, so there is nothing to imitate. Play more of them "
                "(--count), sample at another --temperature, or train the player further."
            )
        files = _write(self.out, place, kept, version=player.name)
        counts = {role: _counted([said for one in kept for said in one.said if said.role == role]) for role in place.roles}
        rows = [(role, *counts[role].values(), str(files.get(role, "-"))) for role in place.roles]
        columns = ("role", "conversations", "replies", "not usable", "mean reward", "file")
        tables = [table(columns, rows, title=f"{len(kept)} of {len(played)} episodes passed" if self.passed else "")]
        if accounts:
            tables.append(table(ACCOUNT_COLUMNS, account_rows(accounts), title="hosted models"))
        data = {
            "out": self.out,
            "policy": player.name,
            "episodes": len(played),
            "written": len(kept),
            "failed": failed,
            "counts": counts,
            "hosted": accounts,
        }
        if failed:
            terminal.warn(f"{failed} of {self.count} episodes failed and are not among the demonstrations")
        terminal.result(data, *tables)
        return 1 if failed else 0

    def _sampling(self, place: NamedEnv) -> Sampling:
        """How a model's replies are drawn."""
        tokens = place.env.max_new_tokens if self.max_new_tokens is None else self.max_new_tokens
        if not 0.0 <= self.temperature < float("inf") or tokens < 1 or self.seed < 0:
            got = f"{self.temperature}, {tokens} and {self.seed}"
            raise ConfigError(f"temperature must be finite and >= 0, max_new_tokens >= 1 and seed >= 0, got {got}.")
        return Sampling(temperature=self.temperature, max_new_tokens=tokens)

    def _player(self, terminal: Terminal, place: NamedEnv, tasks: Sequence[Task], hosted: HostedSeats, fit: Fit) -> _Player:
        """Who plays all roles."""
        if is_hosted(self.policy):
            policy = hosted.policy(self.policy)
            return _Player(policy.version, dict.fromkeys(place.roles, policy))
        known, name = place.players(tasks), self.policy or place.partner
        if name in known:
            return _Player(known[name].version, dict.fromkeys(place.roles, known[name]))
        if not self.policy:
            raise ConfigError(_no_player(place))
        (team,), stack = teams(
            [f"player={self.policy}"],
            self.model,
            terminal.progress,
            seats=place.roles,
            shipped=known,
            goes_on=place.env.goes_on,
            fit=fit,
        )
        return _Player(self.policy, team.policies, stack.chat if stack is not None else None)


class _Player(NamedTuple):
    name: str
    policies: Mapping[str, Policy]
    encoder: ChatEncoder | None = None
    """Encodes the prompts of a model of this machine."""


class _Played(NamedTuple):
    """One episode without an error."""

    task: Task
    said: list[Conversation]
    passed: bool | None
    """None where the environment does not say."""


def spread(tasks: Sequence[Task], count: int) -> list[Task]:
    """`count` of `tasks`, evenly over the whole list; all of them several times where there are fewer."""
    rounds, rest = divmod(count, len(tasks))
    return [*list(tasks) * rounds, *(tasks[index * len(tasks) // rest] for index in range(rest))]


def _no_player(place: NamedEnv) -> str:
    """What to do where an environment has no usual player."""
    kind = type(place.env).__name__
    models = "A run, a folder of adapters and `base` play too."
    if not is_users(place.env):
        return (
            f"{kind} has no scripted player. Name a hosted model as --policy, or write demonstrations yourself "
            f"(ROLE.jsonl, see docs/own_environment.md) for sft. {models}"
        )
    return (
        f"{kind} has no scripted player. Write {kind}.players(), give legal replies (for the random player), or name a hosted "
        f"model as --policy. {models}"
    )


def _conversations(
    terminal: Terminal,
    place: NamedEnv,
    make_env: Callable[[], Environment],
    player: _Player,
    tasks: Sequence[Task],
    sampling: Sampling,
    *,
    seed: int,
) -> list[_Played]:
    """All episodes that did not fail, in order."""
    found: list[_Played] = []
    numbers = occurrences(tasks)
    for first in range(0, len(tasks), CHUNK):
        chunk = tasks[first : first + CHUNK]
        with ExitStack() as opened:
            envs = [Listened(make_env()) for _ in chunk]
            for env in envs:
                opened.callback(env.close)
            episodes = play(
                envs,
                chunk,
                player.policies,
                sampling,
                seed=seed,
                encoder=player.encoder,
                max_turns=place.env.max_turns,
                workers=place.workers,
                numbers=numbers[first : first + CHUNK],
            )
        for env, episode in zip(envs, episodes, strict=True):
            if episode.stop is not StopReason.ERROR:
                passed = bool(episode.metrics[PASSED]) if PASSED in episode.metrics else None
                found.append(_Played(episode.task, env.conversations, passed))
        so_far = f", {sum(bool(one.passed) for one in found)} passed" if any(one.passed is not None for one in found) else ""
        terminal.progress(f"{first + len(chunk)}/{len(tasks)} episodes{so_far}")
    return found


def _write(out: Path, place: NamedEnv, played: Sequence[_Played], *, version: str) -> dict[str, Path]:
    """Role -> its file; a role that never replied has none."""
    out.mkdir(parents=True, exist_ok=True)
    files: dict[str, Path] = {}
    for role in place.roles:
        rows = [
            _row(one.task, said, place.env.family(one.task), version=version)
            for one in played
            for said in one.said
            if said.role == role
        ]
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
