"""A reward of the user's: a function takes the place of the environment's return in what is trained on.

It has the form of TRL's reward functions and is called once per group. The record of play and every evaluation keep the
environment's own reward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from onthejob.errors import TrainingError
from onthejob.types import Group, StopReason, Task, Trajectory

ENV_RETURN = "env_return"
"""Metric of a trajectory whose return the user's function gave: the return from the environment."""
COLUMNS = ("prompts", "completions", "completion_ids", "task_id", "role", "trajectory", ENV_RETURN)
"""Arguments that a function can take from every environment; the others are keys of the task's payload."""
REMEDY = "Correct the function, and continue with `onthejob train --resume`."


class RewardFunction:
    """A function `f(prompts, completions, **columns) -> list[float]` with its checks."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        *,
        takes: Sequence[str] | None = None,
    ) -> None:
        """Prepare it.

        Args:
            function: the user's.
            name: its reference, for messages.
            takes: names of the columns it takes; None for all of them.
        """
        self._function, self._name, self._takes = function, name, takes

    def rewarded(
        self, groups: Sequence[Group], tasks: Iterable[Task], decode: Callable[[tuple[int, ...]], str]
    ) -> tuple[tuple[Group, ...], dict[str, float]]:
        """Groups whose trajectories have the function's returns, paid for the last turn.

        Trajectories that stopped with ERROR stay as they are.

        Args:
            groups: as collected.
            tasks: what was played in them; keys of their payloads become columns.
            decode: prompt ids -> the text that was shown.

        Returns:
            The groups, with the environment's return as the metric `env_return` of each trajectory; and the means of both
            returns, empty when no trajectory was rewarded.

        Raises:
            TrainingError: the function raised, or did not return one finite number or None per completion.
        """
        by_id = {task.id: task for task in tasks}
        changed = tuple(self._group(group, by_id, decode) for group in groups)
        paid = [one for group in changed for one in group.trajectories if _usable(one)]
        if not paid:
            return changed, {}
        return changed, {
            "reward_return": fmean(one.ret for one in paid),
            ENV_RETURN: fmean(one.metrics[ENV_RETURN] for one in paid),
        }

    def _group(self, group: Group, tasks: Mapping[str, Task], decode: Callable[[tuple[int, ...]], str]) -> Group:
        usable = [one for one in group.trajectories if _usable(one)]
        if not usable:
            return group
        returns = iter(self._returns(columns_of(group.actor, usable, tasks.get(usable[0].task_id), decode)))
        changed = tuple(_paid(one, next(returns)) if _usable(one) else one for one in group.trajectories)
        return replace(group, trajectories=changed)

    def _returns(self, columns: Mapping[str, list[Any]]) -> list[float]:
        """What the function gives for one group; None, by which a function of TRL's abstains, is 0."""
        given = columns if self._takes is None else {name: columns[name] for name in self._takes if name in columns}
        replies, where = columns["completions"], f"for {columns['role'][0]} in task {columns['task_id'][0]}"
        try:
            found = list(self._function(**given))
        except Exception as error:
            raise TrainingError(f"--reward {self._name} raised {type(error).__name__}: {error}, {where}. {REMEDY}") from error
        if len(found) != len(replies):
            raise TrainingError(
                f"--reward {self._name} returned {len(found)} rewards for {len(replies)} completions, {where}. "
                f"Return one per completion. {REMEDY}"
            )
        numbers = [0.0 if value is None else _number(value) for value in found]
        for value, number, reply in zip(found, numbers, replies, strict=True):
            if not math.isfinite(number):
                raise TrainingError(
                    f"--reward {self._name} must return a finite number per completion, got {value!r:.80} for {reply!r:.80}. "
                    f"{REMEDY}"
                )
        return numbers


def columns_of(
    role: str, trajectories: Sequence[Trajectory], task: Task | None, decode: Callable[[tuple[int, ...]], str]
) -> dict[str, list[Any]]:
    """Arguments for the trajectories of one group: column -> a value per trajectory.

    `prompts` and `completions` are the context and the reply of the last turn. A column `prompt` of the task takes the place of
    the context; where it is a list of messages, the completion is such a list too, as in TRL.
    """
    payload = {} if task is None else dict(task.payload)
    count, last = len(trajectories), [one.turns[-1] for one in trajectories]
    prompt, texts = payload.pop("prompt", None), [turn.completion.text for turn in last]
    talk = isinstance(prompt, list)
    return {name: [value] * count for name, value in payload.items()} | {
        "prompts": [decode(turn.prompt_ids) for turn in last] if prompt is None else [prompt] * count,
        "completions": [[{"role": "assistant", "content": text}] for text in texts] if talk else texts,
        "completion_ids": [list(turn.completion.token_ids) for turn in last],
        "task_id": [one.task_id for one in trajectories],
        "role": [role] * count,
        "trajectory": list(trajectories),
        ENV_RETURN: [one.ret for one in trajectories],
    }


def _usable(trajectory: Trajectory) -> bool:
    return trajectory.stop is not StopReason.ERROR and bool(trajectory.turns)


def _paid(trajectory: Trajectory, value: float) -> Trajectory:
    rewards = (*(0.0 for _ in trajectory.rewards[1:]), value)
    return replace(trajectory, rewards=rewards, metrics={**trajectory.metrics, ENV_RETURN: trajectory.ret})


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
