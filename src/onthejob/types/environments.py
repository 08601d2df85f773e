"""The contract of environments: `Environment`, and what one can do in addition. No environment needs to derive from these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self, runtime_checkable

from onthejob.types.requests import Observation, Step, StopReason, Task


@runtime_checkable
class Environment(Protocol):
    """One workplace. It never calls a model: it asks for a reply and is given one."""

    def reset(self, task: Task) -> Observation:
        """Start the task's episode from `task.seed`; may be called again at any time."""
        ...

    def step(self, reply: str) -> Step:
        """Execute one reply of the actor last asked. Never raises because of what a model wrote."""
        ...

    def state(self) -> Mapping[str, Any]:
        """JSON-serialisable summary, also after the end of an episode.

        `state()["metrics"]` maps metric name -> float for evaluation. Two further keys are optional whole numbers that grouping
        `branch` reads: `turn`, which grows with every decision, numbers groups; `day` says how far an episode has come, and
        segments start equally often on every day that was met. Without them, turns are counted from the start of the task (of
        the segment for `turn`).
        """
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """What would have happened: one reply, stepped in a fork and continued by the environment's scripted policies."""

    outcome: float
    """Change of the environment's objective over the branch (office: company value, dollars)."""
    returns: Mapping[str, float]
    """Actor -> sum of rewards over the branch."""
    turns: int
    """Turns actually played, >= 1."""
    valid: bool
    facts: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Forkable(Environment, Protocol):
    """An environment that snapshots exactly, so that several replies can be compared under the same luck."""

    def observe(self) -> Observation | None:
        """The pending request (None when the episode is over)."""
        ...

    def snapshot(self) -> bytes:
        """Everything needed to continue, including clock, luck and memories."""
        ...

    def restore(self, snapshot: bytes) -> Observation | None:
        """Continue from `snapshot`; returns the pending request."""
        ...

    def fork(self) -> Self:
        """An independent copy; the futures of both copies are equal."""
        ...

    def canonical(self, reply: str) -> str:
        """Key of what `reply` would do here: replies with equal keys have equal branches."""
        ...

    def branch(self, reply: str, *, world: int, turns: int) -> Branch:
        """Step `reply` in a fork that lives in `world` (which luck it meets from now on) and continue up to `turns` turns.

        World 0 is the main line; branches use worlds >= 1, evaluation worlds >= 10_000. Leaves this environment untouched.
        What has happened already but no role can have seen should be drawn anew too. Otherwise a reply is credited for what its
        author cannot know, which no number of worlds averages out.
        """
        ...


@runtime_checkable
class Continuable(Forkable, Protocol):
    """A Forkable whose forks can be continued turn by turn, for branches that the present policies continue."""

    def enter(self, world: int) -> None:
        """Live in `world` >= 1 from now on, as the forks of `branch` do; the pending request stays as it is."""
        ...

    def outcome(self) -> float:
        """Change of the environment's objective since `enter`: what `Branch.outcome` is at the end of a branch."""
        ...


@runtime_checkable
class Imitable(Forkable, Protocol):
    """A Forkable that can play its branches on with quick stand-ins for the policies being trained.

    A stand-in is a table of rates by label. The labels are the environment's own; the loop counts them and hands them back.
    """

    def habits(self, replies: Sequence[str]) -> Mapping[str, tuple[float, float]]:
        """For the pending request: label -> (how often `replies` chose it, how often they could have)."""
        ...

    def continue_with(self, stand_ins: Mapping[str, Mapping[str, float]]) -> None:
        """From now on these continue branches (actor -> label -> rate in [0, 1]), and the partners in the seats of all others."""
        ...

    def stand_ins(self, rates: Mapping[str, Mapping[str, float]]) -> Mapping[str, Callable[[Observation, int], str]]:
        """Actor -> its stand-in as a pure function of a request and a seed, for whole episodes."""
        ...


@runtime_checkable
class Interruptible(Protocol):
    """An environment whose episodes can be ended between two replies and are still paid for what was done until then."""

    def interrupt(self, stop: StopReason) -> Step:
        """End the running episode for a reason outside the task, e.g. CONTEXT; returns its last step, which asks for nothing."""
        ...


@runtime_checkable
class Scored(Protocol):
    """An environment that measures the text of replies. A measure is a metric and never part of a reward."""

    def scores(self, reply: str) -> Mapping[str, float]:
        """Name -> value of `reply` to the pending request; never raises because of what a model wrote."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rubric:
    """What a judge (`train --judge`) is asked about an environment's replies, and an example by which it is tried."""

    text: str
    """What is graded, and what earns each score from 1 to 5."""
    unit: Literal["decision", "episode"]
    """A single reply to its prompt, or all that followed the first prompt of an episode."""
    who: str
    """What the judge calls the author, e.g. `employee`."""
    what: str
    """What the judge calls the thing that it grades, e.g. `decision`."""
    situation: str
    """Of the example."""
    good: str
    """What deserves a high score there."""
    bad: str = "lorem ipsum I like turtles"
    """What deserves a low one."""
