"""Iterations from which nothing can be learned end a run as a failure, and not as converged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onthejob.errors import TrainingError
from onthejob.rollout.branch import BranchConfig
from onthejob.rollout.collect import CollectConfig
from onthejob.rollout.pool import TaskPool
from onthejob.testing import ToyShell, ToyWorkplace, shell_tasks, toy_tasks
from onthejob.train import TrainConfig
from onthejob.types import Sampling

# One token of an untaught model is never a word of the toy.
MUTE = TrainConfig(
    iterations=9,
    collect=CollectConfig(episodes=2, segment_turns=2, partner_share=0.0),
    branch=BranchConfig(group_size=2, turns=2, worlds=1),
    sampling=Sampling(max_new_tokens=1),
    library_tasks=0,
    scale_states=0,
)


@pytest.mark.parametrize("grouping", ["branch", "episodes"])
def test_a_policy_without_a_valid_reply_has_not_converged(start, grouping: str):
    roles = ("maker", "seller") if grouping == "branch" else ("agent",)
    made = start(roles)
    pool = TaskPool(toy_tasks(4) if grouping == "branch" else shell_tasks(4, max_turns=1), seed=0)
    config = MUTE
    if grouping == "episodes":
        config = TrainConfig(
            iterations=9, grouping="episodes", collect=CollectConfig(episodes=2), branch=BranchConfig(group_size=2),
            sampling=MUTE.sampling,
        )  # fmt: skip
    with pytest.raises(TrainingError, match=r"no reply of .* was valid in iterations 1 to 3 .*onthejob sft") as error:
        made.train(config, ToyWorkplace if grouping == "branch" else ToyShell, pool=pool)
    assert error.value.exit_code == 1
    assert made.run.last_iteration() == 3, "what was collected is recorded"
    assert not pool.converged


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(start):
    first = start()
    first.train(replace(MUTE, iterations=2), ToyWorkplace)
    first.run.close()
    again = start()
    with pytest.raises(TrainingError, match="iterations 1 to 3"):
        again.train(MUTE, ToyWorkplace, resume=True)
    assert again.run.last_iteration() == 3


def test_a_short_run_without_a_valid_reply_says_so(start, caplog: pytest.LogCaptureFixture):
    start().train(replace(MUTE, iterations=1), ToyWorkplace)
    assert "no reply of maker, seller was valid in iteration 1" in caplog.text


def test_iterations_without_a_group_are_pointed_out_and_end_the_run(start, caplog: pytest.LogCaptureFixture):
    """The seller is asked second, and every segment ends after the first turn of a task."""
    made = start(("seller",))
    config = replace(MUTE, collect=CollectConfig(episodes=2, segment_turns=1, partner_share=0.0))
    with pytest.raises(TrainingError, match=r"iterations 1 to 3 .* have no group.*segment-turns"):
        made.train(config, ToyWorkplace)
    assert "iteration 1 has no group: none of the trained roles (seller) was asked in 2 turns; asked: maker" in caplog.text
    assert made.run.last_iteration() == 3
