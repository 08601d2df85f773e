"""The reward against numbers worked by hand, and its bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onthejob.envs.claw.episode_reward import RewardConfig, reward_parts
from onthejob.envs.claw.grader import CheckedAssertion, Grade
from onthejob.errors import ConfigError


def grade(passed: int, total: int) -> Grade:
    return Grade(verdicts=tuple(CheckedAssertion(kind="file_exists", path=str(i), passed=i < passed) for i in range(total)))


def reward(passed: int, total: int, turns: int, config: RewardConfig | None = None) -> float:
    return sum(reward_parts(grade(passed, total), turns=turns, max_turns=12, config=config or RewardConfig()).values())


def test_the_article_s_examples():
    assert reward(5, 5, 4) == pytest.approx(0.9333, abs=1e-4)
    assert reward(5, 5, 2) == pytest.approx(0.9667, abs=1e-4)
    assert reward(5, 5, 12) == pytest.approx(0.8)
    assert reward(3, 5, 12) == pytest.approx(0.4)
    assert reward(0, 5, 1) == pytest.approx(-0.2 / 12)


def test_mode_and_penalty():
    assert reward(5, 5, 12, RewardConfig(turn_penalty=0.5)) == pytest.approx(0.5)
    assert reward(5, 5, 12, RewardConfig(turn_penalty=0.0)) == 1.0
    binary = RewardConfig(mode="binary")
    assert [reward(passed, 5, 12, binary) for passed in (5, 4, 0)] == [1.0, 0.0, 0.0]
    assert reward(0, 0, 1, binary) == 0.0
    assert reward_parts(grade(1, 2), turns=6, max_turns=12, config=RewardConfig()) == {"assertions": 0.5, "turns": -0.1}


@given(st.integers(0, 8), st.integers(0, 8), st.integers(1, 40), st.floats(0, 10))
def test_bounds_and_order(passed: int, total: int, turns: int, penalty: float):
    passed = min(passed, total)
    config = RewardConfig(turn_penalty=penalty)
    value = reward(passed, total, turns, config)
    assert -penalty - 1e-9 <= value <= 1.0
    assert value <= reward(passed, total, turns - 1, config) if turns > 1 else True
    if passed < total:
        assert value < reward(passed + 1, total, turns, config)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "dense"}, "one of shaped, binary"),
        ({"turn_penalty": -0.1}, ">= 0"),
        ({"turn_penalty": float("nan")}, ">= 0"),
        ({"mode": "binary", "turn_penalty": 0.2}, "has no turn penalty"),
    ],
)
def test_bad_options_are_refused(options: dict, said: str):
    with pytest.raises(ConfigError, match=said):
        RewardConfig(**options)
