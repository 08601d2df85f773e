"""Estimates with intervals for evaluation: why a difference between two policies should be believed.

One estimator serves every number of this package: a *ratio of sums over clusters*, sum(numerator) / sum(denominator). A mean
is the ratio with denominator 1; decision quality is the ratio of gains to attainable gains; a paired difference has the
difference as its numerator. The resampling unit is the cluster (usually an episode), because decisions of one episode share
its luck.

The interval is the bias-corrected accelerated bootstrap (BCa), with its quantiles moved outwards as far as Student's t is wider
than the normal (the expanded interval). Chosen by simulation (docs/evaluation.md has the table): plain percentile and BCa
intervals that claim 95 % cover 84 to 88 % with 8 to 20 skewed clusters, expanded BCa 90 to 95 %; the studentised bootstrap covers
a little more, but becomes infinite when most differences are 0, which is what two policies that mostly agree look like. Below
`BOOTSTRAP_CLUSTERS` clusters a bootstrap can hardly leave the range of the data; there Student's t interval is given. Where all
clusters agree no bootstrap sees any spread: outcomes of single tries, which are 0 or 1, get the exact interval of a binomial,
their differences its counterpart, and anything else but 0 has no finite interval below that number of clusters. With strata the
degrees of freedom are Satterthwaite's, because strata differ in spread: four tasks in each of five scenarios count as six to
twelve, not as fifteen.

Source: Efron, Better Bootstrap Confidence Intervals (1987); Hesterberg, What Teachers Should Know About the Bootstrap (2015),
section 4.2; Cochran, Sampling Techniques (1977), chapters 5 and 6 for strata
and the ratio's standard error; Satterthwaite, An Approximate Distribution of Estimates of Variance Components (1946).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from statistics import NormalDist
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onthejob.errors import ConfigError

Method = Literal["bca", "percentile"]
BOOTSTRAP_CLUSTERS = 6
"""From this many clusters on the interval is a bootstrap; below it is Student's t on the same standard error."""
MIN_CLUSTERS = 2
"""One cluster says nothing about spread, so the interval is infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalEstimate:
    """A number with what is known about it."""

    mean: float
    """The estimate; NaN when it is undefined (no data, or a ratio whose denominator is not positive)."""
    low: float
    """Lower end of the interval, in the unit of `mean`; -inf when there are fewer than `MIN_CLUSTERS` clusters."""
    high: float
    """Upper end; +inf when there are fewer than `MIN_CLUSTERS` clusters."""
    n: int
    """Number of values (not clusters)."""
    clusters: int
    """Number of independent units that were resampled."""
    minimum: float = math.nan
    """Smallest single value (for ratios NaN): a mean without it hides the worst episode."""
    level: float = 0.95
    """Nominal coverage of the interval."""

    @property
    def above_zero(self) -> bool:
        """True when the whole interval is above 0."""
        return self.low > 0.0

    @property
    def below_zero(self) -> bool:
        """True when the whole interval is below 0."""
        return self.high < 0.0

    def turned(self) -> IntervalEstimate:
        """The estimate of the second minus the first, of a difference of the first minus the second; without its minimum."""
        return replace(self, mean=-self.mean, low=-self.high, high=-self.low, minimum=math.nan)

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Self:
        """The estimate in a row that `as_dict` wrote, which may have other fields too."""
        missing = {"mean": math.nan, "low": -math.inf, "high": math.inf, "minimum": math.nan}
        stated = {one.name: row[one.name] for one in fields(cls) if one.name in row}
        found: dict[str, Any] = {name: missing.get(name) if value is None else value for name, value in stated.items()}
        return cls(**found)

    def as_dict(self) -> dict[str, float | int | None]:
        """JSON-serialisable form; values that are not finite become None."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in asdict(self).items()
        }


