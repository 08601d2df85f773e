"""What one agent remembers: a stream of 200 memories, retrieved by recency x importance x relevance, condensed by reflection.

Follows Park et al. 2023 (Generative Agents) in the form that the office fixes: score = e^(-0.01 age) x importance x relevance,
capacity 200 with eviction of the least recently used, a reflection every 70 turns whose insights are memories themselves and keep
the ids of their evidence. Everything is deterministic: importance and relevance come from words, reflections from templates over
the agent's own outcomes. A model may reflect instead: ask it `reflection_prompt(stream)` and store its reply with
`accept_reflection`.

A stream is forked thousands of times a second, so a memory is a plain immutable tuple that forks (and the streams of several
agents, for public events) share; only the order of use belongs to one stream.
"""

from __future__ import annotations

import math
import re
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from onthejob.envs.office.lexicon import Lexicon
from onthejob.envs.office.records import Fact, MemoryKind, Record, made, read_record, read_string, string
from onthejob.envs.office.reflection import (
    ActionOutcome,
    SaidText,
    meta_insights,
    outcome_insights,
    plan_text,
    read_reflection,
    tally_up,
)
from onthejob.errors import ConfigError

CAPACITY = 200
REFLECTION_TURNS = 70
DECAY = 0.01
"""Per turn of age."""
UNRELATED = 0.1
"""Relevance of a memory that shares no word with the query, so that what is important can still come to mind."""
OLDEST = 32_000
"""Turns after which an insight is not carried on: nothing of it is left."""
MAX_INSIGHTS = 3


class Memory(NamedTuple):
    """One memory as its owner sees it."""

    id: int
    """Unique within the stream, rising; evidence refers to it even after the memory was evicted."""
    text: str
    turn: int
    """When it was created."""
    importance: int
    """1 (routine) to 10."""
    kind: MemoryKind
    evidence: tuple[int, ...]
    outcome: ActionOutcome | None
    accessed: int
    """Turn of the last use."""


_INSIGHT_RATING, _META_IMPORTANCE, _PLAN_IMPORTANCE = 8, 9, 7
_USE = struct.Struct("<hH")
_WIDE = 65_535
"""Turn of last use and id of a memory; an id from here on is this and four bytes."""
_CHECK = 4
"""Bytes of the checksum at a stream's end."""
_STREAM = struct.Struct("<iHII")
"""Turn of the last reflection, memories, next id, first id that no reflection has covered."""
_NAME = re.compile(r"(?<=\s)[A-Z]\w*")
"""A capitalised word that does not begin the text."""


def _fact(outcome: ActionOutcome | None) -> Fact | None:
    return None if outcome is None else (outcome.action_type, outcome.target_class, outcome.tries, outcome.wins, outcome.gain)


def record(
    text: str, turn: int, importance: int, *, kind: MemoryKind = MemoryKind.OBSERVATION, outcome: ActionOutcome | None = None
) -> Record:
    """A memory that several streams may hold: make it once for a public event and `add` it to each.

    Raises:
        ConfigError: `importance` is outside 1..10, or the outcome has no try.
    """
    if outcome is not None and outcome.tries < 1:
        raise ConfigError(f"an outcome needs tries >= 1, got {outcome.tries}.")
    if not 1 <= importance <= 10:
        raise ConfigError(f"importance must be in 1..10, got {importance}.")
    return made(text, turn, importance, kind.value, (), _fact(outcome))


_Slot = tuple[int, int, Record, bytes]
"""(id, turn of last use, record, all that packed)."""


def _slot(number: int, accessed: int, one: Record) -> _Slot:
    if number < _WIDE:
        return (number, accessed, one, _USE.pack(accessed, number) + one[6])
    return (number, accessed, one, _USE.pack(accessed, _WIDE) + number.to_bytes(4, "little") + one[6])


def _memory(slot: _Slot) -> Memory:
    number, accessed, (text, turn, importance, kind, evidence, fact, _), _ = slot
    return Memory(number, text, turn, importance, MemoryKind(kind), evidence, ActionOutcome(*fact) if fact else None, accessed)


