"""The examples keep the contract, stay short, and reward good play."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from onthejob.commands.named_env import Workplace
from onthejob.envs.env import Env
from onthejob.envs.exchange import Reply
from onthejob.envs.running import random_legal, running
from onthejob.keys import keyed_choice, keyed_seed
from onthejob.plugins import resolve
from onthejob.testing import check_environment
from onthejob.types import Split

EXAMPLES = Path(__file__).parent.parent / "examples"
LINES = {"guess": 30, "negotiation": 60}
"""Example -> lines that it may have."""
BEST = {"guess": "halving", "negotiation": "easy"}
"""Example -> its scripted player."""


def example(name: str) -> Env:
    return resolve(str(EXAMPLES / f"{name}.py"))()


def played(env: Env, players: Mapping[str, Reply], count: int = 100) -> dict[str, float]:
    """Mean of every metric over `count` tasks; `players` is role -> player."""
    sums: dict[str, float] = {}
    run, tasks = running(env), env.tasks(Split.TRAIN)[:count]
    for task in tasks:
        seen = run.reset(task)
        while seen is not None:
            seen = run.step(players[seen.actor](seen, keyed_seed(task.seed, "play", run.state()["turn"]))).observation
        for name, value in run.state()["metrics"].items():
            sums[name] = sums.get(name, 0.0) + value
    return {name: total / len(tasks) for name, total in sums.items()}


def accepting(seen, seed: int) -> str:
    return "accept" if seen.view["legal"][0] == "accept" else random_legal(seen, seed)


def stubborn(seen, seed: int) -> str:
    return keyed_choice([reply for reply in seen.view["legal"] if reply != "accept"], seed)


def test_every_example_is_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} >= set(LINES)


@pytest.mark.parametrize("name", LINES)
def test_an_example_keeps_the_contract_and_its_size(name: str):
    env = example(name)
    found = check_environment(lambda: running(env), env.tasks(Split.TRAIN)[:6])
    assert found.tasks == 6
    assert found.forks > 0
    assert found.branches > 0
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= LINES[name]
    Workplace(ref=str(EXAMPLES / f"{name}.py"), env=env).check()


@pytest.mark.parametrize("name", LINES)
def test_the_scripted_player_of_an_example_beats_random_play(name: str):
    env = example(name)
    best = env.players()[BEST[name]]
    good, random = (played(env, dict.fromkeys(env.roles, player)) for player in (best, random_legal))
    assert good["reward"] > 1.25 * random["reward"] > 0
    assert good["invalid"] == random["invalid"] == 0


@pytest.mark.parametrize("role", ["buyer", "seller"])
def test_who_accepts_earns_more_than_who_never_agrees_and_random_play(role: str):
    env = example("negotiation")
    easy = env.players()["easy"]
    seats = {"buyer": easy, "seller": easy}
    accepts, tries, random, none = (
        played(env, seats | {role: player})[f"reward/{role}"] for player in (accepting, easy, random_legal, stubborn)
    )
    assert min(accepts, tries) > max(random, none) + 0.5


def test_most_negotiations_can_end_in_a_deal_but_not_all():
    env = example("negotiation")
    run = running(env)
    possible = 0
    for task in env.tasks(Split.TRAIN):
        run.reset(task)
        limits = vars(run.env)["limits"]
        possible += limits["buyer"] > limits["seller"]
    assert 0.6 < possible / 200 < 0.95


@pytest.mark.parametrize("role", ["buyer", "seller"])
def test_a_negotiator_sees_nothing_of_the_other_limit(role: str):
    """Tasks that differ in the other role's limit alone look the same to this one while the offers are the same."""
    env = example("negotiation")
    (other,) = {"buyer", "seller"} - {role}
    seen_in: dict[tuple[int, str], list[object]] = {}
    limits_in: dict[tuple[int, str], set[int]] = {}
    for task in env.tasks(Split.TRAIN):
        run = running(env)
        seen, found = run.reset(task), []
        limits, first = vars(run.env)["limits"], seen.actor
        for turn in range(env.max_turns):
            assert seen is not None
            if seen.actor == role:
                found.append((tuple(seen.messages), dict(seen.view)))
            # Possible whatever the limits are.
            seen = run.step(f"offer {3 + turn if seen.actor == 'buyer' else 14 + turn}").observation
        assert len(found) == env.max_turns // 2
        alike = (limits[role], first)
        assert seen_in.setdefault(alike, found) == found
        limits_in.setdefault(alike, set()).add(limits[other])
    assert sum(len(others) > 1 for others in limits_in.values()) > 20


@pytest.mark.parametrize(
    ("name", "reply"), [("guess", "five"), ("guess", "10"), ("negotiation", "deal"), ("negotiation", "12 coins")]
)
def test_an_example_pays_a_reply_that_cannot_be_used_less_than_none(name: str, reply: str):
    env = example(name)
    run = running(env)
    seen = run.reset(env.tasks(Split.TRAIN)[0])
    step = run.step(reply)
    assert not step.valid
    assert step.rewards[seen.actor] < 0


def test_a_move_that_is_not_possible_now_is_a_usable_reply_that_costs_a_turn():
    env = example("negotiation")
    run = running(env)
    seen = run.reset(env.tasks(Split.TRAIN)[0])
    step = run.step("accept")
    assert step.valid
    assert step.rewards == {seen.actor: -0.2}
    assert step.observation is not None
    assert step.observation.actor == seen.actor


def test_the_sums_are_right():
    env = resolve(f"dataset:{EXAMPLES / 'sums.jsonl'}")(reward="number")
    tasks = [task for split in Split for task in env.tasks(split)]
    assert len({task.payload["prompt"] for task in tasks}) == len(tasks) == 400
    for task in tasks:
        first, second = map(int, task.payload["prompt"].removesuffix(" = ?").split(" + "))
        assert task.payload["answer"] == str(first + second)
