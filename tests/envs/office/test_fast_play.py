"""The fast path plays the same company as the environment."""

from __future__ import annotations

import pytest

from onthejob.envs.office.env import SEATS, OfficeEnvironment
from onthejob.envs.office.fast_play import run
from onthejob.envs.office.market import company_value
from onthejob.envs.office.policies import Player, do_nothing
from onthejob.envs.office.policies.expert import expert
from onthejob.envs.office.policies.heuristic import heuristic
from onthejob.envs.office.snapshot import dumps
from onthejob.office_players import as_policy
from onthejob.types import Context, Sampling


def seated(player: Player) -> dict[str, Player]:
    return dict.fromkeys(SEATS, player)


@pytest.mark.parametrize("player", [heuristic, expert])
def test_it_equals_the_environment(office, task, player: Player) -> None:
    company = office("churn", seed=1_001, quiet=False)
    total = run(company.simulator, company.state, seated(player), turns=10_000)
    env = OfficeEnvironment()
    observation = env.reset(task("churn", 1_001))
    policy = as_policy(player, version="x")
    while observation is not None:
        observation = env.step(policy.act([Context(observation=observation)], Sampling())[0].text).observation
    metrics = env.state()["metrics"]
    assert company_value(company.state) / 100 == metrics["company_value"]
    assert total == pytest.approx({role: metrics[f"reward_{role}"] for role in (*SEATS, "customer")}, abs=1e-9)


def test_it_can_be_cut_anywhere(office) -> None:
    whole, cut = (office("viral", seed=3, quiet=False) for _ in range(2))
    all_at_once = run(whole.simulator, whole.state, seated(expert), turns=100)
    parts: dict[str, float] = {}
    for turns in (1, 13, 0, 50, 36):
        for role, reward in run(cut.simulator, cut.state, seated(expert), turns=turns).items():
            parts[role] = parts.get(role, 0.0) + reward
    assert dumps(cut.state) == dumps(whole.state)
    assert parts == pytest.approx(all_at_once)
    assert whole.state.turn == 100


def test_it_stops_at_the_end(office) -> None:
    company = office(days=2)
    run(company.simulator, company.state, seated(heuristic), turns=500)
    assert (company.state.turn, company.state.done) == (28, "horizon")
    assert run(company.simulator, company.state, seated(heuristic), turns=5) == {}


def test_a_mute_team_says_nothing_and_acts_all_the_same(office) -> None:
    loud, mute = (office("baseline", seed=5) for _ in range(2))
    run(loud.simulator, loud.state, seated(expert), turns=84)
    run(mute.simulator, mute.state, seated(expert), turns=84, mute=True)
    said = [entry for box in loud.state.inbox.values() for entry in box if entry[1] != "customer"]
    heard = [entry for box in mute.state.inbox.values() for entry in box if entry[1] != "customer"]
    assert said
    assert not heard
    assert mute.state.invalid == 0


def test_an_idle_team_lives_on_what_it_has(office) -> None:
    company = office(days=5)
    total = run(company.simulator, company.state, seated(do_nothing), turns=70)
    assert company.state.won == 0
    assert total["sales"] < 0
