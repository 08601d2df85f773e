"""What a text says about a feature that it names or describes: features of the words around it for a linear judge.

The name itself is replaced, so that what is learned from some features holds for any other.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from onthejob.envs.office.vaporware.phrasebook import root, stance_words, words_of

NAME, OTHER_NAME = "\u2020x", "\u2020y"
"""Stand for the feature that is judged, and for any other."""
_BREAKS = frozenset([",", ":", ";", "(", ")", "—", "–", "-", "but", "while", "although", "because", "whereas", ".", "?"])
_REACH = 12
"""Words on each side of a name in which pairs of kinds of words are looked at."""
_FAR = 45
"""Words on each side of a name, and of a neighbouring sentence, that are looked at at all."""


Place = tuple[int, int]
"""(sentence, word)."""


class Sentence(NamedTuple):
    """The words of a sentence, with a feature's name as one word, and what kinds of words they are."""

    words: tuple[str, ...]
    kinds: tuple[tuple[str, ...], ...]
    """For every word the kinds of the phrase that begins here."""
    names: tuple[tuple[int, str], ...]
    """(place, feature) for every name."""


def sentence_of(text: str, spans: Sequence[tuple[str, int, int]] = (), *, asks: bool = False) -> Sentence:
    """Take a normalised sentence apart.

    `spans` are (feature, start, end) of the names in it, in order; `asks`: it ends with a question mark, not part of `text`.
    """
    words: list[str] = []
    names: list[tuple[int, str]] = []
    done = 0
    for feature, start, end in spans:
        words += words_of(text[done:start])
        names.append((len(words), feature))
        words.append(OTHER_NAME)
        done = end
    words += words_of(text[done:])
    if asks:
        words.append("?")
    kinds: list[tuple[str, ...]] = [()] * len(words)
    for hit in stance_words().find(words):
        kinds[hit.first] = hit.kinds
    return Sentence(tuple(words), tuple(kinds), tuple(names))


def features_of(sentences: Sequence[Sentence], places: Sequence[Place]) -> set[str]:
    """What is known about a feature that is named at `places` (sentence, word) of consecutive `sentences`."""
    found: set[str] = {"one"}
    add = found.add
    feature = dict(sentences[places[0][0]].names).get(places[0][1], "")
    within = {place for place, _ in places}
    for number, place in places:
        _around(sentences[number], place, feature, add)
    first, last = min(within), max(within)
    if first > 0:
        _neighbour(sentences[first - 1], "p", add)
    if last + 1 < len(sentences):
        _neighbour(sentences[last + 1], "n", add)
        if last + 2 < len(sentences):
            _neighbour(sentences[last + 2], "m", add)
    if first > 1:
        _neighbour(sentences[first - 2], "q", add)
    total = sum(len(sentence.words) for sentence in sentences)
    add(f"size{min(total // 4, 8)}")
    add(f"many{min(len(places), 3)}")
    add(f"of{min(sum(len(s.names) for s in sentences) - len(places), 3)}")
    add(f"sentences{min(len(sentences), 3)}")
    return found


def plain_words(sentence: Sentence) -> int:
    """How many words besides names a sentence has."""
    return sum([word[0].isalnum() for word in sentence.words])


def _neighbour(sentence: Sentence, side: str, add) -> None:
    if sentence.names:
        side += "y"
    words = sentence.words[:_FAR]
    for word, kinds in zip(words, sentence.kinds, strict=False):
        add(f"{side} {word}")
        if word.isalpha():
            stem = root(word)
            add(f"{side} ~{stem}")
            add(f"t ~{stem}")
        for kind in kinds:
            add(f"{side} {kind.upper()}")
            add(f"t {kind.upper()}")
    for one, two in itertools.pairwise(words):
        add(f"{side} {one} {two}")
    if words:
        add(f"{side}0 {words[0]}")
        for kind in sentence.kinds[0]:
            add(f"{side}0 {kind.upper()}")
    _pairs([kind for kinds in sentence.kinds for kind in kinds][:16], side, add)


def _pairs(kinds: list[str], side: str, add) -> None:
    for i, one in enumerate(kinds):
        for two in kinds[i + 1 :]:
            if one != two:
                add(f"{side} {one.upper()} {two.upper()}")


def _around(sentence: Sentence, place: int, feature: str, add) -> None:
    begin = max(0, place - _FAR)
    until = place + _FAR
    names = {i - begin: name for i, name in sentence.names if begin <= i < until}
    place -= begin
    words = [NAME if names.get(i) == feature else word for i, word in enumerate(sentence.words[begin:until])]
    kinds = sentence.kinds[begin:until]
    size = len(words)
    left = max((i + 1 for i in names if i < place and names[i] != feature), default=0)
    right = min((i for i in names if i > place and names[i] != feature), default=size)
    near = ["^", "^", "^", *words, "$", "$", "$"][place : place + 7]
    for i in (0, 1, 2, 4, 5, 6):
        add(f"{i - 3} {near[i]}")
    for i in range(6):
        add(f"{i - 3}.. {near[i]} {near[i + 1]}")
    for i in range(5):
        add(f"{i - 3}... {near[i]} {near[i + 1]} {near[i + 2]}")
    add(f"~ {near[2]} {near[4]}")
    add(f"~ {near[1]} {near[2]} {near[4]} {near[5]}")
    for step in (-3, -2, -1, 1, 2, 3):
        if 0 <= place + step < size:
            for kind in kinds[place + step]:
                add(f"{step} {kind.upper()}")
    start = place
    while start > 0 and words[start - 1] not in _BREAKS:
        start -= 1
    end = place + 1
    while end < size and words[end] not in _BREAKS:
        end += 1
    if end - start <= 3:
        add(f"clause{end - start}")
    add("first" if place == 0 else "last" if place == size - 1 else "inside")
    if end < size:
        add(f"end {words[end]}")
    if start > 0:
        add(f"start {words[start - 1]}")
    before: list[str] = []
    after: list[str] = []
    for i, word in enumerate(words):
        side = "<" if i < place else ">"
        if i == place:
            continue
        add(f"s {word}")
        stem = root(word) if word.isalpha() else ""
        if stem:
            add(f"s ~{stem}")
            add(f"t ~{stem}")
        own = left <= i < right
        clause = start <= i < end
        if own:
            add(f"o{side} {word}")
            if stem:
                add(f"o{side} ~{stem}")
        if clause:
            add(f"c{side} {word}")
        for kind in kinds[i]:
            kind = kind.upper()
            add(f"s {kind}")
            add(f"t {kind}")
            if own:
                add(f"o{side} {kind}")
                if abs(i - place) <= _REACH:
                    (before if i < place else after).append(kind)
            else:
                add(f"y{side} {kind}")
            if clause:
                add(f"c{side} {kind}")
    for i, word in enumerate(words[:-1]):
        add(f"s {word} {words[i + 1]}")
    before, after = before[-14:], after[:14]
    _pairs(before, "<", add)
    _pairs(after, ">", add)
