"""Gymnasium's own checks on the six role environments, and that a role's job is the office's."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.utils.env_match import check_environments_match

from onthejob.compat.gymnasium import OfficeRoleEnv, environment_id
from onthejob.envs.office.env import SEATS, OfficeEnvironment
from onthejob.envs.office.tasks import office_tasks
from onthejob.errors import ConfigError, ContractError
from onthejob.models.scripted import ScriptedPolicy
from onthejob.office_players import scripted
from onthejob.types import Split

LAYOUTS: dict[str, dict[str, Any]] = {
    "dict": {},
    "vector": {"observations": "vector"},
    "text": {"observations": "text", "actions": "text"},
    "dict-text": {"actions": "text"},
}


def complaints(run: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(item.message) for item in caught]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("role", SEATS)
def test_the_registered_environments_conform(role: str, layout: str):
    env = gymnasium.make(environment_id(role), **LAYOUTS[layout]).unwrapped
    assert complaints(lambda: check_env(env)) == []


class Restored(gymnasium.Env[Any, Any]):
    """Continues every step in the other one of two environments, which is restored from a snapshot of the first."""

    def __init__(self, make: Callable[[], OfficeRoleEnv]) -> None:
        self._env, self._other = make(), make()
        self.observation_space, self.action_space = self._env.observation_space, self._env.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self._env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self._other.restore(self._env.snapshot())
        self._env, self._other = self._other, self._env
        return self._env.step(action)


@pytest.mark.parametrize("role", ["sales", *(pytest.param(role, marks=pytest.mark.slow) for role in SEATS if role != "sales")])
def test_a_restored_twin_cannot_be_told_from_a_fresh_one(role: str):
    def make() -> OfficeRoleEnv:
        return OfficeRoleEnv(role, teammates="random", profile="full" if role == "ceo" else "compact")

    check_environments_match(make(), Restored(make), num_steps=420, seed=3, info_comparison="equivalence")


def test_a_step_covers_everything_until_the_role_is_asked_again():
    """Against the office itself with the same replies; the rewards of an episode sum to what the office says it paid."""
    (task,) = office_tasks(Split.DEV, seeds=1, scenarios=["churn"])
    env = OfficeRoleEnv("sales", teammates="expert", observations="text", actions="text")
    seen, info = env.reset(options={"task": task})
    total, steps, over = info["before"], 0, False
    own = env.table.env
    while not over:
        pending = own.observe()
        assert pending.actor == "sales"
        assert seen == "\n\n".join(message.content for message in pending.messages)
        seen, reward, over, truncated, info = env.step(pending.view["legal"][steps % len(pending.view["legal"])])
        assert sum(info["parts"].values()) == pytest.approx(reward, abs=1e-9)
        assert not truncated
        assert info["valid"]
        total, steps = total + reward, steps + 1
    assert steps == 60
    assert total == pytest.approx(own.state()["metrics"]["reward_sales"])
    assert own.state()["done"] == "horizon"
    with pytest.raises(ContractError, match="Call reset first"):
        env.step("")


def test_who_the_colleagues_are_matters():
    (task,) = office_tasks(Split.DEV, seeds=1, scenarios=["baseline"])
    idle = ScriptedPolicy(lambda observation, seed: '{"action_type":"IDLE"}', version="idle")

    def value(teammates: Any) -> float:
        env = OfficeRoleEnv("hr", teammates=teammates, actions="text")
        _, _ = env.reset(options={"task": task})
        over = False
        while not over:
            _, _, over, _, _ = env.step('{"action_type":"TEAM_SYNC"}')
        return env.table.env.state()["metrics"]["company_value"]

    everybody = [role for role in SEATS if role != "hr"]
    assert value("expert") > value("random")
    assert value(dict.fromkeys(everybody, idle)) == value("do-nothing")
    # A player and the same player as a policy do the same job; colleagues that are not named are the heuristic.
    assert value({"sales": scripted("do-nothing")}) == value({"sales": "do-nothing"})
    assert value({"sales": "do-nothing"}) != value("heuristic")


def test_a_policy_that_reads_messages_is_given_them():
    read = []

    class Reader:
        version, reads = "reader", "messages"

        def act(self, contexts, sampling):
            read.extend(context.messages for context in contexts)
            return [type("Said", (), {"text": ""})() for _ in contexts]

    env = OfficeRoleEnv("ceo", teammates={"dev": Reader()}, actions="text")
    env.reset(seed=0)
    env.step("")
    assert "You are Alex, dev" in read[0][0].content


def test_environments_run_side_by_side():
    envs = gymnasium.make_vec(environment_id("dev"), num_envs=3, vectorization_mode="sync", observations="vector")
    seen, _ = envs.reset(seed=[1, 2, 1])
    assert seen.shape[0] == 3
    for _ in range(5):
        seen, rewards, _, _, infos = envs.step(np.zeros(3, dtype=np.int64))
        assert infos["action_mask"].shape[0] == 3
    assert (seen[0] == seen[2]).all()
    assert rewards[0] == rewards[2]
    assert (seen[0] != seen[1]).any()
    envs.close()


@pytest.mark.parametrize(
    ("role", "options", "message"),
    [
        ("boss", {}, "role must be one of ceo, dev, marketing, sales, content, hr, got 'boss'"),
        ("customer", {}, "got 'customer'"),
        ("hr", {"teammates": "genius"}, "unknown player 'genius'.*heuristic"),
        ("hr", {"teammates": "carer"}, "refuses the held-out partner 'carer'"),
        ("hr", {"teammates": {"hr": "expert"}}, "teammates of hr are ceo, dev, marketing, sales, content; got one for hr"),
        ("hr", {"teammates": {"boss": "expert"}}, "got one for boss"),
        ("hr", {"days": 91}, "days must be a whole number in 1..90, got 91"),
        ("hr", {"sound": True}, "unknown option sound; known are observations"),
        ("hr", {"render_mode": "rgb_array"}, "render_mode must be None or one of human, ansi"),
    ],
)
def test_options_that_cannot_work_are_refused(role: str, options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        OfficeRoleEnv(role, **options)


@pytest.mark.parametrize("layout", ["dict", "vector"])
def test_action_masks_are_what_is_possible_now(layout: str):
    """The method that sb3-contrib's MaskablePPO calls through every wrapper of `gymnasium.make`."""
    env = gymnasium.make(environment_id("sales"), days=8, **LAYOUTS[layout])
    with pytest.raises(ContractError, match="Call reset first"):
        env.get_wrapper_attr("action_masks")()
    observation, info = env.reset(seed=3)
    rng, over, seen = np.random.default_rng(0), False, set()
    while not over:
        mask = env.get_wrapper_attr("action_masks")()
        shown = info["action_mask"] if layout == "vector" else observation["action_mask"]
        assert isinstance(env.action_space, gymnasium.spaces.Discrete)
        assert (mask.dtype, mask.shape) == (np.bool_, (env.action_space.n,))
        assert mask.tolist() == shown.astype(bool).tolist()
        seen.add(mask.tobytes())
        observation, _, over, _, info = env.step(int(rng.choice(np.flatnonzero(mask))))
        assert info["valid"], "what the mask allows can be executed"
    assert len(seen) > 1
    assert not env.get_wrapper_attr("action_masks")().any(), "nothing is possible when the episode is over"


