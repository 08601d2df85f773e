"""Prompt sections as objects, and how they are pruned to a token budget.

Two orders are kept apart: sections are rendered in the order given (the call to action comes last, where a model heeds it most)
and dropped from the least important priority upward. What an actor cannot do without (header, KPIs, allowed actions, call to
action) is pinned, because a prompt without its instruction is worse than an error. Nothing is ever cut inside a line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from onthejob.errors import ConfigError

Count = Callable[[str], int]
"""Number of tokens of a text, without special tokens."""

LOWEST = 8


@dataclass(frozen=True, slots=True)
class Section:
    """One block of a prompt."""

    key: str
    """Unique within a prompt; names the section in records and tests."""
    priority: int
    """0 (critical KPIs, pipeline) to 8: the highest number is dropped first, among equals the one rendered last."""
    text: str
    """Without a line break at its end. An empty text renders nothing."""
    pinned: bool = False
    """Never dropped and never cut, whatever its priority."""
    keep_lines: int | None = None
    """When set, the section may be cut line by line from its end down to this many lines before it is dropped whole."""

    def __post_init__(self) -> None:
        if not 0 <= self.priority <= LOWEST:
            raise ConfigError(f"priority of section {self.key!r} must be in 0..{LOWEST}, got {self.priority}.")
        if self.keep_lines is not None and (self.pinned or self.keep_lines < 1):
            detail = "is pinned, so keep_lines has no effect" if self.pinned else f"needs keep_lines >= 1, got {self.keep_lines}"
            raise ConfigError(f"section {self.key!r} {detail}. Set keep_lines only on sections that may be cut.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What fits into a budget."""

    kept: tuple[Section, ...]
    """In render order; a cut section holds its shortened text."""
    dropped: tuple[str, ...]
    """Keys of the omitted sections, in the order of dropping."""
    cut: str | None
    """Key of the section that lost lines (at most one does)."""
    text: str
    """The kept sections joined."""
    tokens: int
    """Token count of `text`."""


def cached(count: Count, *, capacity: int = 65_536) -> Count:
    """`count` with a least-recently-used cache, to be shared by all prompts of one tokenizer; it returns the same numbers.

    Prompts are new every turn, their words are not. Where the tokenizer allows (see `adds_up`), texts are counted word by word,
    so that hardly anything is tokenized twice; otherwise whole texts are kept. `capacity` is in words or texts.
    """
    known = lru_cache(maxsize=capacity)(count)
    if not adds_up(count):
        return known

    def by_words(text: str) -> int:
        # Runs of white space may become tokens of their own, which only the tokenizer knows.
        return known(text) if _RUNS.search(text) else sum(map(known, _WORDS.findall(text)))

    return by_words


_WORDS = re.compile(r"[ ]?\S+\n?")
"""A word with the blank before it and the line break after it: what lies between two tokens of every usual byte-level BPE."""
_RUNS = re.compile(r"[^\S \n]|[ \n][ \n]|^[ \n]|[ ]$")
"""White space other than single blanks and line breaks between words."""


def adds_up(count: Count) -> bool:
    """True when the counts of words, each with the blank before it and the line break after it, add up to the count of a text.

    So it is with byte-level BPE that splits words first (SmolLM2, Llama 3, Qwen). Probed on words that tokenizers like to merge.
    """
    words = ("end.", "a", "...", "7", "-", "x", "{", "é", "()", "word", ":", "$6,000", "🙂", '"', "'s", "A_B", ")", "99", "3d")
    pairs = [(left, right) for left in words for right in words]
    return all(
        count(f"{left} {right}") == count(left) + count(f" {right}")
        and count(f"{left}\n{right}") == count(f"{left}\n") + count(right)
        for left, right in pairs
    )


def prune(sections: Sequence[Section], budget: int, count: Count) -> Pruned:
    """Drop the least important sections until the text, joined by line breaks, has at most `budget` tokens.

    Sections are given up strictly in order: before anything of the next section is touched, the one before it is gone. Therefore
    a larger budget never keeps less. Counts of single lines only find where to start; what is returned was counted as a whole,
    because a tokenizer may merge or split tokens where lines meet.

    Args:
        sections: in render order, with unique keys.
        budget: tokens available for the joined text.
        count: token count of a text; pass one wrapped in `cached`, words recur from turn to turn.

    Raises:
        ConfigError: the pinned sections alone exceed `budget`, or two sections share a key.
    """
    shown = [section for section in sections if section.text]
    if len({section.key for section in shown}) != len(shown):
        raise ConfigError(f"section keys must be unique, got {[section.key for section in shown]}. Rename one of them.")
    order = [i for i, section in enumerate(shown) if not section.pinned]
    order.sort(key=lambda i: (shown[i].priority, i), reverse=True)

    lines = [section.text.split("\n") for section in shown]
    sizes = [[count(line + "\n") for line in block] for block in lines]
    totals = [sum(block) for block in sizes]

    def attempt(final: bool) -> Pruned | None:
        """What is left, when it fits; with `final`, the estimate cannot refuse what the exact count allows."""
        estimate = sum(totals)
        end = next((block for block in reversed(lines) if block), None)
        if end is not None:
            estimate += count(end[-1]) - count(end[-1] + "\n")
        if estimate > budget and not final:
            return None
        text = "\n".join("\n".join(block) for block in lines if block)
        tokens = count(text)
        if tokens > budget:
            return None
        return _result(shown, lines, dropped, text, tokens)

    dropped: list[str] = []
    pruned = attempt(final=not order)
    for i in order:
        if pruned is not None:
            return pruned
        keep = shown[i].keep_lines
        while keep is not None and len(lines[i]) > keep and pruned is None:
            totals[i] -= sizes[i][len(lines[i]) - 1]
            lines[i].pop()
            pruned = attempt(final=False)
        if pruned is None:
            lines[i] = []
            totals[i] = 0
            dropped.append(shown[i].key)
            pruned = attempt(final=len(dropped) == len(order))
    if pruned is not None:
        return pruned
    pinned = ", ".join(section.key for section in shown if section.pinned)
    raise ConfigError(
        f"a prompt budget of {budget} tokens cannot hold the pinned sections ({pinned}), which need "
        f"{count(chr(10).join(section.text for section in shown if section.pinned))}. "
        "Raise the budget or use a model with a larger window."
    )


def _result(shown: Sequence[Section], lines: Sequence[list[str]], dropped: Sequence[str], text: str, tokens: int) -> Pruned:
    kept: list[Section] = []
    cut = None
    for section, block in zip(shown, lines, strict=True):
        if not block:
            continue
        if len(block) <= section.text.count("\n"):
            cut = section.key
            section = replace(section, text="\n".join(block))
        kept.append(section)
    return Pruned(kept=tuple(kept), dropped=tuple(dropped), cut=cut, text=text, tokens=tokens)
