"""stand-ins: quick imitations of the policies being trained, which continue branches.

What a reply is worth depends on what its author does afterwards. A branch that a capable scripted partner continues says that
leaving the most valuable thing undone costs next to nothing, because the partner does it two turns later; a policy trained on
that stops doing it. The policies themselves are too slow for thousands of branches. So the environment counts, in the states
that it meets, what the sampled replies chose out of what they could have chosen (`Imitable.habits`), and plays branches on with
players that choose at these rates. Known in game tree search as rollout policies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

Rates = Mapping[str, Mapping[str, float]]
"""Actor -> label -> how often it is chosen where it can be, in (0, 1)."""
Habits = Mapping[str, tuple[float, float]]
"""Label -> (times chosen, times it could have been), of one actor."""

PRIOR_CHOSEN, PRIOR_OFFERED = 0.5, 5.0
"""A label that was never offered is chosen now and then."""


class StandIns:
    """Counts of what each actor chose, of which older ones fade."""

    def __init__(self, *, keep: float = 0.7) -> None:
        """Start without any.

        Args:
            keep: weight that one iteration's counts have left after the next one, in [0, 1).
        """
        self._keep = keep
        self._counts: dict[str, dict[str, tuple[float, float]]] = {}

    def add(self, observed: Iterable[tuple[str, Habits]]) -> None:
        """Count one iteration: (actor, habits) of every group."""
        for labels in self._counts.values():
            labels.update({label: (self._keep * chosen, self._keep * offered) for label, (chosen, offered) in labels.items()})
        for actor, habits in observed:
            labels = self._counts.setdefault(actor, {})
            for label, (chosen, offered) in habits.items():
                before = labels.get(label, (0.0, 0.0))
                labels[label] = (before[0] + chosen, before[1] + offered)

    def rates(self) -> dict[str, dict[str, float]]:
        """What the stand-ins do; actors that were never seen have none."""
        return {
            actor: {
                label: (chosen + PRIOR_CHOSEN) / (offered + PRIOR_OFFERED) for label, (chosen, offered) in sorted(labels.items())
            }
            for actor, labels in sorted(self._counts.items())
        }

    def state(self) -> dict[str, Any]:
        """For a checkpoint, in JSON's types."""
        return {actor: {label: list(pair) for label, pair in labels.items()} for actor, labels in self._counts.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Mapping[str, Any]]) -> Self:
        """The inverse of `state`."""
        made = cls()
        made._counts = {
            actor: {label: (float(chosen), float(offered)) for label, (chosen, offered) in labels.items()}
            for actor, labels in state.items()
        }
        return made
