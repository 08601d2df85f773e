"""Action distributions of policies, and the distance that training moved them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from onthejob.rollout.episode import TurnRecord

Counts = dict[str, int]
"""Action -> how often."""
INVALID = "(invalid)"
"""Stands for every reply that was not parsed or not legal."""
UNNAMED = "(unnamed)"
"""Stands for every action of an environment that names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """How one actor's choice of actions differs between two policies."""

    actor: str
    before: Mapping[str, int]
    after: Mapping[str, int]
    drift: float
    """Jensen-Shannon divergence in bits: 0 = equal shares, 1 = no action in common."""
    noise: float
    """Drift that two samples of these sizes from one and the same policy would show on average: smaller drifts mean nothing."""

    def shares(self) -> list[tuple[str, float, float]]:
        """(action, share before, share after), the largest change first; shares in [0, 1]."""
        before, after = max(1, sum(self.before.values())), max(1, sum(self.after.values()))
        actions = sorted({*self.before, *self.after})
        rows = [(name, self.before.get(name, 0) / before, self.after.get(name, 0) / after) for name in actions]
        return sorted(rows, key=lambda row: (-abs(row[2] - row[1]), row[0]))


def action_of(record: TurnRecord) -> str:
    """The environment's own name of what was done (`facts["action"]`); `INVALID` for a reply that did nothing."""
    return str(record.facts.get("action", UNNAMED)) if record.valid else INVALID


def action_counts(
    transcript: Iterable[TurnRecord], actors: Collection[str], action: Callable[[TurnRecord], str] = action_of
) -> dict[str, Counts]:
    """Actor -> action -> how often, for the given actors."""
    counts: dict[str, Counter[str]] = {}
    for record in transcript:
        if record.actor in actors:
            counts.setdefault(record.actor, Counter())[action(record)] += 1
    return {actor: dict(sorted(counter.items())) for actor, counter in sorted(counts.items())}


def merge(parts: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, Counts]:
    """Sum of several results of `action_counts`."""
    total: dict[str, Counter[str]] = {}
    for part in parts:
        for actor, counts in part.items():
            total.setdefault(actor, Counter()).update(counts)
    return {actor: dict(sorted(counter.items())) for actor, counter in sorted(total.items())}


def drift(before: Mapping[str, int], after: Mapping[str, int]) -> float:
    """Jensen-Shannon divergence of two samples in bits, in [0, 1]; NaN when one is empty. Source: Lin (1991)."""
    actions = sorted({*before, *after})
    p = np.array([before.get(name, 0) for name in actions], dtype=float)
    q = np.array([after.get(name, 0) for name in actions], dtype=float)
    if not p.sum() or not q.sum():
        return float("nan")
    return float(_divergence(p / p.sum(), q / q.sum()))


def shifts(
    before: Mapping[str, Mapping[str, int]], after: Mapping[str, Mapping[str, int]], *, seed: int, draws: int = 400
) -> list[Shift]:
    """One `Shift` per actor that acted in both, with the drift that chance alone would show (by simulation, `draws` times)."""
    result = []
    for actor in sorted(set(before) & set(after)):
        first, second = before[actor], after[actor]
        noise = _noise(first, second, np.random.default_rng(np.random.SeedSequence(seed)), draws)
        result.append(Shift(actor=actor, before=first, after=second, drift=drift(first, second), noise=noise))
    return result


def _noise(before: Mapping[str, int], after: Mapping[str, int], rng: np.random.Generator, draws: int) -> float:
    actions = sorted({*before, *after})
    pooled = np.array([before.get(name, 0) + after.get(name, 0) for name in actions], dtype=float)
    sizes = sum(before.values()), sum(after.values())
    if not all(sizes):
        return float("nan")
    shares = pooled / pooled.sum()
    p, q = (rng.multinomial(size, shares, size=draws) / size for size in sizes)
    return float(_divergence(p, q).mean())


def _divergence(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Jensen-Shannon divergence along the last axis, in bits."""
    middle = (p + q) / 2.0
    return np.maximum(0.0, (_relative_entropy(p, middle) + _relative_entropy(q, middle)) / 2.0)


def _relative_entropy(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    ratio = np.divide(p, q, out=np.ones_like(p), where=p > 0)
    return (p * np.log2(ratio)).sum(axis=-1)
