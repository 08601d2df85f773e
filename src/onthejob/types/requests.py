"""From a task to a request and what a reply to it did: what environments take and return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

from onthejob.keys import keyed_seed


class Split(StrEnum):
    """Which pool a task belongs to. Training refuses DEV and TEST; tries are judged on DEV; TEST is for the final table."""

    TRAIN = "train"
    DEV = "dev"
    TEST = "test"


class Kind(StrEnum):
    """Why an environment asks for a reply."""

    ACT = "act"
    """An ordinary decision."""
    RETRY = "retry"
    """The previous reply was not usable; the observation holds the feedback (play and evaluation only)."""
    REFLECT = "reflect"
    """The actor is asked to summarise its memories; the reply is stored as a memory, not executed."""


class StopReason(StrEnum):
    """Why a trajectory ended."""

    DONE = "done"
    """The actor declared the task finished."""
    HORIZON = "horizon"
    """The environment reached its natural end."""
    BANKRUPT = "bankrupt"
    """The company ran out of cash."""
    MAX_TURNS = "max_turns"
    """The turn limit cut the trajectory."""
    CONTEXT = "context"
    """The next prompt, with a reply at its limit, exceeds the model's context, or the conversation the workplace's own limit."""
    BRANCH = "branch"
    """A one-decision trajectory that was scored in a fork."""
    PARSE_ERROR = "parse_error"
    """Too many unusable replies."""
    ERROR = "error"
    """Our failure (not the model's); such a trajectory is recorded and never trained on."""

    @property
    def truncated(self) -> bool:
        """True when something outside the task ended the trajectory (Gymnasium's `truncated`)."""
        return self in (StopReason.MAX_TURNS, StopReason.CONTEXT, StopReason.ERROR)


class Message(NamedTuple):
    """One chat message."""

    role: str
    """`system`, `user` or `assistant`, or `tool` for the result of a call: the first such message after a reply answers its first
    call, the second its second."""
    content: str
    """Text without lone surrogates. A reply that calls tools holds the calls as text, which `onthejob.calls` reads."""


class ToolSpec(NamedTuple):
    """A tool as a model is shown it."""

    name: str
    """Matches [A-Za-z0-9_-]{1,64}, as all providers want it."""
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of an object: the arguments by name."""

    def function(self) -> dict[str, Any]:
        """As chat templates and OpenAI's API take it."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


class ToolCall(NamedTuple):
    """A call of a tool in a reply."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is to be done: one scenario with a seed, or one persona's assignment."""

    id: str
    """Unique within its environment, stable across runs."""
    env: str
    """Environment name, e.g. `office`."""
    split: Split
    seed: int
    """Seed of the episode; all luck inside it descends from this number."""
    payload: Mapping[str, Any] = field(default_factory=dict)
    """Environment-specific and JSON-serialisable; `family` or `scenario` names the family for statistics."""

    def draw(self, name: str) -> int:
        """A whole number in [0, 2^63) that this task always has under `name`: a secret, a size, who begins."""
        return keyed_seed(self.seed, "draw", name)

    def row(self) -> dict[str, Any]:
        """All of it in JSON's types."""
        return {"id": self.id, "env": self.env, "split": str(self.split), "seed": self.seed, "payload": dict(self.payload)}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """The inverse of `row`.

        Raises:
            KeyError, TypeError, ValueError: it is not one.
        """
        return cls(**{**row, "split": Split(row["split"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The context of a model, and the sizes of what goes into it, before anything is sent."""

    tokens: int
    """Of a prompt and its reply together."""
    reply: int
    """Of the longest reply."""
    count: Callable[[str], int]
    """Tokens of a text in a message."""
    measure: Callable[[Sequence[Message]], int]
    """Tokens of a whole conversation up to its next reply, with all that is written around the messages."""
    estimated: bool = False
    """Whether both estimate from above, because the tokenizer of the model is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptBudget:
    """Share of its context that a model has for what it is shown."""

    tokens: int
    """Of the user message at most."""
    count: Callable[[str], int]
    """Tokens of a text in a message."""
    estimated: bool = False
    """Whether `count` estimates from above."""


class Observation(Protocol):
    """A request for one reply. `messages` may be rendered lazily, so that scripted policies never pay for a prompt.

    `onthejob.testing.check_environment` checks everything that is stated here and in the classes below.
    """

    @property
    def actor(self) -> str:
        """Name of the asked actor, the same as in `Step.rewards`. A trained actor's name matches `[a-z][a-z0-9_]*`."""
        ...

    @property
    def messages(self) -> Sequence[Message]:
        """The prompt (or, when not `fresh`, what is appended to the actor's context): at least one `Message`."""
        ...

    @property
    def fresh(self) -> bool:
        """True starts a new context, False appends to the actor's previous one; an episode's first request is fresh.

        Appended requests are grouped by branches like fresh ones, but no segment starts at one: a snapshot holds no tokens.
        """
        ...

    @property
    def kind(self) -> Kind: ...

    @property
    def view(self) -> Mapping[str, Any]:
        """The structured form from which the prompt was rendered, JSON-serialisable; nothing else is visible to the actor.

        `view["legal"]`, where it is given, lists texts of legal replies: random players choose among them, and grouping
        `branch` measures its scales with them (unless `legal` is passed to `train`).
        """
        ...

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """Tools that the reply may call. A context shows those of the request with which it began."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TextObservation:
    """The plain `Observation`: messages that exist already."""

    actor: str
    messages: Sequence[Message]
    fresh: bool = True
    kind: Kind = Kind.ACT
    view: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[ToolSpec, ...] = ()


@runtime_checkable
class Prunable(Protocol):
    """An observation whose prompt can omit what matters least."""

    def within(self, budget: PromptBudget) -> Sequence[Message]:
        """The messages, the user message within `budget`; those that cannot be pruned as they are."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one reply did."""

    rewards: Mapping[str, float]
    """Actor -> reward of this step, finite: a float, or a number of NumPy or torch, which becomes one. Any actor may be rewarded,
    not only the one that replied; an actor that is never asked is a spectator, whose rewards train no role."""
    parts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Actor -> named reward parts, which sum to `rewards[actor]`."""
    observation: Observation | None
    """The next request, or None when the episode is over."""
    stop: StopReason | None = None
    valid: bool = True
    """False when the reply could not be parsed or was not legal, so that it did nothing."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """JSON-serialisable, for the record and the viewer. Training never reads it."""
