"""habits: how policies choose before they have played, from which the first stand-ins are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice

from onthejob.errors import ConfigError
from onthejob.rollout.episode import Encoder, LiveEpisode
from onthejob.rollout.keys import keyed_seed
from onthejob.rollout.library import Entry
from onthejob.rollout.play import act_each, begin
from onthejob.rollout.stand_ins import Habits
from onthejob.types import Completion, Context, Environment, Forkable, Imitable, Kind, Policy, Sampling


def observe_habits(
    make_env: Callable[[], Environment],
    states: Sequence[Entry],
    policies: Mapping[str, Policy],
    sampling: Sampling,
    *,
    encoder: Encoder,
    replies: int,
    seed: int,
) -> list[tuple[str, Habits]]:
    """How the policies choose in `states`, before they have played: (actor, habits) of each state that asks one of them.

    A first iteration that knew nothing of them would be played on by the partners alone, also in the learner's own seat, and so
    teach that what is left undone costs nothing.

    Args:
        make_env: creates an `Imitable`.
        states: of any actors; those that ask an actor without a policy, or no fresh decision, tell nothing.
        policies: actor -> whose habits are asked for.
        sampling: as they will play.
        encoder: messages -> token ids.
        replies: sampled in each state.
        seed: root of the reply seeds.
    """
    env = make_env()
    try:
        if not isinstance(env, Imitable) or not isinstance(env, Forkable):
            raise ConfigError(f"{type(env).__name__} offers no stand-ins for the policies. Set --branch.continuation partners.")
        asked: dict[str, list[tuple[Entry, list[Context]]]] = {}
        for index, entry in enumerate(states):
            live = LiveEpisode(env, entry.task, None, encoder=encoder, start=entry.snapshot)
            begin(live, partial(env.restore, entry.snapshot))
            pending = live.pending()
            if pending.actor in policies and pending.kind is Kind.ACT and pending.fresh:
                contexts = [live.context(policies[pending.actor], keyed_seed(seed, "habits", index, k)) for k in range(replies)]
                asked.setdefault(pending.actor, []).append((entry, contexts))
        found: list[tuple[str, Habits]] = []
        for actor, places in asked.items():
            answers = iter(act_each(policies[actor], [context for _, contexts in places for context in contexts], sampling))
            for entry, contexts in places:
                texts = [answer.text for answer in islice(answers, len(contexts)) if isinstance(answer, Completion)]
                env.restore(entry.snapshot)
                found.append((actor, env.habits(texts)))
        return found
    finally:
        env.close()
