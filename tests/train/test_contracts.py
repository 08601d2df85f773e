"""What an environment may leave open: days, turns, fresh requests, later turns, the number type of its rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from onthejob.errors import ContractError
from onthejob.models.chat import ChatEncoder
from onthejob.rollout.branch import BranchConfig
from onthejob.rollout.collect import CollectConfig
from onthejob.rollout.pool import TaskPool
from onthejob.testing import ToyShell, ToyWorkplace, check_environment, shell_tasks, tiny_tokenizer, toy_tasks
from onthejob.train import TrainConfig
from onthejob.types import Branch, Message, Observation, Sampling, Step, StopReason, TextObservation

BRANCHES = TrainConfig(
    iterations=1,
    collect=CollectConfig(episodes=3, segment_turns=6, partner_share=0.0, fresh_share=0.5, keep_share=1.0),
    branch=BranchConfig(group_size=3, turns=4, worlds=2),
    sampling=Sampling(max_new_tokens=3),
    library_tasks=4,
    library_share=0.5,
    scale_states=12,
    dry_run=True,
)
EPISODES = TrainConfig(
    iterations=1,
    grouping="episodes",
    collect=CollectConfig(episodes=2),
    branch=BranchConfig(group_size=2),
    sampling=Sampling(max_new_tokens=3),
)


class Dayless(ToyWorkplace):
    """No days and no turns in its state."""

    def state(self) -> Mapping[str, Any]:
        return {"metrics": super().state()["metrics"]}


class Appending(ToyWorkplace):
    """One conversation per actor and episode."""

    def observe(self) -> TextObservation | None:
        seen = super().observe()
        assert seen is None or isinstance(seen, TextObservation)
        return seen if seen is None or self._live().turn < 2 else replace(seen, fresh=False, messages=seen.messages[-1:])


class Opening(ToyWorkplace):
    """Over after the first reply: `maker` only ever opens."""

    def step(self, reply: str) -> Step:
        step = super().step(reply)
        self._live(allow_over=True).over = True
        return replace(step, observation=None, stop=StopReason.DONE)


@pytest.mark.parametrize(("make", "roles"), [(Dayless, ("maker", "seller")), (Opening, ("maker",))])
def test_what_a_state_lacks_is_no_obstacle(start, make: type[ToyWorkplace], roles: tuple[str, ...]):
    check_environment(make, toy_tasks(2), spectators=("customer", "seller"))
    made = start(roles)
    made.train(BRANCHES, make)
    groups = list(made.run.read_groups(1))
    assert {group.actor for group in groups} == set(roles)
    assert len({group.key for group in groups}) == len(groups)
    for role in roles:
        outcome = made.run.read_metrics(f"scales/{role}", name="outcome")
        assert [metric.value for metric in outcome] != [1.0], "measured in states that the share of the library did not hold"


def test_states_without_days_are_spread_over_the_turns(start):
    made = start()
    made.train(replace(BRANCHES, library_share=1.0), Dayless)
    from onthejob.rollout.library import SnapshotLibrary

    content = made.run.read_checkpoint(1)["library.bin"]
    assert isinstance(content, bytes)
    # Not the first request of a task, in which segments begin anyway.
    assert SnapshotLibrary.from_bytes(content).days == tuple(range(1, 10))


def test_branches_of_appended_requests_keep_the_tokens_of_the_conversation(start):
    check_environment(Appending, toy_tasks(2), spectators=("customer",))
    made = start()
    made.train(BRANCHES, Appending)
    groups = list(made.run.read_groups(1))
    chat = ChatEncoder(tiny_tokenizer())
    by_segment: dict[tuple[str, str], list[Any]] = {}
    for group in groups:
        by_segment.setdefault((group.key.split("/")[1], group.actor), []).append(group)
    chains = [chain for chain in by_segment.values() if len(chain) > 1]
    assert chains, "later turns of a conversation are grouped"
    for chain in chains:
        for before, after in pairwise(chain):
            turn = before.trajectories[before.facts["chosen"]].turns[0]
            held = (*turn.prompt_ids, *turn.completion.token_ids)
            assert after.trajectories[0].turns[0].prompt_ids[: len(held)] == held
            assert chat.turns(after.trajectories[0].turns[0].prompt_ids) >= chat.turns(turn.prompt_ids) + 2
    # A segment from the library ends where a conversation from before its start continues, and no state starts in one.
    lengths = {group.facts["origin"]: 0 for group in groups}
    for group in groups:
        lengths[group.facts["origin"]] = max(lengths[group.facts["origin"]], group.facts["turn"])
    assert lengths["fresh"] == 5
    assert lengths.get("library", 0) <= 1


class Paid(ToyShell):
    """Rewards, metrics and validity in the numbers of NumPy and torch."""

    def step(self, reply: str) -> Step:
        step = super().step(reply)
        rewards: dict[str, Any] = {"agent": torch.tensor(0.5) if step.observation is None else np.float32(0.25)}
        return replace(step, rewards=rewards, parts={}, valid=np.bool_(step.valid))

    def state(self) -> Mapping[str, Any]:
        return {"metrics": {"passed": np.float32(0.5), "length": torch.tensor(2)}}


def test_numbers_of_numpy_and_torch_are_recorded_as_floats(start):
    made = start(("agent",))
    made.train(EPISODES, Paid, pool=TaskPool(shell_tasks(4), seed=0), partners={})
    rewards = {reward for group in made.run.read_groups(1) for row in group.trajectories for reward in row.rewards}
    assert rewards <= {0.25, 0.5}
    assert 0.5 in rewards
    (episode, *_) = made.run.read_episodes(1)
    assert episode.metrics == {"passed": 0.5, "length": 2.0}


def test_branches_may_be_numbers_of_numpy_too(start):
    class Floats(ToyWorkplace):
        def branch(self, reply: str, *, world: int, turns: int) -> Branch:
            branch = super().branch(reply, world=world, turns=turns)
            returns: dict[str, Any] = {actor: np.float32(value) for actor, value in branch.returns.items()}
            outcome: Any = np.float32(branch.outcome)
            return replace(branch, outcome=outcome, returns=returns)

    check_environment(Floats, toy_tasks(1), spectators=("customer",))
    made = start()
    made.train(replace(BRANCHES, dry_run=False), Floats)
    assert made.run.last_iteration() == 1


class Said(ToyShell):
    """A first request of other messages, and another reward."""

    messages: Any = (Message("user", "Write red."),)
    reward: Any = 1.0

    def reset(self, task: Any) -> Observation:
        seen = super().reset(task)
        return TextObservation(actor="agent", messages=self.messages, view=seen.view)

    def step(self, reply: str) -> Step:
        return replace(super().step(reply), rewards={"agent": self.reward}, parts={})


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"messages": ({"role": "user", "content": "x"},)}, r"must be a types\.Message, got dict"),
        ({"messages": (Message("user", None),)}, "content must be text, got NoneType"),  # type: ignore[arg-type]
        ({"messages": (Message("usr", "x"),)}, "role must be one of system, user, assistant, tool, got 'usr'"),
        ({"messages": (Message("user", "\ud800"),)}, "lone surrogate"),
        ({"messages": ()}, "at least one message"),
        ({"reward": None}, "reward of agent must be a number, got NoneType"),
        ({"reward": "1"}, "reward of agent must be a number, got str"),
        ({"reward": float("nan")}, "must be a finite number, got nan"),
        ({"reward": np.zeros(2)}, "must be a number, got ndarray"),
    ],
)
def test_what_no_policy_can_read_or_learner_add_is_named(start, broken: Mapping[str, Any], said: str):
    """By the check, and by the loop in the same words."""
    made = type("Broken", (Said,), dict(broken))
    with pytest.raises(ContractError, match=said):
        check_environment(made, shell_tasks(1))
    run = start(("agent",))
    with pytest.raises(ContractError, match=said):
        run.train(EPISODES, made, pool=TaskPool(shell_tasks(4), seed=0), partners={})


def test_rewards_of_an_actor_that_is_never_asked_are_pointed_out(start, caplog: pytest.LogCaptureFixture):
    class Misspelt(Said):
        def step(self, reply: str) -> Step:
            return replace(super().step(reply), rewards={"agnet": 1.0})

    with pytest.raises(ContractError, match=r"got agnet; asked were agent .* spectators=\('agnet',\)"):
        check_environment(Misspelt, shell_tasks(1))
    start(("agent",)).train(EPISODES, Misspelt, pool=TaskPool(shell_tasks(4), seed=0), partners={})
    assert "no step rewarded agent, while rewards went to agnet" in caplog.text
