"""segments: where an iteration's segments begin, who plays in them, and whose decisions are trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onthejob.keys import keyed_choice, keyed_seed, keyed_uniform
from onthejob.rollout.episode import Encoder, LiveEpisode
from onthejob.rollout.library import SnapshotLibrary
from onthejob.rollout.opponents import Opponents
from onthejob.rollout.play import begin, policy_for, start
from onthejob.types import Forkable, Policy, Task


@dataclass(slots=True, kw_only=True)
class Segment:
    """A part of an episode that is being played."""

    index: int
    """Number within the iteration."""
    env: Forkable
    live: LiveEpisode
    """In `env`."""
    learners: frozenset[str]
    """Actors whose decisions become groups."""
    policies: Mapping[str, Policy]
    """Actor -> who plays it."""
    seed: int
    origin: str
    """`fresh` or `library`."""
    partners: bool
    """True where one learner plays among the environment's scripted partners."""
    begun: int
    """Where in the episode it began, as `Entry.day` counts."""

    def end_unheld(self) -> bool:
        """End it where the next reply belongs to a conversation from before its start, of which the tokens are not known."""
        if self.live.holds_context(policy_for(self.live, self.policies)):
            return False
        self.live.cut()
        return True


def begin_segment(
    index: int,
    env: Forkable,
    task: Task,
    *,
    policies: Mapping[str, Policy],
    partners: Mapping[str, Policy],
    trained: Sequence[str],
    library: SnapshotLibrary,
    partner_library: SnapshotLibrary,
    fresh_share: float,
    partner_share: float,
    opponents: Opponents | None,
    actor: str | None,
    encoder: Encoder,
    seed: int,
) -> Segment:
    """Begin segment `index` of an iteration, at the start of `task` or in a state of a library.

    Args:
        index: number of the segment, which keys everything random in it.
        env: in which it is played.
        task: for a segment that starts at the beginning of a task.
        policies: actor -> current policy.
        partners: actor -> scripted policy.
        trained: actors whose decisions become groups.
        library: states to start from.
        partner_library: the same for segments among partners.
        fresh_share: share of segments that start with their task, in [0, 1].
        partner_share: share of segments among partners, in [0, 1].
        opponents: whom a trained actor meets in segments that are not played among partners; None meets all as they are now.
        actor: is asked in the state where it begins, where the library has such a one; segments that ask the same actor in the
            same round share a batch.
        encoder: messages -> token ids.
        seed: root of the iteration.
    """
    own = keyed_seed(seed, "segment", index)
    among_partners = keyed_uniform(own, "partners") < partner_share
    states = partner_library if among_partners else library
    fresh = len(states) == 0 or keyed_uniform(own, "fresh") < fresh_share
    begun = 0
    if fresh:
        live = start(env, task, encoder=encoder)
    else:
        entry = states.sample(own, "start", actor=actor)
        begun = entry.day
        live = LiveEpisode(env, entry.task, None, encoder=encoder, start=entry.snapshot)
        begin(live, lambda: env.restore(entry.snapshot))
    learners = {keyed_choice(tuple(trained), own, "learner")} if among_partners else set(trained)
    seats = {**partners, **policies}
    if among_partners:
        seats = {name: seats[name] if name in learners else partners.get(name, seats[name]) for name in seats}
    elif opponents is not None:
        learner, met = opponents.seated(own)
        learners, seats = {learner}, {**seats, **met}
    return Segment(
        index=index,
        env=env,
        live=live,
        learners=frozenset(learners),
        policies=seats,
        seed=own,
        origin="fresh" if fresh else "library",
        partners=among_partners,
        begun=begun,
    )


def count_origins(segments: Sequence[Segment]) -> dict[str, int]:
    """How many segments began `fresh`, from the `library`, and how many are played among `partners`."""
    counts = {"fresh": 0, "library": 0, "partners": 0}
    for segment in segments:
        counts[segment.origin] += 1
        counts["partners"] += int(segment.partners)
    return counts
