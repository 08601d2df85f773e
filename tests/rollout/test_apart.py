"""Environments in worker processes: the same episodes, side by side, and what hangs or dies costs its own episodes only."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pytest

from onthejob.errors import ConfigError, StepError
from onthejob.models.scripted import ScriptedPolicy
from onthejob.processes import children
from onthejob.rollout.apart import Apart
from onthejob.rollout.play import play
from onthejob.testing import ToyShell, ToyWorkplace, check_environment, expert_reply, heuristic_reply, shell_tasks, toy_tasks
from onthejob.types import Continuable, Forkable, Sampling, StopReason, Task

BOTH = {
    "maker": ScriptedPolicy(expert_reply, version="expert"),
    "seller": ScriptedPolicy(heuristic_reply, version="heuristic"),
}


class Trouble(ToyWorkplace):
    """Does what the task's family says when it is stepped."""

    trouble = ""

    def reset(self, task: Task) -> Any:
        self.trouble = str(task.payload.get("trouble", ""))
        return super().reset(task)

    def step(self, reply: str) -> Any:
        match self.trouble:
            case "hang":
                time.sleep(600)
            case "die":
                os._exit(7)
            case "exit":
                raise SystemExit(3)
            case "own":
                raise Unkind("left", "right")
            case "slow":
                time.sleep(0.2)
        return super().step(reply)


class Unkind(Exception):
    """An error that cannot be made again from its message."""

    def __init__(self, left: str, right: str) -> None:
        super().__init__(f"{left} of {right}")


@dataclass(frozen=True)
class Making:
    """A maker that notes in which process it makes."""

    def __call__(self) -> Trouble:
        return Trouble()


@pytest.fixture(scope="module")
def apart() -> Iterator[Apart]:
    with closing(Apart(Making(), 2, limit_s=60.0)) as made:
        yield made


def troubled(trouble: str, count: int = 1) -> list[Task]:
    tasks = toy_tasks(count)
    return [replace(task, id=f"{trouble}-{task.id}", payload={**task.payload, "trouble": trouble}) for task in tasks]


def test_episodes_are_those_of_this_process(apart: Apart):
    tasks = toy_tasks(6)
    here = play([Trouble() for _ in tasks], tasks, BOTH, Sampling(), seed=3, max_turns=50)
    envs = [apart() for _ in tasks]
    there = play(envs, tasks, BOTH, Sampling(), seed=3, max_turns=50, workers=2)
    assert [(one.metrics, one.stop, [turn.text for turn in one.transcript]) for one in there] == [
        (one.metrics, one.stop, [turn.text for turn in one.transcript]) for one in here
    ]
    for env in envs:
        env.close()
        env.close()


def test_it_keeps_the_promises_of_an_environment(apart: Apart):
    found = check_environment(apart, toy_tasks(2), spectators=("customer",))
    assert (found.tasks, found.forks > 0, found.branches > 0) == (2, True, True)
    assert isinstance(apart(), Forkable)
    with closing(Apart(ToyShell, 1)) as plain:
        env = plain()
        assert not isinstance(env, Forkable)
        assert env.reset(shell_tasks(1)[0]).actor == "agent"


def test_what_its_forks_can_be_played_on_says_so():
    with closing(Apart(ToyWorkplace, 1)) as apart:
        assert isinstance(apart(), Continuable) == isinstance(ToyWorkplace(), Continuable)


def test_processes_are_stepped_side_by_side(apart: Apart):
    tasks = troubled("slow", 2)
    envs = [apart() for _ in tasks]
    for env, task in zip(envs, tasks, strict=True):
        env.reset(task)
    began = time.monotonic()
    threads = [threading.Thread(target=env.step, args=("WAIT",)) for env in envs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together = time.monotonic() - began
    for env in envs:
        env.step("HOLD")
    assert together < 0.75 * (time.monotonic() - began - together), "two steps of 0.2 s one after the other take 0.4 s"


def test_a_step_that_hangs_ends_its_episodes_and_the_next_get_a_new_process():
    with closing(Apart(Making(), 1, limit_s=0.5)) as apart:
        tasks = [*troubled("hang"), *toy_tasks(1)]
        envs = [apart() for _ in tasks]
        hung, beside = play(envs, tasks, BOTH, Sampling(), seed=0, max_turns=50)
        assert hung.stop is StopReason.ERROR
        assert "step did not return within 0.5 s, and its process was killed" in str(hung.error)
        assert beside.stop is StopReason.ERROR
        assert "has ended" in str(beside.error)
        (again,) = play([apart()], toy_tasks(1), BOTH, Sampling(), seed=0, max_turns=50)
        assert again.error is None


@pytest.mark.parametrize(
    ("trouble", "said"),
    [("die", "ended with code 7"), ("exit", "SystemExit: 3"), ("own", "Unkind: left of right")],
)
def test_what_a_step_does_to_its_process_is_said(trouble: str, said: str):
    with closing(Apart(Making(), 1)) as apart:
        (episode,) = play([apart()], troubled(trouble), BOTH, Sampling(), seed=0, max_turns=50)
    assert episode.stop is StopReason.ERROR
    assert said in str(episode.error)


def test_no_process_is_left_and_forks_that_are_let_go_are_closed():
    with closing(Apart(Making(), 1)) as apart:
        before = set(children())
        env: Any = apart()
        (worker,) = set(children()) - before
        env.reset(toy_tasks(1)[0])
        forks = [env.fork() for _ in range(5)]
        assert forks[0].observe() == env.observe()
        assert env._worker.load == 6
        del forks
        env.observe()
        assert (env._worker.load, list(env._worker.dropped)) == (1, [])
    assert worker not in children()
    with pytest.raises(StepError, match="has ended"):
        env.observe()


def test_a_scoring_process_makes_its_own(apart: Apart):
    assert isinstance(pickle.loads(pickle.dumps(apart)), Making)


@pytest.mark.parametrize(("processes", "limit_s"), [(0, 1.0), (1, 0.0), (1, float("nan"))])
def test_numbers_that_cannot_be_are_refused(processes: int, limit_s: float):
    with pytest.raises(ConfigError, match="processes >= 1 and a limit > 0"):
        Apart(Making(), processes, limit_s=limit_s)
