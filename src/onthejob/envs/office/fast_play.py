"""Plays scripted players against the simulator directly: the fast path of gates, calibration and branch continuations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from onthejob.envs.office.actions import Action
from onthejob.envs.office.books import book
from onthejob.envs.office.company_state import CompanyState
from onthejob.envs.office.luck import Sub, draw, mix
from onthejob.envs.office.market import prospects
from onthejob.envs.office.new_company import draw_unseen
from onthejob.envs.office.policies import Player
from onthejob.envs.office.reward_parts import TurnLog
from onthejob.envs.office.simulator import Simulator, kpis
from onthejob.envs.office.views import view
from onthejob.errors import ContractError

NIGHT = "night"
"""Stands for the actor where a spectator sees a night."""
OnTurn = Callable[[CompanyState, str, Action | None, TurnLog], None]
"""A spectator, which changes nothing. It receives the state after each turn, the actor, the action (None: unusable) and the log;
after the last turn of a day, whose state is the evening's, it receives the night in the same way: actor `NIGHT`, action None.
`TurnLog.turn` is the turn, for a night the one before it. `TurnLog.before` has the books from before either, so that
`reasons.reasons(s, log)` can say what was paid for."""


def step_watched(
    simulator: Simulator,
    s: CompanyState,
    action: Action | None,
    on_turn: OnTurn | None,
    *,
    before: tuple[float, ...] | None = None,
) -> TurnLog:
    """`Simulator.step` in front of a spectator: turn and night are shown apart, the returned log holds both."""
    if on_turn is None:
        return simulator.step(s, action, before=before)
    role, evening, books = simulator.actor(s.turn), [], [book(s)]

    def at_dusk(log: TurnLog) -> None:
        evening.append(log.split())
        evening[0].before = books[0]
        books.append(book(s))
        on_turn(s, role, action, evening[0])

    log = simulator.step(s, action, before=before, at_dusk=at_dusk)
    log.before = books[0]
    if evening:
        overnight = log.since(evening[0])
        overnight.before = books[1]
        on_turn(s, NIGHT, None, overnight)
    else:
        on_turn(s, role, action, log)
    return log


def run(
    simulator: Simulator,
    s: CompanyState,
    seats: Mapping[str, Player],
    *,
    turns: int,
    mute: bool = False,
    on_turn: OnTurn | None = None,
) -> dict[str, float]:
    """Advance `s` in place by at most `turns` turns with scripted players; returns role -> sum of rewards.

    Args:
        simulator: the rules.
        s: must be at a turn's beginning.
        turns: at most so many; the episode may end before.
        seats: a player per trained role; the customer is the simulator's own.
        mute: drop all messages (what a team loses when it does not talk).
        on_turn: told of every turn.
    """
    total: dict[str, float] = {}
    key = mix(s.seed, Sub.POLICY, s.world)
    before = kpis(s)
    for _ in range(turns):
        if s.done:
            break
        role = simulator.actor(s.turn)
        if role == "customer":
            action = simulator.customer_action(s)
        else:
            action = seats[role](view(s, role), lambda role=role: simulator.legal(s, role), draw(key, Sub.POLICY, 0, s.turn))
            if mute and action is not None and action.message_to:
                action = replace(action, message_to=None, message="")
        log = step_watched(simulator, s, action, on_turn, before=before)
        before = log.after  # players see copies, so nothing changes the state between two turns
        for name, reward in log.paid.items():
            total[name] = total.get(name, 0.0) + reward
    return total


def enter(s: CompanyState, world: int) -> float:
    """Move a state to the luck of `world`; returns what the company's value is counted from, in cents."""
    if world < 1:
        raise ContractError(f"a branch needs world >= 1 (0 is the main line), got {world}.")
    before, s.world = s.world, world
    draw_unseen(s, before)
    return prospects(s)
