"""Estimates against hand-worked numbers, an independent implementation, and the truth in simulations."""

import math

import numpy as np
import pytest

from onthejob.errors import ConfigError
from onthejob.evaluate.statistics import (
    IntervalEstimate,
    mean_interval,
    paired_difference,
    ratio_interval,
    spearman,
    student_quantile,
)


def test_a_mean_by_hand() -> None:
    estimate = mean_interval([1.0, 2.0, 3.0, 6.0], seed=0)
    assert (estimate.mean, estimate.minimum, estimate.n, estimate.clusters) == (3.0, 1.0, 4, 4)
    assert estimate.low < 3.0 < estimate.high


def test_a_ratio_is_a_ratio_of_sums_and_no_mean_of_ratios() -> None:
    # The mean of the four ratios would be (1 + 0.3 + 0 + 0.5) / 4 = 0.45.
    estimate = ratio_interval([1.0, 9.0, 0.0, 2.0], [1.0, 30.0, 5.0, 4.0], seed=0)
    assert estimate.mean == 12.0 / 40.0
    assert math.isnan(estimate.minimum)


def test_the_same_seed_gives_the_same_interval_and_another_seed_another() -> None:
    values = np.random.default_rng(1).normal(size=30)
    assert mean_interval(values, seed=5) == mean_interval(values, seed=5)
    assert mean_interval(values, seed=5).low != mean_interval(values, seed=6).low


def test_shift_and_scale_move_the_interval_exactly() -> None:
    values = np.random.default_rng(2).exponential(size=25)
    plain, moved = mean_interval(values, seed=3), mean_interval(10.0 * values + 7.0, seed=3)
    assert moved.low == pytest.approx(10.0 * plain.low + 7.0)
    assert moved.high == pytest.approx(10.0 * plain.high + 7.0)


def test_a_paired_difference_removes_what_both_share() -> None:
    rng = np.random.default_rng(3)
    luck = rng.normal(scale=100.0, size=40)
    first, second = luck + 1.0 + rng.normal(scale=0.5, size=40), luck + rng.normal(scale=0.5, size=40)
    difference = paired_difference(first, second, seed=0)
    assert difference.above_zero
    assert not difference.below_zero
    assert difference.high - difference.low < 1.0
    assert mean_interval(first, seed=0).high - mean_interval(first, seed=0).low > 30.0


def test_percentile_intervals_agree_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(4).gamma(2.0, size=40)
    ours = mean_interval(values, seed=0, method="percentile", resamples=20_000)
    theirs = stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=20_000, rng=np.random.default_rng(9)
    ).confidence_interval
    assert ours.low == pytest.approx(theirs.low, abs=0.02)
    assert ours.high == pytest.approx(theirs.high, abs=0.02)


def test_bca_is_wider_than_scipys_by_what_expansion_adds() -> None:
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(4).exponential(size=400)  # with many clusters the expansion vanishes
    ours = mean_interval(values, seed=0, resamples=20_000)
    theirs = stats.bootstrap(
        (values,), np.mean, method="BCa", n_resamples=20_000, rng=np.random.default_rng(9)
    ).confidence_interval
    assert ours.low == pytest.approx(theirs.low, abs=0.004)
    assert ours.high == pytest.approx(theirs.high, abs=0.004)
    small = values[:12]
    wide, narrow = (
        mean_interval(small, seed=0),
        stats.bootstrap((small,), np.mean, method="BCa", rng=np.random.default_rng(9)).confidence_interval,
    )
    assert wide.low < narrow.low
    assert wide.high > narrow.high


def test_intervals_of_normal_data_are_as_wide_as_the_t_interval() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(5)
    widths = []
    for trial in range(60):
        values = rng.normal(size=20)
        ours = mean_interval(values, seed=trial, resamples=1000)
        theirs = stats.t.interval(0.95, 19, loc=values.mean(), scale=values.std(ddof=1) / math.sqrt(20))
        widths.append((ours.high - ours.low) / (theirs[1] - theirs[0]))
    assert np.mean(widths) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_few_clusters_get_the_t_interval(count: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(count).normal(size=count)
    ours = mean_interval(values, seed=0)
    theirs = stats.t.interval(0.95, count - 1, loc=values.mean(), scale=values.std(ddof=1) / math.sqrt(count))
    assert ours.low == pytest.approx(theirs[0], rel=0.01)
    assert ours.high == pytest.approx(theirs[1], rel=0.01)


def test_student_quantiles_agree_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for freedom in (1, 1.5, 2, 2.5, 3, 4.7, 5, 10, 100):
        for probability in (0.95, 0.975, 0.995):
            tolerance = 0.06 if freedom == 1.5 else 0.015 if freedom < 5 else 0.002
            assert student_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=tolerance)