def mean_interval(
    values: ArrayLike,
    clusters: Sequence[Hashable] | None = None,
    *,
    strata: Sequence[Hashable] | None = None,
    seed: int,
    level: float = 0.95,
    resamples: int = 4000,
    method: Method = "bca",
    binary: bool = False,
) -> IntervalEstimate:
    """Mean of `values` (n,) with an interval that treats values of equal cluster as one draw.

    Args:
        values: Finite numbers.
        clusters: One key per value; None makes every value its own cluster.
        strata: One key per value, constant within a cluster: clusters are resampled within their stratum, because the strata
            (scenarios) are a fixed set and no sample. Ignored when some stratum has a single cluster, whose spread is unknown.
        seed: Root of the resampling; equal arguments give equal intervals.
        level: Nominal coverage in (0, 1).
        resamples: Bootstrap replicates, >= 100.
        method: `bca` (expanded, see above) or `percentile` (for comparison with other software).
        binary: Values are 0 or 1, outcomes of single tries: where all agree the interval is the exact one.

    Raises:
        ConfigError: Lengths differ, a value is not finite, or an option is out of range.
    """
    x = _vector(values, "values")
    estimate = ratio_interval(
        x, np.ones_like(x), clusters, strata=strata, seed=seed, level=level, resamples=resamples, method=method
    )
    if not x.size:
        return estimate
    estimate = replace(estimate, minimum=float(x.min()))
    if not binary or estimate.clusters < MIN_CLUSTERS or x.min() != x.max():
        return estimate
    reach = _unanimous(estimate.clusters, level)
    low, high = (0.0, 1.0 - reach) if x[0] == 0.0 else (reach, 1.0)
    return replace(estimate, low=low, high=high)


def paired_difference(
    first: ArrayLike,
    second: ArrayLike,
    clusters: Sequence[Hashable] | None = None,
    *,
    strata: Sequence[Hashable] | None = None,
    seed: int,
    level: float = 0.95,
    resamples: int = 4000,
    method: Method = "bca",
    binary: bool = False,
) -> IntervalEstimate:
    """Mean of `first - second`, where position i of both is the same task, seed or state.

    `minimum` is the smallest single difference. With `binary`, pairs that all differ alike, or not at all, get the exact
    interval: two players who both passed five tasks may differ on the sixth. Arguments and errors as in `mean_interval`.
    """
    a, b = _vector(first, "first"), _vector(second, "second")
    _same_length(a, b, "first and second")
    estimate = mean_interval(a - b, clusters, strata=strata, seed=seed, level=level, resamples=resamples, method=method)
    if not binary or estimate.clusters < MIN_CLUSTERS or not (abs(estimate.mean) == 1.0 or np.array_equal(a, b)):
        return estimate
    reach = _unanimous(estimate.clusters, level)
    if estimate.mean == 0.0:
        return replace(estimate, low=reach - 1.0, high=1.0 - reach)
    # All went one way: each pair would have to be of that sign by chance.
    low, high = sorted((estimate.mean, estimate.mean * (2.0 * reach - 1.0)))
    return replace(estimate, low=low, high=high)


def ratio_interval(
    numerators: ArrayLike,
    denominators: ArrayLike,
    clusters: Sequence[Hashable] | None = None,
    *,
    strata: Sequence[Hashable] | None = None,
    seed: int,
    level: float = 0.95,
    resamples: int = 4000,
    method: Method = "bca",
) -> IntervalEstimate:
    """sum(numerators) / sum(denominators) with a clustered bootstrap interval.

    A ratio of sums, because a mean of ratios is ruled by the states where hardly anything can be gained. `mean` is NaN
    when the denominators do not sum to more than 0. Arguments and errors as in `mean_interval`.
    """
    if not 0.0 < level < 1.0:
        raise ConfigError(f"level must be in (0, 1), got {level}. Use 0.95 for a 95 % interval.")
    if resamples < 100:
        raise ConfigError(f"resamples must be >= 100 to place an interval's ends, got {resamples}. Use 4000.")
    top, bottom = _vector(numerators, "numerators"), _vector(denominators, "denominators")
    _same_length(top, bottom, "numerators and denominators")
    cluster_of = _codes(clusters, top.size, "clusters")
    count = int(cluster_of.max()) + 1 if top.size else 0
    tops = np.bincount(cluster_of, weights=top, minlength=count).astype(np.float64)  # (C,)
    bottoms = np.bincount(cluster_of, weights=bottom, minlength=count).astype(np.float64)
    if not count or bottoms.sum() <= 0.0:
        return IntervalEstimate(mean=math.nan, low=-math.inf, high=math.inf, n=top.size, clusters=count, level=level)
    ratio = float(tops.sum() / bottoms.sum())
    members = _strata_members(strata, cluster_of, count)
    low, high = -math.inf, math.inf
    if count >= MIN_CLUSTERS:
        low, high = _interval(tops, bottoms, members, ratio=ratio, seed=seed, level=level, resamples=resamples, method=method)
    return IntervalEstimate(mean=ratio, low=low, high=high, n=top.size, clusters=count, level=level)


