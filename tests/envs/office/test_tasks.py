"""Which seeds exist, and that the splits never meet."""

from __future__ import annotations

import pytest

from onthejob.envs.office.env import OfficeEnvironment
from onthejob.envs.office.scenarios import SHIPPED
from onthejob.envs.office.tasks import FIRST_SEED, office_tasks
from onthejob.errors import ConfigError
from onthejob.types import Split


def test_scenarios_alternate_and_share_no_seed() -> None:
    tasks = office_tasks(Split.DEV, seeds=3)
    assert [task.payload["scenario"] for task in tasks] == [*SHIPPED] * 3
    assert [task.seed for task in tasks] == list(range(1_000, 1_015))
    assert len({task.id for task in tasks}) == 15
    assert {task.env for task in tasks} == {"office"}
    assert {task.split for task in tasks} == {Split.DEV}


def test_splits_never_meet_and_training_starts_at_100_000() -> None:
    last = {
        split: office_tasks(split, seeds=1, first=size // 5 - 1)[-1].seed
        for split, size in ((Split.DEV, 49_000), (Split.TEST, 50_000))
    }
    assert (
        FIRST_SEED[Split.DEV] <= last[Split.DEV] < FIRST_SEED[Split.TEST] <= last[Split.TEST] < FIRST_SEED[Split.TRAIN] == 100_000
    )
    assert office_tasks(Split.TRAIN, seeds=1)[0].seed == 100_000


def test_an_evaluation_can_be_extended() -> None:
    assert office_tasks(Split.TEST, seeds=2) + office_tasks(Split.TEST, seeds=3, first=2) == office_tasks(Split.TEST, seeds=5)


def test_the_length_is_part_of_the_task() -> None:
    (task,) = office_tasks(Split.TRAIN, seeds=1, scenarios=["churn"], days=7)
    assert task.id == "office-churn-100000-d7"
    env = OfficeEnvironment()
    env.reset(task)
    assert env.state()["scenario"] == "churn"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"seeds": 0}, "seeds >= 1"),
        ({"seeds": 1, "scenarios": []}, "a scenario"),
        ({"seeds": 1, "first": -1}, "first >= 0"),
        ({"seeds": 9_801}, "has 49000 seeds, asked for 49005"),
        ({"seeds": 1, "first": 9_800}, "has 49000 seeds"),
    ],
)
def test_what_cannot_be_given_is_refused(arguments, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        office_tasks(Split.DEV, **arguments)
