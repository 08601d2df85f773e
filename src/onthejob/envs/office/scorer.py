"""The rule scorer: how well-formed a reply is, 0 to 1.45 in named parts.

A metric, never a reward and no gate: it knows nothing of what the action did, so a constant reply can reach the maximum, and the
players that please it most are exploits (docs/metrics.md has the figures).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from onthejob.envs.office.actions import Extracted, canonical_type, extract, split_message
from onthejob.envs.office.roles import ROLES, Role

MAX_SCORE = 1.45
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Named parts of one reply's score."""

    json: float = 0.0
    """0.30 when the reply holds a JSON object (the size, depth and number limits of `actions` apply)."""
    clean: float = 0.0
    """0.10 when it is that object and nothing else."""
    action_type: float = 0.0
    """0.20 when the object names an action."""
    legal: float = 0.0
    """0.30 when the role may do that action, -0.20 when not."""
    reasoning: float = 0.0
    """0.20 for 10 or more words, 0.10 for 5 or more."""
    target: float = 0.0
    """0.10 when it is not empty."""
    known_target: float = 0.0
    """0.10 when it names one of the given entities."""
    message: float = 0.0
    """0.10 when it reads `role: text`."""
    parameters: float = 0.0
    """0.05 when there are any."""

    @property
    def total(self) -> float:
        """Sum of the parts, 0 to 1.45, exact to the cent."""
        return round(sum(getattr(self, name) for name in PARTS), 2)

    def as_dict(self) -> dict[str, float]:
        """Part name -> value, without the total."""
        return {name: getattr(self, name) for name in PARTS}


PARTS: tuple[str, ...] = tuple(field.name for field in fields(Score))


def score_reply(reply: str, role: Role, *, entities: Collection[str] = ()) -> Score:
    """Score `reply` as one of `role`; never raises because of what a model wrote.

    `entities` are names in the role's view (customers, features, ...) that a target may refer to.
    """
    found = extract(reply)
    if not isinstance(found, Extracted):
        return Score()
    written = found.fields.get("action_type")
    named = isinstance(written, str) and bool(written.strip())
    legal = isinstance(written, str) and named and canonical_type(written) in ROLES[role].actions
    target = _text(found.fields.get("target"))
    words = len(_text(found.fields.get("reasoning")).split())
    parameters = found.fields.get("parameters")
    return Score(
        json=0.30,
        clean=0.10 if found.clean else 0.0,
        action_type=0.20 if named else 0.0,
        legal=(0.30 if legal else -0.20) if named else 0.0,
        reasoning=0.20 if words >= 10 else 0.10 if words >= 5 else 0.0,
        target=0.10 if target else 0.0,
        known_target=0.10 if target and _refers(target, entities) else 0.0,
        message=0.10 if split_message(_text(found.fields.get("message")))[0] is not None else 0.0,
        parameters=0.05 if isinstance(parameters, dict) and parameters else 0.0,
    )


def entities(view: Mapping[str, Any], features: Iterable[str]) -> list[str]:
    """Names that a role's target may refer to: the features, and the accounts on its desk."""
    desks = (view.get(desk) for desk in ("leads", "customers"))
    return [*features, *(account["name"] for desk in desks if isinstance(desk, list) for account in desk)]


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def _refers(target: str, entities: Collection[str]) -> bool:
    """True when all words of an entity's name follow each other in `target`, whatever their case and punctuation."""
    said = f" {' '.join(_WORD.findall(target.casefold()))} "
    names = (" ".join(_WORD.findall(entity.casefold())) for entity in entities)
    return any(name and f" {name} " in said for name in names)