def test_two_policies_that_mostly_agree_get_a_finite_honest_interval() -> None:
    gains = [0.0] * 14 + [1.0, 1.2, 0.4, -0.1]
    estimate = mean_interval(gains, seed=0)
    assert math.isfinite(estimate.low)
    assert -0.1 < estimate.low < estimate.mean < estimate.high < 1.2
    # The best possible score in all clusters but two: the interval must not leave what resampling can give.
    attained = ratio_interval([2.0, 3.0, 1.5, 1.0, -0.4, 2.5, 6.0, 1.2], [2.0, 3.0, 1.5, 2.3, 1.4, 2.5, 6.0, 1.2], seed=0)
    assert 0.2 < attained.low < attained.mean < attained.high <= 1.0


def coverage(method: str, *, clusters: int, size: int, clustered: bool, trials: int = 250) -> float:
    """Share of intervals that hold the true mean 0 of skewed, clustered data."""
    rng = np.random.default_rng(6)
    keys = np.repeat(np.arange(clusters), size)
    hits = 0
    for trial in range(trials):
        shared = rng.exponential(size=clusters) - 1.0
        values = shared[keys] + 0.3 * rng.normal(size=clusters * size)
        estimate = mean_interval(
            values,
            list(keys) if clustered else None,
            seed=trial,
            resamples=400,
            method=method,  # type: ignore[arg-type]
        )
        hits += estimate.low <= 0.0 <= estimate.high
    return hits / trials


def test_expanded_bca_covers_skewed_small_samples_better_than_percentile() -> None:
    ours = coverage("bca", clusters=12, size=1, clustered=True)
    percentile = coverage("percentile", clusters=12, size=1, clustered=True)
    assert ours >= 0.90
    assert ours > percentile + 0.02


def test_ignoring_clusters_claims_far_too_much() -> None:
    assert coverage("bca", clusters=15, size=8, clustered=True) >= 0.89
    assert coverage("bca", clusters=15, size=8, clustered=False) <= 0.75


def test_ratio_intervals_cover_the_true_ratio() -> None:
    rng, hits, trials = np.random.default_rng(7), 0, 250
    for trial in range(trials):
        bottom = rng.exponential(size=25) + 0.2
        top = 0.4 * bottom + 0.3 * rng.normal(size=25) * bottom
        estimate = ratio_interval(top, bottom, seed=trial, resamples=400)
        hits += estimate.low <= 0.4 <= estimate.high
    assert 0.87 <= hits / trials <= 0.99


def test_strata_remove_the_spread_between_scenarios() -> None:
    rng = np.random.default_rng(8)
    strata = [name for name in "abcde" for _ in range(4)]
    values = np.repeat([0.0, 10.0, 20.0, 30.0, 40.0], 4) + rng.normal(size=20)
    within, without = mean_interval(values, strata=strata, seed=0), mean_interval(values, seed=0)
    assert within.mean == without.mean
    assert within.high - within.low < 0.2 * (without.high - without.low)


def test_stratified_intervals_cover() -> None:
    rng, hits, trials = np.random.default_rng(9), 0, 250
    strata = [name for name in "abcde" for _ in range(4)]
    for trial in range(trials):
        values = np.repeat([-2.0, -1.0, 0.0, 1.0, 2.0], 4) + rng.exponential(size=20) - 1.0
        estimate = mean_interval(values, strata=strata, seed=trial, resamples=400)
        hits += estimate.low <= 0.0 <= estimate.high
    assert 0.90 <= hits / trials <= 0.99


def test_a_noisy_stratum_among_quiet_ones_is_known_as_well_as_it_alone() -> None:
    """The error is that of two values, so of one degree of freedom, not of the three that five values in two strata have."""
    stats = pytest.importorskip("scipy.stats")
    estimate = mean_interval([-3.0, 3.0, -1e-6, 0.0, 1e-6], strata=list("aabbb"), seed=0)
    error = math.sqrt(2 * np.var([-3.0, 3.0], ddof=1)) / 5
    assert estimate.high == pytest.approx(stats.t.ppf(0.975, 1) * error, rel=1e-6)
    assert estimate.low == -estimate.high
    # Where strata are alike they count together.
    alike = mean_interval([-3.0, 3.0, 3.0, -3.0], strata=list("aabb"), seed=0)
    assert alike.high == pytest.approx(stats.t.ppf(0.975, 2) * math.sqrt(4 * 18.0) / 4, rel=1e-6)


