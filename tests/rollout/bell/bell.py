"""Bell: a third environment, to show what one takes: this file.

A porter is asked a few times whether to ring. Replies that the task likes are paid at the end; the task's seed decides which.
`lively` 0 makes a task that pays everything alike, from which nothing can be learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onthejob.keys import keyed_uniform
from onthejob.types import Message, Observation, Split, Step, StopReason, Task, TextObservation

SYSTEM = Message("system", "You are a porter.")


class Bell:
    """An `Environment` with the one actor `porter`. Task payload: `turns` (default 2), `lively` (default 1)."""

    def reset(self, task: Task) -> Observation:
        """Ask for the first time."""
        self._task, self._turn, self._paid = task, 0, 0.0
        return TextObservation(actor="porter", messages=(SYSTEM, Message("user", "Ring?")), view={"legal": ["ring", "wait"]})

    def step(self, reply: str) -> Step:
        """Pay what the reply is worth, all at the end."""
        self._turn += 1
        if self._task.payload.get("lively", 1):
            text = reply.encode("utf-8", "replace").decode()
            self._paid += keyed_uniform(self._task.seed, "bell", text)
        if self._turn >= self._task.payload.get("turns", 2):
            return Step(rewards={"porter": self._paid}, observation=None, stop=StopReason.HORIZON, valid=bool(reply.strip()))
        again = TextObservation(
            actor="porter", messages=(Message("user", "And now?"),), fresh=False, view={"legal": ["ring", "wait"]}
        )
        return Step(rewards={}, observation=again, valid=bool(reply.strip()))

    def state(self) -> Mapping[str, Any]:
        return {"metrics": {"paid": self._paid}}

    def close(self) -> None: ...


def bell_tasks(count: int, *, first: int = 0, lively: int = 1) -> list[Task]:
    """`count` training tasks with consecutive seeds."""
    payload = {"lively": lively, "family": "lively" if lively else "dull"}
    return [
        Task(id=f"bell-{lively}-{seed}", env="bell", split=Split.TRAIN, seed=seed, payload=payload)
        for seed in range(first, first + count)
    ]
