"""What the viewer reads and sends where a person plays an environment of the user's own."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StringConstraints

from onthejob.api.schema_base import Asked, Player, Seed, Sent
from onthejob.types import Split

MOST_REPLY = 16_384
"""Characters of a reply: a request holds it whole, whatever they are."""
RoleId = Annotated[str, StringConstraints(min_length=1, max_length=100)]


class EnvView(Sent):
    """An environment that can be played here."""

    name: str
    description: str
    roles: list[str]
    players: list[str]
    """Scripted players, for the seats that the person does not take."""
    partner: str
    """The usual one; empty where there is none."""
    tasks: dict[str, int]
    """Split -> number of its tasks."""
    options: dict[str, Any]
    """As the command line gave them."""
    max_turns: int
    max_new_tokens: int


class TaskRow(Sent):
    """One task, without what no role may know."""

    index: int
    """Place in its split, from 0."""
    id: str
    family: str
    seed: int


class TaskPage(Sent):
    """Some of a split's tasks."""

    split: Split
    total: int
    rows: list[TaskRow]


class Heard(Sent):
    """One message of a request."""

    role: str
    """`system`, `user` or another word of the chat format: not a role of the environment."""
    content: str


class RequestView(Sent):
    """The request that waits for the person."""

    role: str
    messages: list[Heard]
    fresh: bool
    """It begins a new context; else it continues the role's conversation."""
    legal: list[str]
    """Legal replies that the environment lists, the first thousand of them."""
    legal_count: int


class TurnPlayed(Sent):
    """One reply, with the request that it answers."""

    index: int
    """Among all turns of the episode, from 0; -1 while the turns of other seats are hidden, so that gaps do not count them."""
    role: str
    player: str
    """`human`, or a scripted player."""
    messages: list[Heard]
    fresh: bool
    reply: str
    valid: bool
    rewards: dict[str, float]
    """Role -> what it was paid from this reply until the next one that is shown; only roles that may be seen."""


class TableView(Sent):
    """An episode, as the seats of the person see it."""

    id: str
    task: TaskRow
    split: Split
    seed: int
    """Root of the scripted players' seeds."""
    seats: dict[str, str]
    """Role -> `human` or a scripted player."""
    replies: int
    """The person's replies so far; a reply names this number, so that none is given twice."""
    turns: list[TurnPlayed]
    """Of the person's seats. With all turns where the person has every seat, or asked for them after the end."""
    before: dict[str, float]
    """Role -> what it was paid before the first turn that is shown."""
    paid: dict[str, float]
    """Role -> sum, of the roles that may be seen."""
    asked: RequestView | None
    """None: the episode is over."""
    stop: str
    """Why it ended, or empty."""
    error: str
    """The exception that ended it, or empty."""
    metrics: dict[str, float]
    """Figures of the episode, once it is over."""
    revealed: bool
    """`turns` holds every role's."""


class OpenTable(Asked):
    """Begin an episode."""

    split: Split = Split.TRAIN
    index: int = Field(0, ge=0, lt=2**31)
    seed: Seed = 0
    seats: dict[RoleId, Player] = Field({}, max_length=1_000)
    """Role -> `human` or a scripted player; the usual player takes the others, or the person where there is none."""


class TableReply(Asked):
    """Reply to the request that waits."""

    text: Annotated[str, StringConstraints(max_length=MOST_REPLY)]
    replies: int = Field(ge=0, lt=2**31)
    """The person's replies before this one."""
