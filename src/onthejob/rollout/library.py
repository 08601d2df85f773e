"""SnapshotLibrary: states to start from, spread evenly over the days of an episode.

A segment that starts in the middle of an episode costs nothing to reach, so every day is practised equally often. The library
is refreshed with states that current play visits; what it holds is a function of what was added, in order, so it is saved as
bytes next to a checkpoint and nothing else about it has to be remembered.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from onthejob.errors import ConfigError, ContractError, RecordError
from onthejob.keys import keyed_choice, keyed_uniform
from onthejob.rollout.branch import forkable
from onthejob.rollout.contract import state_count
from onthejob.rollout.episode import Encoder, LiveEpisode
from onthejob.rollout.play import play
from onthejob.types import Environment, Forkable, Policy, Sampling, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One state to start from."""

    task: Task
    day: int
    """Where in the episode: `state()["day"]`, from 1, or the turns played where the environment has no days."""
    actor: str
    """Whose reply is awaited."""
    snapshot: bytes


class SnapshotLibrary:
    """Bins of entries by day; where `per_day` bounds them, the newest entries replace the oldest ones of their bin."""

    def __init__(self, *, per_day: int | None = 16) -> None:
        if per_day is not None and per_day < 1:
            raise ConfigError(f"per_day must be >= 1, got {per_day}. Set --library-per-day 16.")
        self.per_day = per_day
        self._bins: dict[int, list[Entry]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._bins.values()))

    @property
    def days(self) -> tuple[int, ...]:
        """Days that have entries."""
        return tuple(sorted(self._bins))

    def entries(self) -> list[Entry]:
        """All entries, by day and age."""
        return [entry for day in self.days for entry in self._bins[day]]

    def add(self, entries: Iterable[Entry]) -> None:
        """Add states; a full day forgets its oldest."""
        for entry in entries:
            kept = [*self._bins.get(entry.day, []), entry]
            self._bins[entry.day] = kept if self.per_day is None else kept[-self.per_day :]

    def sample(self, seed: int, *keys: int | str, actor: str | None = None) -> Entry:
        """A keyed entry: first a day, then an entry of it, each with equal probability.

        Args:
            seed: root of the draw.
            *keys: name the draw.
            actor: prefer states in which this actor is asked, where the drawn day has one: segments that ask the same actor
                at the same time are sampled as one batch.

        Raises:
            ContractError: the library is empty.
        """
        if not self._bins:
            raise ContractError("the snapshot library is empty. Fill it, or start from tasks (fresh_share 1).")
        day = keyed_choice(self.days, seed, *keys, "day")
        wanted = [entry for entry in self._bins[day] if entry.actor == actor]
        return keyed_choice(wanted or self._bins[day], seed, *keys, "entry")

    def to_bytes(self) -> bytes:
        """Everything, compressed; equal libraries give equal bytes."""
        rows = [
            {**asdict(entry), "task": entry.task.row(), "snapshot": base64.b64encode(entry.snapshot).decode()}
            for entry in self.entries()
        ]
        return zlib.compress(json.dumps({"per_day": self.per_day, "entries": rows}, sort_keys=True).encode(), 1)

    @classmethod
    def from_bytes(cls, data: bytes) -> SnapshotLibrary:
        """The library that `to_bytes` described.

        Raises:
            RecordError: the bytes are damaged.
        """
        try:
            content = json.loads(zlib.decompress(data))
            library = cls(per_day=content["per_day"])
            library.add(
                Entry(
                    task=Task.from_row(row["task"]),
                    day=row["day"],
                    actor=row["actor"],
                    snapshot=base64.b64decode(row["snapshot"]),
                )
                for row in content["entries"]
            )
        except (zlib.error, ValueError, KeyError, TypeError) as error:
            raise RecordError(f"a snapshot library of {len(data)} bytes is damaged: {error}. Use an older one.") from error
        return library


def entry_of(env: Forkable, task: Task, *, turn: int) -> Entry | None:
    """The pending state of `env`; None when play cannot begin there.

    That is after the end of an episode, and in the middle of a conversation: the tokens of its earlier turns are not part of a
    snapshot.

    Args:
        env: at the state.
        task: of its episode.
        turn: turns played since the task began; the day where `state()` gives none.

    Raises:
        ContractError: `state()["day"]` is no whole number.
    """
    observation = env.observe()
    if observation is None or not observation.fresh:
        return None
    day = state_count(env.state(), "day", f"{type(env).__name__}, task {task.id}")
    return Entry(task=task, day=turn if day is None else day, actor=observation.actor, snapshot=env.snapshot())


def openings(make_env: Callable[[], Environment], tasks: Sequence[Task]) -> list[Entry]:
    """The states in which `tasks` begin.

    Raises:
        ContractError: the environment is not `Forkable`.
    """
    env = forkable(make_env)
    found: list[Entry] = []
    for task in tasks:
        env.reset(task)
        entry = entry_of(env, task, turn=0)
        if entry is not None:
            found.append(entry)
    env.close()
    return found


def visit(
    make_env: Callable[[], Environment],
    tasks: Sequence[Task],
    policies: Mapping[str, Policy],
    *,
    seed: int,
    share: float,
    max_turns: int,
    encoder: Encoder | None = None,
    sampling: Sampling | None = None,
) -> list[Entry]:
    """Play `tasks` with `policies` and keep a keyed `share` of the states on the way, in order of task and turn."""
    visited: dict[int, list[Entry]] = {index: [] for index in range(len(tasks))}
    envs = [make_env() for _ in tasks]
    position = {id(env): index for index, env in enumerate(envs)}

    def keep(episode: LiveEpisode, *_: Any) -> None:
        env, index = episode.env, position[id(episode.env)]
        if not isinstance(env, Forkable):
            raise ContractError(f"a snapshot library needs a Forkable environment, got {type(env).__name__}.")
        if keyed_uniform(seed, "visit", episode.task.id, index, episode.turn) < share:
            entry = entry_of(env, episode.task, turn=episode.turn)
            if entry is not None:
                visited[index].append(entry)

    play(
        envs,
        tasks,
        policies,
        sampling or Sampling(),
        seed=seed,
        encoder=encoder,
        max_turns=max_turns,
        on_turn=keep,
        what="states to start from",
    )
    return [entry for index in visited for entry in visited[index]]
