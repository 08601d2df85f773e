"""measure_scales: how far apart legal replies usually are, per role, before training starts.

The value of a branch adds dollars and reward; dividing each by its typical spread between legal replies makes the weights of
`BranchConfig` mean what they say, for every role and scenario. The scales are measured once and frozen for the run: scales that
move with the policy would change the objective while it is optimised.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import variance

from onthejob.errors import ConfigError, TrainingError
from onthejob.keys import keyed_sample
from onthejob.progress import Progress
from onthejob.rollout.branch import (
    BranchConfig,
    BranchFailure,
    BranchScorer,
    ReplyScores,
    Scales,
    ScoreRequest,
    group_worlds,
    score_replies,
)
from onthejob.rollout.library import Entry
from onthejob.types import Forkable, Observation

log = logging.getLogger(__name__)

STATES_AT_A_TIME = 16
"""States that are branched between two looks at the clock."""

Legal = Callable[[Forkable, Observation], Sequence[str]]
"""(environment at the request, request) -> texts of legal replies."""


def legal_of_view(env: Forkable, observation: Observation) -> Sequence[str]:
    """`observation.view["legal"]`: the texts of all (or a fair sample of) legal replies.

    Raises:
        ConfigError: the view lists none.
    """
    legal = observation.view.get("legal")
    if not legal:
        raise ConfigError(f"the view of {observation.actor} lists no 'legal' replies. Pass legal=... to measure_scales.")
    return legal


def measure_scales(
    scorer: BranchScorer,
    env: Forkable,
    states: Sequence[Entry],
    *,
    config: BranchConfig,
    actors: Sequence[str],
    seed: int,
    replies: int = 6,
    legal: Legal = legal_of_view,
    until: float = math.inf,
) -> dict[str, Scales]:
    """Frozen scales per role: root mean square, over states, of the standard deviation between random legal replies.

    Args:
        scorer: runs the branches.
        env: any environment of the kind that made `states`; it is moved.
        states: about 200 in all; those of other actors are ignored.
        config: turns and worlds of the branches; its weights are not used.
        actors: roles that need scales.
        seed: keys the replies and the worlds.
        replies: random legal replies compared per state, >= 2.
        legal: lists the legal replies of a state.
        until: `time.monotonic()` after which no further state is branched, once every role has one.

    Raises:
        ConfigError: `replies` < 2, or a role has no state with two legal replies of different effect.
        TrainingError: the environment failed in most of a role's branches.
    """
    if replies < 2:
        raise ConfigError(f"replies must be >= 2 to differ, got {replies}. Use 6.")
    unit = {actor: Scales() for actor in actors}
    outcome_only = BranchConfig(group_size=2, turns=config.turns, worlds=config.worlds)
    requests: list[ScoreRequest] = []
    for index, state in enumerate(states):
        observation = env.restore(state.snapshot)
        if observation is None or observation.actor not in unit:
            continue
        by_key: dict[str, str] = {}
        for text in legal(env, observation):
            by_key.setdefault(env.canonical(text), text)
        if len(by_key) >= 2:
            keys = keyed_sample(sorted(by_key), min(replies, len(by_key)), seed, "scales", index)
            requests.append(
                ScoreRequest(
                    snapshot=state.snapshot,
                    actor=observation.actor,
                    replies=tuple(by_key[key] for key in keys),
                    keys=tuple(keys),
                    worlds=group_worlds(seed, "scales", index, count=config.worlds),
                )
            )
    scored: list[ReplyScores | BranchFailure] = []
    progress, asked = Progress("scales of value"), {request.actor for request in requests}
    for first in range(0, len(requests), STATES_AT_A_TIME):
        if time.monotonic() >= until and asked <= {request.actor for request in requests[:first]}:
            log.info("scales of value: measured on %d of %d states in the time given", first, len(requests))
            break
        progress.count(first, len(requests), "states")
        scored += score_replies(scorer, requests[first : first + STATES_AT_A_TIME], outcome_only, unit)
    outcomes: dict[str, list[float]] = {actor: [] for actor in actors}
    returns: dict[str, list[float]] = {actor: [] for actor in actors}
    failures: list[str] = []
    for request, scores in zip(requests, scored, strict=False):  # a time limit leaves states without scores
        if isinstance(scores, BranchFailure):
            failures.append(str(scores))
            continue
        outcomes[request.actor].append(variance(value / scores.turns for value in scores.outcomes))
        returns[request.actor].append(variance(value / scores.turns for value in scores.returns))
    if len(failures) > len(scored) // 2:
        raise TrainingError(f"{len(failures)} of {len(scored)} states failed while measuring scales, e.g. {failures[0]}.")
    for actor in actors:
        if not outcomes[actor]:
            met = sum(state.actor == actor for state in states)
            raise ConfigError(
                f"the scales of {actor!r} need a state with two legal replies of different effect; of {met} states that ask it "
                "none has. Raise --library-tasks, train other roles, or set --scale-states 0 (all scales 1)."
            )
    return {actor: _scales(actor, outcomes, returns, config) for actor in actors}


def _scales(
    actor: str, outcomes: Mapping[str, Sequence[float]], returns: Mapping[str, Sequence[float]], config: BranchConfig
) -> Scales:
    s_v = math.sqrt(math.fsum(outcomes[actor]) / len(outcomes[actor]))
    s_r = math.sqrt(math.fsum(returns[actor]) / len(returns[actor]))
    if s_v == 0.0 and config.outcome_weight > 0.0:
        log.warning("%s does not change the outcome in any of %d states; its scale is set to 1", actor, len(outcomes[actor]))
    return Scales(outcome=s_v or 1.0, ret=s_r or 1.0)
