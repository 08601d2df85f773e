"""play: whole episodes side by side.

Each round, every active episode shows its pending request. Scripted players, for which a batch saves nothing, answer first. When
all episodes wait for models, the model with the most waiting episodes answers all of those in one call, and the other episodes
wait. So a model receives few large batches, which is cheap, although the roles of different episodes take their turns in
different orders. Environments that wait (on a sandbox, a socket) may be stepped by several threads; the result is the same
with any number of them.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol, TypeVar

from onthejob.errors import ConfigError, ContractError, MissingDependency, ProviderError
from onthejob.keys import keyed_seed
from onthejob.rollout.contract import check_request
from onthejob.rollout.episode import Encoder, Episode, LiveEpisode
from onthejob.rollout.pulse import Pulse
from onthejob.rollout.room import SHORTER
from onthejob.types import Completion, Context, Environment, Observation, Policy, Sampling, Step, StopReason, Task

log = logging.getLogger(__name__)

In = TypeVar("In")
Out = TypeVar("Out")

OnTurn = Callable[[LiveEpisode, Completion, Step], None]
"""Called after every turn; for progress and the live view."""


def play(
    envs: Sequence[Environment],
    tasks: Sequence[Task],
    policies: Mapping[str, Policy] | Sequence[Mapping[str, Policy]],
    sampling: Sampling,
    *,
    seed: int,
    encoder: Encoder | None = None,
    max_turns: int,
    on_turn: OnTurn | None = None,
    workers: int = 1,
    numbers: Sequence[int] | None = None,
    what: str = "",
) -> list[Episode]:
    """Play `tasks[i]` in `envs[i]` to the end; deterministic in (seed, tasks, policies).

    Reply seeds are keyed by (seed, task id, how many times the task occurred before in `tasks`, turn), so neither the order of
    the tasks nor what else is in the batch changes an episode.

    Args:
        envs: one independent environment per task.
        tasks: a task may occur several times; its episodes then differ by their sampled replies.
        policies: actor -> who answers for it, in every episode or given for each one.
        sampling: passed to every policy.
        seed: root of the reply seeds.
        encoder: needed when a policy reads tokens.
        max_turns: an episode is cut after this many turns (`StopReason.MAX_TURNS`).
        on_turn: called after every turn.
        workers: threads that reset and step the environments; more than one only where independent environments may be used
            from different threads, and of use only where stepping waits.
        numbers: which occurrence of its task each one is; None counts them. To play one of several again, as it was asked for.
        what: name of what is played, for progress lines in the log; without a name there are none.

    Returns:
        One episode per task, in order. A failing environment or policy ends only its own episode, with `StopReason.ERROR`.

    Raises:
        ConfigError: counts do not match, `max_turns` or `workers` < 1, an actor has no policy, or no episode can begin because
            its first prompt exceeds the model's context. A prompt that exceeds it later ends its own episode, with
            `StopReason.CONTEXT`.
    """
    if len(envs) != len(tasks):
        raise ConfigError(f"play needs one environment per task, got {len(envs)} environments and {len(tasks)} tasks.")
    seated = [policies] * len(tasks) if isinstance(policies, Mapping) else policies
    if len(seated) != len(tasks):
        raise ConfigError(f"play needs policies for all episodes or for each one, got {len(seated)} for {len(tasks)} tasks.")
    numbers = occurrences(tasks) if numbers is None else numbers
    if len(numbers) != len(tasks):
        raise ConfigError(f"play needs one number per task, got {len(numbers)} numbers and {len(tasks)} tasks.")
    seeds = [keyed_seed(seed, "play", task.id, number) for task, number in zip(tasks, numbers, strict=True)]
    if max_turns < 1:
        raise ConfigError(f"max_turns must be >= 1, got {max_turns}.")
    with each(workers) as over:
        return _play(
            over,
            envs,
            tasks,
            seated,
            sampling,
            seeds=seeds,
            encoder=encoder,
            max_turns=max_turns,
            on_turn=on_turn,
            pulse=Pulse(what, rounds=max_turns) if what else None,
        )


def occurrences(tasks: Sequence[Task]) -> list[int]:
    """How many times each task occurred before in `tasks`."""
    seen: Counter[str] = Counter()
    numbers: list[int] = []
    for task in tasks:
        numbers.append(seen[task.id])
        seen[task.id] += 1
    return numbers


def _play(
    over: Each,
    envs: Sequence[Environment],
    tasks: Sequence[Task],
    policies: Sequence[Mapping[str, Policy]],
    sampling: Sampling,
    *,
    seeds: Sequence[int],
    encoder: Encoder | None,
    max_turns: int,
    on_turn: OnTurn | None,
    pulse: Pulse | None,
) -> list[Episode]:
    live = over(lambda pair: start(pair[0], pair[1], encoder=encoder), list(zip(envs, tasks, strict=True)))
    play_on(
        over,
        live,
        lambda index: policy_for(live[index], policies[index]),
        sampling,
        seeds=seeds,
        max_turns=max_turns,
        on_turn=on_turn,
        pulse=pulse,
    )
    if live and all(episode.stop is StopReason.CONTEXT and not episode.turn for episode in live):
        raise ConfigError(
            f"no episode can begin: its first prompt, with a reply of up to {sampling.max_new_tokens} tokens, exceeds the "
            f"model's context of {encoder.window if encoder else 0} tokens. {SHORTER}"
        )
    return [episode.finish() for episode in live]


def play_on(
    over: Each,
    live: Sequence[LiveEpisode],
    seat: Callable[[int], Policy],
    sampling: Sampling,
    *,
    seeds: Sequence[int],
    max_turns: int,
    on_turn: OnTurn | None = None,
    pulse: Pulse | None = None,
) -> None:
    """Play episodes that have begun until each is over.

    Args:
        over: steps the environments.
        live: the episodes.
        seat: number of an episode -> who answers its pending request.
        sampling: passed to every policy.
        seeds: of each episode; its replies are keyed by them and their turns.
        max_turns: an episode is cut after this many turns of its own.
        on_turn: called after every turn.
        pulse: says now and then how far they are.
    """
    while any(episode.active for episode in live):
        # Looked up once a round: a seat may be given to another player while a reply is awaited.
        waiting = {index: seat(index) for index, episode in enumerate(live) if episode.active}
        asking = [(live[i], waiting[i], live[i].context(waiting[i], keyed_seed(seeds[i], live[i].turn))) for i in due(waiting)]
        over(outgrown, [episode for episode, _, context in asking if not episode.fits(context, sampling)])
        asking = [request for request in asking if request[0].active]
        answers = answer(asking, sampling)
        turns = [(asking[index][0], *answered, asking[index][1]) for index, answered in answers.items()]
        steps = over(lambda turn: turn[0].advance(turn[1], turn[2], policy=turn[3], sampling=sampling), turns)
        for (episode, _, completion, _), step in zip(turns, steps, strict=True):
            if step is not None and on_turn is not None:
                on_turn(episode, completion, step)
            if episode.active and episode.turn >= max_turns:
                episode.cut()
        if pulse is not None:
            pulse.beat(live, sum(len(completion.token_ids) for _, completion in answers.values()))


class Each(Protocol):
    """Applies a function to every item; results in order."""

    def __call__(self, function: Callable[[In], Out], items: Iterable[In], /) -> list[Out]: ...


@contextmanager
def each(workers: int) -> Iterator[Each]:
    """How to apply a function to many items: in this thread, or in `workers` threads.

    Raises:
        ConfigError: `workers` < 1.
    """
    if workers < 1:
        raise ConfigError(f"workers must be >= 1 to step environments, got {workers}. Use 1 to step them one after the other.")
    if workers == 1:
        yield _one_by_one
        return
    with ThreadPoolExecutor(workers, thread_name_prefix="step") as pool:

        def threaded(function: Callable[[In], Out], items: Iterable[In], /) -> list[Out]:
            return list(pool.map(function, items))

        yield threaded


def _one_by_one(function: Callable[[In], Out], items: Iterable[In], /) -> list[Out]:
    return [function(item) for item in items]


def start(env: Environment, task: Task, *, encoder: Encoder | None) -> LiveEpisode:
    """Reset `env` to `task`; a failure gives an episode that is over with an error."""
    return begin(LiveEpisode(env, task, None, encoder=encoder), lambda: env.reset(task))


def begin(episode: LiveEpisode, first: Callable[[], Observation | None]) -> LiveEpisode:
    """Give an episode the first request that `first` returns, a reset or a restored snapshot; failures end it as in `start`."""
    started = time.perf_counter()
    try:
        episode.observation = first()
        if episode.observation is not None:
            check_request(episode.observation, f"{type(episode.env).__name__}, task {episode.task.id}, first request")
    except (ConfigError, ContractError, MissingDependency):
        raise  # a wrong scenario or option is the operator's mistake: it must be seen, not counted
    except Exception as error:
        episode.fail(error)
    episode.seconds = time.perf_counter() - started
    return episode


def policy_for(episode: LiveEpisode, policies: Mapping[str, Policy]) -> Policy:
    """The policy that answers the pending request. A conversation keeps the one that began it, unless the other can read it too.

    Raises:
        ConfigError: no policy does.
    """
    pending = episode.pending()
    actor = pending.actor
    if actor not in policies:
        raise ConfigError(f"no policy for actor {actor!r}; policies are given for {sorted(policies)}. Add one for {actor!r}.")
    policy, before = policies[actor], episode.answered_by.get(actor)
    if before is not None and not pending.fresh and policy.reads not in ("view", before.reads):
        return before
    return policy


def due(waiting: Mapping[int, Policy]) -> list[int]:
    """Episodes answered in a round: those that wait for a player that reads no text, else all that wait for the most asked model.

    Args:
        waiting: episode -> who answers its pending request.
    """
    scripted = [index for index, policy in waiting.items() if policy.reads == "view"]
    if scripted:
        return scripted
    most, _ = Counter(map(id, waiting.values())).most_common(1)[0]  # The first of equals.
    return [index for index, policy in waiting.items() if id(policy) == most]


def outgrown(episode: LiveEpisode) -> None:
    """End an episode whose next prompt does not fit the model's context."""
    log.warning("episode %s ends after %d turns: its next prompt exceeds the model's context", episode.task.id, episode.turn)
    episode.cut(StopReason.CONTEXT)