def spearman(first: ArrayLike, second: ArrayLike) -> float:
    """Rank correlation in [-1, 1], ties sharing their mean rank; NaN when one side is constant or n < 2."""
    a, b = _vector(first, "first"), _vector(second, "second")
    _same_length(a, b, "first and second")
    if a.size < 2:
        return math.nan
    ranks_a, ranks_b = _ranks(a), _ranks(b)
    ranks_a, ranks_b = ranks_a - ranks_a.mean(), ranks_b - ranks_b.mean()
    scale = math.sqrt(float(ranks_a @ ranks_a) * float(ranks_b @ ranks_b))
    return float(ranks_a @ ranks_b) / scale if scale > 0.0 else math.nan


def _unanimous(count: int, level: float) -> float:
    """The least probability of an outcome that `count` independent units of `count` had (Clopper and Pearson 1934)."""
    return float(((1.0 - level) / 2.0) ** (1.0 / count))


def _interval(
    tops: NDArray[np.float64],
    bottoms: NDArray[np.float64],
    members: list[NDArray[np.intp]],
    *,
    ratio: float,
    seed: int,
    level: float,
    resamples: int,
    method: Method,
) -> tuple[float, float]:
    """Ends of the interval of a ratio over clusters that are resampled within `members` (one index array per stratum)."""
    # Linearisation: the ratio's error is the mean of these residuals over the mean denominator.
    residuals = [tops[part] - ratio * bottoms[part] for part in members]
    residuals = [residual - residual.mean() for residual in residuals]
    plain = math.sqrt(sum(float((residual**2).sum()) for residual in residuals))
    if plain <= 1e-12 * float(np.abs(tops).sum() + np.abs(ratio * bottoms).sum()):
        # A few units that agree say nothing of spread, except that identical replies differ by nothing.
        return (ratio, ratio) if ratio == 0.0 or tops.size >= BOOTSTRAP_CLUSTERS else (-math.inf, math.inf)
    # Welch and Satterthwaite: a standard error that few noisy strata make up is known less well than as many clusters alike.
    parts = np.array([part.size / (part.size - 1) * float((r**2).sum()) for part, r in zip(members, residuals, strict=True)])
    freedom = float(parts.sum() ** 2 / sum(v**2 / (part.size - 1) for part, v in zip(members, parts, strict=True)))
    t = student_quantile((1.0 + level) / 2.0, freedom)
    fair = math.sqrt(float(parts.sum()))
    if tops.size < BOOTSTRAP_CLUSTERS and method == "bca":
        error = fair / float(bottoms.sum())
        return ratio - t * error, ratio + t * error
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    drawn = [part[rng.integers(0, part.size, size=(resamples, part.size))] for part in members]  # each (R, C_h)
    sums_top = np.sum([tops[index].sum(axis=1) for index in drawn], axis=0)  # (R,)
    sums_bottom = np.sum([bottoms[index].sum(axis=1) for index in drawn], axis=0)
    usable = sums_bottom > 0.0
    ratios = sums_top[usable] / sums_bottom[usable]  # (R,)
    if method == "percentile":
        low, high = np.quantile(ratios, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
        return float(low), float(high)
    normal = NormalDist()
    tolerance = 1e-12 * max(1.0, abs(ratio))
    share = float((ratios < ratio - tolerance).mean() + 0.5 * (np.abs(ratios - ratio) <= tolerance).mean())
    bias = normal.inv_cdf(min(max(share, 1.0 / ratios.size), 1.0 - 1.0 / ratios.size))
    acceleration = sum(float((residual**3).sum()) for residual in residuals) / (6.0 * plain**3)
    reach = t * fair / plain  # Student's t for the normal quantile, and the unbiased for the plug-in standard error
    tails = []
    for z in (bias - reach, bias + reach):
        slope = 1.0 - acceleration * z
        tails.append(normal.cdf(bias + z / slope) if slope > 0.0 else float(z > 0.0))
    low, high = np.quantile(ratios, tails)
    return float(low), float(high)


def student_quantile(probability: float, freedom: float) -> float:
    """Quantile of Student's t for a probability of at least 0.5 and at least one degree of freedom, whole or not.

    To about 1 % (0.1 % from 5 degrees of freedom on), between 1 and 3 at most 3 % too large. Source: Abramowitz and Stegun
    26.7.5; 1 and 2 degrees of freedom are exact, and between whole ones below 3 the logarithm is interpolated in 1 / freedom.
    """
    if freedom < 3.0 and freedom != int(freedom):
        below, above = math.floor(freedom), math.ceil(freedom)
        near = (1.0 / freedom - 1.0 / above) / (1.0 / below - 1.0 / above)
        return student_quantile(probability, below) ** near * student_quantile(probability, above) ** (1.0 - near)
    if freedom == 1.0:
        return math.tan(math.pi * (probability - 0.5))
    if freedom == 2.0:
        return (2.0 * probability - 1.0) * math.sqrt(2.0 / (4.0 * probability * (1.0 - probability)))
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4.0,
        (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / 96.0,
        (3.0 * z**7 + 19.0 * z**5 + 17.0 * z**3 - 15.0 * z) / 384.0,
        (79.0 * z**9 + 776.0 * z**7 + 1482.0 * z**5 - 1920.0 * z**3 - 945.0 * z) / 92160.0,
    )
    return z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms))


