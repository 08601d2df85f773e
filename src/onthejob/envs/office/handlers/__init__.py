"""What each action does: one function per (role, action type), with the targets it may have in a state.

`run` changes the state and returns whether it achieved anything (False: tried in vain). `targets` lists the legal targets, none
for lack of money; an action without a target has the single target "". A test pins that every action of `ROLES`
has exactly one handler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from onthejob.envs.office.actions import Action
from onthejob.envs.office.company_state import State
from onthejob.envs.office.reward_parts import TurnLog

GROWTH, PRODUCT, RETENTION, NEUTRAL = 0, 1, 2, -1
READ_FOR = 42
"""Turns for which its reader's prompt shows a message, and for which a request in it may be met."""
KEPT, COPIES_KEPT = 3, 6
"""Messages that a role can always read, and copies that the CEO can; all messages of the last `LONGEST_WAIT` turns stay, too."""
LONGEST_WAIT = 14
"""Turns within which every role is asked again: the order rotates, so who is first today is last tomorrow."""
CREDIT_FOR = 14
"""Turns within which a request must be met for its sender to share the credit."""


class Now(NamedTuple):
    """What a handler needs besides state and action."""

    key: int
    """Luck of the current world."""
    log: TurnLog
    e: float
    """Efficacy of the acting role for this action's focus tag."""


@dataclass(frozen=True, slots=True)
class Handler:
    """One action's implementation."""

    targets: Callable[[State], list[str]]
    run: Callable[[State, Action, Now], bool]
    tag: int
    """Which focus the action serves: GROWTH, PRODUCT, RETENTION or NEUTRAL."""
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Parameter -> the values it may have, first what its absence means. Other parameters are ignored."""


def untargeted(_: State) -> list[str]:
    """For actions without a target."""
    return [""]


def heard(s: State, role: str, verb: str, *, within: int = READ_FOR) -> list[tuple[str, str]]:
    """(sender, argument) of recent messages to `role` that begin with `verb`, newest first; copies are for reading only."""
    found = []
    for turn, sender, text, to in reversed(s.inbox.get(role, ())):
        if to == role and s.turn - turn <= within:
            first, _, rest = text.partition(" ")
            if first == verb:
                found.append((sender, rest))
    return found


def all_handlers() -> dict[tuple[str, str], Handler]:
    """(role, action type) -> handler, for all 43 actions."""
    from onthejob.envs.office.handlers import ceo, content, customer, dev, hr, marketing, sales

    return {
        (role, name): handler
        for role, handlers in (
            ("ceo", ceo.HANDLERS),
            ("dev", dev.HANDLERS),
            ("marketing", marketing.HANDLERS),
            ("sales", sales.HANDLERS),
            ("content", content.HANDLERS),
            ("hr", hr.HANDLERS),
            ("customer", customer.HANDLERS),
        )
        for name, handler in handlers.items()
    }
