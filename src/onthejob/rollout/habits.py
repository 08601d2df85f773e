"""habits: how policies choose before they have played, from which the first stand-ins are made."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice

from onthejob.errors import ConfigError
from onthejob.keys import keyed_seed
from onthejob.progress import Progress
from onthejob.rollout.episode import Encoder, LiveEpisode
from onthejob.rollout.library import Entry
from onthejob.rollout.play import act_each, begin
from onthejob.rollout.stand_ins import Habits
from onthejob.types import Completion, Context, Environment, Forkable, Imitable, Kind, Policy, Sampling

log = logging.getLogger(__name__)

STATES_AT_A_TIME = 8
"""States in which replies are sampled between two looks at the clock, where there is a time limit."""


def observe_habits(
    make_env: Callable[[], Environment],
    states: Sequence[Entry],
    policies: Mapping[str, Policy],
    sampling: Sampling,
    *,
    encoder: Encoder,
    replies: int,
    seed: int,
    until: float = math.inf,
) -> list[tuple[str, Habits]]:
    """How the policies choose in `states`, before they have played: (actor, habits) of each state that asks one of them.

    A first iteration that knew nothing of them would be continued by the partners alone, also in the learner's own seat, and so
    teach that what is left undone costs nothing.

    Args:
        make_env: creates an `Imitable`.
        states: of any actors; those that ask an actor without a policy, no fresh decision, or more than fits the model's context,
            tell nothing.
        policies: actor -> whose habits are asked for.
        sampling: as they will play.
        encoder: messages -> token ids.
        replies: sampled in each state.
        seed: root of the reply seeds.
        until: `time.monotonic()` after which no further state is asked about, once every actor has some. Without a limit all
            states of an actor are sampled as one batch.
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
                if live.fits(contexts[0], sampling):
                    asked.setdefault(pending.actor, []).append((entry, contexts))
        found: list[tuple[str, Habits]] = []
        for left, (actor, places) in zip(range(len(asked), 0, -1), asked.items(), strict=True):
            now = time.monotonic()  # the actors share the time that is left
            found += [
                (actor, h) for h in _habits(env, actor, policies[actor], places, sampling, until=now + (until - now) / left)
            ]
        return found
    finally:
        env.close()


def _habits(
    env: Imitable, actor: str, policy: Policy, places: Sequence[tuple[Entry, list[Context]]], sampling: Sampling, *, until: float
) -> list[Habits]:
    """The habits of one actor, state by state; at least in the first states, whatever the time."""
    found: list[Habits] = []
    progress, size = Progress(f"habits of {actor}"), len(places) if until == math.inf else STATES_AT_A_TIME
    for first in range(0, len(places), size):
        if first and time.monotonic() >= until:
            log.info("habits of %s: observed in %d of %d states in the time given", actor, first, len(places))
            break
        progress.count(first, len(places), "states")
        part = places[first : first + size]
        answers = iter(act_each(policy, [context for _, contexts in part for context in contexts], sampling))
        for entry, contexts in part:
            texts = [answer.text for answer in islice(answers, len(contexts)) if isinstance(answer, Completion)]
            env.restore(entry.snapshot)
            found.append(env.habits(texts))
    return found
