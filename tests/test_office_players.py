"""The office's scripted players as policies that a loop can seat."""

from __future__ import annotations

import pytest

from onthejob.envs.office.env import SEATS, OfficeEnvironment
from onthejob.envs.office.policies import Noisy, players
from onthejob.envs.office.policies.expert import expert
from onthejob.errors import ConfigError
from onthejob.office_players import as_policy, scripted, team
from onthejob.types import Context, Sampling, Split, Task


def first(scenario: str = "churn") -> tuple[OfficeEnvironment, Context]:
    env = OfficeEnvironment()
    observation = env.reset(Task(id="t", env="office", split=Split.DEV, seed=4, payload={"scenario": scenario}))
    return env, Context(observation=observation, seed=9)


TRY_THE_IMPOSSIBLE = {
    "blocker-inventor", "bug-inventor", "feature-fragmenter", "constant-json", "parameter-abuser", "seed-memoriser"
}  # fmt: skip
"""Exploiters whose attempts the office refuses: that is a turn lost."""


@pytest.mark.parametrize("name", players())
def test_every_player_can_be_seated(name: str) -> None:
    env, context = first()
    policy = scripted(name)
    assert (policy.version, policy.reads) == (name, "view")
    for turn in range(60):
        (completion,) = policy.act([context], Sampling())
        assert completion.token_ids == ()
        step = env.step(completion.text)
        assert step.valid or name in TRY_THE_IMPOSSIBLE
        assert step.observation is not None
        context = Context(observation=step.observation, seed=turn)


def test_a_reply_is_keyed_by_the_seed_of_its_context() -> None:
    _, context = first()
    policy = scripted("random")
    contexts = [Context(observation=context.observation, seed=seed) for seed in range(30)]
    texts = [completion.text for completion in policy.act(contexts, Sampling())]
    assert texts == [policy.act([one], Sampling())[0].text for one in contexts]
    assert len(set(texts)) > 5


def test_a_reply_is_what_the_environment_calls_it() -> None:
    env, context = first()
    reply = as_policy(expert, version="expert").act([context], Sampling())[0].text
    assert env.canonical(reply) == reply


def test_a_team_has_the_same_player_in_all_seats() -> None:
    seats = team("heuristic")
    assert tuple(seats) == SEATS
    assert len({id(policy) for policy in seats.values()}) == 1


def test_unknown_players_are_named_with_what_is_known() -> None:
    with pytest.raises(ConfigError, match="unknown scripted policy 'ceo'; known are random, do-nothing, heuristic, expert"):
        scripted("ceo")


def test_a_noisy_player_is_random_in_its_share_of_turns() -> None:
    env, context = first("viral")
    view, legal = context.observation.view, env.legal_replies()
    usual = expert(view, list, 0.0)
    plain = as_policy(Noisy(expert, 0.0), version="n").act([context], Sampling())[0].text
    assert env.canonical(plain) == plain
    replies = [
        as_policy(Noisy(expert, 0.3), version="n").act([Context(observation=context.observation, seed=s)], Sampling())[0].text
        for s in range(600)
    ]
    other = sum(reply != plain for reply in replies) / len(replies)
    assert 0.15 < other < 0.3
    assert set(replies) <= {*legal, plain}
    everything = [
        as_policy(Noisy(expert, 1.0), version="n").act([Context(observation=context.observation, seed=s)], Sampling())[0].text
        for s in range(300)
    ]
    assert set(everything) == set(legal)
    assert usual.action_type in plain


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_outside_its_range_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="must be in"):
        Noisy(expert, share)
