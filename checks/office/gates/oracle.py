"""The look-ahead oracle: before every decision it tries the legal actions in forks of the company, in worlds of other luck.

It knows the company's true present (a fork holds what no role is shown) but never the luck that its own episode will meet: it
refuses to plan in the world it plays in, and what it chooses does not depend on which world that is. What it earns above a rule
player is what better decisions can earn: the headroom of the office.

Source: the rollout algorithm (Tesauro and Galperin 1996, On-line policy improvement using Monte-Carlo search).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from onthejob.envs.office.actions import IDLE, Action
from onthejob.envs.office.company_state import CompanyState
from onthejob.envs.office.fast_play import run
from onthejob.envs.office.luck import Sub, draw, mix
from onthejob.envs.office.market import prospects
from onthejob.envs.office.policies import Player
from onthejob.envs.office.simulator import Simulator
from onthejob.envs.office.views import view
from onthejob.errors import ConfigError, ContractError

PLANNING_WORLD = 5_000
"""Worlds from here to `EVALUATION_WORLD` (excluded) are the oracle's."""
EVALUATION_WORLD = 10_000
"""Evaluation worlds begin here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """How far and how wide the oracle looks."""

    candidates: int = 8
    """Legal actions it looks at besides the rule player's own, by lot, of different types first."""
    screening: int = 4
    """Worlds in which all of them are tried."""
    finalists: int = 3
    """Best of them that are tried again."""
    worlds: int = 16
    """Further worlds in which a finalist must beat the rule player's own action; one not ahead after half of them is out."""
    turns: int = 140
    """Turns of a branch."""
    margin: float = 2.0
    """Standard errors by which it must beat it. Of several hundred decisions, too many are changed for chance's sake with one."""

    def __post_init__(self) -> None:
        if min(self.candidates, self.screening, self.finalists, self.turns) < 1 or self.worlds < 2 or self.margin < 0:
            raise ConfigError(f"planning needs at least one of each and worlds >= 2 (a difference has an error), got {self}.")
        if self.screening + self.worlds > EVALUATION_WORLD - PLANNING_WORLD:
            raise ConfigError(f"there are {EVALUATION_WORLD - PLANNING_WORLD} planning worlds, got {self}. Use fewer.")


class Oracle:
    """Improves a team of rule players by looking ahead."""

    __slots__ = ("_planning", "_seats", "_simulator")

    def __init__(self, simulator: Simulator, seats: Mapping[str, Player], planning: Planning | None = None) -> None:
        self._simulator = simulator
        self._seats = dict(seats)
        self._planning = planning or Planning()

    def play(self, s: CompanyState, *, turns: int) -> dict[str, float]:
        """Advance `s` in place by at most `turns` turns; returns role -> sum of rewards."""
        total: dict[str, float] = {}
        for _ in range(turns):
            if s.done:
                break
            role = self._simulator.actor(s.turn)
            action = self._simulator.customer_action(s) if role == "customer" else self.choose(s, role)
            for name, reward in self._simulator.step(s, action).paid.items():
                total[name] = total.get(name, 0.0) + reward
        return total

    def choose(self, s: CompanyState, role: str) -> Action | None:
        """What `role` should do in `s`; changes nothing.

        Raises:
            ContractError: `s` lives in one of the oracle's own worlds, whose luck it would know.
        """
        if PLANNING_WORLD <= s.world < EVALUATION_WORLD:
            raise ContractError(
                f"the oracle plans in worlds {PLANNING_WORLD} to {EVALUATION_WORLD - 1} and must not play in one, got {s.world}."
            )
        plan = self._planning
        own = self._seats[role](view(s, role), lambda: self._simulator.legal(s, role), 0.5)
        candidates = self._candidates(s, role, own)
        if not candidates:
            return own
        base = self._values(s, own, 0, plan.screening)
        screened = [(fmean(self._values(s, action, 0, plan.screening)) - fmean(base), action) for action in candidates]
        better = sorted((pair for pair in screened if pair[0] > 0.0), key=lambda pair: -pair[0])[: plan.finalists]
        if not better:
            return own
        half = plan.worlds // 2
        base = self._values(s, own, plan.screening, half)
        ahead = [(action, gains) for _, action in better if fmean(gains := self._gains(s, action, plan.screening, base)) > 0.0]
        if not ahead:
            return own
        base = self._values(s, own, plan.screening + half, plan.worlds - half)
        best, best_gain = own, 0.0
        for action, first in ahead:
            gains = first + self._gains(s, action, plan.screening + half, base)
            gain, error = fmean(gains), stdev(gains) / math.sqrt(len(gains))
            if gain > max(plan.margin * error, best_gain):
                best, best_gain = action, gain
        return best

    def _candidates(self, s: CompanyState, role: str, own: Action | None) -> list[Action]:
        """Other legal actions by lot, one of each type first; they say what the rule player would have said."""
        key = mix(s.seed, Sub.POLICY, s.turn)
        legal = self._simulator.legal(s, role)
        by_lot = sorted(range(len(legal)), key=lambda i: draw(key, Sub.POLICY, 7, i))
        seen: dict[str, int] = {}
        ranked = []
        for index in by_lot:
            name = legal[index].action_type
            seen[name] = seen.get(name, 0) + 1
            ranked.append((seen[name], index))
        said = own if own is not None else IDLE
        chosen = [replace(legal[index], message_to=said.message_to, message=said.message) for _, index in sorted(ranked)]
        return [action for action in chosen if action != own][: self._planning.candidates]

    def _gains(self, s: CompanyState, action: Action, first: int, base: list[float]) -> list[float]:
        """By how much `action` beats `base`, the values of the rule player's own action in the same worlds from `first` on."""
        return [value - own for value, own in zip(self._values(s, action, first, len(base)), base, strict=True)]

    def _values(self, s: CompanyState, action: Action | None, first: int, count: int) -> list[float]:
        """Cents that the company gains after `action`, in `count` planning worlds from number `first` on."""
        values = []
        for world in range(PLANNING_WORLD + first, PLANNING_WORLD + first + count):
            fork = s.copy()
            fork.world = world
            before = prospects(fork)
            self._simulator.step(fork, action)
            run(self._simulator, fork, self._seats, turns=self._planning.turns - 1)
            values.append(prospects(fork) - before)
        return values
