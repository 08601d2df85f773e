"""Scripted players of the office. A player maps a role's view to an action: it knows what the role's prompt shows and no more.

`decide(view, legal, luck)` gets the view, a function that lists the legal actions (called only by players that need it), and a
uniform number keyed by seed and turn. `IDLE` is doing nothing; None says that the player has no usable reply, which costs 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from onthejob.checkout import checks_folder, from_checks
from onthejob.envs.office.actions import IDLE, Action, Invalid, parse, render
from onthejob.envs.office.luck import Sub, draw
from onthejob.envs.office.roles import Role
from onthejob.errors import ConfigError
from onthejob.types import Kind, Observation

View = Mapping[str, Any]
Legal = Callable[[], list[Action]]
Player = Callable[[View, Legal, float], Action | None]


def random_legal(view: View, legal: Legal, luck: float) -> Action | None:
    """An action type at random among the legal ones, then one of its targets at random."""
    actions = legal()
    types = list(dict.fromkeys(action.action_type for action in actions))
    if not types:
        return None
    scaled = luck * len(types)
    chosen = [action for action in actions if action.action_type == types[int(scaled)]]
    return chosen[int((scaled % 1.0) * len(chosen))]


class Noisy:
    """`player`, but with probability `share` a random legal action: the stochastic teacher of the warm start."""

    __slots__ = ("player", "share")

    def __init__(self, player: Player, share: float) -> None:
        if not 0.0 <= share <= 1.0:
            raise ConfigError(f"the share of random actions must be in [0, 1], got {share}.")
        self.player, self.share = player, share

    def __call__(self, view: View, legal: Legal, luck: float) -> Action | None:
        if luck < self.share:
            return random_legal(view, legal, luck / self.share)
        return self.player(view, legal, (luck - self.share) / (1.0 - self.share))


def do_nothing(view: View, legal: Legal, luck: float) -> Action | None:
    """Never acts."""
    return IDLE


def as_reply(player: Player) -> Callable[[Observation, int], str]:
    """`player` as a pure function of the request and a seed, which keys its luck; the reply is the canonical JSON.

    Asked to reflect it writes nothing: an action is no insight, and the next player of the seat would read it as one.
    """

    def reply(observation: Observation, seed: int) -> str:
        def legal() -> list[Action]:
            read = [parse(text, Role(observation.actor)) for text in observation.view["legal"]]
            return [action for action in read if not isinstance(action, Invalid)]

        if observation.kind is Kind.REFLECT:
            return ""
        action = player(observation.view, legal, draw(seed, Sub.POLICY, 0, 0))
        return "" if action is None else render(action)

    return reply


def players(*, held_out: bool = True) -> dict[str, Player]:
    """All players by name; without those that are held out from training when `held_out` is false.

    Exploiters and scenario-tuned experts are among them in a checkout only (`onthejob.checkout`).
    """
    from onthejob.envs.office.policies.expert import expert
    from onthejob.envs.office.policies.heuristic import heuristic
    from onthejob.envs.office.policies.partners import HELD_OUT_PARTNERS
    from onthejob.envs.office.policies.reasons import explained

    measuring = from_checks("office.players", what="players").players() if checks_folder() is not None else {}
    return {
        "random": random_legal,
        "do-nothing": do_nothing,
        "heuristic": heuristic,
        "expert": expert,
        "expert-explained": explained,
        **measuring,
        **(HELD_OUT_PARTNERS if held_out else {}),
    }
