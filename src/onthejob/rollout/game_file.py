"""A game as it was played: who replied what, and a hash of all that came of it. Replaying it means playing it again.

Nothing is stored but task and replies, so that a replay proves that the workplace is deterministic and that its rules are still
the ones under which the game was played.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from onthejob.errors import RecordError
from onthejob.types import Environment, Split, Step, Task

FORMAT = 1


class Said(NamedTuple):
    """One reply."""

    actor: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A game that can be played again."""

    task: Task
    replies: tuple[Said, ...]
    hash: str
    """sha256 over every step's actor, reply, rewards and validity, and over the metrics at the end."""

    def write(self, path: Path) -> None:
        """Write the game as JSON."""
        task = {"id": self.task.id, "env": self.task.env, "split": self.task.split, "seed": self.task.seed}
        data = {"format": FORMAT, "task": task | {"payload": dict(self.task.payload)}, "replies": self.replies, "hash": self.hash}
        path.write_text(json.dumps(data, indent=1, default=str) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Replay:
        """The game in the file `path`.

        Raises:
            RecordError: the file cannot be read, or holds no game of this format.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            fields = data["task"]
            if data["format"] != FORMAT:
                raise ValueError(f"it has format {data['format']!r}, and this version reads {FORMAT}")
            split, seed, payload = Split(fields["split"]), int(fields["seed"]), dict(fields["payload"])
            task = Task(id=str(fields["id"]), env=str(fields["env"]), split=split, seed=seed, payload=payload)
            replies = tuple(Said(str(actor), str(text)) for actor, text in data["replies"])
            return cls(task=task, replies=replies, hash=str(data["hash"]))
        except OSError as error:
            raise RecordError(f"{path} cannot be read: {error.strerror}. Name the file that `onthejob play` wrote.") from error
        except (LookupError, TypeError, ValueError) as error:
            raise RecordError(f"{path} holds no replay: {error}. Name the file that `onthejob play` wrote.") from error


class Fingerprint:
    """The hash of a game, step by step."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def step(self, said: Said, step: Step) -> None:
        """Add one step."""
        self._add([*said, sorted(step.rewards.items()), step.valid, step.stop])

    def end(self, metrics: Mapping[str, float]) -> str:
        """The hash of the game that ends with these metrics."""
        self._add(sorted(metrics.items()))
        return self._hash.hexdigest()

    def _add(self, value: Any) -> None:
        self._hash.update(json.dumps(value).encode() + b"\n")


def execute(env: Environment, task: Task, replies: Sequence[Said]) -> str:
    """Play `replies` in `env`, which is reset to `task`; returns the game's hash.

    Raises:
        RecordError: another actor is asked than the one that replied, or the game is over before the last reply.
    """
    fingerprint, request = Fingerprint(), env.reset(task)
    for number, said in enumerate(replies):
        if request is None or request.actor != said.actor:
            asked = "the game is over" if request is None else f"{request.actor} is asked"
            raise RecordError(f"reply {number} is of {said.actor}, but {asked}: the game was played under other rules.")
        step = env.step(said.text)
        fingerprint.step(said, step)
        request = step.observation
    return fingerprint.end(env.state()["metrics"])
