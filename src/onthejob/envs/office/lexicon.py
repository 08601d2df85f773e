"""What the words of a memory say: which of them carry meaning, and how much it matters, by rule."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

_WORD = re.compile(r"[a-z0-9]+")
_STOP = frozenset(
    _WORD.findall(
        "a an and are as at be but by for from had has have i in is it its no not of on or our so that the their they this to up "
        "was we were will with you your"
    )
)
_WEIGHTS: dict[str, int] = {
    word: weight
    for weight, words in (
        (9, "bankrupt churned churn outage crisis lawsuit"),
        (8, "won lost poached poaching breach cancelled resigned"),
        (7, "shipped critical escalated escalation pivot verdict renewed competitor viral"),
        (6, "blocked blocker deadline objection complaint refused overrun referral funding directive"),
        (5, "bug lead demo proposal campaign hired request needs wants feedback pain budget okr"),
        (2, "sync review routine nothing usual"),
    )
    for word in _WORD.findall(words)
}
_ORDINARY = 3


class Lexicon:
    """Words and importance of texts, remembered: one lexicon serves all streams of all forks."""

    __slots__ = ("importance", "terms")

    def __init__(self, *, capacity: int = 8192) -> None:
        self.terms: Callable[[str], frozenset[str]] = lru_cache(maxsize=capacity)(_terms)
        """The words of a text that carry meaning, in lower case and singular."""
        self.importance: Callable[[str], int] = lru_cache(maxsize=capacity)(_importance)
        """How much a text matters, 1-10, by rule: its weightiest word, one more when money is named."""


def _terms(text: str) -> frozenset[str]:
    words = _WORD.findall(text.lower())
    return frozenset(
        word[:-1] if len(word) > 3 and word[-1] == "s" and word[-2] != "s" else word
        for word in words
        if word not in _STOP and (len(word) > 1 or word.isdigit())
    )


def _importance(text: str) -> int:
    words = _WORD.findall(text.lower())
    found = [_WEIGHTS[word] for word in words if word in _WEIGHTS]
    found += [_WEIGHTS[word[:-1]] for word in words if word[-1] == "s" and word not in _WEIGHTS and word[:-1] in _WEIGHTS]
    return min(10, max(found, default=_ORDINARY) + ("$" in text))
