"""collect_episodes: groups of whole episodes for one iteration, where nothing can be forked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from onthejob.keys import keyed_seed
from onthejob.rollout.collect import Collection
from onthejob.rollout.episode import Encoder, Episode
from onthejob.rollout.opponents import Opponents
from onthejob.rollout.play import occurrences, play, require_trainable
from onthejob.types import Environment, Group, Policy, Sampling, StopReason, Task

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
    task, the only one that has a group of it. A task that was drawn twice is played as one.
    """
    tasks = list({task.id: task for task in tasks}.values())
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


def episode_groups(episodes: Sequence[Episode], *, prefix: str, actors: Sequence[str]) -> list[Group]:
    """One group per (task, actor) from several episodes of the same task: the grouping for environments that cannot fork.

    A task of which an episode ended in an error has no group: the others would be compared without it, and errors need
    not be random. A group of fewer than two trajectories has no baseline and is dropped too.
    """
    by_task: dict[str, list[Episode]] = {}
    for episode in episodes:
        by_task.setdefault(episode.task.id, []).append(episode)
    failed = {episode.task.id for episode in episodes if episode.stop is StopReason.ERROR}
    by_task = {task_id: members for task_id, members in by_task.items() if task_id not in failed}
    groups: list[Group] = []
    for task_id, members in by_task.items():
        for actor in actors:
            present = [member for member in members if actor in member.trajectories]
            trajectories = tuple(member.trajectories[actor] for member in present)
            if len(trajectories) >= 2:
                facts = {
                    "source": "episodes",
                    "stops": [str(trajectory.stop) for trajectory in trajectories],
                    "turns": [len(trajectory.turns) for trajectory in trajectories],
                    "metrics": [dict(member.metrics) for member in present],
                }
                groups.append(Group(key=f"{prefix}/{task_id}/{actor}", actor=actor, trajectories=trajectories, facts=facts))
    return groups
