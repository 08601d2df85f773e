"""Who plays the other seats when an interface has room for one role only."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from onthejob.envs.office.actions import Action, Invalid, parse, render
from onthejob.envs.office.env import SEATS
from onthejob.envs.office.luck import Sub, draw, mix
from onthejob.envs.office.observation import OfficeObservation
from onthejob.envs.office.policies import Player, players
from onthejob.envs.office.roles import Role
from onthejob.errors import ConfigError
from onthejob.rollout.keys import keyed_seed
from onthejob.types import Context, Policy, Sampling

Teammates = str | Mapping[str, str | Policy]
"""A scripted player's name for all colleagues, or role -> name or policy; who is not named is played by the heuristic."""
Answer = Callable[[OfficeObservation, int, int], str]
"""A colleague: (request, seed of the episode, turn) -> reply."""


def seated(role: str, teammates: Teammates) -> dict[str, Answer]:
    """Who plays for each seat while `role` is not asked (and for `role` itself, the heuristic, when it has left).

    Raises:
        ConfigError: an unknown role or player, a teammate in the role's own seat, or a policy that reads tokens.
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
            if who not in known:
                raise ConfigError(f"unknown player {who!r} for {seat}; known are {', '.join(known)}.")
            answers[seat] = by_player(known[who])
            continue
        if who.reads == "tokens":
            raise ConfigError(f"{who.version} reads tokens; a teammate here must read the view or messages.")
        answers[seat] = by_policy(who)
    return answers


def by_player(player: Player) -> Answer:
    """A scripted player; its luck is keyed by the episode's seed and the turn."""

    def answer(request: OfficeObservation, seed: int, turn: int) -> str:
        def legal() -> list[Action]:
            read = [parse(text, Role(request.actor)) for text in request.view["legal"]]
            return [action for action in read if not isinstance(action, Invalid)]

        action = player(request.view, legal, draw(mix(seed, Sub.POLICY, 0), Sub.POLICY, 0, turn))
        return "" if action is None else render(action)

    return answer


def by_policy(policy: Policy) -> Answer:
    """A policy; the seed of its reply is keyed by the episode's seed and the turn."""

    def answer(request: OfficeObservation, seed: int, turn: int) -> str:
        messages = tuple(request.messages) if policy.reads == "messages" else ()
        context = Context(observation=request, messages=messages, seed=keyed_seed(seed, "teammate", turn))
        (completion,) = policy.act([context], Sampling())
        return completion.text

    return answer
