"""Choices of a player that only pretends to work: the first legal action of a list of types."""

from __future__ import annotations

from types import MappingProxyType

from onthejob.envs.office.actions import Action
from onthejob.envs.office.policies import Legal, View

INERT: MappingProxyType[str, tuple[str, ...]] = MappingProxyType({
    "ceo": ("REVIEW_STRATEGY",), "dev": ("REVIEW_PR", "REFACTOR"), "marketing": ("ANALYZE_COMPETITOR",),
    "sales": ("UPDATE_PIPELINE",), "content": ("WRITE_SOCIAL_POST",), "hr": ("TEAM_SYNC",),
})  # fmt: skip
"""Role -> what changes as little as possible."""


def pick(legal: Legal, *names: str, luck: float) -> Action | None:
    """The first of these action types that is legal now, with a target chosen by luck."""
    actions = legal()
    for name in names:
        options = [action for action in actions if action.action_type == name]
        if options:
            return options[int(luck * len(options))]
    return actions[0] if actions else None


def inert(view: View, legal: Legal, luck: float) -> Action | None:
    """What changes as little as possible."""
    return pick(legal, *INERT[view["role"]], luck=luck)
