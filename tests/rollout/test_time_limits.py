"""What is measured before the first iteration ends in the time given, with at least some states of every role."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

import pytest

from onthejob.models.chat import ChatEncoder
from onthejob.models.scripted import ScriptedPolicy
from onthejob.rollout import habits, scales
from onthejob.rollout.branch import BranchConfig, BranchScorer
from onthejob.rollout.habits import observe_habits
from onthejob.rollout.library import Entry, visit
from onthejob.rollout.scales import measure_scales
from onthejob.testing import ToyWorkplace, heuristic_reply, tiny_tokenizer, toy_tasks
from onthejob.types import Completion, Context, Observation, Sampling

ROLES = ("maker", "seller")
PARTNERS = {role: ScriptedPolicy(heuristic_reply, version="heuristic") for role in ROLES}


def states() -> list[Entry]:
    return visit(ToyWorkplace, toy_tasks(4), PARTNERS, seed=3, share=1.0, max_turns=20)


def measured(entries: Sequence[Entry], *, until: float) -> dict[str, scales.Scales]:
    config = BranchConfig(group_size=2, turns=4, worlds=2)
    with BranchScorer(ToyWorkplace) as scorer:
        return measure_scales(scorer, ToyWorkplace(), entries, config=config, actors=ROLES, seed=1, until=until)


def test_scales_are_measured_on_the_states_there_is_time_for(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", logger="onthejob")
    monkeypatch.setattr(scales, "STATES_AT_A_TIME", 3)
    entries = states()
    assert {entry.actor for entry in entries[:3]} == set(ROLES)
    assert measured(entries, until=0.0) == measured(entries[:3], until=math.inf) != measured(entries, until=math.inf)
    assert caplog.messages == [f"scales of value: measured on 3 of {len(entries)} states in the time given"]


def test_every_role_has_scales_however_short_the_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scales, "STATES_AT_A_TIME", 1)
    entries = sorted(states(), key=lambda entry: entry.actor)
    makers = sum(entry.actor == "maker" for entry in entries)
    assert measured(entries, until=0.0) == measured(entries[: makers + 1], until=math.inf)


class Imitated(ToyWorkplace):
    """Counts replies and offers no stand-ins of interest."""

    def habits(self, replies: Sequence[str]) -> dict[str, tuple[float, float]]:
        return {word: (float(replies.count(word)), float(len(replies))) for word in sorted(set(replies))}

    def continue_with(self, stand_ins: Mapping[str, Mapping[str, float]]) -> None:
        """Branches continue with the partners."""

    def stand_ins(self, rates: Mapping[str, Mapping[str, float]]) -> dict[str, Callable[[Observation, int], str]]:
        return {}


class Counting(ScriptedPolicy):
    """Remembers the sizes of its batches."""

    def __init__(self) -> None:
        super().__init__(heuristic_reply, version="counting")
        self.batches: list[int] = []

    def act(self, contexts: Sequence[Context], sampling: Sampling) -> list[Completion]:
        self.batches.append(len(contexts))
        return super().act(contexts, sampling)


def test_habits_are_observed_in_the_states_there_is_time_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(habits, "STATES_AT_A_TIME", 2)
    entries = states()

    def observed(until: float) -> tuple[list[str], list[list[int]]]:
        policies = {role: Counting() for role in ROLES}
        found = observe_habits(
            Imitated, entries, policies, Sampling(), encoder=ChatEncoder(tiny_tokenizer()), replies=3, seed=5, until=until
        )
        return [actor for actor, _ in found], [policy.batches for policy in policies.values()]

    everyone, batches = observed(math.inf)
    assert sorted(set(everyone)) == sorted(ROLES)
    assert batches == [[3 * everyone.count(role)] for role in ROLES]  # without a limit one batch per role
    few, batches = observed(time.monotonic() - 1.0)
    assert (sorted(few), batches) == (["maker", "maker", "seller", "seller"], [[6], [6]])