def answer(requests: Sequence[tuple[LiveEpisode, Policy, Context]], sampling: Sampling) -> dict[int, tuple[Context, Completion]]:
    """One reply per request (episode, policy, context); one `act` call per distinct policy.

    Returns:
        Position in `requests` -> (context, completion), without the requests whose policy failed; those episodes are over.
    """
    by_policy: dict[int, list[int]] = {}
    contexts = [context for _, _, context in requests]
    for index, (_, policy, _) in enumerate(requests):
        by_policy.setdefault(id(policy), []).append(index)
    answers: dict[int, tuple[Context, Completion]] = {}
    for indices in by_policy.values():
        policy = requests[indices[0]][1]
        started = time.perf_counter()
        completions = act_each(policy, [contexts[i] for i in indices], sampling)
        share = (time.perf_counter() - started) / len(indices)
        for index, completion in zip(indices, completions, strict=True):
            requests[index][0].seconds += share
            if isinstance(completion, Exception):
                requests[index][0].fail(completion)
            else:
                answers[index] = (contexts[index], completion)
    return dict(sorted(answers.items()))


def act_each(policy: Policy, contexts: Sequence[Context], sampling: Sampling) -> list[Completion | Exception]:
    """`policy.act` on all contexts at once; when that raises, one by one, so that one bad context costs one episode.

    A hosted model's failure says what became of each context, and nothing is asked (and paid for) again.
    """
    try:
        return list(_act(policy, contexts, sampling))
    except ProviderError as error:
        each_one = [answer for answer in error.answers if isinstance(answer, Completion | ProviderError)]
        return list(each_one) if len(each_one) == len(contexts) else [error] * len(contexts)
    except Exception as error:
        if len(contexts) == 1:
            return [error]
    return [act_each(policy, [context], sampling)[0] for context in contexts]


def _act(policy: Policy, contexts: Sequence[Context], sampling: Sampling) -> list[Completion]:
    completions = policy.act(contexts, sampling)
    if len(completions) != len(contexts):
        raise ValueError(f"policy {policy.version} returned {len(completions)} completions for {len(contexts)} contexts")
    return completions


def require_trainable(role: str, policy: Policy) -> None:
    """Refuse to train a seat whose policy returns text without the token ids and log-probabilities that were sampled.

    Raises:
        ConfigError: it reads no tokens.
    """
    if policy.reads != "tokens":
        raise ConfigError(
            f"{role!r} cannot be trained while {policy.version} sits there: it returns text without token ids and "
            "log-probabilities, and training uses no others. Seat a local model (base, a run, an adapter), or train another role."
        )