class MemoryStream:
    """The memories of one agent. Turns are the environment's clock and never run backward."""

    __slots__ = ("_held", "_lexicon", "_next_id", "_packed", "_plan", "_reflected", "_unread", "capacity")

    def __init__(self, lexicon: Lexicon, *, capacity: int = CAPACITY) -> None:
        if capacity < 1:
            raise ConfigError(f"capacity must be >= 1, got {capacity}.")
        self.capacity = capacity
        self._lexicon = lexicon
        # In order of use, the least recent first: forking is one shallow copy.
        self._held: list[_Slot] = []
        self._next_id = 0
        self._reflected = 0
        self._unread = 0
        self._plan = ""
        self._packed = b""
        """What `pack` gave, empty after a change: in most turns most streams stay as they are."""

    def __len__(self) -> int:
        return len(self._held)

    @property
    def plan(self) -> str:
        """The current plan, empty before the first reflection."""
        return self._plan

    def observe(self, text: str, turn: int, *, importance: int | None = None, outcome: ActionOutcome | None = None) -> int:
        """Remember something seen at `turn`, or an own action with its `outcome`, which reflections count; returns its id.

        Importance is by rule unless given.
        """
        rated = self._lexicon.importance(text) if importance is None else importance
        return self.add(record(text, turn, rated, outcome=outcome))

    def add(self, new: Record) -> int:
        """Hold a record made by `record`; returns its id here. A full stream forgets what was used least recently."""
        number = self._next_id
        self._next_id, self._packed = number + 1, b""
        self._held.append(_slot(number, new[1], new))
        if len(self._held) > self.capacity:
            del self._held[0]
        return number

    def retrieve(self, query: str, turn: int, *, limit: int = 5, touch: bool = True) -> list[Memory]:
        """The `limit` memories with the highest score, best first; ties go to the newer one.

        Relevance is the share of the query's information (its words weighted by how rare they are in this stream) that the memory
        contains, from `UNRELATED` to 1; an empty query makes all equally relevant.

        Args:
            query: what the agent has before it.
            turn: now.
            limit: how many at most.
            touch: count as a use, which protects from eviction. False for tests and viewers.
        """
        best = sorted(self._scores(query, turn), reverse=True)[:limit]
        held = self._held
        found = [_memory(held[place]) for _, _, place in best]
        if touch:
            places = {place for _, _, place in best}
            rest = [slot for place, slot in enumerate(held) if place not in places]
            used = [_slot(number, turn, held[place][2]) for _, number, place in reversed(best)]
            self._held, self._packed = rest + used, b""
        return found

    def memories(self, kind: MemoryKind | None = None) -> list[Memory]:
        """All memories, or those of one kind, in the order of creation."""
        return [_memory(slot) for slot in sorted(self._held) if kind is None or slot[2][3] == kind]

    def reflection_due(self, turn: int) -> bool:
        """True when 70 turns have passed since the last reflection, and there is something to reflect on."""
        return turn - self._reflected >= REFLECTION_TURNS and bool(self._held)

    def reflect(self, turn: int) -> list[Memory]:
        """Condense what happened since the last reflection by template: insights, insights over insights, a plan."""
        held = sorted(self._held)
        since = [(number, one) for number, _, one, _ in held if number >= self._unread and one[3] == MemoryKind.OBSERVATION]
        own = tally_up((number, ActionOutcome(*one[5])) for number, one in since if one[5] is not None)
        added = [self._insight(turn, *insight) for insight in outcome_insights(own)]
        topics = self._topics([(number, one[0]) for number, one in since if one[5] is None])
        if topics:
            text = "What keeps coming up: " + ", ".join(f"{term} ({len(numbers)} times)" for term, numbers in topics) + "."
            evidence = tuple(sorted({number for _, numbers in topics for number in numbers}))
            added.append(self._insight(turn, text, evidence, None))

        reflected = ((number, one) for number, _, one, _ in sorted(self._held) if one[3] == MemoryKind.REFLECTION)
        earlier = tally_up((number, ActionOutcome(*one[5])) for number, one in reflected if one[5] is not None)
        over = {key: tally for key, tally in earlier.items() if len(tally[1]) >= 2}
        added += [self._insight(turn, text, evidence, None, _META_IMPORTANCE) for text, evidence in meta_insights(over)]
        if added:
            text = plan_text(own, [term for term, _ in topics])
            added.append(self._make_plan(turn, text, tuple(memory.id for memory in added)))
        self._settle(turn)
        return added

    def accept_reflection(self, text: str, *, turn: int, importance: int | None = None) -> list[Memory]:
        """Store what a model wrote to `reflection_prompt`; never raises because of it.

        One insight a line, at most three, with evidence ids in square brackets; a line that starts with `Plan:` replaces the
        plan, one that starts with `Importance:` rates memories (id=1..10). Unknown ids are ignored. A reply without usable text
        stores nothing; the reflection counts as done either way.
        """
        rated = _INSIGHT_RATING if importance is None else min(10, max(1, importance))
        added: list[Memory] = []
        plan: SaidText | None = None
        for said in read_reflection(text, {slot[0] for slot in self._held}):
            for number, importance_of in said.ratings:
                self.rate(number, importance_of)
            if said.plans:
                plan = plan or said
            elif said.text and len(added) < MAX_INSIGHTS:
                added.append(self._insight(turn, said.text, said.evidence, None, rated))
        if plan is not None and plan.text:
            added.append(self._make_plan(turn, plan.text, plan.evidence or tuple(memory.id for memory in added)))
        self._settle(turn)
        return added

    def rate(self, number: int, importance: int) -> None:
        """Replace the importance of memory `number` (say, by a model's rating, clamped to 1..10); unknown ids are ignored."""
        self._packed = b""
        for place, (held, accessed, old, _) in enumerate(self._held):
            if held == number:
                text, turn, _, kind, evidence, fact, _ = old
                rated = made(text, turn, min(10, max(1, importance)), kind, evidence, fact)
                self._held[place] = _slot(held, accessed, rated)

    def fork(self) -> MemoryStream:
        """An independent copy that shares the records."""
        twin = MemoryStream.__new__(MemoryStream)
        twin.capacity = self.capacity
        twin._lexicon = self._lexicon
        twin._held = self._held.copy()
        twin._next_id = self._next_id
        twin._reflected = self._reflected
        twin._unread = self._unread
        twin._plan = self._plan
        twin._packed = self._packed
        return twin

    @classmethod
    def from_state(cls, state: Sequence, lexicon: Lexicon, *, capacity: int = CAPACITY) -> MemoryStream:
        """The stream of a snapshot of version 0.1.0.

        `state` holds next id, turn of the last reflection, first id that no reflection has covered, plan, and of the memories,
        least recently used first, ids, turns of last use and records.
        """
        stream = cls(lexicon, capacity=capacity)
        stream._next_id, stream._reflected, stream._unread, stream._plan, ids, accessed, records = state
        stream._held = [_slot(*row) for row in zip(ids, accessed, records, strict=True)]
        return stream

    def pack(self) -> bytes:
        """The stream as bytes; equal streams give equal bytes."""
        if not self._packed:
            head = _STREAM.pack(self._reflected, len(self._held), self._next_id, self._unread)
            body = b"".join((head, string(self._plan), *[slot[3] for slot in self._held]))
            self._packed = body + zlib.crc32(body).to_bytes(_CHECK, "little")
        return self._packed

    @staticmethod
    def is_whole(data: bytes) -> bool:
        """True when no byte of what `pack` gave has changed."""
        return zlib.crc32(memoryview(data)[:-_CHECK]) == int.from_bytes(data[-_CHECK:], "little")

    @classmethod
    def unpack(cls, data: bytes, lexicon: Lexicon, known: dict[bytes, Record], *, capacity: int = CAPACITY) -> MemoryStream:
        """The stream that gave `data`; records that `known` has are shared, the others are added to it.

        Raises:
            ValueError, LookupError: `data` is something else.
        """
        stream = cls(lexicon, capacity=capacity)
        try:
            stream._reflected, size, stream._next_id, stream._unread = _STREAM.unpack_from(data)
            stream._plan, place = read_string(data, _STREAM.size)
            for _ in range(size):
                start, (accessed, number) = place, _USE.unpack_from(data, place)
                place += _USE.size
                if number == _WIDE:
                    number, place = int.from_bytes(data[place : place + 4], "little"), place + 4
                one, place = read_record(data, place, known)
                stream._held.append((number, accessed, one, data[start:place]))
        except struct.error as error:
            raise ValueError(f"memories are cut: {error}") from error
        if place != len(data) - _CHECK:
            raise ValueError("memories continue after their end")
        stream._packed = data
        return stream

    @staticmethod
    def due(data: bytes, turn: int) -> bool:
        """`reflection_due` of the stream that gave `data`."""
        reflected, size, _, _ = _STREAM.unpack_from(data)
        return size > 0 and turn - reflected >= REFLECTION_TURNS

    def carried(self, turns: int) -> MemoryStream:
        """The stream for the next episode: reflections and plans only, aged by the `turns` of the episode that ended."""
        stream = MemoryStream(self._lexicon, capacity=self.capacity)
        stream._next_id = stream._unread = self._next_id
        stream._plan = self._plan
        for number, accessed, (text, turn, importance, kind, evidence, fact, _), _ in self._held:
            if kind != MemoryKind.OBSERVATION and turn - turns > -OLDEST:
                old = made(text, turn - turns, importance, kind, evidence, fact)
                stream._held.append(_slot(number, accessed - turns, old))
        return stream

    def unread(self, limit: int) -> list[Memory]:
        """The `limit` most important memories since the last reflection, in the order of creation."""
        slots = [slot for slot in self._held if slot[0] >= self._unread]
        slots.sort(key=lambda slot: (-slot[2][2], -slot[0]))
        return [_memory(slot) for slot in sorted(slots[:limit])]

    def _settle(self, turn: int) -> None:
        """A reflection is done: what it has counted is forgotten, how it went stays in the words."""
        self._reflected, self._unread, self._packed = turn, self._next_id, b""
        for place, (number, accessed, one, _) in enumerate(self._held):
            if one[5] is not None and one[3] == MemoryKind.OBSERVATION:
                self._held[place] = _slot(number, accessed, made(*one[:5], None))

    def _scores(self, query: str, turn: int) -> list[tuple[float, int, int]]:
        """(score, id, place in `_held`) of every memory."""
        terms = self._lexicon.terms
        wanted = terms(query)
        shared: list[frozenset[str]] = []
        frequency: dict[str, int] = {}
        for _, _, one, _ in self._held:
            common = wanted & terms(one[0])
            shared.append(common)
            for term in common:
                frequency[term] = frequency.get(term, 0) + 1
        size = len(self._held) + 1
        weights = {term: math.log(size / (count - 0.5)) for term, count in frequency.items()}
        # fsum is exact, so the order in which a set yields its words (it differs between processes) does not matter.
        total = math.fsum(weights.values())
        relevance = {
            common: UNRELATED + (1 - UNRELATED) * math.fsum([weights[t] for t in common]) / total
            for common in set(shared)
            if common
        }
        relevance[frozenset()] = UNRELATED if wanted else 1.0
        exp = math.exp
        return [
            (exp(DECAY * (one[1] - turn)) * one[2] * relevance[common], number, place)
            for place, ((number, _, one, _), common) in enumerate(zip(self._held, shared, strict=True))
        ]

    def _insight(
        self, turn: int, text: str, evidence: tuple[int, ...], outcome: ActionOutcome | None, importance: int = _INSIGHT_RATING
    ) -> Memory:
        self.add(made(text, turn, importance, MemoryKind.REFLECTION.value, evidence, _fact(outcome)))
        return _memory(self._held[-1])

    def _make_plan(self, turn: int, text: str, evidence: tuple[int, ...]) -> Memory:
        self._plan = text
        self.add(made(text, turn, _PLAN_IMPORTANCE, MemoryKind.PLAN.value, evidence, None))
        return _memory(self._held[-1])

    def _topics(self, seen: Sequence[tuple[int, str]]) -> list[tuple[str, list[int]]]:
        """Up to three words that at least three memories share, but not most: (word, ids), names before other words.

        Of words that always come together only the first is taken.
        """
        holders: dict[str, list[int]] = {}
        names: set[str] = set()
        for number, text in seen:
            for term in self._lexicon.terms(text):
                holders.setdefault(term, []).append(number)
            for name in _NAME.findall(text):
                names |= self._lexicon.terms(name)
        recurring = [pair for pair in holders.items() if 3 <= len(pair[1]) <= max(4, len(seen) // 2) and not pair[0].isdigit()]
        recurring.sort(key=lambda pair: (pair[0] not in names, -len(pair[1]), pair[0]))
        topics: list[tuple[str, list[int]]] = []
        for pair in recurring:
            if len(topics) < 3 and all(pair[1] != other[1] for other in topics):
                topics.append(pair)
        return topics


def reflection_prompt(stream: MemoryStream, *, limit: int = 30) -> str:
    """What to ask a model that reflects instead of the template: up to `limit` memories since the last reflection, with ids."""
    lines = [f"[{memory.id}] {memory.text}" for memory in stream.unread(limit)]
    return "\n".join(
        [
            "Your recent memories:",
            *(lines or ["(none)"]),
            f"Write up to {MAX_INSIGHTS} insights that follow from them, one a line, each with the ids of its evidence in square "
            "brackets, like: Fintech leads close faster after an analytics demo [12, 15]",
            "Then one line that begins with Plan: and says what you will do differently.",
            "If a memory matters much more or less than it looks, rate it from 1 to 10 in a line like: Importance: 12=9, 15=1",
        ]
    )
