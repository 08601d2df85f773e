"""What an `Env` and its callers exchange: the next request, the present place in an episode, scripted players, tasks to serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from onthejob.types import Message, Observation, Split, StopReason, Task, ToolSpec

FIRST_SEEDS: Mapping[Split, int] = {Split.TRAIN: 100_000, Split.DEV: 1_000, Split.TEST: 50_000}
"""First seed of each split's tasks; a split holds fewer tasks than lie between two of them."""
MOST_TASKS = 40_000
"""Tasks of one split at most, so that the splits' seeds stay apart."""
Reply = Callable[[Observation, int], str]
"""A scripted player: (request, seed) -> reply, a pure function."""
Forks = Literal["copy", "replay", "no"]
Options = Mapping[str, Any]
"""What a client states about the task that it asks for, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Whom an environment asks, and with what."""

    role: str
    text: str
    system: str = ""
    """Goes before `text` where a context begins."""
    legal: tuple[str, ...] = ()
    view: Mapping[str, Any] = field(default_factory=dict)
    fresh: bool | None = None
    """Begin a new context; None does so when the role is asked for the first time."""
    before: tuple[Message, ...] = ()
    """Messages of a conversation that stand between `system` and `text` where a context begins, and before `text` where `fresh`
    is False."""
    speaker: str = "user"
    """Role of the message that holds `text`: `tool` where it is the result of a call."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools whose calls the environment runs itself, in `step`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """What comes of a reset or a reply: the next request, or the end; made by `ask`, `tell`, `invalid` and `end`."""

    request: Request | None
    rewards: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    valid: bool = True
    stop: StopReason | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    """For the record, in JSON's types; training never reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTasks:
    """The tasks that a server offers, and the players of the seats that no client takes."""

    counts: Mapping[Split, int]
    """Tasks per split, >= 1."""
    task_at: Callable[[Split, int, Options], Task]
    """(split, index in 0..count-1, options) -> task. Raises ConfigError on an unknown option or value."""
    task_of: Callable[[int, Options], Task]
    """(seed >= 0, options) -> task. Raises ConfigError on an unknown option or value."""
    seeds: range
    """Training seeds, from which a reset without a seed draws one."""
    players: Mapping[str, Reply]
    """Name -> scripted player of the roles that a client does not take."""
    partner: str = ""
    """The default player, one of `players`; empty where there is none."""


@dataclass(slots=True)
class Now:
    """Where an episode is."""

    task: Task
    turn: int = 0
    """Replies so far."""
    world: int = 0
    """Which luck is met from now on; 0 is the main line."""
    request: Request | None = None
    """What waits for a reply."""
