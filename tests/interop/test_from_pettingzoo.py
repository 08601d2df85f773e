"""`pettingzoo:MODULE`: classic games, one role for each agent, paid what PettingZoo's own loop pays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pettingzoo", reason="needs the extra pettingzoo")
pytest.importorskip("pygame", reason="PettingZoo's classic games draw with pygame")

import numpy as np

from onthejob.envs.running import running
from onthejob.errors import ConfigError
from onthejob.interop.from_pettingzoo import PettingZoo, _made, _roles
from onthejob.keys import keyed_choice
from onthejob.plugins import resolve
from onthejob.testing.env_check import check_env
from onthejob.types import Split, StopReason

TICTACTOE, CONNECT, RPS = "pettingzoo.classic.tictactoe_v3", "classic/connect_four_v3", "pettingzoo.classic.rps_v2"

PARALLEL = '''
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

class Pledge(ParallelEnv):
    """Both give 0 to 2; the pot is shared, and the second leaves after one round."""
    metadata = {"name": "pledge"}
    possible_agents = ["Player One", "2"]
    def __init__(self, rounds=2):
        self.rounds, self.render_mode = rounds, None
    def observation_space(self, agent):
        return spaces.Box(0, 9, (1,), np.int64)
    def action_space(self, agent):
        return spaces.Discrete(3)
    def reset(self, seed=None, options=None):
        self.agents, self.left = self.possible_agents[:], self.rounds
        purse = np.random.default_rng(seed).integers(1, 9, 2)
        self.purse = {agent: np.array([value]) for agent, value in zip(self.agents, purse)}
        return dict(self.purse), {agent: {} for agent in self.agents}
    def step(self, actions):
        self.left -= 1
        pot = sum(actions.values())
        paid = {agent: pot / 2 - given for agent, given in actions.items()}
        over = {agent: agent == "2" for agent in self.agents}
        cut = {agent: self.left == 0 and not over[agent] for agent in self.agents}
        seen = {agent: self.purse[agent] for agent in self.agents}
        self.agents = [agent for agent in self.agents if not over[agent] and not cut[agent]]
        return seen, paid, over, cut, {agent: {} for agent in seen}

parallel_env = Pledge

def described(observation, info, env):
    return f"Your purse holds {int(observation[0])}."
'''


def of(what: str, **options: Any) -> PettingZoo:
    return resolve(f"pettingzoo:{what}")(**options)  # type: ignore[return-value]


def choose(names: list[str], seed: int, turn: int) -> str:
    return keyed_choice(names, seed, turn)


def directly(what: str, seed: int, kwargs: str = "") -> dict[str, float]:
    """What PettingZoo's documented loop sums up, with the same choices."""
    game = _made(what, kwargs)
    game.reset(seed=seed)
    sums, turn = dict.fromkeys(game.possible_agents, 0.0), 0
    for agent in game.agent_iter():
        seen, reward, terminated, truncated, info = game.last()
        sums[agent] += float(reward)
        if terminated or truncated:
            game.step(None)
            continue
        mask = seen["action_mask"] if isinstance(seen, dict) else info.get("action_mask")
        count = int(game.action_space(agent).n)
        names = [str(number) for number in range(count) if mask is None or mask[number]]
        game.step(int(choose(names, seed, turn)))
        turn += 1
    game.close()
    return sums


def through_us(env: PettingZoo, seed_of: int) -> tuple[dict[str, float], StopReason | None]:
    run, task = running(env), env.tasks(Split.TRAIN)[seed_of]
    seen, turn, sums, stop = run.reset(task), 0, dict.fromkeys(env.roles, 0.0), None
    while seen is not None:
        step = run.step(choose(seen.view["legal"], task.seed, turn))
        for role, paid in step.rewards.items():
            sums[role] += paid
        seen, stop, turn = step.observation, step.stop, turn + 1
    return sums, stop


@pytest.mark.parametrize("what", [TICTACTOE, CONNECT, RPS, "classic/texas_holdem_v4"])
def test_roles_earn_what_pettingzoos_own_loop_pays(what: str):
    if "texas" in what:
        pytest.importorskip("rlcard", reason="needs rlcard")
    env = of(what, max_turns=500)
    for number in range(4):
        sums, stop = through_us(env, number)
        assert list(sums.values()) == pytest.approx(list(directly(what, env.tasks(Split.TRAIN)[number].seed).values()))
        assert stop is (StopReason.MAX_TURNS if what == RPS else StopReason.DONE)


