from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onthejob.errors import ConfigError, ContractError
from onthejob.learn.advantage import AdvantageConfig, Signal, advantages, count_signals, estimates, reliability, signal
from onthejob.types import Group, StopReason, Trajectory

from .conftest import make_group, make_turn

STD = AdvantageConfig()
MEAN_ONLY = AdvantageConfig(scale="none")


def group_of(*returns: float, invalid: tuple[int, ...] = (), failed: tuple[int, ...] = ()) -> Group:
    trajectories = tuple(
        Trajectory(
            task_id="t",
            actor="sales",
            turns=(make_turn([1], [2], valid=index not in invalid),),
            rewards=(value,),
            stop=StopReason.ERROR if index in failed else StopReason.BRANCH,
        )
        for index, value in enumerate(returns)
    )
    return Group(key="g", actor="sales", trajectories=trajectories)


def test_hand_worked_group():
    # mean 1.283 / 4 = 0.32075; squared deviations 0.07330556 + 0.09750006 + 0.07330556 + 0.05255556 = 0.29666675;
    # sample deviation sqrt(0.29666675 / 3) = 0.31446612, plus eps 0.0001 = 0.31456612.
    expected = [-0.27075 / 0.31456612, 0.31225 / 0.31456612, -0.27075 / 0.31456612, 0.22925 / 0.31456612]
    np.testing.assert_allclose(advantages(group_of(0.05, 0.633, 0.05, 0.55), STD), expected, rtol=1e-6)
    np.testing.assert_allclose(expected, [-0.860709, 0.992637, -0.860709, 0.728782], atol=1e-6)


def test_without_scaling_only_the_mean_is_subtracted():
    result = advantages(group_of(0.05, 0.633, 0.05, 0.55), MEAN_ONLY)
    np.testing.assert_allclose(result, [-0.27075, 0.31225, -0.27075, 0.22925], rtol=1e-12)


def test_pair():
    # mean 2, deviations -1 and 1, sample deviation sqrt(2)
    np.testing.assert_allclose(advantages(group_of(1, 3), STD), np.array([-1, 1]) / (math.sqrt(2) + 1e-4), rtol=1e-12)


def test_invalid_reply_does_not_move_the_baseline():
    # legal returns 1, 2, 3: mean 2, deviation 1; the invalid one's own return (-50) plays no part: min(-0.9999 - 1, -2) = -2.
    result = advantages(group_of(1, 2, 3, -50, invalid=(3,)), STD)
    np.testing.assert_allclose(result, [-1 / 1.0001, 0, 1 / 1.0001, -2], rtol=1e-12)


def test_invalid_reply_is_placed_below_a_very_bad_legal_one():
    # legal 0, 0, 0, 0, 0, 0, -7 without scaling: mean -1, worst -6, invalid -7
    result = advantages(group_of(0, 0, 0, 0, 0, 0, -7, 9, invalid=(7,)), MEAN_ONLY)
    np.testing.assert_allclose(result, [1, 1, 1, 1, 1, 1, -6, -7], rtol=1e-12)


def test_one_legal_reply_has_no_deviation_and_gets_zero():
    np.testing.assert_array_equal(advantages(group_of(5, 1, 1, invalid=(1, 2)), STD), [0, -2, -2])


def test_equal_legal_returns_with_an_invalid_reply_teach_the_format():
    group = group_of(0.3, 0.1 + 0.2, 0.3, 7, invalid=(3,))
    np.testing.assert_array_equal(advantages(group, STD), [0, 0, 0, -2])
    assert signal(group) is Signal.FORMAT


@pytest.mark.parametrize(
    "group",
    [
        group_of(1, 1, 1, 1),
        group_of(0.1 + 0.2, 0.3),
        group_of(0, 0),
        group_of(1e12, 1e12 * (1 + 1e-12)),
        group_of(1, 2, 3, invalid=(0, 1, 2)),
        group_of(1, 2, failed=(0,)),
        group_of(1, 2, failed=(0, 1)),
        group_of(1, 1, 9, failed=(2,)),
    ],
    ids=["equal", "float noise", "zeros", "large noise", "none legal", "one left", "none left", "equal without the failure"],
)
def test_dead_groups(group):
    assert advantages(group, STD) is None
    assert signal(group) is Signal.DEAD


