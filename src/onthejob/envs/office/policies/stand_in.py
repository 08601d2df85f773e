"""A quick imitation of any policy, fitted to what it replied: how often unusable, as the expert would, else of which type.

Agreement with the expert is what makes the imitation depend on the state at the price of one rule list; the rest is a table.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from onthejob.envs.office.actions import Action, Invalid
from onthejob.envs.office.policies import Legal, View
from onthejob.envs.office.policies.expert import expert

INVALID, EXPERT = "invalid", "expert"
"""Labels in addition to the action types."""
UNSEEN = 0.1
"""Rate of a type that was never offered where replies were counted."""


def habits(view: View, legal: Sequence[Action], replies: Sequence[Action | Invalid]) -> dict[str, tuple[float, float]]:
    """Label -> (times `replies` chose it, times they could have), in one state.

    `invalid` and `expert` could be chosen by every reply; the types by those that are neither. An illegal reply is `Invalid`.
    """
    own = expert(view, list, 0.5)
    best = None if own is None else (own.action_type, own.target)
    labels = [_label(reply, best) for reply in replies]
    count = len(labels)
    others = [label for label in labels if label not in (INVALID, EXPERT)]
    found = {label: (float(labels.count(label)), float(count)) for label in (INVALID, EXPERT)}
    for name in dict.fromkeys(action.action_type for action in legal):
        if others:
            found[name] = (float(others.count(name)), float(len(others)))
    return found


def _label(reply: Action | Invalid, best: tuple[str, str] | None) -> str:
    if isinstance(reply, Invalid):
        return INVALID
    return EXPERT if (reply.action_type, reply.target) == best else reply.action_type


class StandIn:
    """The player with these habits."""

    def __init__(self, rates: Mapping[str, float]) -> None:
        """Take `rates`: label -> how often it is chosen where it can be."""
        self._rates = rates
        self._invalid = rates.get(INVALID, 0.0)
        # Smoothed rates of the two may exceed 1 together.
        self._expert = min(rates.get(EXPERT, 0.0), 1.0 - self._invalid)

    def __call__(self, view: View, legal: Legal, luck: float) -> Action | None:
        """Unusable, the expert's action, or a type by its rate among the legal ones with a target at random."""
        if luck < self._invalid:
            return None
        if luck < self._invalid + self._expert:
            return expert(view, legal, 0.5)
        actions = legal()
        types = list(dict.fromkeys(action.action_type for action in actions))
        if not types:
            return None
        total = list(accumulate(self._rates.get(name, UNSEEN) for name in types))
        place = (luck - self._invalid - self._expert) / (1.0 - self._invalid - self._expert) * total[-1]
        index = min(bisect_right(total, place), len(types) - 1)
        before = total[index - 1] if index else 0.0
        targets = [action for action in actions if action.action_type == types[index]]
        return targets[min(int((place - before) / (total[index] - before) * len(targets)), len(targets) - 1)]
