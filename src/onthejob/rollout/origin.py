"""origin: where a recorded segment began, so that it can be played again and its branches can be looked into.

A segment that starts from the snapshot library begins in a state that no task alone leads to. So the record holds that
state and the stand-ins of its branches in addition to its replies; with them every recorded value can be computed again.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onthejob.errors import RecordError
from onthejob.rollout.episode import Episode
from onthejob.rollout.stand_ins import Rates
from onthejob.types import Task

FACT = "origin"
"""Name among an episode's recorded facts."""
MOST_BYTES = 16 * 2**20
"""Of a snapshot, unpacked: a record from elsewhere must not fill the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """How to come back to the beginning of a recorded segment."""

    task: Task
    start: bytes | None = None
    """Snapshot; None: begin with the task."""
    stand_ins: Rates = field(default_factory=dict)
    """Stand-ins that continued branches; empty: the environment's partners."""


def origin_facts(episode: Episode, stand_ins: Rates) -> dict[str, Any]:
    """What the record keeps of where `episode` began; a snapshot of the office takes about 1.5 kB."""
    return facts_of(Origin(task=episode.task, start=episode.start, stand_ins=stand_ins))


def facts_of(origin: Origin) -> dict[str, Any]:
    """As `read_origin` reads it."""
    start = None if origin.start is None else base64.b64encode(zlib.compress(origin.start, 9)).decode()
    return {FACT: {"task": origin.task.row(), "start": start, "stand_ins": origin.stand_ins}}


def read_origin(facts: Mapping[str, Any], where: str) -> Origin | None:
    """The origin among an episode's facts; None where none was recorded.

    Raises:
        RecordError: it is damaged.
    """
    held = facts.get(FACT)
    if held is None:
        return None
    try:
        start = held["start"]
        return Origin(
            task=Task.from_row(held["task"]),
            start=None if start is None else _unpacked(base64.b64decode(start, validate=True)),
            stand_ins={str(role): dict(rates) for role, rates in held["stand_ins"].items()},
        )
    except (AttributeError, LookupError, TypeError, ValueError, binascii.Error, zlib.error) as error:
        raise RecordError(f"the origin of {where} is damaged: {error}. Restore run.sqlite from a copy.") from error


def _unpacked(data: bytes) -> bytes:
    unpack = zlib.decompressobj()
    found = unpack.decompress(data, MOST_BYTES)
    if unpack.unconsumed_tail or not unpack.eof:
        raise ValueError(f"a snapshot has more than {MOST_BYTES} bytes, or is cut")
    return found
