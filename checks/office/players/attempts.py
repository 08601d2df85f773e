"""Actions that exploiters try although they may be refused."""

from __future__ import annotations

from onthejob.envs.office.actions import Action
from onthejob.envs.office.policies import Legal


def attempt(legal: Legal, name: str, target: str) -> Action | None:
    """The action of that name and target when it is legal; otherwise None: the office refuses it, and the turn is lost."""
    return next((action for action in legal() if (action.action_type, action.target) == (name, target)), None)