def test_texts_have_no_mask():
    env = OfficeRoleEnv("sales", actions="text", observations="text")
    env.reset(seed=0)
    with pytest.raises(ContractError, match="only actions='discrete' has a mask"):
        env.action_masks()


def test_maskable_ppo_finds_the_masks():
    maskable = pytest.importorskip("sb3_contrib.common.maskable.utils", reason="the sb3 extra is not installed")
    from stable_baselines3.common.env_util import make_vec_env

    envs = make_vec_env(lambda: gymnasium.make(environment_id("hr"), days=1, **LAYOUTS["vector"]), n_envs=2)
    envs.reset()
    assert maskable.is_masking_supported(envs)
    assert isinstance(envs.action_space, gymnasium.spaces.Discrete)
    assert maskable.get_action_masks(envs).shape == (2, envs.action_space.n)


def test_a_teammate_that_reads_tokens_is_refused():
    policy = ScriptedPolicy(lambda observation, seed: "", version="tokens")
    sampler = type("Sampler", (), {"version": "sales@0001", "reads": "tokens", "act": policy.act})()
    with pytest.raises(ConfigError, match="sales@0001 reads tokens"):
        OfficeRoleEnv("hr", teammates={"sales": sampler})


def test_snapshots_of_something_else_are_refused():
    env, other = OfficeRoleEnv("hr"), OfficeRoleEnv("ceo")
    with pytest.raises(ContractError, match="Call reset first"):
        env.snapshot()
    env.reset(seed=0)
    other.reset(seed=0)
    before = env.snapshot()
    for wrong in (b"", b"\x00\x00\x00\x02{}", before[:-5], OfficeEnvironment.__name__.encode()):
        with pytest.raises(ContractError, match="snapshot"):
            env.restore(wrong)
    with pytest.raises(ContractError, match="ceo is asked, not hr"):
        env.restore(other.snapshot())
    assert env.snapshot() == before


def test_without_gymnasium_the_error_names_the_extra():
    code = "import sys; sys.modules['gymnasium'] = None; import onthejob.compat.gymnasium"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 1
    assert "Install onthejob[gymnasium]" in done.stderr


def test_an_unusable_reply_is_corrected_before_the_colleagues_play():
    plain, patient = (
        gymnasium.make(environment_id("sales"), observations="text", actions="text", retries=retries).unwrapped
        for retries in (0, 2)
    )
    prompt, _ = plain.reset(seed=4)
    assert patient.reset(seed=4)[0] == prompt
    seen, reward, over, cut, info = patient.step("no")
    assert (reward, over, cut, info["valid"], info["retry"], info["parts"]) == (0.0, False, False, False, 1, {})
    assert seen.startswith(prompt + "\n\nYour reply was not usable: ")
    idle = '{"action_type":"IDLE"}'
    assert patient.step(idle) == plain.step(idle)
    with pytest.raises(ConfigError, match="a number is never malformed"):
        gymnasium.make(environment_id("sales"), retries=1)
