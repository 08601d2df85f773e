"""Branches that policies continue: the same numbers as scripted continuation where the policies are the scripted players."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from onthejob import Env, Next, Split, Task
from onthejob.envs.running import running
from onthejob.errors import ConfigError
from onthejob.models.chat import ChatEncoder
from onthejob.models.scripted import ScriptedPolicy
from onthejob.rollout.branch import BranchConfig, BranchScorer, Scales
from onthejob.rollout.collect import CollectConfig, Collection, Collector
from onthejob.rollout.library import SnapshotLibrary, visit
from onthejob.testing import ScriptedTokens, ToyWorkplace, heuristic_reply, random_legal_reply, tiny_tokenizer, toy_tasks
from onthejob.types import Completion, Context, Observation, Sampling

HEURISTIC = ScriptedPolicy(heuristic_reply, version="heuristic")
BRANCH = BranchConfig(group_size=4, turns=5, worlds=2)
ON = replace(BRANCH, continuation="policy")
CONFIG = CollectConfig(episodes=3, segment_turns=6, partner_share=0.0)


class Heard(ScriptedTokens):
    """Keeps the prompts that it was given."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.prompts: list[tuple[int, ...]] = []
        self.calls: list[int] = []

    def act(self, contexts: Sequence[Context], sampling: Sampling) -> list[Completion]:
        self.prompts += [context.prompt_ids for context in contexts]
        self.calls.append(len(contexts))
        return super().act(contexts, sampling)


def collected(
    branch: BranchConfig,
    *,
    make: Any = ToyWorkplace,
    reply: Any = random_legal_reply,
    roles: tuple[str, ...] = ("maker", "seller"),
    tasks: Sequence[Task] | None = None,
    library: SnapshotLibrary | None = None,
    partners: dict[str, Any] | None = None,
    policies: dict[str, Any] | None = None,
    config: CollectConfig = CONFIG,
) -> Collection:
    tokenizer = tiny_tokenizer()
    partners = dict.fromkeys(roles, HEURISTIC) if partners is None else partners
    policies = policies or {actor: ScriptedTokens(tokenizer, reply, version=f"{actor}@0001") for actor in roles}
    with BranchScorer(make) as scorer:
        collector = Collector(
            make, scorer, config=config, branch=branch, scales={role: Scales() for role in roles}, trained=roles,
            partners=partners, encoder=ChatEncoder(tokenizer),
        )  # fmt: skip
        return collector.collect(
            tasks or toy_tasks(config.episodes), policies, Sampling(max_new_tokens=64), library=library or SnapshotLibrary(),
            seed=5, prefix="it0001",
        )  # fmt: skip


def test_policies_that_are_the_partners_give_the_branches_of_the_partners():
    """All are the heuristic, so the scripted continuation of the environment itself is the reference."""
    scripted, played = collected(BRANCH, reply=heuristic_reply), collected(ON, reply=heuristic_reply)
    assert [group.key for group in played.groups] == [group.key for group in scripted.groups]
    for ours, theirs in zip(played.groups, scripted.groups, strict=True):
        assert ours.facts["turns"] == theirs.facts["turns"]
        for key, values in theirs.facts["by_world"].items():
            assert ours.facts["by_world"][key] == pytest.approx(values, rel=1e-12)
    assert scripted.continued == 0
    assert played.continued > 0


def test_who_plays_on_is_who_sits_there():
    """A team that continues at random is worth less than the heuristic that the partners are."""

    def total(collection: Collection) -> float:
        return sum(row.metrics["outcome"] for group in collection.groups for row in group.trajectories)

    long = replace(BRANCH, turns=30)
    assert total(collected(replace(long, continuation="policy"))) < total(collected(long))


def test_replies_meet_the_same_luck_and_equal_replies_are_branched_once():
    one, other = collected(ON), collected(ON)
    assert one == other
    for group in one.groups:
        assert set(group.facts["by_world"]) == set(group.facts["keys"])
        for key, row in zip(group.facts["keys"], group.trajectories, strict=True):
            same = [b.ret for k, b in zip(group.facts["keys"], group.trajectories, strict=True) if k == key]
            assert same == [row.ret] * len(same)


