"""Conversations: what every role was shown and replied in an episode, kept while it is played."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onthejob.types import Environment, Message, Observation, Step, Task, ToolSpec


@dataclass(slots=True, kw_only=True)
class Conversation:
    """One context of one role, as a model that plays the role has it in front of itself."""

    role: str
    messages: list[Message] = field(default_factory=list)
    """Ends with a reply; a last request without one is omitted."""
    reward: float = 0.0
    """Sum of what the role was paid from this conversation's first request to the next one's."""
    valid: bool = True
    """Every reply could be used."""
    tools: tuple[ToolSpec, ...] = ()
    """Those that the context shows."""

    @property
    def replies(self) -> int:
        """Number of its replies."""
        return sum(message.role == "assistant" for message in self.messages)


class Listened:
    """An `Environment` that passes everything on to another one and keeps the conversations of the running episode."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._now: dict[str, Conversation] = {}
        """Role -> its conversation that continues."""
        self._early: dict[str, float] = {}
        self._pending: Observation | None = None
        self.conversations: list[Conversation] = []
        """In the order in which they began."""
        self.answered: Observation | None = None
        """The request that the last reply answered."""

    def reset(self, task: Task) -> Observation:
        """Start the task's episode, without conversations."""
        self._now, self._early, self.conversations, self.answered = {}, {}, [], None
        self._pending = self._env.reset(task)
        return self._pending

    def step(self, reply: str) -> Step:
        """Execute one reply and keep it with the request that it answers."""
        request = self._pending
        step = self._env.step(reply)
        if request is not None:
            self._hear(request, reply, step)
        self._pending, self.answered = step.observation, request
        return step

    def state(self) -> Mapping[str, Any]:
        """As the environment's."""
        return self._env.state()

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _hear(self, request: Observation, reply: str, step: Step) -> None:
        role = request.actor
        if request.fresh or role not in self._now:
            self._now[role] = Conversation(role=role, reward=self._early.pop(role, 0.0), tools=request.tools)
            self.conversations.append(self._now[role])
        conversation = self._now[role]
        conversation.messages += [*request.messages, Message("assistant", reply)]
        conversation.valid &= step.valid
        for rewarded, reward in step.rewards.items():
            if rewarded in self._now:
                self._now[rewarded].reward += float(reward)
            else:
                self._early[rewarded] = self._early.get(rewarded, 0.0) + float(reward)
