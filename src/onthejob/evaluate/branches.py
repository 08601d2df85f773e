"""Branch values with a memory: plays only what the cache does not hold, and stores it as it goes.

The playing itself is `onthejob.rollout.branch.BranchScorer`, the same that scores training's groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from onthejob.errors import ContractError
from onthejob.evaluate.cache import BranchKey, BranchValue, EvaluationCache
from onthejob.evaluate.states import HeldOutState
from onthejob.rollout.branch import BranchFailure, BranchJob, BranchScorer
from onthejob.types import Forkable

EnvFactory = Callable[[], Forkable]
"""Makes a fresh environment. With worker processes it must be importable by name: a class or a `functools.partial`."""
_JOBS_PER_COMMIT = 64
"""Jobs between two commits: a killed evaluation loses at most these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """What the cache lacks from one state: canonical reply -> (a reply text that does this, worlds to try it in)."""

    state: HeldOutState
    turns: int
    replies: Mapping[str, tuple[str, tuple[int, ...]]]

    @property
    def branches(self) -> int:
        """How many branches this is."""
        return sum(len(worlds) for _, worlds in self.replies.values())


def missing_branches(
    cache: EvaluationCache, state: HeldOutState, replies: Mapping[str, str], *, worlds: Sequence[int], turns: int
) -> Missing:
    """The part of `replies` x `worlds` that the cache does not hold; `replies` maps canonical key -> reply text."""
    known = cache.branches(state.key, turns)
    missing = {}
    for canonical, text in replies.items():
        todo = tuple(world for world in worlds if BranchKey(state.key, turns, canonical, world) not in known)
        if todo:
            missing[canonical] = (text, todo)
    return Missing(state=state, turns=turns, replies=missing)


def fill_branches(
    cache: EvaluationCache,
    missing: Sequence[Missing],
    scorer: BranchScorer,
    *,
    on_progress: Callable[[int], None] | None = None,
) -> int:
    """Play what is missing and store it; returns the number of branches played.

    `on_progress` receives the number of branches that have just finished.

    Raises:
        ContractError: A branch could not be played. What succeeded before is stored; a value is never made up.
    """
    jobs: list[BranchJob] = []
    labels: list[tuple[HeldOutState, str]] = []
    for item in missing:
        for canonical, (text, worlds) in item.replies.items():
            jobs.append(BranchJob(snapshot=item.state.snapshot, reply=text, worlds=worlds, turns=item.turns))
            labels.append((item.state, canonical))
    played = 0
    for start in range(0, len(jobs), _JOBS_PER_COMMIT):
        part = jobs[start : start + _JOBS_PER_COMMIT]
        values: dict[BranchKey, BranchValue] = {}
        failure: BranchFailure | None = None
        for job, (state, canonical), branches in zip(part, labels[start:], scorer.run(part), strict=False):
            if isinstance(branches, BranchFailure):
                failure = branches
                continue
            for world, branch in zip(job.worlds, branches, strict=True):
                ret = branch.returns.get(state.actor, 0.0)
                key = BranchKey(state.key, job.turns, canonical, world)
                values[key] = BranchValue(branch.outcome, ret, branch.turns, branch.valid)
        cache.add_branches(values)
        if failure is not None:
            raise ContractError(
                f"a held-out state cannot be valued: {failure}. Fix the environment, then run this again."
            ) from failure
        played += len(values)
        if on_progress is not None:
            on_progress(len(values))
    return played
