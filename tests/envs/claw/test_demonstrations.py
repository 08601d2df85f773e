"""Demonstrations are what an agent would have seen, in the wanted proportions, and the same for every player."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest

from onthejob.envs.claw.agent_messages import DONE
from onthejob.envs.claw.demonstrations import DemonstrationConfig, demonstrations
from onthejob.envs.claw.env import ClawEnvironment
from onthejob.envs.claw.sandbox import SandboxHost, open_host
from onthejob.envs.claw.splits import claw_tasks
from onthejob.envs.claw.task_schema import ClawTask
from onthejob.errors import ConfigError
from onthejob.types import Split

TASKS = claw_tasks(Split.TRAIN, count=120)


@pytest.fixture(scope="module")
def host() -> Iterator[SandboxHost]:
    with open_host() as opened:
        yield opened


def test_proportions_are_exact_and_grades_are_those_of_what_is_shown(host: SandboxHost):
    config = DemonstrationConfig(count=20, clean_stops=0.25, near_misses=0.2, tail=2)
    made = demonstrations(TASKS, partial(ClawEnvironment, host=host), config, workers=3)
    assert len({shown.task for shown in made}) == 20
    assert sum(shown.stops for shown in made) == 5
    near = [shown for shown in made if shown.near_miss]
    assert 1 <= len(near) <= 4
    assert all(0.5 <= shown.rate < 1.0 for shown in near)
    assert all(shown.passed for shown in made if not shown.near_miss)
    gold = {task.id: ClawTask.from_record(task.payload).gold for task in TASKS}
    for shown in made:
        replies = [message.content for message in shown.messages if message.role == "assistant"]
        assert [message.role for message in shown.messages[:2]] == ["system", "user"]
        assert shown.messages[-1].role == "assistant"
        assert (replies[-1] == DONE) is shown.stops
        assert len(replies) == len(gold[shown.task]) - shown.near_miss + (1 if shown.stops else 2)
        heard = [message.content for message in shown.messages[2:] if message.role == "user"]
        assert len(heard) == len(replies) - 1
        assert all(text.startswith("exit code: ") for text in heard)
    again = demonstrations(TASKS, partial(ClawEnvironment, host=host), config, workers=1)
    assert again == made


def test_longer_tasks_are_demonstrated_more_often_when_asked_for(host: SandboxHost):
    def steps(config: DemonstrationConfig) -> list[int]:
        made = demonstrations(TASKS, partial(ClawEnvironment, host=host), config, workers=3)
        return [ClawTask.from_record(by_id[shown.task].payload).estimated_steps for shown in made]

    by_id = {task.id: task for task in TASKS}
    every = [ClawTask.from_record(task.payload).estimated_steps for task in TASKS]
    found = steps(DemonstrationConfig(count=12, near_misses=0.0, by_steps=True))
    assert sum(found) / len(found) > 1.25 * sum(every) / len(every)
    assert len(set(found)) > 2, "short ones too"
    assert steps(DemonstrationConfig(count=12, near_misses=0.0, by_steps=True)) == found


def test_every_family_can_have_its_share(host: SandboxHost):
    tasks = claw_tasks(Split.TRAIN, count=600)
    family = {task.id: ClawTask.from_record(task.payload).family for task in tasks}
    config = DemonstrationConfig(count=len(set(family.values())) + 2, near_misses=0.0, by_steps=True, per_family=1)
    made = demonstrations(tasks, partial(ClawEnvironment, host=host), config, workers=3)
    assert len({shown.task for shown in made}) == config.count
    assert {family[shown.task] for shown in made} == set(family.values())
    with pytest.raises(ConfigError, match=f"count allows {config.count}. Set per_family to at most 1"):
        demonstrations(tasks, partial(ClawEnvironment, host=host), dataclasses.replace(config, per_family=2))


def test_families_that_need_more_share_what_is_left(host: SandboxHost):
    family = {task.id: ClawTask.from_record(task.payload).family for task in claw_tasks(Split.TRAIN, count=600)}
    wanted = ("add-credit", "copy-image", "error-lines")
    tasks = [task for task in claw_tasks(Split.TRAIN, count=600) if family[task.id] in wanted]
    make_env = partial(ClawEnvironment, host=host)
    config = DemonstrationConfig(count=8, near_misses=0.0, per_family=1, focus=("copy-image", "error-lines"))
    made = demonstrations(tasks, make_env, config, workers=3)
    assert Counter(family[shown.task] for shown in made) in (
        {"add-credit": 1, "copy-image": 4, "error-lines": 3},
        {"add-credit": 1, "copy-image": 3, "error-lines": 4},
    )
    assert len({shown.task for shown in made}) == 8
    assert all(shown.family == family[shown.task] for shown in made)
    with pytest.raises(ConfigError, match=r"no training tasks of add-credits\. There are add-credit, copy-image"):
        demonstrations(tasks, make_env, dataclasses.replace(config, focus=("add-credits",)))
    one = [task for task in tasks if family[task.id] != "copy-image"]
    with pytest.raises(ConfigError, match=r"families of focus have \d+ tasks beyond per_family, count asks for \d+"):
        demonstrations(one, make_env, dataclasses.replace(config, count=len(one), focus=("error-lines",)))
    with pytest.raises(ConfigError, match="set per_family"):
        DemonstrationConfig(focus=("copy-image",))


def test_variety_shows_every_wording_before_it_shows_one_twice(host: SandboxHost):
    known = {
        task.id: ClawTask.from_record(task.payload)
        for task in claw_tasks(Split.TRAIN, count=3000)
        if task.payload["family"] in ("set-env-value", "rename-figure", "last-loss")
    }
    tasks = [task for task in claw_tasks(Split.TRAIN, count=3000) if task.id in known]

    def wordings(config: DemonstrationConfig) -> Counter[tuple[str, ...]]:
        made = demonstrations(tasks, partial(ClawEnvironment, host=host), config, workers=3)
        assert Counter(shown.family for shown in made) == {"set-env-value": 4, "rename-figure": 4, "last-loss": 4}
        return Counter(wording(known[shown.task]) for shown in made)

    def wording(claw: ClawTask) -> tuple[str, ...]:
        """Those words of the request that each of its wordings has and no other: written out, so that a reader can judge."""
        marks = {
            "set-env-value": ("Set ", "change the value", "must say", "is wrong"),
            "rename-figure": ("Rename ", "should be called", "Please move"),
            "last-loss": ("Write the last line", "Find the final", "should hold only", "How did the run end"),
        }
        return (claw.family, *(mark for mark in marks[claw.family] if mark in claw.intent))

    everything = {wording(claw) for claw in known.values()}
    config = DemonstrationConfig(count=12, near_misses=0.0, per_family=4)
    varied = wordings(dataclasses.replace(config, variety=True))
    assert set(varied) == everything
    # Not so by chance: with some draws a wording is missing.
    assert any(set(wordings(dataclasses.replace(config, seed=seed))) != everything for seed in range(3))
    # Without per_family every family comes equally often, too.
    assert set(wordings(DemonstrationConfig(count=12, near_misses=0.0, variety=True))) == everything


def test_what_cannot_be_demonstrated_is_refused(host: SandboxHost):
    make_env = partial(ClawEnvironment, host=host)
    with pytest.raises(ConfigError, match=r"1\.\.400, got 401"):
        DemonstrationConfig(count=401)
    with pytest.raises(ConfigError, match=r"clean_stops must be in \[0, 1\], got 3"):
        DemonstrationConfig(clean_stops=3)
    with pytest.raises(ConfigError, match="there are 2"):
        demonstrations(TASKS[:2], make_env, DemonstrationConfig(count=3))
    with pytest.raises(ConfigError, match="twice as many tasks, got 5 for 3"):
        demonstrations(TASKS[:5], make_env, DemonstrationConfig(count=3, by_steps=True))
    with pytest.raises(ConfigError, match="of split dev"):
        demonstrations(claw_tasks(Split.DEV, count=120), make_env, DemonstrationConfig(count=1))