@pytest.mark.parametrize("what", [TICTACTOE, RPS])
def test_the_promises_of_every_environment_hold(what: str):
    assert check_env(of(what, max_turns=12), tasks=1).forks > 0


def test_an_impossible_move_is_refused_and_not_stepped():
    run = running(of(TICTACTOE))
    seen = run.reset(run.env.tasks(Split.TRAIN)[0])
    assert seen.messages[0].content.startswith("You are player_1.\nReply with one of: 0, 1, 2, 3, 4, 5, 6, 7, 8.\n[[[0, 0]")
    second = run.step("4").observation
    assert second is not None
    assert (second.actor, "4" in second.view["legal"]) == ("player_2", False)
    again = run.step("4")
    assert (again.valid, again.rewards, again.observation.actor) == (False, {"player_2": -1.0}, "player_2")  # type: ignore[union-attr]
    for move in ("0", "2", "1"):
        assert run.step(move).stop is None
    won = run.step("6")
    assert (won.stop, won.rewards) == (StopReason.DONE, {"player_1": 1.0, "player_2": -1.0})


def test_a_round_of_simultaneous_moves_is_hidden_until_it_is_over():
    seen = []
    for first in ("0", "1", "2"):
        run = running(of(RPS))
        run.reset(run.env.tasks(Split.TRAIN)[0])
        seen.append(run.step(first).observation.messages)  # type: ignore[union-attr]
    assert seen[0] == seen[1] == seen[2]


def test_cards_of_the_other_player_are_hidden():
    pytest.importorskip("rlcard", reason="needs rlcard")
    env = of("classic/texas_holdem_v4", names="call,raise,fold,check")
    run = running(env)
    for task in env.tasks(Split.TRAIN)[:4]:
        seen = run.reset(task)
        game: Any = run.env.game  # type: ignore[attr-defined]
        other = next(agent for agent in game.possible_agents if agent != seen.actor)
        shown = seen.messages[0].content
        assert str(np.asarray(game.observe(seen.actor)["observation"]).round(3).tolist()) in shown
        assert str(np.asarray(game.observe(other)["observation"]).round(3).tolist()) not in shown
        assert set(seen.view["legal"]) <= {"call", "raise", "fold", "check"}


def test_a_parallel_environment_of_a_file_has_roles_that_leave(tmp_path: Path):
    file = tmp_path / "pledge.py"
    file.write_text(PARALLEL, encoding="utf-8")
    env = of(str(file), render=f"{file}:described")
    assert env.roles == ("player_one", "agent_2")
    run = running(env)
    first = run.reset(env.tasks(Split.TRAIN)[0])
    assert "You are Player One." in first.messages[0].content
    assert "Your purse holds" in first.messages[0].content
    assert not any(run.step("1").rewards.values())
    paid = run.step("2")
    assert paid.rewards == {"player_one": 0.5, "agent_2": -0.5}
    assert paid.observation is not None
    assert paid.observation.actor == "player_one"
    last = run.step("0")
    assert (last.stop, last.rewards["player_one"]) == (StopReason.MAX_TURNS, 0.0)


def test_arguments_may_change_who_plays():
    pytest.importorskip("rlcard", reason="needs rlcard")
    assert len(of("classic/texas_holdem_v4", kwargs='{"num_players": 4}').roles) == 4


def test_roles_have_names_that_adapters_can_carry():
    found = _roles(["Player 1", "player-1", "0", "Δ"])
    assert list(found.values()) == ["player_1", "player_1_2", "agent_0", "agent"]


@pytest.mark.parametrize(
    ("what", "options", "said"),
    [
        ("pettingzoo.classic.nothing_v0", {}, "there is no module"),
        ("classic/nothing_v0", {}, "is not registered; known are classic/"),
        ("onthejob.keys", {}, "has neither env nor parallel_env"),
        (TICTACTOE, {"kwargs": "{"}, "--env.kwargs must be a JSON object"),
        (TICTACTOE, {"kwargs": '{"no": 1}'}, "cannot be made with --env.kwargs"),
        ("classic/chess_v6", {}, "numbers, and at most 1,000 are written out.*--env.render"),
    ],
)
def test_what_cannot_be_played_is_refused_at_once(what: str, options: dict[str, Any], said: str):
    if "chess" in what:
        pytest.importorskip("chess", reason="needs chess")
    with pytest.raises(ConfigError, match=said):
        of(what, **options).tasks(Split.TRAIN)
