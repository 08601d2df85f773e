"""`onthejob play`: one episode, turn by turn. The office and the claw have forms of their own: `play_office`, `play_claw`."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from onthejob.commands.env_options import EnvOptions, check_parsed, starting
from onthejob.commands.named_env import NamedEnv
from onthejob.commands.outputs import check_writable
from onthejob.commands.player_specs import ACCOUNT_COLUMNS, HostedOptions, ModelOptions, account_rows
from onthejob.commands.terminal import Output, Terminal, jsonable, table
from onthejob.errors import ConfigError
from onthejob.types import Sampling

if TYPE_CHECKING:
    from onthejob.models.hosted import HostedUsage
    from onthejob.rollout.episode import Episode

HUMAN = "human"
"""The policy that reads from the terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Playing(ABC):
    """Options of `onthejob play` in every environment."""

    workplace: tyro.conf.Positional[str] = "office"
    """Workplace: `office`, `claw`, or an environment of your own, as for `train`. Name it before the options."""
    env: str = ""
    """The workplace, when it is not the first word."""
    own: EnvOptions = None
    """Options of the environment; None for its defaults."""
    seed: int = 1_000
    """Random seed of the replies."""
    temperature: float = 0.0
    """Sampling temperature of the model; 0 decodes greedily."""
    max_new_tokens: int | None = None
    """Limit of a reply in tokens. None takes the workplace's usual one (office 48, claw 192), and for a hosted model the
    catalogue's, 256 or more, where that is longer."""
    transcript: Path | None = None
    """Also write every turn as one JSON line into this file."""
    model: ModelOptions = field(default_factory=ModelOptions)
    """The language model, when one plays."""
    hosted: HostedOptions = field(default_factory=HostedOptions)
    """Hosted models, when one plays."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    @classmethod
    def starting(cls, env: str) -> Playing:
        """The defaults in workplace `env`."""
        return cls(workplace=env)

    def run(self, terminal: Terminal) -> int:
        """Play, printing turns as they happen; then the figures."""
        if self.env not in ("", self.workplace):
            raise ConfigError(f"the workplace is named twice: {self.workplace} and --env {self.env}. Leave one of them out.")
        options = starting(self.workplace, "Play") if self.own is None else self.own
        check_parsed(self.workplace, options, "play")
        place = NamedEnv(ref=self.workplace, env=options)
        tokens = options.max_new_tokens
        sampling = Sampling(
            temperature=self.temperature or 0.0, max_new_tokens=tokens if self.max_new_tokens is None else self.max_new_tokens
        )
        if not 0.0 <= sampling.temperature < float("inf") or sampling.max_new_tokens < 1:
            got = f"{sampling.temperature} and {sampling.max_new_tokens}"
            raise ConfigError(f"temperature must be finite and >= 0 and max_new_tokens >= 1, got {got}.")
        if self.transcript is not None:
            check_writable(self.transcript, "--transcript")
        return self.play(terminal, place, sampling)

    @property
    def exact(self) -> bool:
        """The limit of a reply was given: it holds for a hosted model too."""
        return self.max_new_tokens is not None

    @abstractmethod
    def play(self, terminal: Terminal, place: NamedEnv, sampling: Sampling) -> int:
        """Play one episode; returns the exit code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Play(Playing):
    """Play one episode and show every turn: what each role reads, its reply, and what that pays."""

    policy: str | None = None
    """Player of all roles that --seat does not name: `human` is you, a scripted player of the environment (the default is its
    usual one), `base`, a run (`RUN:best`), a folder of adapters, or a hosted model: `openai:URL`, `openai:MODEL`,
    `anthropic:MODEL`, `bedrock:MODEL`."""
    seat: tuple[str, ...] = ()
    """Another player in one seat, as `role=who`, e.g. `--seat buyer=human seller=base`."""
    task: str = ""
    """A task id or a family; by default the first training task."""
    split: Literal["train", "dev", "test"] | None = None
    """The split in which the task is looked for; None looks into all of them."""

    def play(self, terminal: Terminal, place: NamedEnv, sampling: Sampling) -> int:
        from onthejob.commands.play_own import play_own

        return play_own(terminal, place, self, sampling)


def seated_apart(given: Sequence[str], roles: Sequence[str]) -> dict[str, str]:
    """Role -> who takes its seat, from `role=who` of --seat."""
    found = dict(part.split("=", 1) for part in given if "=" in part)
    if len(found) != len(given) or set(found) - set(roles):
        raise ConfigError(f"--seat takes role=who with a role of {', '.join(roles)}, got {' '.join(given)!r}.")
    return found


def write_transcript(path: Path, episode: Episode) -> None:
    """Write every turn as one JSON line."""
    path.write_text("".join(json.dumps(jsonable(asdict(turn))) + "\n" for turn in episode.transcript), encoding="utf-8")


def ending(episode: Episode) -> str:
    """How an episode ended, in one line."""
    return f"{episode.task.id}: {episode.stop} after {episode.turns} turns" + (f" ({episode.error})" if episode.error else "")


def report(terminal: Terminal, episode: Episode, accounts: Mapping[str, HostedUsage]) -> int:
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
        ending(episode),
        table(("metric", "value"), list(episode.metrics.items())),
        *tables,
    )
    return 1 if episode.error else 0
