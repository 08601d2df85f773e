"""Held-out states: frozen starting points at which decisions are judged.

A state is collected once, from episodes of training-free seeds, and stored with its exact snapshot; every later policy is
judged on the same file. The file is refused when its digest does not match or when it holds a task of the training split.
"""

from __future__ import annotations

import base64
import hashlib
import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onthejob.errors import ConfigError, RecordError
from onthejob.files import published_file
from onthejob.types import Split, Task

_MAGIC = b"onthejob-states 2\n"
_FORMER = b"onthejob-states 1\n"
"""Files that do not say how they were collected; both magics have one length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutState:
    """One decision to be judged: who decides, and everything that led there."""

    task: Task
    snapshot: bytes
    """What `Forkable.restore` needs; the pending request is `actor`'s."""
    actor: str
    source: str
    """Who played until here, e.g. `sft` or `heuristic`."""
    turn: int
    """Turns played before this one, >= 0."""

    @property
    def episode(self) -> str:
        """States of one task share its luck, whichever policy played there: intervals resample tasks."""
        return self.task.id

    @property
    def key(self) -> str:
        """Identity for caches and seeds: 24 hex digits over task, actor and snapshot."""
        digest = hashlib.sha256(json.dumps(self.task.row(), sort_keys=True).encode())
        digest.update(b"\0" + self.actor.encode() + b"\0" + self.snapshot)
        return digest.hexdigest()[:24]


def refuse_training_tasks(tasks: Sequence[Task]) -> None:
    """Evaluation on what was trained on measures memory.

    Raises:
        ConfigError: A task belongs to the training split.
    """
    for task in tasks:
        if task.split is Split.TRAIN:
            raise ConfigError(
                f"evaluation tasks must be of split dev or test, got {task.id!r} of split train. Use held-out seeds."
            )


def save_states(path: Path, states: Sequence[HeldOutState], collected: Mapping[str, Any] | None = None) -> str:
    """Write `states` as one compressed file, atomically; returns its digest (64 hex digits).

    `collected` says with which options, for `load_collection`: a later request for other states must not get these.

    Raises:
        ConfigError: A state belongs to the training split, or there are none.
        RecordError: The file cannot be written.
    """
    if not states:
        raise ConfigError(f"a file of held-out states needs at least one state, got none for {path}. Collect more episodes.")
    refuse_training_tasks([state.task for state in states])
    fields = {"collected": dict(collected or {}), "states": [_state_fields(state) for state in states]}
    header = json.dumps(fields, sort_keys=True).encode()
    # One LZMA stream over all snapshots: those of an episode differ little, so the file is a fraction of their sum.
    payload = len(header).to_bytes(8, "big") + header + b"".join(state.snapshot for state in states)
    digest = hashlib.sha256(payload).hexdigest()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with published_file(path) as temporary:
            temporary.write_bytes(_MAGIC + digest.encode() + b"\n" + lzma.compress(payload))
    except OSError as error:
        raise RecordError(f"cannot write held-out states to {path}: {error}. Free space or choose another place.") from error
    return digest


def load_states(path: Path) -> list[HeldOutState]:
    """The states of a file written by `save_states`, in its order; errors as in `load_collection`."""
    return load_collection(path)[0]


def load_collection(path: Path) -> tuple[list[HeldOutState], dict[str, Any]]:
    """The states of a file written by `save_states` and the options they were collected with, none where it does not say.

    Raises:
        RecordError: The file is missing, of another format, or damaged.
        ConfigError: It holds a task of the training split.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise RecordError(f"cannot read held-out states from {path}: {error}. Collect them first.") from error
    if not raw.startswith((_MAGIC, _FORMER)):
        raise RecordError(f"{path} is no file of held-out states (expected {_MAGIC!r} at its start). Pass the right file.")
    digest, _, packed = raw[len(_MAGIC) :].partition(b"\n")
    try:
        payload = lzma.decompress(packed)
    except lzma.LZMAError as error:
        raise RecordError(f"{path} is damaged: {error}. Restore or collect it again.") from error
    if hashlib.sha256(payload).hexdigest().encode() != digest:
        raise RecordError(f"{path} is damaged: its digest differs from the recorded one. Restore or collect it again.")
    size = int.from_bytes(payload[:8], "big")
    states, offset = [], 8 + size
    header = json.loads(payload[8:offset])
    entries, collected = (header, {}) if raw.startswith(_FORMER) else (header["states"], header["collected"])
    for fields in entries:
        length = fields.pop("snapshot_bytes")
        task = Task.from_row(fields.pop("task"))
        states.append(HeldOutState(task=task, snapshot=payload[offset : offset + length], **fields))
        offset += length
    refuse_training_tasks([state.task for state in states])
    return states, collected


def states_digest(states: Sequence[HeldOutState]) -> str:
    """Identity of a set of states in this order, 12 characters: printed with every table made from it."""
    digest = hashlib.sha256("".join(state.key for state in states).encode()).digest()
    return base64.b32encode(digest)[:12].decode().lower()


def _state_fields(state: HeldOutState) -> dict[str, Any]:
    return {
        "task": state.task.row(),
        "actor": state.actor,
        "source": state.source,
        "turn": state.turn,
        "snapshot_bytes": len(state.snapshot),
    }
