"""ToyShell: an append-only, single-actor conversation that cannot be forked, as a real sandbox cannot.

The agent is asked to write one word into one file and to say when it is done. Files live in a dictionary, the reward comes
once at the end, and every observation after the first appends to the context.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onthejob.errors import ContractError
from onthejob.keys import keyed_choice
from onthejob.types import Message, Observation, Split, Step, StopReason, Task, TextObservation

SYSTEM = "You work in a shell. Commands: write WORD, ls, done."
WORDS = ("red", "blue")
COMMANDS = (*(f"write {word}" for word in WORDS), "ls", "done")


class ToyShell:
    """An `Environment` with the one actor `agent`. Task payload: `max_turns` (default 4)."""

    def __init__(self) -> None:
        self._task: Task | None = None
        self._content: str | None = None
        self._turns = 0
        self._over = True

    def reset(self, task: Task) -> Observation:
        """Start with an empty folder and a wanted word that is keyed by the task's seed."""
        self._task, self._content, self._turns, self._over = task, None, 0, False
        messages = (Message("system", SYSTEM), Message("user", f"Write {self._wanted()}."))
        return TextObservation(actor="agent", messages=messages, view={"legal": list(COMMANDS)})

    def step(self, reply: str) -> Step:
        """Run one command; `done` or the turn limit ends the episode and grades it."""
        if self._over:
            raise ContractError("the episode is over. Call reset first.")
        self._turns += 1
        command = reply.strip().casefold()
        valid = command in COMMANDS
        if command.startswith("write ") and valid:
            self._content = command.removeprefix("write ")
        limit = int(self._current().payload.get("max_turns", 4))
        stop = StopReason.DONE if command == "done" else StopReason.MAX_TURNS if self._turns >= limit else None
        facts = {"command": command[:80].encode("utf-8", "replace").decode(), "content": self._content}
        if stop is not None:
            self._over = True
            parts = {"assertions": float(self._content == self._wanted()), "turns": -0.2 * self._turns / limit}
            rewards = {"agent": sum(parts.values())}
            return Step(rewards=rewards, parts={"agent": parts}, observation=None, stop=stop, valid=valid, facts=facts)
        output = "?" if not valid else (self._content or "empty") if command == "ls" else "ok"
        observation = TextObservation(
            actor="agent", messages=(Message("user", output),), fresh=False, view={"legal": list(COMMANDS)}
        )
        return Step(rewards={}, observation=observation, valid=valid, facts=facts)

    def state(self) -> Mapping[str, Any]:
        """Turn count and the metric `passed`."""
        return {"turn": self._turns, "metrics": {"passed": float(self._content == self._wanted())}}

    def close(self) -> None:
        self._task, self._over = None, True

    def _wanted(self) -> str:
        return keyed_choice(WORDS, self._current().seed, "wanted")

    def _current(self) -> Task:
        if self._task is None:
            raise ContractError("no episode is running. Call reset first.")
        return self._task


def shell_tasks(count: int, *, split: Split = Split.TRAIN, max_turns: int = 4) -> list[Task]:
    """`count` tasks with consecutive seeds."""
    payload = {"max_turns": max_turns}
    return [Task(id=f"shell-{split}-{seed}", env="shell", split=split, seed=seed, payload=payload) for seed in range(count)]
