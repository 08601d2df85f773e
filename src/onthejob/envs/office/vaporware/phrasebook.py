"""Which kinds of words a text has: lists of English words and phrases by what they say about a feature.

The lists are in `phrases.toml`. This file only finds them in a sequence of words, at the cost of a few look-ups a word.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

LISTS = Path(__file__).with_name("phrases.toml")
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*|'(?:s|ll|re|ve|d|m)\b|[?:,()\"“”—–;]|\s-\s|[.!]+|['\"]")
_SHORT_FORMS = {
    "can't": ["can", "not"],
    "cannot": ["can", "not"],
    "cant": ["can", "not"],
    "won't": ["will", "not"],
    "wont": ["will", "not"],
    "shan't": ["shall", "not"],
    "dont": ["do", "not"],
    "doesnt": ["does", "not"],
    "let's": ["let", "us"],
}
_TAILS = ("'s", "'ll", "'re", "'ve", "'d", "'m")
_INDEXED = 3
"""Letters by which entries with any ending are looked up; none is shorter."""


class Hit(NamedTuple):
    """A word or phrase of the lists in a text."""

    first: int
    last: int
    kinds: tuple[str, ...]


class Phrasebook:
    """Phrases by kind, found by their words."""

    def __init__(self, lists: Mapping[str, str], *, by_root: bool = False) -> None:
        """Index the lists.

        Args:
            lists: kind -> entries, separated by commas; `*` at the end of a single word stands for any ending.
            by_root: compare words by their root, so that inflected forms need no entry.
        """
        self.by_root = by_root
        kinds: dict[tuple[str, ...], list[str]] = {}
        beginnings: dict[str, list[str]] = {}
        for kind, entries in lists.items():
            for entry in filter(None, (entry.strip() for entry in entries.replace("\n", " ").split(","))):
                if entry.endswith("*") and " " not in entry:
                    beginnings.setdefault(entry[:-1], []).append(kind)
                else:
                    words = self._key(words_of(entry.removesuffix("*")))
                    if kind not in kinds.setdefault(words, []):
                        kinds[words].append(kind)
        self._words = {words[0]: tuple(found) for words, found in kinds.items() if len(words) == 1}
        self._phrases: dict[tuple[str, ...], tuple[str, ...]] = {
            words: tuple(found) for words, found in kinds.items() if len(words) > 1
        }
        self._starts = {words[:size] for words in self._phrases for size in range(2, len(words) + 1)}
        self._openings = {words[0] for words in self._phrases}
        self._beginnings: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
        for beginning, found in beginnings.items():
            self._beginnings.setdefault(beginning[:_INDEXED], []).append((beginning, tuple(found)))

    def _key(self, words: Sequence[str]) -> tuple[str, ...]:
        return tuple(map(root, words)) if self.by_root else tuple(words)

    def find(self, words: Sequence[str]) -> list[Hit]:
        """The longest phrase at each place, none overlapping."""
        keys = self._key(words)
        hits: list[Hit] = []
        first, size = 0, len(keys)
        while first < size:
            word = keys[first]
            last, kinds = first, self._words.get(word, ())
            if word in self._openings:
                end = first + 2
                while end <= size and (phrase := keys[first:end]) in self._starts:
                    if phrase in self._phrases:
                        last, kinds = end - 1, self._phrases[phrase]
                    end += 1
            if not kinds:
                for beginning, found in self._beginnings.get(word[:_INDEXED], ()):
                    if word.startswith(beginning):
                        kinds = found
            if kinds:
                hits.append(Hit(first, last, kinds))
            first = last + 1
        return hits


def words_of(text: str) -> list[str]:
    """Words and the punctuation that matters, of a normalised text; short forms are taken apart: do not, we 'll."""
    words: list[str] = []
    for word in _WORD.findall(text):
        if ("'" in word and len(word) > 1) or word in _SHORT_FORMS:
            words += _take_apart(word)
        else:
            words.append(word.strip() if word[0] != "." and word[0] != "!" else ".")
    return words


def _take_apart(word: str) -> list[str]:
    if word in _SHORT_FORMS:
        return _SHORT_FORMS[word]
    if word.endswith("n't") and len(word) > 3:
        return [word[:-3], "not"]
    for tail in _TAILS:
        if word.endswith(tail):
            return [word[: -len(tail)], tail] if len(word) > len(tail) else [tail]
    return [word]


@lru_cache(maxsize=20_000)
def root(word: str) -> str:
    """A word without the endings of English: bills, billed and billing are one."""
    if len(word) <= 3:
        return word
    for ending, instead in (("ies", "y"), ("ied", "y"), ("ings", ""), ("ing", ""), ("ed", ""), ("es", ""), ("s", ""), ("ly", "")):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            word = word[: -len(ending)] + instead
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "sl":
        word = word[:-1]
    return word[:-1] if len(word) > 3 and word[-1] == "e" else word


@lru_cache(maxsize=1)
def read_lists() -> Mapping[str, Mapping[str, str]]:
    """The file: section -> kind -> entries."""
    return tomllib.loads(LISTS.read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def stance_words() -> Phrasebook:
    """What words around a name say about it."""
    return Phrasebook(read_lists()["stance"])


@lru_cache(maxsize=1)
def concepts() -> Phrasebook:
    """What a feature is about."""
    return Phrasebook(read_lists()["concepts"], by_root=True)
