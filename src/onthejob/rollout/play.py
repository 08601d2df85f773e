"""play: whole episodes in lock-step.

Each round, every active episode shows its pending request; requests are grouped by policy, each policy answers its whole
group in one call, and every environment is stepped. With an in-process model this is what makes a batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from onthejob.errors import ConfigError, OnTheJobError
from onthejob.rollout.episode import Encoder, Episode, LiveEpisode
from onthejob.rollout.keys import keyed_seed
from onthejob.types import Completion, Context, Environment, Group, Policy, Sampling, Step, StopReason, Task

OnTurn = Callable[[LiveEpisode, Completion, Step], None]
"""Called after every turn, in lock-step order; for progress and the live view."""


def play(
    envs: Sequence[Environment],
    tasks: Sequence[Task],
    policies: Mapping[str, Policy],
    sampling: Sampling,
    *,
    seed: int,
    encoder: Encoder | None = None,
    max_turns: int,
    on_turn: OnTurn | None = None,
) -> list[Episode]:
    """Play `tasks[i]` in `envs[i]` to the end; deterministic in (seed, tasks, policies).

    Reply seeds are keyed by (seed, task id, how many times the task occurred before in `tasks`, turn), so neither the order of
    the tasks nor what else is in the batch changes an episode.

    Args:
        envs: one independent environment per task.
        tasks: a task may occur several times; its episodes then differ by their sampled replies.
        policies: actor -> who answers for it.
        sampling: passed to every policy.
        seed: root of the reply seeds.
        encoder: needed when a policy reads tokens.
        max_turns: an episode is cut after this many turns (`StopReason.MAX_TURNS`).
        on_turn: called after every turn.

    Returns:
        One episode per task, in order. A failing environment or policy ends only its own episode, with `StopReason.ERROR`.

    Raises:
        ConfigError: counts do not match, `max_turns` < 1, or an actor has no policy.
    """
    if len(envs) != len(tasks):
        raise ConfigError(f"play needs one environment per task, got {len(envs)} environments and {len(tasks)} tasks.")
    if max_turns < 1:
        raise ConfigError(f"max_turns must be >= 1, got {max_turns}.")
    seen: Counter[str] = Counter()
    live: list[LiveEpisode] = []
    seeds: list[int] = []
    for env, task in zip(envs, tasks, strict=True):
        live.append(start(env, task, encoder=encoder))
        seeds.append(keyed_seed(seed, "play", task.id, seen[task.id]))
        seen[task.id] += 1
    while any(episode.active for episode in live):
        asked = [index for index, episode in enumerate(live) if episode.active]
        answers = answer([(live[i], policy_for(live[i], policies), keyed_seed(seeds[i], live[i].turn)) for i in asked], sampling)
        for index, (context, completion) in answers.items():
            episode = live[asked[index]]
            step = advance(episode, context, completion, policy_for(episode, policies), sampling)
            if step is not None and on_turn is not None:
                on_turn(episode, completion, step)
            if episode.active and episode.turn >= max_turns:
                episode.cut()
    return [episode.finish() for episode in live]


def start(env: Environment, task: Task, *, encoder: Encoder | None) -> LiveEpisode:
    """Reset `env` to `task`; a failure gives an episode that is over with an error."""
    episode = LiveEpisode(env, task, None, encoder=encoder)
    try:
        episode.observation = env.reset(task)
    except OnTheJobError:
        raise  # a wrong scenario or option is the operator's mistake: it must be seen, not counted
    except Exception as error:
        episode.fail(error)
    return episode


def policy_for(episode: LiveEpisode, policies: Mapping[str, Policy]) -> Policy:
    """Who answers the pending request.

    Raises:
        ConfigError: nobody does.
    """
    actor = episode.pending().actor
    if actor not in policies:
        raise ConfigError(f"no policy for actor {actor!r}; policies are given for {sorted(policies)}. Add one for {actor!r}.")
    return policies[actor]


def answer(requests: Sequence[tuple[LiveEpisode, Policy, int]], sampling: Sampling) -> dict[int, tuple[Context, Completion]]:
    """One reply per request (episode, policy, seed); one `act` call per distinct policy.

    Returns:
        Position in `requests` -> (context, completion), without the requests whose policy failed; those episodes are over.
    """
    by_policy: dict[int, list[int]] = {}
    contexts: list[Context] = []
    for index, (episode, policy, seed) in enumerate(requests):
        contexts.append(episode.context(policy, seed))
        by_policy.setdefault(id(policy), []).append(index)
    answers: dict[int, tuple[Context, Completion]] = {}
    for indices in by_policy.values():
        policy = requests[indices[0]][1]
        completions = act_each(policy, [contexts[i] for i in indices], sampling)
        for index, completion in zip(indices, completions, strict=True):
            if isinstance(completion, Exception):
                requests[index][0].fail(completion)
            else:
                answers[index] = (contexts[index], completion)
    return dict(sorted(answers.items()))


def act_each(policy: Policy, contexts: Sequence[Context], sampling: Sampling) -> list[Completion | Exception]:
    """`policy.act` on all contexts at once; when that raises, one by one, so that one bad context costs one episode."""
    try:
        return list(_act(policy, contexts, sampling))
    except Exception as error:
        if len(contexts) == 1:
            return [error]
    return [act_each(policy, [context], sampling)[0] for context in contexts]


def _act(policy: Policy, contexts: Sequence[Context], sampling: Sampling) -> list[Completion]:
    completions = policy.act(contexts, sampling)
    if len(completions) != len(contexts):
        raise ValueError(f"policy {policy.version} returned {len(completions)} completions for {len(contexts)} contexts")
    return completions


def advance(episode: LiveEpisode, context: Context, completion: Completion, policy: Policy, sampling: Sampling) -> Step | None:
    """Step the episode; None when the environment raised, which ends this episode only."""
    try:
        return episode.advance(context, completion, policy=policy, sampling=sampling)
    except Exception as error:
        episode.fail(error)
        return None


def episode_groups(episodes: Sequence[Episode], *, prefix: str, actors: Sequence[str]) -> list[Group]:
    """One group per (task, actor) from several episodes of the same task: the grouping for environments that cannot fork.

    Failed episodes are left out, and a group that keeps fewer than two trajectories has no baseline and is left out too.
    """
    by_task: dict[str, list[Episode]] = {}
    for episode in episodes:
        if episode.stop is not StopReason.ERROR:
            by_task.setdefault(episode.task.id, []).append(episode)
    groups: list[Group] = []
    for task_id, members in by_task.items():
        for actor in actors:
            trajectories = tuple(member.trajectories[actor] for member in members if actor in member.trajectories)
            if len(trajectories) >= 2:
                facts = {"stops": [str(trajectory.stop) for trajectory in trajectories], "source": "episodes"}
                groups.append(Group(key=f"{prefix}/{task_id}/{actor}", actor=actor, trajectories=trajectories, facts=facts))
    return groups
