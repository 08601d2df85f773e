"""Self-play against earlier versions of the roles that are trained.

Roles that only meet each other as they are now can go round in circles: what beats the present opponent loses to the one before.
Here one role is trained in an episode, and each of the others plays in it as one of its last versions, drawn evenly from the
present one and those before. Versions that differ from episode to episode are recorded with it, as who played every turn is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onthejob.keys import keyed_choice
from onthejob.types import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Opponents:
    """The versions in which the trained roles can be met."""

    versions: Mapping[str, Sequence[Policy]]
    """Trained role -> its last versions, the present one last; at least two roles."""

    def seated(self, seed: int) -> tuple[str, dict[str, Policy]]:
        """Who is trained in the episode with this seed, and trained role -> who plays it there."""
        learner = keyed_choice(tuple(self.versions), seed, "learner")
        return learner, {
            role: versions[-1] if role == learner else keyed_choice(versions, seed, "opponent", role)
            for role, versions in self.versions.items()
        }
