"""Who plays the other seats when an interface has room for one role only."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from onthejob.checkout import missing_player
from onthejob.envs.office.env import SEATS
from onthejob.envs.office.observation import OfficeObservation
from onthejob.envs.office.policies import as_reply, players
from onthejob.envs.office.policies.partners import refuse_partner
from onthejob.errors import ConfigError
from onthejob.keys import keyed_seed
from onthejob.rollout.reading import messages_for
from onthejob.types import Context, Policy, Sampling, Split

Teammates = str | Mapping[str, str | Policy]
"""A scripted player's name for all colleagues, or role -> name or policy; who is not named is played by the heuristic."""
Answer = Callable[[OfficeObservation, int, int], str]
"""A colleague: (request, seed of the episode, turn) -> reply."""


def seated(role: str, teammates: Teammates, *, split: Split) -> dict[str, Answer]:
    """Who plays for each seat while `role` is not asked (and for `role` itself, the heuristic, when it has left).

    Args:
        role: who is asked.
        teammates: who sits in the other seats.
        split: of the tasks that will be played; colleagues that are held out do not work in training.

    Raises:
        ConfigError: an unknown role or player, one that is held out from training, a teammate in the role's own seat, or a
            policy that reads tokens.
    """
    if role not in SEATS:
        raise ConfigError(f"role must be one of {', '.join(SEATS)}, got {role!r}.")
    others = [seat for seat in SEATS if seat != role]
    named: dict[str, str | Policy] = dict.fromkeys(others, teammates) if isinstance(teammates, str) else dict(teammates)
    wrong = sorted(seat for seat in named if seat not in SEATS or seat == role)
    if wrong:
        raise ConfigError(f"teammates of {role} are {', '.join(others)}; got one for {', '.join(wrong)}.")
    known = players()
    answers: dict[str, Answer] = {}
    for seat in SEATS:
        who = named.get(seat, "heuristic")
        if isinstance(who, str):
            if split is Split.TRAIN:
                refuse_partner(who)
            if who not in known:
                raise ConfigError(missing_player(who) or f"unknown player {who!r} for {seat}; known are {', '.join(known)}.")
            answers[seat] = _keyed(as_reply(known[who]))
            continue
        if who.reads == "tokens":
            raise ConfigError(f"{who.version} reads tokens; a teammate here must read the view or messages.")
        answers[seat] = _keyed(_by_policy(who))
    return answers


def _keyed(reply: Callable[[OfficeObservation, int], str]) -> Answer:
    """The luck of a reply is keyed by the episode's seed and the turn."""
    return lambda request, seed, turn: reply(request, keyed_seed(seed, "teammate", turn))


def _by_policy(policy: Policy) -> Callable[[OfficeObservation, int], str]:
    def reply(request: OfficeObservation, seed: int) -> str:
        messages = tuple(messages_for(policy, request)) if policy.reads == "messages" else ()
        (completion,) = policy.act([Context(observation=request, messages=messages, seed=seed)], Sampling())
        return completion.text

    return reply