def _vector(values: ArrayLike, name: str) -> NDArray[np.float64]:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1:
        raise ConfigError(f"{name} must be one-dimensional, got shape {x.shape}. Pass one number per unit.")
    if not np.isfinite(x).all():
        where = int(np.flatnonzero(~np.isfinite(x))[0])
        raise ConfigError(f"{name} must be finite, got {x[where]} at position {where}. Leave failed units out beforehand.")
    return x


def _same_length(a: NDArray[np.float64], b: NDArray[np.float64], names: str) -> None:
    if a.size != b.size:
        raise ConfigError(f"{names} must have equal length, got {a.size} and {b.size}. Pair them by unit first.")


def _codes(keys: Sequence[Hashable] | None, size: int, name: str) -> NDArray[np.intp]:
    """Keys as integers 0.. in order of first appearance."""
    if keys is None:
        return np.arange(size)
    if len(keys) != size:
        raise ConfigError(f"{name} must hold one key per value, got {len(keys)} keys for {size} values. Pass both aligned.")
    order: dict[Hashable, int] = {}
    return np.array([order.setdefault(key, len(order)) for key in keys], dtype=np.intp)


def _strata_members(strata: Sequence[Hashable] | None, cluster_of: NDArray[np.intp], count: int) -> list[NDArray[np.intp]]:
    """Cluster indices per stratum; one stratum with all of them when strata are absent or one has a single cluster."""
    everything = [np.arange(count)]
    if strata is None:
        return everything
    stratum_of_value = _codes(strata, cluster_of.size, "strata")
    stratum_of = np.full(count, -1, dtype=np.intp)
    for cluster, stratum in zip(cluster_of, stratum_of_value, strict=True):
        if stratum_of[cluster] not in (-1, stratum):
            raise ConfigError(
                f"strata must be constant within a cluster, cluster number {cluster} lies in two. Use finer clusters."
            )
        stratum_of[cluster] = stratum
    members = [np.flatnonzero(stratum_of == stratum) for stratum in range(int(stratum_of.max()) + 1)]
    return members if all(part.size > 1 for part in members) else everything


def _ranks(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 1, ties sharing their mean rank."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((last - counts + 1 + last) / 2.0)[inverse]
