"""Does a text speak of a feature without naming it? Features of its words for one linear recogniser per feature.

In addition to the words themselves these are the concepts they stand for (`phrases.toml`): who signs in with an account that
the company already has, speaks of single sign-on, whatever the words are.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import lru_cache

from onthejob.envs.office.vaporware.phrasebook import concepts, read_lists, root
from onthejob.envs.office.vaporware.stance import Place, Sentence, features_of

_LONGEST = 70
"""Words that are looked at together: about a paragraph."""


@lru_cache(maxsize=1)
def concepts_of() -> Mapping[str, frozenset[str]]:
    """Feature -> the concepts it is described by."""
    return {feature: frozenset(names.replace(" ", "").split(",")) for feature, names in read_lists()["features"].items()}


def windows(sentences: Sequence[Sentence]) -> list[tuple[int, int]]:
    """(first, end) of runs of sentences of about a paragraph, each starting with the last sentence of the one before."""
    found: list[tuple[int, int]] = []
    first, size = 0, 0
    for number, sentence in enumerate(sentences):
        size += len(sentence.words)
        if size > _LONGEST and number > first:
            found.append((first, number))
            first, size = number - 1, len(sentences[number - 1].words) + len(sentence.words)
    if sentences:
        found.append((first, len(sentences)))
    return found


def topic_features(sentences: Sequence[Sentence]) -> tuple[set[str], list[tuple[int, int, tuple[str, ...]]]]:
    """What is known about the topic of a run of sentences, and (sentence, word, concepts) of every concept in it."""
    found: set[str] = {"one"}
    hits: list[tuple[int, int, tuple[str, ...]]] = []
    present: set[str] = set()
    for number, sentence in enumerate(sentences):
        words = [root(word) for word in sentence.words]
        for word in words:
            found.add(word)
        for one, two in itertools.pairwise(words):
            found.add(f"{one} {two}")
        found.update([f"named {feature}" for _, feature in sentence.names])
        here: set[str] = set()
        for hit in concepts().find(sentence.words):
            hits.append((number, hit.first, hit.kinds))
            here.update(hit.kinds)
        _pair(here, "+", found)
        present |= here
    found.update([kind.upper() for kind in present])
    _pair(present, "&", found)
    return found, hits


def _pair(present: set[str], sign: str, found: set[str]) -> None:
    for mine in concepts_of().values():
        both = sorted(present & mine)
        for i, one in enumerate(both):
            for two in both[i + 1 :]:
                found.add(f"{one.upper()}{sign}{two.upper()}")


def anchor(feature: str, hits: Sequence[tuple[int, int, tuple[str, ...]]]) -> Place | None:
    """Where a feature is described: the first of its concepts in the sentence that has most of them."""
    mine = concepts_of()[feature]
    first: dict[int, int] = {}
    count: dict[int, int] = {}
    for number, word, kinds in hits:
        if not mine.isdisjoint(kinds):
            first.setdefault(number, word)
            count[number] = count.get(number, 0) + 1
    if not count:
        return None
    best = max(count, key=lambda number: (count[number], -number))
    return best, first[best]


def described_at(sentences: Sequence[Sentence], place: Place) -> set[str]:
    """What is known about a feature that is described at `place`, for the judge."""
    return features_of(sentences, [place]) | {"described"}
