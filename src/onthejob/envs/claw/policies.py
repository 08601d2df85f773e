"""Scripted agents: the rows above and below every model in a table, and the two ways an agent fails to stop.

Each is a function (observation, seed) -> reply, to be seated by `onthejob.models.scripted.ScriptedPolicy`.
"""

from __future__ import annotations

from collections.abc import Iterable

from onthejob.envs.claw.agent_messages import DONE, block
from onthejob.envs.claw.task_schema import ClawTask
from onthejob.errors import ConfigError
from onthejob.types import Observation, Task


def noop(observation: Observation, seed: int) -> str:
    """Says at once that the task is done."""
    return DONE


def idle(observation: Observation, seed: int) -> str:
    """Looks around until the turns are used up, and never says that it is done."""
    return block("ls")


class Gold:
    """Runs the commands that are proven to solve the task, one block per turn, then says so."""

    def __init__(self, tasks: Iterable[Task], *, stops: bool = True) -> None:
        """Read the gold commands of `tasks`. Without `stops` it looks around where it should say that it is done."""
        self._gold = {task.id: ClawTask.from_record(task.payload, where=f"task {task.id!r}").gold for task in tasks}
        self._stops = stops

    def __call__(self, observation: Observation, seed: int) -> str:
        name, turn = observation.view["task"], observation.view["turn"]
        if not self._gold.get(name):
            raise ConfigError(f"task {name!r} has no gold commands here. Give its task to Gold, or play another policy.")
        commands = self._gold[name]
        if turn < len(commands):
            return block(commands[turn])
        return DONE if self._stops else idle(observation, seed)
