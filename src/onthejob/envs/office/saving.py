"""An episode as bytes: task and pending retry as JSON, memories, and the company (`snapshot`). None of it is code."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any, NamedTuple

from onthejob.envs.office.actions import Invalid, Reason
from onthejob.envs.office.company_state import State
from onthejob.envs.office.lexicon import Lexicon
from onthejob.envs.office.snapshot import dumps, loads
from onthejob.envs.office.team_memory import TeamMemory

_encode = json.JSONEncoder(separators=(",", ":")).encode


class Saved(NamedTuple):
    """All that an episode needs to continue, besides the options of its environment."""

    task: str
    origin: str | dict[str, Any]
    """As `tasks.Start.origin`."""
    attempts: int
    """Unusable replies to the pending request so far."""
    problem: Invalid | None
    """What was wrong with the last of them."""
    memory: TeamMemory | None
    """Of the full profile."""
    state: State


def dump(saved: Saved) -> bytes:
    """The bytes of `saved`."""
    problem = saved.problem
    extra = {
        "task": saved.task,
        "scenario": saved.origin,
        "attempts": saved.attempts,
        "problem": [problem.reason, problem.feedback, problem.excerpt] if problem is not None else [],
    }
    streams = saved.memory.pack() if saved.memory is not None else []
    extra["memories"] = [*map(len, streams)]
    head = _encode(extra).encode() + b"\n"
    size = len(head) + sum(extra["memories"])
    return b"".join((size.to_bytes(4, "big"), head, *streams, dumps(saved.state)))


def load(data: bytes, lexicon: Lexicon, *, by_model: bool) -> Saved:
    """What `dump` wrote, also as version 0.1.0 did; `lexicon` and `by_model` are those of `TeamMemory`.

    Raises:
        ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError: `data` is something else.
    """
    size = int.from_bytes(data[:4], "big")
    head, _, packed = data[4 : 4 + size].partition(b"\n")
    extra = json.loads(head)
    memories, memory, problem = extra["memories"], None, None
    if isinstance(memories, dict) and memories:
        memory = TeamMemory.from_data(memories, lexicon, by_model=by_model)
    elif memories:
        if sum(memories) != len(packed):
            raise ValueError("its memories are cut")
        streams = [packed[end - length : end] for end, length in zip(accumulate(memories), memories, strict=True)]
        memory = TeamMemory.unpack(streams, lexicon, by_model=by_model)
    if extra.get("problem"):
        reason, text, excerpt = extra["problem"]
        problem = Invalid(Reason(reason), text, excerpt=excerpt)
    return Saved(str(extra["task"]), extra["scenario"], int(extra["attempts"]), problem, memory, loads(data[4 + size :]))