def test_small_spread_is_alive():
    assert signal(group_of(1.0, 1.0 + 1e-6)) is Signal.RETURN


def test_failed_trajectory_has_no_part_in_the_baseline():
    np.testing.assert_allclose(
        advantages(group_of(1, 3, math.nan, failed=(2,)), STD)[:2], advantages(group_of(1, 3), STD), rtol=0
    )
    assert advantages(group_of(1, 3, 100, failed=(2,)), STD)[2] == 0


def test_singleton_and_missing_rewards_are_errors():
    with pytest.raises(ContractError, match="needs >= 2"):
        advantages(group_of(1.0), STD)
    for missing in (math.nan, math.inf, None):
        with pytest.raises(ContractError, match="finite"):
            advantages(group_of(1.0, missing), STD)


def test_any_invalid_turn_makes_the_trajectory_invalid():
    good, bad = make_turn([1], [2]), make_turn([1], [2], valid=False)
    result = advantages(make_group((1, good), (2, good), (9, [good, bad])), STD)
    assert result[2] == -2
    assert result[0] == -result[1]


def test_a_whole_episode_is_judged_by_its_return_and_not_by_the_form_of_one_reply():
    """The same returns and replies as a branch group, where the best one would be placed at -2 for one invalid reply."""
    good, bad = make_turn([1], [2]), make_turn([1], [2], valid=False)
    branches = make_group((1, good), (2, good), (3, [good, bad]))
    episodes = replace(branches, trajectories=tuple(replace(row, stop=StopReason.DONE) for row in branches.trajectories))
    assert advantages(branches, STD)[2] == -2
    np.testing.assert_allclose(advantages(episodes, STD), [-1 / 1.0001, 0, 1 / 1.0001], rtol=1e-12)
    every = replace(
        branches, trajectories=tuple(replace(row, turns=(bad,), stop=StopReason.MAX_TURNS) for row in branches.trajectories)
    )
    assert signal(every) is Signal.RETURN


def test_large_stakes_can_be_bounded():
    # mean 3, deviations -2, -1 and 3; the invalid one is placed below the bounded ones.
    result = advantages(group_of(1, 2, 6, 0, invalid=(3,)), AdvantageConfig(scale="none", bound=1.5))
    np.testing.assert_allclose(result, [-1.5, -1, 1.5, -2.5])


def test_bad_config():
    for bound in (0.0, -1.0):
        with pytest.raises(ConfigError, match="bound"):
            AdvantageConfig(bound=bound)
    with pytest.raises(ConfigError, match="scale"):
        AdvantageConfig(scale="batch")
    with pytest.raises(ConfigError, match="eps"):
        AdvantageConfig(eps=0)


RETURNS = st.lists(st.integers(-50, 50), min_size=2, max_size=8).filter(lambda values: len(set(values)) > 1)


@given(RETURNS)
def test_advantages_sum_to_zero_and_keep_the_order(returns):
    result = advantages(group_of(*returns), STD)
    assert abs(result.sum()) < 1e-9
    for i in range(len(returns)):
        for j in range(len(returns)):
            assert (result[i] < result[j]) == (returns[i] < returns[j])


@given(RETURNS, st.integers(-100, 100), st.sampled_from([0.25, 4.0, 1024.0]))
def test_shift_does_not_matter_and_scale_only_through_eps(returns, shift, scale):
    exact = AdvantageConfig(eps=1e-12)
    original = advantages(group_of(*returns), exact)
    np.testing.assert_allclose(advantages(group_of(*[r + shift for r in returns]), exact), original, atol=1e-9)
    np.testing.assert_allclose(advantages(group_of(*[r * scale for r in returns]), exact), original, atol=1e-9)


