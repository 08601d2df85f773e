"""What the groups of an iteration are described by."""

from __future__ import annotations

import pytest

from onthejob.rollout.summary import GroupSummary, summarise
from onthejob.types import Completion, Group, StopReason, Trajectory, Turn


def group(*replies: tuple[float, str, int, bool]) -> Group:
    """One trajectory per (return, finish reason, tokens, valid)."""
    rows = tuple(
        Trajectory(
            task_id="t",
            actor="sales",
            turns=(
                Turn(
                    prompt_ids=(1,),
                    completion=Completion(text="x", token_ids=(3,) * size, logprobs=(-1.0,) * size, finish_reason=reason),
                    policy_version="v",
                    valid=valid,
                ),
            ),
            rewards=(ret,),
            stop=StopReason.BRANCH,
        )
        for ret, reason, size, valid in replies
    )
    return Group(key="g", actor="sales", trajectories=rows)


def test_groups_are_summarised():
    cut = group((0.0, "length", 8, False), (2.0, "stop", 4, True))
    whole = group((1.0, "stop", 2, True), (1.0, "stop", 2, True))
    found = summarise([cut, whole], alive=1)
    assert (found.groups, found.alive, found.alive_share) == (2, 1, 0.5)
    assert found.mean_return == pytest.approx(1.0)
    assert found.return_std == pytest.approx(0.5), "mean of 1 and 0"
    assert found.valid_rate == 0.75
    assert found.mean_length == 4.0
    assert found.clipped_ratio == 0.25


def test_no_groups_are_all_zero():
    assert summarise([], alive=0) == GroupSummary()
    assert GroupSummary().alive_share == 0.0
