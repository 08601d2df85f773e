"""The claw under OpenEnv: a seat in a sandbox, what a client may know of a task, and a real server with two clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("openenv", reason="needs the extra openenv")

import onthejob.claw
from onthejob.compat.openenv import SeatEnvironment, make_app
from onthejob.compat.seat_session import Seat, SeatError, Start
from onthejob.compat.served import Served, served
from onthejob.envs.claw.agent_messages import DONE, block
from onthejob.envs.claw.splits import claw_tasks
from onthejob.errors import ConfigError
from onthejob.types import Split, StopReason, Task

from .test_openenv import ask, refusal, serving, session

TASKS = {split: claw_tasks(split, count=64) for split in Split}


class Claw(onthejob.claw.Claw):
    """With few tasks."""

    def tasks(self, split: Split) -> list[Task]:
        return TASKS[split]


@pytest.fixture(scope="module")
def workplace() -> Iterator[Served]:
    env = Claw()
    env.open()
    yield served(env)
    env.close()


def test_a_seat_plays_a_task_in_a_sandbox(workplace: Served):
    seat = Seat(workplace)
    first = seat.reset(Start(split="dev", index=2))
    task = TASKS[Split.DEV][2]
    assert seat.task == task
    assert first.role == "agent"
    assert first.observation.messages[1].content.startswith(str(task.payload["intent"]))
    unusable = seat.step("I would look around first.")
    assert (unusable.valid, unusable.reward) == (False, 0.0)
    assert unusable.error == "No bash block found. Write one block:"
    for command in task.payload["gold"]:
        seen = seat.step(block(command))
        assert seen.observation.messages[0].content.startswith("exit code: 0")
    last = seat.step(DONE)
    assert last.stop is StopReason.DONE
    assert last.metrics["passed"] == 1.0
    assert last.reward == pytest.approx(last.metrics["reward"])
    with pytest.raises(SeatError, match="EPISODE_OVER"):
        seat.step("ls")
    seat.close()


def test_seeds_give_training_tasks_and_options_are_refused(workplace: Served):
    seat = Seat(workplace)
    training = TASKS[Split.TRAIN]
    seat.reset(Start(seed=len(training) + 3))
    assert seat.task == training[3]
    seat.reset(Start())
    assert seat.task in training
    for options, match in (
        ({"options": {"days": 3}}, "unknown option days"),
        ({"teammates": {"dev": "expert"}}, "teammates has no effect"),
        ({"role": "sales"}, "role must be"),
        ({"split": "dev", "index": 9_999}, "index must be"),
        ({"injected_state": "eA=="}, "TRAINER_ONLY"),
    ):
        with pytest.raises(SeatError, match=match):
            seat.reset(Start(**options))
    seat.close()


class Mixed(Claw):
    """Dev tasks that are training tasks."""

    def tasks(self, split: Split) -> list[Task]:
        return TASKS[Split.TRAIN]


def test_a_split_holds_its_own_tasks():
    with pytest.raises(ConfigError, match=r"tasks\(dev\) holds .* of split train"):
        served(Mixed())


def test_no_client_sees_how_a_task_is_solved_or_graded(workplace: Served):
    env = SeatEnvironment(workplace)
    for split in ("train", "dev", "test"):
        listed = json.dumps(env.list_tasks(split))
        for word in ("gold", "verifiable_assertions", "answers", "must_contain", "regex"):
            assert f'"{word}"' not in listed
    assert env.get_task("dev", 0)["payload"]["intent"]
    assert env.num_tasks("test") == len(TASKS[Split.TEST])
    shown = env.reset(split="test", index=0)
    seen = json.dumps(shown.model_dump()) + json.dumps(env.state.model_dump())
    assert "gold" not in seen
    assert "assertion" not in seen
    env.close()


@pytest.mark.server
def test_two_clients_work_in_sandboxes_of_their_own(workplace: Served):
    def step(client: Any, reply: str) -> dict[str, Any]:
        return ask(client, "step", {"reply": reply})["data"]

    with serving(make_app(workplace, max_sessions=4)) as address, session(address) as one, session(address) as two:
        for client in (one, two):
            assert (
                ask(client, "reset", {"split": "train", "index": 0})["data"]["observation"]["task_id"] == TASKS[Split.TRAIN][0].id
            )
        step(one, block("echo mine > mine.txt"))
        assert "mine.txt" in step(one, block("ls"))["observation"]["messages"][0]["content"]
        assert "mine.txt" not in step(two, block("ls"))["observation"]["messages"][0]["content"]
        for command in TASKS[Split.TRAIN][0].payload["gold"]:
            step(two, block(command))
        done = step(two, DONE)
        assert (done["done"], done["observation"]["end_reason"]) == (True, "done")
        assert done["observation"]["metrics"]["passed"] == 1.0
        refusal(ask(two, "step", {"reply": "ls"}), "EXECUTION_ERROR", "EPISODE_OVER")
        refusal(ask(one, "reset", {"scenario": "churn"}), "EXECUTION_ERROR", "BAD_RESET", "unknown option")
