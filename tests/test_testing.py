"""The conformance test passes good environments and names what is wrong with broken ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from onthejob.errors import ContractError
from onthejob.testing import (
    ToyShell,
    ToyWorkplace,
    check_environment,
    expert_reply,
    heuristic_reply,
    random_legal_reply,
    shell_tasks,
    teach,
    tiny_model,
    tiny_tokenizer,
    toy_examples,
    toy_tasks,
)
from onthejob.types import Branch, Observation, Step, Task, TextObservation

SPECTATORS = ("customer",)
"""Rewarded in the toy and never asked."""


def test_toys_conform_and_the_check_is_not_vacuous():
    workplace = check_environment(ToyWorkplace, [*toy_tasks(2), *toy_tasks(2, retries=2, first_seed=500)], spectators=SPECTATORS)
    assert workplace.steps >= 40
    assert workplace.forks == 12
    assert workplace.branches >= 48
    assert workplace.adversarial > 60
    shell = check_environment(ToyShell, shell_tasks(4))
    assert shell.forks == 0
    assert shell.steps >= 4


class Leaky(ToyWorkplace):
    """A branch that moves its parent."""

    def branch(self, reply: str, *, world: int, turns: int) -> Branch:
        result = super().branch(reply, world=world, turns=turns)
        self._live().cash += 1
        return result


class Miscounted(ToyWorkplace):
    """Reward parts that do not sum."""

    def step(self, reply: str) -> Step:
        step = super().step(reply)
        return replace(step, rewards={actor: reward + 0.5 for actor, reward in step.rewards.items()})


class Fragile(ToyWorkplace):
    """Raises for what a model wrote."""

    def step(self, reply: str) -> Step:
        if reply.startswith("{"):
            json.loads(reply)
        return super().step(reply)


class Forgetful(ToyWorkplace):
    """A snapshot without the world."""

    def snapshot(self) -> bytes:
        row = json.loads(super().snapshot())
        row["sales"] = 0
        return json.dumps(row, sort_keys=True).encode()


class Unstable(ToyWorkplace):
    """Luck that depends on how often reset was called."""

    calls = 0

    def reset(self, task: Task) -> Observation:
        Unstable.calls += 1
        return super().reset(replace(task, seed=task.seed + Unstable.calls))


class Unserialisable(ToyWorkplace):
    """State that JSON cannot hold."""

    def state(self) -> Mapping[str, Any]:
        return {**super().state(), "seen": {1, 2}}


class WorldBlind(ToyWorkplace):
    """Two branches of one world that differ."""

    calls = 0

    def branch(self, reply: str, *, world: int, turns: int) -> Branch:
        WorldBlind.calls += 1
        return super().branch(reply, world=world + WorldBlind.calls, turns=turns)


class Stuck(ToyWorkplace):
    """A turn that does not count."""

    def state(self) -> Mapping[str, Any]:
        return {**super().state(), "turn": 3}


class Named(ToyWorkplace):
    """A day with a name."""

    def state(self) -> Mapping[str, Any]:
        return {**super().state(), "day": "Monday"}


class Plain(ToyWorkplace):
    """A kind that is text: equal to the member, and not it."""

    def observe(self) -> Observation | None:
        seen = super().observe()
        assert seen is None or isinstance(seen, TextObservation)
        return seen if seen is None else replace(seen, kind="act")  # type: ignore[arg-type]


class Misbooked(ToyWorkplace):
    """A branch that books a return under another name."""

    def branch(self, reply: str, *, world: int, turns: int) -> Branch:
        return replace(super().branch(reply, world=world, turns=turns), returns={"mark2": 1.0})


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (Stuck, r"state\(\)\['turn'\] grows"),
        (Named, r"state\(\)\['day'\] must be a whole number"),
        (Plain, r"kind must be a types\.Kind, got 'act'"),
        (Misbooked, "rewards name actors as requests do, got mark2"),
        (Leaky, "leaves its parent untouched"),
        (Miscounted, "sum to its reward"),
        (Fragile, "step raised"),
        (Unstable, "deterministic"),
        (Unserialisable, "JSON-serialisable"),
        (WorldBlind, "determined by its world"),
    ],
)
def test_each_broken_promise_is_found(broken: type[ToyWorkplace], promise: str):
    with pytest.raises(ContractError, match=promise):
        check_environment(broken, toy_tasks(4, days=6), spectators=SPECTATORS)


def test_a_snapshot_that_forgets_is_found():
    with pytest.raises(ContractError, match="broken promise"):
        check_environment(Forgetful, toy_tasks(6, days=8), spectators=SPECTATORS)


def test_policies_of_the_toy_are_ordered():
    """Seeing prices pays: expert > heuristic > random, on the mean over 60 seeds."""
    means = {}
    for name, reply in (("random", random_legal_reply), ("heuristic", heuristic_reply), ("expert", expert_reply)):
        values = []
        for task in toy_tasks(60, days=10):
            env = ToyWorkplace()
            observation: Observation | None = env.reset(task)
            turn = 0
            while observation is not None:
                observation = env.step(reply(observation, 1000 * task.seed + turn)).observation
                turn += 1
            values.append(env.state()["metrics"]["company_value"])
        means[name] = sum(values) / len(values)
    assert means["expert"] > means["heuristic"] + 100
    assert means["heuristic"] > means["random"] + 100


@pytest.mark.parametrize("text", ["MAKE", " MAKE WAIT", "\u00e9\U0001f4a5\x00 tab\t", "made of bytes"])
def test_the_tiny_tokenizer_is_lossless(text: str):
    tokenizer = tiny_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_words_of_the_toy_are_single_tokens():
    tokenizer = tiny_tokenizer()
    assert [len(tokenizer.encode(word, add_special_tokens=False)) for word in ("MAKE", " WAIT", "HOLD", " demand")] == [
        1,
        1,
        1,
        5,
    ]


def test_teaching_gives_the_format_and_leaves_the_global_generator():
    import torch

    before = torch.random.get_rng_state()
    tiny = tiny_model(seed=3)
    same = tiny_model(seed=3)
    assert all(torch.equal(a, b) for a, b in zip(tiny.model.parameters(), same.model.parameters(), strict=True))
    untaught = teach(tiny, toy_examples(64), steps=1, batch=8)
    taught = teach(tiny, toy_examples(64), steps=50, batch=8)
    assert untaught > 5.0
    assert taught < 1.5
    assert torch.equal(before, torch.random.get_rng_state())
