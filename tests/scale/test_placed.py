"""Stand-ins for environments in workers: they give what the environment gives, wherever it is and however often it is lost."""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from onthejob.errors import StepError
from onthejob.models.chat import ChatEncoder
from onthejob.rollout.collect_episodes import collect_episodes
from onthejob.scale.placed import Placement, digest
from onthejob.scale.runtime import Job, Results
from onthejob.scale.worker_bench import WorkerBench, message, outcomes_of, packed
from onthejob.testing import ScriptedTokens, ToyShell, shell_tasks, tiny_tokenizer
from onthejob.testing.toy_shell import COMMANDS
from onthejob.types import Interruptible, Message, Sampling, Scored, Step, StopReason, Task


class Benches:
    """A runtime of several benches in this process; before each job all shelves of one may be lost."""

    workers = threads = 1

    def __init__(self, *, loss: float, benches: int = 3, seed: int = 0) -> None:
        self._luck, self._loss = random.Random(seed), loss
        self._benches = [WorkerBench() for _ in range(benches)]
        self.lost = 0

    def submit(self, jobs: Sequence[Job]) -> Results:
        found: dict[str, Any] = {}
        for job in jobs:
            place = zlib.crc32(job.place.encode()) % len(self._benches)
            if self._luck.random() < self._loss:
                self._benches[place] = WorkerBench()
                self.lost += 1
            (outcome,) = outcomes_of(self._benches[place].perform(message([packed(job)])))
            found[job.key] = outcome
        return lambda: {key: outcome.unpacked() for key, outcome in found.items()}

    def environments(self, make_env):
        return Placement(self, make_env, numbers=count())

    def close(self) -> None: ...
    def __enter__(self): ...
    def __exit__(self, *exception): ...


class FullShell(ToyShell):
    """Can be ended between two replies, and measures their texts."""

    def interrupt(self, stop: StopReason) -> Step:
        return replace(self.step("done"), stop=stop)

    def scores(self, reply: str) -> Mapping[str, float]:
        return {"length": float(len(reply))}


def reply(observation, seed: int) -> str:
    return COMMANDS[seed % len(COMMANDS)]


def collected(make_env):
    tokenizer = tiny_tokenizer()
    found = collect_episodes(
        make_env, shell_tasks(6), {"agent": ScriptedTokens(tokenizer, reply, version="agent@0001")}, Sampling(), group_size=4,
        trained=["agent"], encoder=ChatEncoder(tokenizer), max_turns=3, seed=3, prefix="it0001", workers=1,
    )  # fmt: skip
    return replace(found, episodes=tuple(replace(episode, seconds=0.0) for episode in found.episodes))


@pytest.mark.parametrize("make_env", [ToyShell, FullShell])
@pytest.mark.parametrize("loss", [0.0, 0.2, 1.0])
def test_episodes_are_the_same_however_often_their_environments_are_lost(make_env: type[ToyShell], loss: float):
    runtime = Benches(loss=loss)
    assert repr(collected(runtime.environments(make_env))) == repr(collected(make_env))
    assert (runtime.lost > 10) == (loss > 0)


@pytest.mark.parametrize(("kind", "can"), [(ToyShell, False), (FullShell, True)])
def test_a_stand_in_can_what_its_environment_can(kind: type[ToyShell], can: bool):
    made = Benches(loss=0.0).environments(kind)()
    assert isinstance(made, Scored) is can
    assert isinstance(made, Interruptible) is can


def test_an_episode_can_be_ended_and_begun_again():
    runtime = Benches(loss=0.5)
    env: Any = runtime.environments(FullShell)()
    own = FullShell()
    for task in shell_tasks(2):
        assert env.reset(task) == own.reset(task)
        assert env.step("ls") == own.step("ls")
        assert env.scores("ls") == {"length": 2.0}
        assert env.state() == own.state()
        assert env.interrupt(StopReason.CONTEXT) == own.interrupt(StopReason.CONTEXT)
        assert env.state() == own.state()
    env.close()
    env.close()
    assert runtime._benches[0]._shelves == {}


class Moody(ToyShell):
    """Not deterministic: each environment answers in its own words."""

    made = count()

    def __init__(self) -> None:
        super().__init__()
        self._number = next(Moody.made)

    def step(self, reply: str) -> Step:
        step = super().step(reply)
        if step.observation is None:
            return step
        said = Message("user", f"number {self._number}")
        return replace(step, observation=replace(step.observation, messages=(said,)))


def test_an_environment_that_is_not_deterministic_ends_its_episode_when_it_is_lost():
    (task,) = shell_tasks(1)
    runtime = Benches(loss=0.0, benches=1)
    env = runtime.environments(Moody)()
    env.reset(task)
    env.step("ls")
    env.step("ls")
    runtime._benches[0] = WorkerBench()
    with pytest.raises(StepError, match=r"step number 1 returned something else.*not deterministic.*task's seed"):
        env.step("ls")


class Broken(ToyShell):
    closed = 0

    def step(self, reply: str) -> Step:
        raise ZeroDivisionError("no divisor")

    def close(self) -> None:
        Broken.closed += 1


def test_what_an_environment_raises_is_raised_here_and_closes_it():
    (task,) = shell_tasks(1)
    env = Benches(loss=0.0).environments(Broken)()
    env.reset(task)
    closed = Broken.closed
    with pytest.raises(ZeroDivisionError, match="no divisor"):
        env.step("ls")
    assert Broken.closed == closed + 1
    env.close()
    assert Broken.closed == closed + 1


def test_facts_may_differ_and_what_is_read_or_paid_may_not():
    step = Step(rewards={"agent": 1.0}, observation=None, stop=StopReason.DONE, facts={"seconds": 0.5})
    assert digest(step) == digest(replace(step, facts={"seconds": 0.6}))
    assert digest(step) != digest(replace(step, rewards={"agent": 1.1}))
    assert digest(step) != digest(replace(step, stop=StopReason.MAX_TURNS))
    first = ToyShell().reset(Task(id="a", env="toy", split=shell_tasks(1)[0].split, seed=1, payload={}))
    assert digest(first) != digest(replace(first, fresh=False))
