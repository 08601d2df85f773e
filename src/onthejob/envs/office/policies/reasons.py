"""The expert that says why: its decisions, each with a sentence written from the rule that fired and from what the view shows.

For demonstrations with the full prompt, which asks for reasoning: `onthejob collect --env.profile full --policy
expert-explained`. Luck chooses the wording, and whether a colleague hears of it: one decision in three without a request of its
own tells a colleague whom it concerns. Requests (`need PAIN`, `approve NAME`) stay as the scripted colleagues understand them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from onthejob.envs.office.actions import Action
from onthejob.envs.office.handlers.content import VERB_OF
from onthejob.envs.office.policies import Legal, View
from onthejob.envs.office.policies.expert import decide
from onthejob.envs.office.policies.heuristic import PAIN_OF

TOLD = 3
"""One decision in so many tells a colleague."""
SENTENCES = Path(__file__).with_name("sentences.toml")


class Wordings(NamedTuple):
    """Sentences of one rule of the expert, with slots for facts."""

    reasons: tuple[str, ...]
    """Why the rule fired."""
    messages: tuple[tuple[str, str], ...]
    """Colleague and message about it."""


@lru_cache(maxsize=1)
def wordings() -> Mapping[tuple[str, str], Wordings]:
    """(role, rule of `expert`) -> its wordings, from `sentences.toml`."""
    found: dict[tuple[str, str], Wordings] = {}
    for role, rules in tomllib.loads(SENTENCES.read_text(encoding="utf-8")).items():
        for rule, texts in rules.items():
            messages = (message.partition(": ") for message in texts.get("messages", ()))
            found[role, rule] = Wordings(tuple(texts["reasons"]), tuple((to, text) for to, _, text in messages))
    return found


def explained(view: View, legal: Legal, luck: float) -> Action | None:
    """The expert's decision with its reason, and now and then with a message about it."""
    action, rule = decide(view)
    role = view["role"]
    reasons, messages = wordings()[role, rule]
    # One number between 0 and 1 gives three choices, the later ones from its later digits.
    choice, rest = _choose(luck, len(reasons))
    facts = _FACTS[role](view, action)
    action = replace(action, reasoning=reasons[choice].format_map(facts))
    told, rest = _choose(rest, TOLD)
    if action.message_to is not None or not messages or told:
        return action
    choice, _ = _choose(rest, len(messages))
    to, text = messages[choice]
    return replace(action, message_to=to.format_map(facts), message=text.format_map(facts))


def _choose(luck: float, number: int) -> tuple[int, float]:
    """(which of `number`, what is left of the luck)."""
    scaled = luck * number
    return int(scaled), scaled % 1.0


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number or 'no'} {noun}s"


def _common(v: View, a: Action) -> dict[str, Any]:
    return {**v, "target": a.target}


def _ceo(v: View, a: Action) -> Mapping[str, Any]:
    held = v["envelopes"].get(a.target, 0)
    return _common(v, a) | {
        "visits": f"{v['traffic']:,.0f}",
        "held": f"{100 * held:,} dollars",
        "features": _count(len(v["shipped"]), "feature"),
        "open": _count(v["leads"], "open lead"),
        "served": _count(v["customers"], "customer"),
    }


def _dev(v: View, a: Action) -> Mapping[str, Any]:
    left = v["build"].get(a.target, 0)
    return _common(v, a) | {
        "pain": PAIN_OF.get(a.target, ""),
        "turns": _count(left, "turn"),
        "after": f"{_count(left - 1, 'turn')} to go" if left > 1 else "done, it ships next",
        "criticals": _count(v["bugs"]["critical"], "critical bug"),
        "majors": _count(v["bugs"]["major"], "major bug"),
        "remain": _count(v["days"] - v["day"], "day"),
    }


def _marketing(v: View, a: Action) -> Mapping[str, Any]:
    segment = next((name for name, pain in v["research"].items() if pain == a.target), "")
    return _common(v, a) | {
        "feature": next((name for name in (*v["new"], *v["shipped"]) if PAIN_OF[name] == a.target), ""),
        "segment": segment,
        "visits": f"{v['traffic'].get(a.target, 0):,.0f}",
        "rate": f"{v['conversion'] / 10:.1f} %",
        "open": _count(v["leads"], "open lead"),
        "days_left": _count(v["intel"], "day"),
    }


def _sales(v: View, a: Action) -> Mapping[str, Any]:
    account = next((one for one in (*v["leads"], *v["customers"]) if one["name"] == a.target), {})
    idle = account.get("idle", account.get("silent", 0))
    return _common(v, a) | {
        "pain": account.get("pain", ""),
        "size": {"S": "small", "M": "medium", "L": "large"}.get(account.get("size", ""), ""),
        "objections": _count(account.get("objections", 0), "objection"),
        "idle": "today" if idle == 0 else f"{_count(idle, 'day')} ago",
        "silent": _count(idle, "day"),
        "mood": account.get("mood", 0),
    }


def _content(v: View, a: Action) -> Mapping[str, Any]:
    mine = (one for one in v["drafts"] if one["topic"] == a.target and VERB_OF[one["kind"]] == a.action_type)
    draft = next(mine, {"kind": "", "left": 0})
    return _common(v, a) | {
        "kind": draft["kind"].replace("_", " "),
        "turns": _count(draft["left"], "turn"),
        "after": f"{_count(draft['left'] - 1, 'turn')} to go" if draft["left"] > 1 else "it is out",
        "proof": v["evidence"].get(a.target, 0.0),
    }


def _hr(v: View, a: Action) -> Mapping[str, Any]:
    return _common(v, a) | {
        "held": f"{100 * v['envelope']:,} dollars",
        "okr_days": _count(v["okr_left"], "day"),
    }


_FACTS = {"ceo": _ceo, "dev": _dev, "marketing": _marketing, "sales": _sales, "content": _content, "hr": _hr}
