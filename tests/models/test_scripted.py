"""A function as a policy."""

from __future__ import annotations

import pytest

from onthejob.errors import ContractError
from onthejob.models.scripted import ScriptedPolicy
from onthejob.types import Context, Observation, Sampling, TextObservation


def reply(observation: Observation, seed: int) -> str:
    return f"{observation.actor} sees {observation.view['cash']} with {seed}"


def test_answers_each_context_from_its_view_and_seed():
    policy = ScriptedPolicy(reply, version="heuristic")
    contexts = [
        Context(observation=TextObservation(actor=actor, messages=(), view={"cash": cash}), seed=seed)
        for actor, cash, seed in (("ceo", 5, 1), ("dev", 7, 2))
    ]
    done = policy.act(contexts, Sampling())
    assert [c.text for c in done] == ["ceo sees 5 with 1", "dev sees 7 with 2"]
    assert all(c.token_ids == () for c in done)
    assert (policy.reads, policy.version) == ("view", "heuristic")


def test_needs_a_version():
    with pytest.raises(ContractError, match="version"):
        ScriptedPolicy(reply, version="")
