"""From a sampled reply to what is trained on: a turn, a trajectory, a group, and the adapter that comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onthejob.types.requests import Kind, Message, Observation, StopReason


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
    def is_legal(self) -> bool:
        """True when the group's baseline counts it: a branch is one reply, which was valid or not; an episode always counts.

        A failure of ours never does.
        """
        return self.stop is not StopReason.ERROR and (self.valid or self.stop is not StopReason.BRANCH)

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
