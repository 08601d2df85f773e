"""Branch values in parallel: what each reply would have led to, from each state, under each evaluation world.

Branches are pure Python and need a processor, not a model, so they are spread over processes. The parent alone writes the
cache; workers receive a snapshot and the replies to try from it.
"""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass

from onthejob.evaluate.cache import BranchKey, BranchValue, EvaluationCache
from onthejob.evaluate.states import HeldOutState
from onthejob.types import Forkable

EnvFactory = Callable[[], Forkable]
"""Makes a fresh environment. With several workers it must be picklable: a class or a `functools.partial`, no lambda."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchJob:
    """What is missing from one state: canonical reply -> (a reply text that does this, worlds to try it in)."""

    state: HeldOutState
    turns: int
    missing: Mapping[str, tuple[str, tuple[int, ...]]]

    @property
    def branches(self) -> int:
        """How many branches this job plays."""
        return sum(len(worlds) for _, worlds in self.missing.values())


def missing_branches(
    cache: EvaluationCache,
    state: HeldOutState,
    replies: Mapping[str, str],
    worlds: Sequence[int],
    turns: int,
) -> BranchJob:
    """The part of `replies` x `worlds` that the cache does not hold; `replies` maps canonical key -> reply text."""
    known = cache.branches(state.key, turns)
    missing = {}
    for canonical, text in replies.items():
        todo = tuple(world for world in worlds if BranchKey(state.key, turns, canonical, world) not in known)
        if todo:
            missing[canonical] = (text, todo)
    return BranchJob(state=state, turns=turns, missing=missing)


def fill_branches(
    cache: EvaluationCache,
    jobs: Iterable[BranchJob],
    env_factory: EnvFactory,
    *,
    workers: int,
    on_progress: Callable[[int], None] | None = None,
) -> int:
    """Play every job and store its values as it finishes; returns the number of branches played.

    Args:
        cache: Written after each state, so that a killed evaluation goes on from there.
        jobs: Possibly empty ones, which cost nothing.
        env_factory: See `EnvFactory`.
        workers: Processes; 1 plays here and starts none.
        on_progress: Told the number of branches just finished.
    """
    played = 0
    pending = (job for job in jobs if job.missing)
    for values in _in_process(pending, env_factory) if workers <= 1 else _in_pool(pending, env_factory, workers):
        cache.add_branches(values)
        played += len(values)
        if on_progress is not None:
            on_progress(len(values))
    return played


def play_job(job: BranchJob, env: Forkable) -> dict[BranchKey, BranchValue]:
    """All missing branches of one state."""
    env.restore(job.state.snapshot)
    values = {}
    for canonical, (text, worlds) in job.missing.items():
        for world in worlds:
            branch = env.branch(text, world=world, turns=job.turns)
            values[BranchKey(job.state.key, job.turns, canonical, world)] = BranchValue(
                branch.outcome, branch.returns.get(job.state.actor, 0.0), branch.valid
            )
    return values


def _in_process(jobs: Iterable[BranchJob], env_factory: EnvFactory) -> Iterator[dict[BranchKey, BranchValue]]:
    env = env_factory()
    try:
        for job in jobs:
            yield play_job(job, env)
    finally:
        env.close()


def _in_pool(
    jobs: Iterator[BranchJob], env_factory: EnvFactory, workers: int
) -> Iterator[dict[BranchKey, BranchValue]]:
    # spawn: forking a process in which torch has started threads can deadlock.
    context = multiprocessing.get_context("spawn")
    first = next(jobs, None)
    if first is None:
        return
    jobs = itertools.chain([first], jobs)
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        running: set[Future[dict[BranchKey, BranchValue]]] = set()
        try:
            for job in jobs:
                running.add(pool.submit(_job_in_worker, job, env_factory))
                if len(running) >= 2 * workers:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        finally:
            for future in running:
                future.cancel()


def _job_in_worker(job: BranchJob, env_factory: EnvFactory) -> dict[BranchKey, BranchValue]:
    # A fresh environment per job: building one is cheap beside a state's branches, and nothing outlives the job.
    env = env_factory()
    try:
        return play_job(job, env)
    finally:
        env.close()
