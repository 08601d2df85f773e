"""Rewards of the user's: what they receive, what they may return, and what of the environment's is kept."""

from __future__ import annotations

import math
from typing import Any

import pytest

from onthejob.errors import TrainingError
from onthejob.rollout.reward import RewardFunction
from onthejob.types import Completion, Group, Split, StopReason, Task, Trajectory, Turn

TASK = Task(id="sums-3", env="sums", split=Split.TRAIN, seed=3, payload={"answer": "4"})


def trajectory(*replies: str, rewards: tuple[float, ...], stop: StopReason = StopReason.DONE) -> Trajectory:
    turns = tuple(
        Turn(
            prompt_ids=tuple(range(number + 1)),
            completion=Completion(text=reply, token_ids=(7,), logprobs=(-1.0,)),
            policy_version="a@0001",
        )
        for number, reply in enumerate(replies)
    )
    return Trajectory(task_id=TASK.id, actor="solver", turns=turns, rewards=rewards, stop=stop, metrics={"found": 1.0})


def group(*trajectories: Trajectory) -> Group:
    return Group(key="it0001/sums-3/solver", actor="solver", trajectories=trajectories)


def decode(ids: tuple[int, ...]) -> str:
    return f"<{len(ids)}>"


PAIR = group(trajectory("3", "5", rewards=(1.0, -0.25)), trajectory("4", rewards=(2.0,)))


def test_a_function_is_called_once_per_group_with_the_columns_of_trl_and_of_the_task():
    seen: list[dict[str, Any]] = []

    def mine(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
        seen.append({"prompts": prompts, "completions": completions, **columns})
        return [0.5, 3.0]

    (changed,), means = RewardFunction(mine, "m.py:f").rewarded([PAIR], [TASK], decode)
    assert [one.rewards for one in changed.trajectories] == [(0.0, 0.5), (3.0,)]
    assert [one.metrics["env_return"] for one in changed.trajectories] == [0.75, 2.0]
    assert all(one.metrics["found"] == 1.0 for one in changed.trajectories)
    assert means == {"reward_return": 1.75, "env_return": 1.375}
    assert seen == [
        {
            "prompts": ["<2>", "<1>"],
            "completions": ["5", "4"],
            "completion_ids": [[7], [7]],
            "task_id": ["sums-3", "sums-3"],
            "role": ["solver", "solver"],
            "trajectory": list(PAIR.trajectories),
            "env_return": [0.75, 2.0],
            "answer": ["4", "4"],
        }
    ]
    assert (changed.key, changed.facts) == (PAIR.key, PAIR.facts)


def test_a_function_receives_only_the_columns_it_takes_and_abstains_with_none():
    def mine(completions: list[str], answer: list[str]) -> list[float | None]:
        return [1.0 if text == right else None for text, right in zip(completions, answer, strict=True)]

    (changed,), _ = RewardFunction(mine, "m.py:f", takes=("completions", "answer")).rewarded([PAIR], [TASK], decode)
    assert [one.ret for one in changed.trajectories] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("prompt", "prompts", "completions"),
    [
        ("2 + 2", "2 + 2", "4"),
        ([{"role": "user", "content": "2 + 2"}], [{"role": "user", "content": "2 + 2"}], [{"role": "assistant", "content": "4"}]),
    ],
)
def test_a_tasks_own_prompt_is_given_and_decides_the_form_as_in_trl(prompt: Any, prompts: Any, completions: Any):
    task = Task(id=TASK.id, env="sums", split=Split.TRAIN, seed=3, payload={"prompt": prompt})

    def mine(**given: Any) -> list[float]:
        assert (given["prompts"][1], given["completions"][1]) == (prompts, completions)
        assert "prompt" not in given
        return [0.0, 1.0]

    RewardFunction(mine, "m.py:f").rewarded([PAIR], [task], decode)


def test_a_trajectory_that_failed_is_left_as_it_is():
    failed = trajectory("3", rewards=(math.nan,), stop=StopReason.ERROR)
    function = RewardFunction(lambda **given: [1.0] * len(given["completions"]), "m.py:f")
    (changed,), means = function.rewarded([group(failed, trajectory("4", rewards=(0.0,)))], [TASK], decode)
    assert changed.trajectories[0] is failed
    assert means == {"reward_return": 1.0, "env_return": 0.0}
    assert function.rewarded([group(failed)], [TASK], decode)[1] == {}
    assert function.rewarded([], [], decode) == ((), {})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (1.0, "raised TypeError"),
        (None, "raised TypeError"),
        ([1.0], "returned 1 rewards for 2 completions"),
        ([1.0, math.nan], "must return a finite number per completion, got nan for '4'"),
        (["good", 1.0], "must return a finite number per completion, got 'good' for '5'"),
        ([[1.0], [2.0]], "must return a finite number per completion"),
    ],
)
def test_what_a_reward_may_not_return(given: Any, said: str):
    with pytest.raises(TrainingError, match=r"--reward m\.py:f") as caught:
        RewardFunction(lambda **_: given, "m.py:f").rewarded([PAIR], [TASK], decode)
    assert said in str(caught.value)
    assert "--resume" in str(caught.value)


def test_a_reward_that_raises_names_role_and_task():
    with pytest.raises(TrainingError, match=r"raised ZeroDivisionError: .*, for solver in task sums-3\. Correct"):
        RewardFunction(lambda **_: 1 / 0, "m.py:f").rewarded([PAIR], [TASK], decode)
