"""collect_episodes: groups of whole episodes for one iteration, where nothing can be forked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from onthejob.keys import keyed_seed
from onthejob.rollout.collect import Collection, require_trainable
from onthejob.rollout.episode import Encoder, Episode
from onthejob.rollout.opponents import Opponents
from onthejob.rollout.play import episode_groups, occurrences, play
from onthejob.types import Environment, Policy, Sampling, StopReason, Task

log = logging.getLogger(__name__)


def collect_episodes(
    make_env: Callable[[], Environment],
    tasks: Sequence[Task],
    policies: Mapping[str, Policy],
    sampling: Sampling,
    *,
    group_size: int,
    trained: Sequence[str],
    encoder: Encoder,
    max_turns: int,
    seed: int,
    prefix: str,
    workers: int = 1,
    opponents: Opponents | None = None,
) -> Collection:
    """Groups of K whole episodes of each task: the grouping for environments that cannot be forked.

    All episodes are played at the same time; `workers` threads step their environments (see `play`). Those that ended in an
    error (of a sandbox, an environment, a hosted partner) are played once more from the beginning, in fresh environments and
    with the same seeds; a task of which one fails again has no group. With `opponents` one actor is trained in all episodes of a
    task, the only one that has a group of it.
    """
    for actor in trained:
        if actor in policies:
            require_trainable(actor, policies[actor])
    drawn = {task.id: opponents.seated(keyed_seed(seed, "opponents", task.id)) for task in tasks} if opponents else {}
    repeated = [task for task in tasks for _ in range(group_size)]
    seats = [{**policies, **drawn[task.id][1]} if drawn else policies for task in repeated]
    numbers = occurrences(repeated)

    def played(indices: Sequence[int]) -> list[Episode]:
        envs = [make_env() for _ in indices]
        try:
            return play(
                envs,
                [repeated[index] for index in indices],
                [seats[index] for index in indices],
                sampling,
                seed=seed,
                encoder=encoder,
                max_turns=max_turns,
                workers=workers,
                numbers=[numbers[index] for index in indices],
                what=prefix,
            )
        finally:
            for env in envs:
                env.close()

    episodes = played(range(len(repeated)))
    again = [index for index, episode in enumerate(episodes) if episode.stop is StopReason.ERROR]
    if again:
        log.warning("%d of %d episodes failed and are played once more", len(again), len(episodes))
        for index, episode in zip(again, played(again), strict=True):
            episodes[index] = episode
    failures = {episode.task.id: episode.error or "" for episode in episodes if episode.stop is StopReason.ERROR}
    for task_id, error in failures.items():
        log.warning("the group of %s is dropped: %s", task_id, error)
    groups = episode_groups(episodes, prefix=prefix, actors=trained)
    if drawn:
        groups = [group for group in groups if group.actor == drawn[group.trajectories[0].task_id][0]]
    return Collection(
        groups=tuple(groups),
        episodes=tuple(episodes),
        dropped=len(failures) * (1 if drawn else len(trained)),
        failure=next(reversed(failures.values()), ""),
        starts={"fresh": len(episodes)},
    )
