"""A memory as a plain tuple that also knows itself as bytes."""

from __future__ import annotations

import struct
from enum import StrEnum

from onthejob.envs.office.phrases import lengthen, shorten


class MemoryKind(StrEnum):
    """What a memory is."""

    OBSERVATION = "observation"
    REFLECTION = "reflection"
    PLAN = "plan"


Fact = tuple[str, str, int, int, float]
"""An `ActionOutcome` as a plain tuple, which pickles faster."""

Record = tuple[str, int, int, str, tuple[int, ...], Fact | None, bytes]
"""(text, turn created, importance 1-10, kind, evidence ids, outcome, all that packed): shared between forks and agents, never
changed. Packed once, because a snapshot may be taken every turn."""


_KINDS = tuple(kind.value for kind in MemoryKind)
_KIND = {kind: place << 4 for place, kind in enumerate(_KINDS)}
_HEAD = struct.Struct("<Bh")
"""Importance, kind and what follows, in bits; turn."""
_COUNTS = struct.Struct("<HHd")
"""Of an outcome."""


def made(text: str, turn: int, importance: int, kind: str, evidence: tuple[int, ...], fact: Fact | None) -> Record:
    """The record of these; `evidence` rises."""
    head = importance | _KIND[kind] | (fact is not None) << 6 | bool(evidence) << 7
    if head < 64:
        return (text, turn, importance, kind, evidence, fact, _HEAD.pack(head, turn) + string(text))
    parts = [_HEAD.pack(head, turn), string(text)]
    if evidence:
        wide = evidence[-1] >= 65_536
        parts.append(struct.pack(f"<H{len(evidence)}{'HI'[wide]}", len(evidence) << 1 | wide, *evidence))
    if fact is not None:
        parts += (string(fact[0]), string(fact[1]), _COUNTS.pack(*fact[2:]))
    return (text, turn, importance, kind, evidence, fact, b"".join(parts))


def string(text: str) -> bytes:
    """`text` behind its length."""
    data = shorten(text)
    return bytes((len(data),)) + data if len(data) < 255 else b"\xff" + len(data).to_bytes(4, "little") + data


def read_string(data: bytes, place: int) -> tuple[str, int]:
    """The text at `place`, and where it ends.

    Raises:
        ValueError, LookupError: there is none.
    """
    size, place = data[place], place + 1
    if size == 255:
        size, place = int.from_bytes(data[place : place + 4], "little"), place + 4
    if place + size > len(data):
        raise ValueError("a text of a memory is cut")
    return lengthen(data[place : place + size]), place + size


def read_record(data: bytes, start: int, known: dict[bytes, Record]) -> tuple[Record, int]:
    """The record at `start`, and where the next one begins; one that `known` has is shared."""
    head, turn = _HEAD.unpack_from(data, start)
    text, place = read_string(data, start + _HEAD.size)
    evidence: tuple[int, ...] = ()
    if head & 128:
        (count,) = struct.unpack_from("<H", data, place)
        evidence = struct.unpack_from(f"<{count >> 1}{'HI'[count & 1]}", data, place + 2)
        place += 2 + (count >> 1) * (4 if count & 1 else 2)
    fact = None
    if head & 64:
        action, place = read_string(data, place)
        target, place = read_string(data, place)
        fact = (action, target, *_COUNTS.unpack_from(data, place))
        place += _COUNTS.size
    packed = data[start:place]
    if packed not in known:
        known[packed] = (text, turn, head & 15, _KINDS[head >> 4 & 3], evidence, fact, packed)
    return known[packed], place