def test_branches_of_all_segments_are_answered_together():
    tokenizer = tiny_tokenizer()
    heard = {role: Heard(tokenizer, random_legal_reply, version=f"{role}@0001") for role in ("maker", "seller")}
    collection = collected(ON, policies=heard)
    groups = len(collection.groups)
    distinct = sum(len(group.facts["by_world"]) for group in collection.groups)
    assert max(max(policy.calls) for policy in heard.values()) > distinct // 2 > groups // 2
    assert sum(len(policy.calls) for policy in heard.values()) < 40


class Talk(Env):
    """Two roles with a conversation each; the role that says the higher number last is paid."""

    roles = ("one", "two")
    max_turns = 6

    def tasks(self, split: Split) -> list[Task]:
        return self.seeded(split, count=4)

    def reset(self, task: Task) -> Next:
        self.said: list[int] = []
        return self.ask("one", "say a digit", legal=list("0123456789"))

    def step(self, reply: str) -> Next:
        self.said.append(int(reply))
        if len(self.said) == self.max_turns:
            return self.end(rewards={"one": float(sum(self.said[::2])), "two": float(sum(self.said[1::2]))})
        role = self.roles[len(self.said) % 2]
        return self.ask(role, f"they said {self.said[-1]}", legal=list("0123456789"))


def digit(observation: Observation, seed: int) -> str:
    return str(seed % 10)


def test_a_conversation_goes_on_in_a_branch_token_for_token():
    tokenizer = tiny_tokenizer()
    heard = {role: Heard(tokenizer, digit, version=f"{role}@0001") for role in Talk.roles}
    branch = replace(ON, turns=6, worlds=1, outcome_weight=0.0, return_weight=1.0)
    collection = collected(
        branch, make=lambda: running(Talk()), roles=Talk.roles, tasks=Talk().tasks(Split.TRAIN)[:3], policies=heard, partners={}
    )
    assert len(collection.groups) == 18
    begun = {role: {prompt for prompt in policy.prompts if len(prompt) < 60} for role, policy in heard.items()}
    for role, policy in heard.items():
        longer = [prompt for prompt in policy.prompts if prompt not in begun[role]]
        assert longer
        for prompt in longer:
            assert any(prompt[: len(start)] == start for start in begun[role])
    # Values are those of whole episodes: the sum of the role's digits, over the turns of the longest branch.
    for group in collection.groups:
        for row in group.trajectories:
            assert 0 <= row.metrics["return"] <= 27


def test_a_conversation_from_before_the_segment_is_continued_by_the_partner():
    partner = ScriptedPolicy(digit, version="digit")
    states = visit(
        lambda: running(Talk()), Talk().tasks(Split.TRAIN), dict.fromkeys(Talk.roles, partner), seed=0, share=1.0, max_turns=6
    )
    library = SnapshotLibrary()
    library.add([entry for entry in states if entry.day > 0])
    tokenizer = tiny_tokenizer()
    options: dict[str, Any] = {
        "make": lambda: running(Talk()), "roles": Talk.roles, "tasks": Talk().tasks(Split.TRAIN)[:3], "library": library,
        "config": replace(CONFIG, fresh_share=0.0),
    }  # fmt: skip
    heard = {role: Heard(tokenizer, digit, version=f"{role}@0001") for role in Talk.roles}
    collection = collected(ON, policies=heard, partners=dict.fromkeys(Talk.roles, partner), **options)
    assert collection.groups
    assert {group.actor for group in collection.groups} == {"two"}  # its conversation begins there, the other's has begun before
    assert not heard["one"].prompts
    with pytest.raises(ConfigError, match=r"conversation of 'one' from before.*--collect\.fresh-share 1"):
        collected(ON, reply=digit, partners={}, **options)


def test_what_an_environment_raises_costs_its_group():
    class Unwell(ToyWorkplace):
        def enter(self, world: int) -> None:
            if self.state()["turn"] == 2:
                raise RuntimeError("no forks today")
            super().enter(world)

    collection = collected(ON, make=Unwell)
    assert collection.dropped == 3
    assert "no forks today" in collection.failure
    assert len(collection.groups) == 15


def test_an_environment_that_nobody_can_play_on_is_refused():
    class Closed:
        """A `Forkable` without `enter` and `outcome`."""

        def __init__(self) -> None:
            self._inner = ToyWorkplace()

        def __getattr__(self, name: str) -> Any:
            if name in ("enter", "outcome"):
                raise AttributeError(name)
            return getattr(self._inner, name)

    with pytest.raises(ConfigError, match=r"forks of Closed cannot be continued.*--branch\.continuation partners"):
        collected(ON, make=Closed)
