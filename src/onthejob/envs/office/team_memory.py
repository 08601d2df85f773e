"""What the six agents remember of an episode: one memory stream each, what a turn adds to them, what comes to mind for a prompt.

Only the full profile has it. An agent remembers its own actions with how they went, and what everybody may know: events and the
shared board. Public facts are one record that the streams share, in memory and in the snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onthejob.envs.office.actions import IDLE, Action
from onthejob.envs.office.memory import Kind, Lexicon, MemoryStream, Outcome, Record, record, reflection_prompt
from onthejob.envs.office.reward import TurnLog
from onthejob.envs.office.roles import TRAINED_ROLES
from onthejob.envs.office.state import PAINS, State
from onthejob.envs.office.views import copies, team_status

SHOWN = 6
"""Memories that a prompt shows at most."""


class TeamMemory:
    """The memories of all trained roles in one episode."""

    __slots__ = ("_by_model", "_lexicon", "_streams")

    def __init__(self, lexicon: Lexicon, *, by_model: bool) -> None:
        """by_model: the actors are asked to reflect (`reflection_due`, `accept`); otherwise the template reflects for them."""
        self._lexicon = lexicon
        self._by_model = by_model
        self._streams = {str(role): MemoryStream(lexicon) for role in TRAINED_ROLES}

    def stream(self, role: str) -> MemoryStream:
        """One role's stream."""
        return self._streams[role]

    def subject(self, s: State, role: str, action: Action) -> str:
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

    def witness(self, s: State, role: str, action: Action | None, subject: str, log: TurnLog) -> None:
        """Remember the turn that `role` has just played; `s` is the state after it."""
        for text in log.notes:
            self._tell(text, s.turn, set())
        for turn, who, text in s.shared:
            if turn == s.turn - 1:
                self._tell(f"{who} {text}", s.turn, {who})
        own = self._streams.get(role)
        if own is not None and action is not None and action != IDLE:
            target = f" {action.target}" if action.target else ""
            text = f"I did {action.action_type}{target}: {'it worked' if log.changed else 'it changed nothing'}"
            own.observe_own(text, s.turn, Outcome(action.action_type, subject, 1, int(log.changed), log.rewards()[role]))
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
        return self._by_model and self._streams[role].reflection_due(turn)

    def question(self, role: str) -> str:
        """What to ask the model that reflects for `role`."""
        return reflection_prompt(self._streams[role])

    def accept(self, role: str, reply: str, turn: int) -> None:
        """Store what the model answered."""
        self._streams[role].accept_reflection(reply, turn=turn)

    def lines(self, s: State, role: str, seen: Mapping[str, Any]) -> dict[str, list[str]]:
        """Lines of the full profile's extra sections, what matters most first.

        Retrieval counts as a use of the memories, so it happens once per request; repeating it at once changes nothing.
        """
        stream = self._streams[role]
        query = " ".join([*seen["inbox"], *seen["events"], seen["focus"]])
        found = stream.retrieve(query, s.turn, limit=SHOWN)
        return {
            "team": [f"{other}: {status}" for other, status in team_status(s, role).items()],
            "copies": list(reversed(copies(s))) if role == "ceo" else [],
            "board": [f"{who}: {text}" for _, who, text in reversed(s.shared)],
            "memories": [memory.text for memory in found if memory.kind is Kind.OBSERVATION],
            "insights": ([f"Plan: {stream.plan}"] if stream.plan else [])
            + [memory.text for memory in found if memory.kind is Kind.REFLECTION],
        }

    def fork(self) -> TeamMemory:
        """An independent copy that shares the records."""
        new = TeamMemory.__new__(TeamMemory)
        new._lexicon, new._by_model = self._lexicon, self._by_model
        new._streams = {role: stream.fork() for role, stream in self._streams.items()}
        return new

    def to_data(self) -> dict[str, Any]:
        """JSON-serialisable: every record once, streams refer to records by their place."""
        places: dict[int, int] = {}
        records: list[Record] = []
        streams: dict[str, list[Any]] = {}
        for role, stream in self._streams.items():
            *head, held = stream.to_state()
            for made in held:
                if id(made) not in places:
                    places[id(made)] = len(records)
                    records.append(made)
            streams[role] = [*head, [places[id(made)] for made in held]]
        return {"records": records, "streams": streams}

    @classmethod
    def from_data(cls, data: Mapping[str, Any], lexicon: Lexicon, *, by_model: bool) -> TeamMemory:
        """The memories that `to_data` described.

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
    return (text, turn, importance, Kind(kind).value, tuple(evidence), tuple(fact) if fact is not None else None)
