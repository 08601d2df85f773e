"""A game in which a person plays one seat and may take moves back; policies play the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from onthejob.errors import ConfigError, ContractError
from onthejob.keys import keyed_seed
from onthejob.rollout.game_file import Replay, Said, execute
from onthejob.rollout.reading import messages_for
from onthejob.types import Context, Forkable, Observation, Policy, Sampling, Step, Task


class Move(NamedTuple):
    """What happened from one's reply until one is asked again."""

    steps: tuple[tuple[Said, Step], ...]
    reward: float
    parts: Mapping[str, float]
    """Named parts of the reward, those that are not 0."""


class Game:
    """One episode of one seat, with undo."""

    def __init__(self, env: Forkable, task: Task, role: str, others: Mapping[str, Policy]) -> None:
        """Reset `env` to `task` and play until `role` is asked.

        Args:
            env: the workplace.
            task: which episode.
            role: the seat that is played by hand.
            others: actor -> who plays it; all must read the view or messages.

        Raises:
            ConfigError: a policy that reads tokens.
        """
        for actor, policy in others.items():
            if actor != role and policy.reads == "tokens":
                raise ConfigError(
                    f"{actor} is {policy.version}, which reads tokens; a human game supports only scripted or hosted teammates."
                )
        self._env, self._task, self._role, self._others = env, task, role, dict(others)
        self._replies: list[Said] = []
        self._marks: list[tuple[bytes, int, float]] = []
        env.reset(task)
        self.total = 0.0
        """What the role was paid so far."""
        self.before = self._until_asked([])
        """What happened before one was asked for the first time."""

    @property
    def request(self) -> Observation | None:
        """What one is asked now; None when the episode is over."""
        return self._env.observe()

    @property
    def moves(self) -> int:
        """Number of the person's replies that count."""
        return len(self._marks)

    def reply(self, text: str) -> Move:
        """Give one's reply, and play until one is asked again.

        Raises:
            ContractError: the episode is over.
        """
        if self.request is None:
            raise ContractError("the episode is over: no role is asked.")
        self._marks.append((self._env.snapshot(), len(self._replies), self.total))
        return self._until_asked([self._step(Said(self._role, text))])

    def undo(self) -> bool:
        """Take one's last reply back, with all that came of it; False when there is none."""
        if not self._marks:
            return False
        snapshot, count, self.total = self._marks.pop()
        self._env.restore(snapshot)
        del self._replies[count:]
        return True

    def replay(self, env: Forkable) -> Replay:
        """The game up to now, played again in `env` for its hash: what was taken back is not part of it."""
        replies = tuple(self._replies)
        return Replay(task=self._task, replies=replies, hash=execute(env, self._task, replies))

    def _until_asked(self, steps: list[tuple[Said, Step]]) -> Move:
        while (request := self.request) is not None and request.actor != self._role:
            policy = self._others[request.actor]
            messages = tuple(messages_for(policy, request)) if policy.reads == "messages" else ()
            # Keyed by how many replies there were: taking a move back changes no other luck.
            seed = keyed_seed(self._task.seed, "by hand", len(self._replies))
            (completion,) = policy.act([Context(observation=request, messages=messages, seed=seed)], Sampling())
            steps.append(self._step(Said(request.actor, completion.text)))
        parts: dict[str, float] = {}
        for _, step in steps:
            for name, value in step.parts.get(self._role, {}).items():
                if value:
                    parts[name] = parts.get(name, 0.0) + value
        reward = sum(step.rewards.get(self._role, 0.0) for _, step in steps)
        self.total += reward
        return Move(tuple(steps), reward, parts)

    def _step(self, said: Said) -> tuple[Said, Step]:
        step = self._env.step(said.text)
        self._replies.append(said)
        return said, step
