"""What a look at one moment of a company shows, and what it asks for; units as in `onthejob.api.schema_office`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from onthejob.api.schema_base import Asked, Player, Sent
from onthejob.api.schema_office import Text, WorldName


class SectionView(Sent):
    """One block of a prompt."""

    key: str
    priority: int
    pinned: bool
    text: str
    tokens: int | None
    """None when no tokenizer is at hand."""
    kept: bool
    """False when it was pruned to the budget."""
    cut: bool
    """It lost lines."""


class Legal(Sent):
    """One legal action, without messages."""

    text: str
    """The reply that does it."""
    action: str
    target: str


class PromptView(Sent):
    """Exactly what a role sees."""

    world: WorldName
    seq: int
    role: str
    asked: bool
    """It is this role's turn."""
    system: str
    system_tokens: int | None
    sections: list[SectionView]
    budget: int | None
    tokens: int | None
    """Of the kept sections."""
    view: dict[str, Any]
    legal: list[Legal]


class MemoryView(Sent):
    """One memory."""

    id: int
    kind: str
    text: str
    turn: int
    importance: int


class BranchView(Sent):
    """What one reply would lead to."""

    text: str
    valid: bool
    same_as: int
    """Index of the first reply that does the same."""
    outcomes: list[float]
    """Per world: change of the company's prospects, dollars."""
    mean: float
    advantage: float | None
    """(mean - group mean) / sample deviation over the legal replies; None when there is nothing to compare."""
    returns: dict[str, float]
    """Role -> mean return over the branch."""
    values: list[float]
    """Company value after each turn, mean over worlds, dollars; a world that ended keeps its last value."""


class Branches(Sent):
    """Replies to one request, compared under the same luck."""

    seq: int
    role: str
    worlds: list[int]
    turns: int
    start: float
    """Company value before, dollars."""
    replies: list[BranchView]


class BranchAsk(Asked):
    """Compare replies at a point of a world."""

    world: WorldName = "live"
    seq: int = Field(0, ge=0, le=10_000)
    replies: list[Text] = Field(min_length=1, max_length=16)
    worlds: int = Field(4, ge=1, le=32)
    turns: int = Field(140, ge=1, le=420)


class SuggestAsk(Asked):
    """Request replies of a player at a point of a world."""

    world: WorldName = "live"
    seq: int = Field(0, ge=0, le=10_000)
    player: Player = "expert"
    count: int = Field(4, ge=1, le=16)
    temperature: float = Field(1.0, ge=0, le=5)


class Suggestions(Sent):
    """Replies that a player would give."""

    role: str
    player: str
    replies: list[str]
