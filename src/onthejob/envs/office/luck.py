"""Keyed randomness: every draw is a hash of (seed, world, subsystem, entity, time), so the order of execution does not matter.

Two branches that differ in one action meet the same luck everywhere else; that is what makes their difference an advantage and
not noise. The mixer is splitmix64's finaliser (Steele, Lea, Flood 2014) over the summed keys.
"""

from __future__ import annotations

import math
from enum import IntEnum

_MASK = (1 << 64) - 1


class Sub(IntEnum):
    """Subsystems that draw. Append only: renumbering changes every episode."""

    DEMAND = 1
    ARRIVALS = 2
    SEGMENT = 3
    PAIN = 4
    SIZE = 5
    QUALITY = 6
    NAME = 7
    CLOSE = 8
    OBJECTION = 9
    CHURN = 10
    BUGS = 11
    SHIP_BUGS = 12
    BLOCKER = 13
    EVENT = 14
    EVENT_KIND = 15
    CAMPAIGN_LAG = 16
    AB_TEST = 17
    CUSTOMER = 18
    EXPANSION = 19
    REFERRAL = 20
    FOLLOW_UP = 21
    ATTRITION = 22
    POLICY = 23
    URGENCY = 24


def mix(*keys: int) -> int:
    """Combine integers into one 64-bit key."""
    x = 0x9E3779B97F4A7C15
    for key in keys:
        x = (x ^ (key & _MASK)) * 0xBF58476D1CE4E5B9 & _MASK
        x ^= x >> 31
    return x


def draw(key: int, sub: int, entity: int, when: int) -> float:
    """A uniform number in [0, 1) for this key, subsystem, entity and time."""
    x = (key + sub * 0x9E3779B97F4A7C15 + entity * 0xC2B2AE3D27D4EB4F + when * 0x165667B19E3779F9) & _MASK
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & _MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & _MASK
    return ((x ^ (x >> 31)) >> 11) * 1.1102230246251565e-16


def poisson(u: float, mean: float, most: int = 12) -> int:
    """The Poisson quantile of `u` in [0, 1), capped at `most`: monotone in `mean`, so that branches stay coupled."""
    p = total = math.exp(-mean)
    n = 0
    while u > total and n < most:
        n += 1
        p *= mean / n
        total += p
    return n


def poisson_mean(mean: float, most: int) -> float:
    """Expectation of a Poisson number of this mean that is cut at `most`."""
    p = math.exp(-mean)
    below = expected = 0.0
    for n in range(most):
        below += p
        expected += 1.0 - below
        p *= mean / (n + 1)
    return expected


def choose(u: float, weights: list[float] | tuple[float, ...]) -> int:
    """Index of the weighted category that `u` in [0, 1) falls into."""
    u *= sum(weights)
    for index, weight in enumerate(weights):
        u -= weight
        if u < 0:
            return index
    return len(weights) - 1
