"""Recorded groups under another reward, against figures worked by hand."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from onthejob.errors import ConfigError, RecordError
from onthejob.evaluate.rescoring import Judged, policy_delta, rescore, summary
from onthejob.evaluate.validation import validator
from onthejob.learn.advantage import AdvantageConfig, advantages
from onthejob.testing import ToyShell, shell_tasks
from onthejob.types import Completion, Group, Sampling, Split, StopReason, Trajectory, Turn

CONFIG = AdvantageConfig()


def row(ret: float, turns: int) -> Trajectory:
    made = tuple(
        Turn(prompt_ids=(1,), completion=Completion(text="x", token_ids=(2,), logprobs=(-1.0,)), policy_version="p")
        for _ in range(turns)
    )
    return Trajectory(task_id="t", actor="agent", turns=made, rewards=(*(0.0,) * (turns - 1), ret), stop=StopReason.DONE)


def group(key: str, *members: tuple[float, int, float]) -> Group:
    """Members: return, turns, share of the assertions that hold."""
    return Group(
        key=key,
        actor="agent",
        trajectories=tuple(row(ret, turns) for ret, turns, _ in members),
        facts={"metrics": [{"rate": rate} for *_, rate in members]},
    )


SPREAD = group("spread", (0.9, 6, 1.0), (0.95, 3, 1.0), (0.4, 6, 0.5))
DEAD = group("dead", (0.0, 4, 0.0), (0.0, 4, 0.0))
RECORDED = {item.key: advantages(item, CONFIG) for item in (SPREAD, DEAD)}


def all_or_nothing(trajectory: Trajectory, metrics: Mapping[str, float]) -> Judged:
    return Judged(turns=len(trajectory.turns), reward=float(metrics["rate"] == 1.0))


def cut(trajectory: Trajectory, metrics: Mapping[str, float]) -> Judged:
    turns = min(2, len(trajectory.turns))
    return Judged(turns=turns, reward=metrics["rate"] - 0.1 * turns)


def test_a_binary_reward_no_longer_tells_passes_apart():
    found = rescore([SPREAD, DEAD], RECORDED, all_or_nothing, config=CONFIG)
    assert found[0].after == (1.0, 1.0, 0.0)
    assert (found[0].signs_before, found[0].signs_after) == ((1, 1, -1), (1, 1, -1))
    assert (found[1].signs_before, found[1].signs_after) == ((0, 0), (0, 0))
    figures = summary(found)
    assert figures["all_zero_share"] == {"before": 0.5, "after": 0.5}
    assert figures["zero_variance_share"] == {"before": 0.5, "after": 0.5}
    assert figures["reward"]["after"] == pytest.approx(2 / 5)
    assert policy_delta(found)["sign_changes"] == 0


def test_shorter_episodes_save_turns_and_signs_turn():
    tie = group("tie", (0.9, 6, 1.0), (0.95, 3, 0.9))
    found = rescore([tie], {"tie": advantages(tie, CONFIG)}, cut, config=CONFIG)
    assert (found[0].signs_before, found[0].signs_after) == ((-1, 1), (1, -1))
    delta = policy_delta(found)
    assert (delta["turns_saved"], delta["sign_changes"], delta["sign_reversals"]) == (5, 2, 2)
    assert delta["turns_saved_share"] == pytest.approx(5 / 9)
    assert summary(found)["turns"] == {"before": 4.5, "after": 2.0}
    # 0.025 and 0.05 from the mean, over sample deviations of 0.025 and 0.05 times the root of 2, and 1e-4.
    assert found[0].advantages_before == pytest.approx((-0.70511, 0.70511), abs=1e-5)
    assert found[0].advantages_after == pytest.approx((0.70611, -0.70611), abs=1e-5)
    assert delta["advantage_change"] == pytest.approx(1.41122, abs=1e-5)


def test_a_dead_group_may_come_alive():
    equal = group("equal", (0.5, 3, 1.0), (0.5, 3, 0.5))
    assert advantages(equal, CONFIG) is None
    found = rescore([equal], {"equal": None}, all_or_nothing, config=CONFIG)
    assert (found[0].signs_before, found[0].signs_after) == ((0, 0), (1, -1))
    assert policy_delta(found)["sign_changes"] == 2
    assert policy_delta(found)["sign_reversals"] == 0
    assert policy_delta(found)["advantage_change"] == pytest.approx(0.70701, abs=1e-5), "from 0 in a dead group"


def test_groups_without_grades_and_no_groups_are_refused():
    bare = Group(key="branch", actor="agent", trajectories=SPREAD.trajectories, facts={})
    with pytest.raises(RecordError, match="'branch' is not made of whole episodes"):
        rescore([bare], {}, cut, config=CONFIG)
    with pytest.raises(RecordError, match="no groups"):
        summary([])


def test_checkpoints_are_chosen_on_dev_only():
    options = {"sampler": None, "partners": {}, "sampling": Sampling(), "seed": 0, "max_turns": 4}
    for tasks, got in ((shell_tasks(1), "of split train"), (shell_tasks(1, split=Split.TEST), "of split test"), ([], "none")):
        with pytest.raises(ConfigError, match=f"split dev, got .*{got}"):
            validator(ToyShell, tasks, **options)
