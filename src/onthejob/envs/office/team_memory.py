"""What the six agents remember of an episode: one memory stream each, what a turn adds to them, what comes to mind for a prompt.

Only the full profile has it. An agent remembers its own actions with how they went, and what all roles may know: events and the
shared board. Public facts are one record that the streams share. The customer remembers nothing, also where a model plays it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onthejob.envs.office.actions import IDLE, Action
from onthejob.envs.office.company_state import PAINS, CompanyState
from onthejob.envs.office.memory import ActionOutcome, Lexicon, MemoryStream, record, reflection_prompt
from onthejob.envs.office.records import MemoryKind, Record, made
from onthejob.envs.office.reward_parts import TurnLog
from onthejob.envs.office.roles import TRAINED_ROLES
from onthejob.envs.office.views import copies, desk, team_status

SHOWN = 6
"""Memories that a prompt shows at most."""


class TeamMemory:
    """The memories of all trained roles in one episode."""

    __slots__ = ("_by_model", "_lexicon", "_packed", "_streams")

    def __init__(self, lexicon: Lexicon, *, by_model: bool) -> None:
        """by_model: the actors are asked to reflect (`reflection_due`, `accept`); otherwise the template reflects for them."""
        self._lexicon = lexicon
        self._by_model = by_model
        self._packed: dict[str, bytes] = {}
        """Streams of a snapshot that have not been read yet: a restore for branches never reads them."""
        self._streams = {str(role): MemoryStream(lexicon) for role in TRAINED_ROLES}

    def stream(self, role: str) -> MemoryStream:
        """One role's stream."""
        if self._packed:
            self._unpack()
        return self._streams[role]

    def subject(self, s: CompanyState, role: str, action: Action) -> str:
        """What sort of thing `action` is about, so that outcomes of the same sort add up: names never recur, sorts do.

        Asked before the action is executed, because a lead may be gone afterwards. Holds nothing that `role` does not see.
        """
        if role == "sales":
            account = next((a for a in s.accounts if a.name == action.target), None)
            if account is None:
                return "the pipeline"
            if action.action_type == "COLLECT_FEEDBACK":
                return "a customer"
            return f"a {PAINS[account.pain]} lead" if account.known else "a new lead"
        if action.action_type == "APPROVE_INITIATIVE":
            return "a large deal"
        if action.action_type == "REVISE_CONTENT":
            return "a draft"
        return action.target or "the company"

    def witness(self, s: CompanyState, role: str, action: Action | None, subject: str, log: TurnLog) -> None:
        """Remember the turn that `role` has just played; `s` is the state after it."""
        if self._packed:
            self._unpack()
        for text in log.notes:
            self._tell(text, s.turn, set())
        for turn, who, text in s.shared:
            if turn == s.turn - 1:
                self._tell(f"{who} {text}", s.turn, {who})
        own = self._streams.get(role)
        if own is not None and action is not None and action != IDLE:
            target = f" {action.target}" if action.target else ""
            text = f"I did {action.action_type}{target}: {'it worked' if log.changed else 'it changed nothing'}"
            # A model reflects on words alone.
            counted = None if self._by_model else ActionOutcome(action.action_type, subject, 1, int(log.changed), log.earned)
            own.observe(text, s.turn, outcome=counted)
        if not self._by_model:
            for stream in self._streams.values():
                if stream.reflection_due(s.turn):
                    stream.reflect(s.turn)

    def _tell(self, text: str, turn: int, but: set[str]) -> None:
        made = record(text, turn, self._lexicon.importance(text))
        for name, stream in self._streams.items():
            if name not in but:
                stream.add(made)

    def reflection_due(self, role: str, turn: int) -> bool:
        """True when `role` has to be asked for a reflection now."""
        if not self._by_model or role not in self._streams:
            return False
        if self._packed:
            return MemoryStream.due(self._packed[role], turn)
        return self._streams[role].reflection_due(turn)

    def question(self, role: str) -> str:
        """What to ask the model that reflects for `role`."""
        return reflection_prompt(self.stream(role))

    def accept(self, role: str, reply: str, turn: int) -> None:
        """Store what the model answered."""
        self.stream(role).accept_reflection(reply, turn=turn)

    def lines(self, s: CompanyState, role: str, seen: Mapping[str, Any]) -> Callable[[], dict[str, list[str]]]:
        """What gives the lines of the full profile's extra sections, what matters most first, as things are now.

        Retrieval counts as a use of the memories, so it happens now, once per request; repeating it at once changes nothing.
        Memories that lie as a snapshot packed them have been used by the request that was pending there: they are read when
        the lines are read.
        """
        query, turn, packed = " ".join([*seen["inbox"], *seen["events"], seen["focus"]]), s.turn, self._packed.get(role)
        around = {
            "team": [f"{other}: {status}" for other, status in team_status(s, role).items()],
            "copies": list(reversed(copies(s))) if role == "ceo" else [],
            "desk": desk(s) if role == "sales" else [],
            "board": [f"{who}: {text}" for _, who, text in reversed(s.shared)],
        }
        if packed is not None:
            return lambda: around | self._recalled(MemoryStream.unpack(packed, self._lexicon, {}), query, turn)
        stream = self._streams.get(role)
        recalled = self._recalled(stream, query, turn) if stream is not None else {}
        return lambda: around | recalled

    @staticmethod
    def _recalled(stream: MemoryStream, query: str, turn: int) -> dict[str, list[str]]:
        found = stream.retrieve(query, turn, limit=SHOWN)
        return {
            "memories": [memory.text for memory in found if memory.kind is MemoryKind.OBSERVATION],
            "insights": ([f"Plan: {stream.plan}"] if stream.plan else [])
            + [memory.text for memory in found if memory.kind is MemoryKind.REFLECTION],
        }

    def fork(self) -> TeamMemory:
        """An independent copy that shares the records."""
        new = TeamMemory.__new__(TeamMemory)
        new._lexicon, new._by_model = self._lexicon, self._by_model
        new._packed = self._packed.copy()
        new._streams = {role: stream.fork() for role, stream in self._streams.items()}
        return new

    def pack(self) -> list[bytes]:
        """The streams as bytes, in the order of the roles."""
        return [*self._packed.values()] if self._packed else [stream.pack() for stream in self._streams.values()]

    @classmethod
    def unpack(cls, packed: Sequence[bytes], lexicon: Lexicon, *, by_model: bool) -> TeamMemory:
        """The memories that `pack` gave, read when they are asked for.

        Raises:
            ValueError: they are not as many, or damaged.
        """
        new = cls(lexicon, by_model=by_model)
        new._packed = dict(zip(new._streams, packed, strict=True))
        if not all(map(MemoryStream.is_whole, packed)):
            raise ValueError("its memories are damaged")
        return new

    def _unpack(self) -> None:
        known: dict[bytes, Record] = {}
        self._streams = {role: MemoryStream.unpack(data, self._lexicon, known) for role, data in self._packed.items()}
        self._packed = {}

    @classmethod
    def from_data(cls, data: Mapping[str, Any], lexicon: Lexicon, *, by_model: bool) -> TeamMemory:
        """The memories that a snapshot of version 0.1.0 described.

        Raises:
            ValueError, TypeError, KeyError, IndexError: `data` is something else.
        """
        new = cls(lexicon, by_model=by_model)
        records = [_record(row) for row in data["records"]]
        if set(data["streams"]) != set(new._streams):
            raise ValueError(f"memories are those of {sorted(data['streams'])}")
        for role, (*head, held) in data["streams"].items():
            new._streams[role] = MemoryStream.from_state([*head, [records[place] for place in held]], lexicon)
        return new


def _record(row: Sequence[Any]) -> Record:
    text, turn, importance, kind, evidence, fact = row
    if not isinstance(text, str) or type(turn) is not int or type(importance) is not int:
        raise TypeError(f"not a memory: {str(row)[:80]}")
    return made(text, turn, importance, MemoryKind(kind).value, tuple(evidence), tuple(fact) if fact is not None else None)