@given(RETURNS, st.data())
def test_order_of_replies_does_not_matter(returns, data):
    order = data.draw(st.permutations(range(len(returns))))
    original = advantages(group_of(*returns), STD)
    np.testing.assert_allclose(advantages(group_of(*[returns[i] for i in order]), STD), original[list(order)], atol=1e-12)


def branched(*rows: tuple[float, ...], invalid: tuple[int, ...] = ()) -> Group:
    """One reply per row of values per world."""
    group = group_of(*(float(np.mean(row)) for row in rows), invalid=invalid)
    keys = [f"reply {index}" for index in range(len(rows))]
    return replace(group, facts={"keys": keys, "by_world": dict(zip(keys, rows, strict=True))})


def test_advantages_shrink_by_what_luck_explains():
    # Worlds 10 and -10 for both; the second reply is 2 better in one world and 6 in the other. Means 0 and 4, spread 16 / 2 = 8;
    # residuals +-1 in all four cells, noise 4 / (1 * 1) / 2 worlds = 2, so 1 - 2 / 8.
    group = branched((10.0, -10.0), (12.0, -4.0))
    assert reliability(group) == pytest.approx(0.75)
    np.testing.assert_allclose(advantages(group, replace(MEAN_ONLY, shrink=True)), [-1.5, 1.5])
    assert reliability(branched((10.0, -10.0), (13.0, -7.0))) == pytest.approx(1.0)


def test_a_spread_that_may_be_luck_teaches_at_most_the_format():
    shrinking = replace(STD, shrink=True)
    lucky = ((10.0, -10.0), (-9.0, 11.0))
    assert reliability(branched(*lucky)) == 0.0
    assert advantages(branched(*lucky), STD) is not None
    assert advantages(branched(*lucky), shrinking) is None
    result = advantages(branched(*lucky, (-50.0, -50.0), invalid=(2,)), shrinking)
    np.testing.assert_allclose(result, [0.0, 0.0, -2.0])


def test_shrinking_leaves_alone_what_is_larger_than_the_noise():
    """Replies that differ by 5 under a noise of 1 a world keep nearly all; replies that do not differ keep little on average."""
    rng = np.random.default_rng(0)
    luck = rng.normal(size=16) * 20.0
    kept, left = [], []
    for _ in range(300):
        noise = rng.normal(size=(4, 16))
        kept.append(reliability(branched(*(tuple(5.0 * i + luck + noise[i]) for i in range(4)))))
        left.append(reliability(branched(*(tuple(luck + noise[i]) for i in range(4)))))
    assert min(kept) > 0.98
    assert np.mean(left) < 0.25


def test_shrinking_needs_values_per_world():
    with pytest.raises(ContractError, match="no values per world"):
        advantages(group_of(1.0, 2.0), replace(STD, shrink=True))
    assert reliability(branched((1.0,), (3.0,))) == 1.0
    assert reliability(branched((1.0, 2.0), (3.0, 4.0), invalid=(1,))) == 0.0


def test_groups_are_counted_by_what_they_teach():
    lucky = branched((-0.5, 0.5), (0.5, -0.5))
    groups = [group_of(1, 2), group_of(1, 3), group_of(1, 1, 0, invalid=(2,)), group_of(2, 2), lucky]
    made = estimates(groups, replace(STD, shrink=False))
    assert count_signals(made) == {
        "groups": 5, "groups_return": 2, "groups_format": 1, "groups_dead": 2, "groups_luck": 0
    }  # fmt: skip
    assert [one.alive for one in made] == [True, True, True, False, False]
    different = branched((-1.0, 2.0), (2.0, -1.0), (0.0, 0.4))
    (one,) = estimates([different], replace(STD, shrink=True))
    assert one.alive
    assert one.advantages is None
    assert count_signals([one])["groups_luck"] == 1