def test_a_stratum_of_one_falls_back_to_plain_resampling() -> None:
    values = [1.0, 2.0, 4.0, 8.0, 9.0]
    assert mean_interval(values, strata=list("aaaab"), seed=0) == mean_interval(values, seed=0)


def test_one_cluster_makes_no_claim() -> None:
    estimate = mean_interval([3.0, 4.0], ["a", "a"], seed=0)
    assert (estimate.mean, estimate.low, estimate.high) == (3.5, -math.inf, math.inf)
    assert estimate.as_dict()["low"] is None
    assert not estimate.above_zero


def test_no_values_and_no_headroom_are_undefined_and_not_zero() -> None:
    assert math.isnan(mean_interval([], seed=0).mean)
    assert math.isnan(ratio_interval([1.0] * 5, [-1.0] * 5, seed=0).mean)


def test_equal_values_have_no_width() -> None:
    estimate = mean_interval([2.0] * 6, seed=0)
    assert (estimate.low, estimate.high) == (2.0, 2.0)


@pytest.mark.parametrize("count", [2, 5, 40])
def test_shares_on_which_all_agree_get_the_exact_binomial_interval(count: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    exact = stats.binomtest(count, count).proportion_ci(method="exact")
    every, none = (mean_interval([value] * count, seed=0, binary=True) for value in (1.0, 0.0))
    assert (every.low, every.high) == pytest.approx((exact.low, 1.0))
    assert (none.low, none.high) == pytest.approx((0.0, 1.0 - exact.low))


def test_a_few_pairs_of_one_sign_are_no_evidence_and_many_are() -> None:
    for size, binary in ((1.0, True), (1.0, False), (250.0, False)):
        few = paired_difference([size] * 5, [0.0] * 5, seed=0, binary=binary)
        assert not few.above_zero
        assert few.mean == size
        many = paired_difference([size] * 20, [0.0] * 20, seed=0, binary=binary)
        assert many.above_zero
        below = paired_difference([0.0] * 20, [size] * 20, seed=0, binary=binary)
        assert (below.low, below.high) == (-many.high, -many.low)
    same = paired_difference([3.0] * 3, [3.0] * 3, seed=0)
    assert (same.low, same.high) == (0.0, 0.0)


def test_players_who_both_passed_a_few_tasks_are_not_known_to_be_equal() -> None:
    passed = [1.0] * 5
    same = paired_difference(passed, passed, seed=0, binary=True)
    alone = mean_interval(passed, seed=0, binary=True)
    assert (same.low, same.mean, same.high) == pytest.approx((alone.low - 1.0, 0.0, 1.0 - alone.low))
    some = paired_difference([1.0, 0.0] * 10, [1.0, 0.0] * 10, seed=0, binary=True)
    assert -0.2 < some.low < 0.0 < some.high < 0.2


def test_spearman_by_hand_and_with_ties() -> None:
    # Ranks 1 2 3 4 5 against 2 1 4 3 5: rho = 1 - 6 * 4 / (5 * 24) = 0.8
    assert spearman([1, 2, 3, 4, 5], [20, 10, 40, 30, 50]) == pytest.approx(0.8)
    assert spearman([1, 2, 3], [9, 5, 1]) == pytest.approx(-1.0)
    assert math.isnan(spearman([1, 2, 3], [4, 4, 4]))
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(10)
    first, second = rng.integers(0, 5, size=50), rng.integers(0, 5, size=50)
    assert spearman(first, second) == pytest.approx(stats.spearmanr(first, second).statistic)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: mean_interval([1.0, math.nan], seed=0), "finite"),
        (lambda: mean_interval([1.0, 2.0], ["a"], seed=0), "one key per value"),
        (lambda: paired_difference([1.0], [1.0, 2.0], seed=0), "equal length"),
        (lambda: mean_interval([1.0], seed=0, level=1.5), "level"),
        (lambda: mean_interval([1.0], seed=0, resamples=3), "resamples"),
        (lambda: mean_interval([1.0, 2.0], ["a", "a"], strata=["x", "y"], seed=0), "constant within"),
    ],
)
def test_bad_input_is_refused(call, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        call()


def test_an_estimate_is_json_serialisable() -> None:
    assert IntervalEstimate(mean=1.0, low=0.5, high=1.5, n=3, clusters=3).as_dict()["minimum"] is None
