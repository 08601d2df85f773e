"""Reflections: what an agent concludes from how its own actions went, by template, and what a model wrote instead."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

MAX_TEXT = 240
"""Characters of an insight or a plan."""
_CITED = re.compile(r"\[([\d\s,;#]*)\]")
_NUMBER = re.compile(r"\d{1,9}")
_RATED = re.compile(r"(\d{1,9})\]?\s*[=:]\s*(\d{1,2})\b")
_MARKUP = " -*•#`_\t"
_LIST_MARK = re.compile(r"^\(?\d+[.):]\s*")


class ActionOutcome(NamedTuple):
    """How own actions of one sort went; one action, or the sum of several."""

    action_type: str
    target_class: str
    """What kind of thing was acted on, e.g. `fintech lead`; chosen by the environment."""
    tries: int
    """At least 1."""
    wins: int
    gain: float
    """Sum of rewards."""


Tally = dict[tuple[str, str], tuple[ActionOutcome, list[int]]]


def tally_up(outcomes: Iterable[tuple[int, ActionOutcome]]) -> Tally:
    """Outcomes summed by what was done to what, with the ids they came from."""
    tally: Tally = {}
    for number, new in outcomes:
        key = (new.action_type, new.target_class)
        old, numbers = tally.get(key, (ActionOutcome(*key, 0, 0, 0.0), []))
        tally[key] = (ActionOutcome(*key, old.tries + new.tries, old.wins + new.wins, old.gain + new.gain), [*numbers, number])
    return tally


def _extremes(own: Tally) -> tuple[ActionOutcome | None, ActionOutcome | None]:
    """What paid best and what failed worst, each None when nothing did; sorts tried at least twice come first."""
    outcomes = [outcome for outcome, _ in own.values()]
    ranked = sorted(outcomes, key=lambda o: (o.gain / o.tries, o.action_type, o.target_class))
    repeated = [o for o in ranked if o.tries >= 2] or ranked
    best = next((o for o in reversed(repeated) if o.wins and o.gain >= 0), None)
    worst = next((o for o in repeated if (2 * o.wins < o.tries or o.gain < 0) and o != best), None)
    return best, worst


def _said(outcome: ActionOutcome) -> str:
    return f"{outcome.action_type} on {outcome.target_class}" if outcome.target_class else outcome.action_type


def outcome_insights(own: Tally) -> list[tuple[str, tuple[int, ...], ActionOutcome]]:
    """(sentence, evidence ids, what it is about): at most one on what to continue and one on what to change."""
    found = []
    for outcome, advice in zip(_extremes(own), ("it pays", "something else may be better"), strict=True):
        if outcome is not None:
            times = f"{outcome.wins} of {outcome.tries} times, {outcome.gain / outcome.tries:+.1f} each"
            evidence = tuple(own[outcome.action_type, outcome.target_class][1])
            found.append((f"{_said(outcome)} worked {times}: {advice}.", evidence, outcome))
    return found


def meta_insights(over: Tally) -> list[tuple[str, tuple[int, ...]]]:
    """At most two sentences on what several reflections said of the same thing."""
    found = []
    for outcome, numbers in sorted(over.values(), key=lambda pair: (-pair[0].tries, pair[0]))[:2]:
        rate = outcome.wins / outcome.tries
        verdict = "rely on it" if rate >= 2 / 3 else "stop it" if rate <= 1 / 3 else "it depends on the case"
        text = f"Over {len(numbers)} reviews {_said(outcome)} worked {outcome.wins} of {outcome.tries} times: {verdict}."
        found.append((text, tuple(numbers)))
    return found


def plan_text(own: Tally, topics: Sequence[str]) -> str:
    """One line that follows from the outcomes and from what keeps coming up."""
    best, worst = _extremes(own)
    parts = [f"more {_said(best)}"] if best is not None else []
    parts += [f"less {_said(worst)}"] if worst is not None else []
    parts += [f"keep an eye on {', '.join(topics)}"] if topics else []
    return "; ".join(parts) or "go on as before"


class SaidText(NamedTuple):
    """One line of a reflection that a model wrote."""

    text: str = ""
    """Of an insight or a plan; empty for a line of ratings."""
    evidence: tuple[int, ...] = ()
    plans: bool = False
    ratings: tuple[tuple[int, int], ...] = ()
    """(id, importance) as they were written."""


def read_reflection(text: str, known: Collection[int]) -> Iterator[SaidText]:
    """The usable lines of what a model wrote to `memory.reflection_prompt`; of cited ids those in `known`."""
    for line in text.splitlines():
        words = "".join(c if c.isprintable() else " " for c in line).strip(_MARKUP)
        if words.casefold().startswith("importance:"):
            yield SaidText(ratings=tuple((int(number), int(importance)) for number, importance in _RATED.findall(words)))
            continue
        cited = {int(number) for group in _CITED.findall(words) for number in _NUMBER.findall(group)}
        evidence = tuple(sorted(number for number in cited if number in known))
        words = " ".join(_LIST_MARK.sub("", _CITED.sub("", words)).split()).strip(_MARKUP)[:MAX_TEXT].rstrip()
        if words.casefold().startswith("plan:") and any(c.isalpha() for c in words):
            yield SaidText(words[5:].strip(_MARKUP), evidence, plans=True)
        elif any(c.isalpha() for c in words):
            yield SaidText(words, evidence)
