"""Learned weights of the vaporware detector: is a mention a promise, is it for later, which feature does a text describe?

All are linear with whole-number weights, so that a verdict is the same on every machine. `benchmarks/train_vaporware.py` makes
the file of weights from the pieces under `tests/data` and the word lists; nothing is learned at run time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

WEIGHTS = Path(__file__).with_name("weights.json")


class Judge:
    """Scores; zero is the border that the training chose between the two answers."""

    def __init__(
        self,
        claim: Mapping[str, int],
        coming: Mapping[str, int],
        topics: Mapping[str, Mapping[str, int]],
        bounds: Mapping[str, int],
    ) -> None:
        """Take the weights.

        Args:
            claim: of "the text claims to have the feature, or that it comes"; positive speaks for it.
            coming: of "it comes" against "it is there".
            topics: feature -> weights of "the text speaks of it".
            bounds: what a score must reach: `named`, `described`, `denied` and `open` for a claim, `topic` and `coming`.
        """
        self._claim = claim
        self._coming = coming
        self._known = frozenset(claim), frozenset(coming)
        self._bounds = bounds
        self.features = tuple(topics)
        """Features whose descriptions are known."""
        self._topics: dict[str, list[tuple[int, int]]] = {}
        """Feature of a text -> (number of a product's feature, weight)."""
        for number, weights in enumerate(topics.values()):
            for feature, weight in weights.items():
                self._topics.setdefault(feature, []).append((number, weight))
        self._topical = frozenset(self._topics)

    def is_claim(self, found: Iterable[str], *, described: bool = False, leaning: bool | None = None) -> bool:
        """True when the words around a mention claim that the feature is there or comes.

        Args:
            found: what is known about the mention.
            described: the feature is not named.
            leaning: whether it is thought to be denied, where only a sure judge may contradict that.
        """
        weights = self._claim
        score = sum([weights[feature] for feature in self._known[0].intersection(found)])
        bound = self._bounds["described" if described else "named"]
        if leaning is not None:
            bound = self._bounds["denied" if leaning else "open"]
        return score >= bound

    def is_coming(self, found: Iterable[str]) -> bool:
        """True when a claim is one for later."""
        weights = self._coming
        return sum([weights[feature] for feature in self._known[1].intersection(found)]) >= self._bounds["coming"]

    def topics(self, found: Iterable[str]) -> list[str]:
        """The features that a text describes."""
        scores = [0] * len(self.features)
        topics = self._topics
        for feature in self._topical.intersection(found):
            for number, weight in topics[feature]:
                scores[number] += weight
        bound = self._bounds["topic"]
        return [feature for feature, score in zip(self.features, scores, strict=True) if score >= bound]


@lru_cache(maxsize=1)
def shipped_judge() -> Judge:
    """The judge with the weights of this package."""
    weights = json.loads(WEIGHTS.read_text(encoding="utf-8"))
    return Judge(weights["claim"], weights["coming"], weights["topics"], weights["bounds"])
