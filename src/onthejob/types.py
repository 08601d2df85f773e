"""The vocabulary: what flows from a workplace to a gradient.

    Task -> Observation -> Completion -> Turn -> Trajectory -> Group -> (advantages) -> Batch -> Adapter

Everything else in the package produces, moves or consumes these types. They hold no behaviour beyond derived values, import
nothing heavy, and are frozen: a recorded datum is never edited, only read. `Batch` (tensors) lives in `onthejob.learn.batch`
because this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How replies are sampled."""

    temperature: float = 1.0
    """0 decodes greedily. Log-probabilities are those of the tempered distribution (of temperature 1 when greedy)."""
    max_new_tokens: int = 32
    """Limit of a reply in tokens; a longer one is cut and rarely a usable action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled reply."""

    text: str
    """Decoded reply without the end-of-turn token."""
    token_ids: tuple[int, ...] = ()
    """As sampled, including the end-of-turn token when it was sampled. Empty for text-only policies: not trainable."""
    logprobs: tuple[float, ...] = ()
    """Natural logs, one per token id, under the sampling distribution."""
    finish_reason: str = "stop"
    """`stop` (end-of-turn sampled) or `length` (token limit)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """All a policy may look at for one reply."""

    observation: Observation
    prompt_ids: tuple[int, ...] = ()
    """Token ids of the whole context; empty when the policy does not read tokens."""
    messages: tuple[Message, ...] = ()
    """The whole context as messages, for text-only policies; empty when the policy reads tokens or the view."""
    seed: int = 0
    """Keyed randomness of this one reply: equal seed and distribution, equal sample."""


class Policy(Protocol):
    """Who answers. Has no memory of its own: all state is in the environment, so that forks and replays are exact."""

    @property
    def version(self) -> str:
        """Recorded with every turn, e.g. `sales@0007`, `heuristic`, `openai:gpt-x`."""
        ...

    @property
    def reads(self) -> str:
        """`tokens`, `messages` or `view`: which part of the context `act` needs."""
        ...

    def act(self, contexts: Sequence[Context], sampling: Sampling) -> list[Completion]:
        """One completion per context, in order. Batched: an in-process model runs them as one lock-step batch."""
        ...


@runtime_checkable
class Budgeted(Protocol):
    """A policy whose model has a context of known size."""

    @property
    def prompt_budget(self) -> PromptBudget | None:
        """Budget of the prompts that it reads; None sets none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One decision exactly as it was sampled. Training uses these ids and no others."""

    prompt_ids: tuple[int, ...]
    completion: Completion
    policy_version: str
    kind: Kind = Kind.ACT
    temperature: float = 1.0
    valid: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One actor's part of one episode, or of one branch."""

    task_id: str
    actor: str
    turns: tuple[Turn, ...]
    rewards: tuple[float, ...]
    """One per turn: all that the actor received from its turn until its next one."""
    stop: StopReason
    metrics: Mapping[str, float] = field(default_factory=dict)
    """For the record, e.g. the parts from which a branch's return was composed."""

    @property
    def ret(self) -> float:
        """Return: the sum of rewards (undiscounted)."""
        return sum(self.rewards)

    @property
    def valid(self) -> bool:
        """True when every reply was parsed and legal."""
        return all(turn.valid for turn in self.turns)

    @property
    def conversations(self) -> tuple[tuple[Turn, ...], ...]:
        """The turns by context, in order.

        A turn whose prompt begins with the prompt and the reply of the one before it, token for token, belongs to the same
        conversation. Turns without token ids stand alone.
        """
        found: list[list[Turn]] = []
        for turn in self.turns:
            before = found[-1][-1] if found else None
            said = () if before is None else before.prompt_ids + before.completion.token_ids
            if said and len(turn.prompt_ids) > len(said) and turn.prompt_ids[: len(said)] == said:
                found[-1].append(turn)
            else:
                found.append([turn])
        return tuple(map(tuple, found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Trajectories that share a baseline: same actor, same starting point."""

    key: str
    """Unique within a run, e.g. `it0003/office-baseline-100012/t057/sales`."""
    actor: str
    trajectories: tuple[Trajectory, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    """For the record and the viewer, e.g. the state summary and the per-world branch values."""

    def __len__(self) -> int:
        return len(self.trajectories)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One immutable version of one role's LoRA adapter: a PEFT-shaped directory that is never written again."""

    role: str
    version: int
    path: Path
    parent: str | None = None
    """Name of the adapter it was trained from."""
    digest: str = ""
    """sha256 of the adapter's weights file."""

    @property
    def name(self) -> str:
        """`role@0007`: the name under which a server lists it."""
        return f"{self.role}@{self.version:04d}"


class Sampler(Protocol):
    """Samples replies of one base model and of adapters on it: in this process, on a server or on a training worker's machine.

    `onthejob.models.sampler.Sampler` is the one of this process.
    """

    @property
    def chat(self) -> Any:
        """Messages to tokens of the model, and back: a `ChatEncoder`."""
        ...

    @property
    def published(self) -> tuple[str, ...]:
        """Names of the adapters that can be sampled."""
        ...

    def publish(self, adapter: Adapter) -> None:
        """Let `adapter.name` be sampled from now on, in the place of its role's version before."""
        ...

    def generate(
        self, prompts: Sequence[tuple[int, ...]], *, adapter: str | None, sampling: Sampling, seeds: Sequence[int]
    ) -> list[Completion]:
        """One completion per prompt, in order.

        Args:
            prompts: token ids.
            adapter: a published one, or None for the base.
            sampling: temperature and token limit.
            seeds: one per prompt; a server may not use them.
        """
        ...


@runtime_checkable
class KeepsVersions(Protocol):
    """A sampler that can play several versions of a role at once."""

    @property
    def published(self) -> tuple[str, ...]:
        """Names of the adapters that can be sampled."""
        ...

    def publish(self, adapter: Adapter, *, keep: bool = False) -> None:
        """As `Sampler.publish`; with `keep` older versions of the role stay."""
        ...

    def withdraw(self, name: str) -> None:
        """Forget a published adapter."""
        ...


class Learner(Protocol):
    """Updates adapters of one model, role by role: in this process, or with a worker that makes the updates.

    `onthejob.learn.learner.Learner` is the one of this process.
    """

    @property
    def model(self) -> Any:
        """The PEFT model that holds the adapters here."""
        ...

    @property
    def config(self) -> Any:
        """Its `LearnerConfig`."""
        ...

    def update(self, role: str, groups: Sequence[Group], estimates: Sequence[Any], *, reference: Any = None) -> Any:
        """Train the role's adapter on `groups`; returns what was measured, an `UpdateMetrics`.

        Args:
            role: whose adapter.
            groups: of this role.
            estimates: what each of them teaches, an `onthejob.learn.advantage.Estimate`.
            reference: a `Snapshot`, the policy of the KL term.
        """
        ...

    def export_state(self, role: str) -> dict[str, Any]:
        """Tensors that the role's next update depends on: adapter, moments, counters."""
        ...

    def import_state(self, role: str, tensors: Mapping[str, Any]) -> None:
        """Continue from what `export_state` returned."""
        ...


Row = Mapping[str, str | int | float | bool | None]
"""Column -> cell, of what a tracker receives."""


@runtime_checkable
class Tracker(Protocol):
    """Receives what a run records, outside the loop: its iterations in ascending order, each at least once.

    A tracker of your own derives from it and overrides the methods that it needs; the others do nothing.
    """

    tables: bool = False
    """True: `episodes` and `turns` are called too. They are not even read for a tracker without a use for them."""

    def start(self, run: Any, sent: int | None) -> int | None:
        """Open the tracker, or open it again after an error or a kill.

        Args:
            run: a `RunInfo`.
            sent: newest iteration for which `flush` has returned; None when there is none.

        Returns:
            The newest iteration that the tracker holds completely; sending begins after it. A tracker that cannot tell returns
            `sent`; then an iteration is repeated when the process is killed between sending it and noting that.
        """
        return sent

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """All metrics of iteration `step`, named `SCOPE/NAME`, e.g. `train/sales/loss`; a value may be NaN."""

    def transcripts(self, step: int, rows: Sequence[Row]) -> None:
        """The turns of a few episodes of iteration `step`, a row each; texts are clipped."""

    def episodes(self, step: int, rows: Sequence[Row]) -> None:
        """All episodes of iteration `step`, a row each. Only with `tables`."""

    def turns(self, step: int, rows: Sequence[Row]) -> None:
        """All turns of iteration `step`, a row each. Only with `tables`."""

    def adapter(self, step: int, adapter: Adapter) -> None:
        """An adapter that the run keeps, as it was after iteration `step`; only with --adapters."""

    def flush(self) -> None:
        """Return when everything that was handed over is kept, or raise."""

    def finish(self) -> None:
        """Close the tracker; it may be started again later."""
