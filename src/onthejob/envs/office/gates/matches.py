"""Whole episodes of every team of scripted players: the raw numbers of the gates on order, agreement and influence.

Measures only; `judge` decides. A match is a pure function of (scenario, team, seed), so it can run in any process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from onthejob.envs.office import scenarios
from onthejob.envs.office.actions import Action
from onthejob.envs.office.episode import run
from onthejob.envs.office.market import company_value
from onthejob.envs.office.policies import Legal, Player, View, do_nothing, players, random_legal
from onthejob.envs.office.policies.exploiters import EXPLOITERS
from onthejob.envs.office.reward import team_reward
from onthejob.envs.office.roles import TRAINED_ROLES
from onthejob.envs.office.simulator import Simulator
from onthejob.envs.office.state import TURNS_PER_DAY, State

SEATS = tuple(str(role) for role in TRAINED_ROLES)
FIRST_SEED = 20_000
"""Gates have seeds of their own within the dev range: the office was calibrated on those from 1,000 on."""


class Kind(StrEnum):
    """What a team is in the gates for."""

    EXPLOITER = "exploiter"
    """Tries to earn reward without running a company."""
    IDLE = "idle"
    """Random or inactive: no skill, and no attempt to cheat."""
    HEURISTIC = "heuristic"
    EXPERT = "expert"
    NOISY = "noisy"
    """A rule player that sometimes acts at random."""
    ABLATION = "ablation"
    """The expert with one role doing nothing; named `expert-no-ROLE`."""
    MUTED = "muted"
    """The expert without messages."""


class Team(NamedTuple):
    """Who sits where."""

    kind: Kind
    seats: Mapping[str, Player]
    mute: bool = False


TeamTable = Callable[[], Mapping[str, Team]]
"""Makes all teams by name. Importable by name when matches are played in other processes."""


class Noisy:
    """`player`, but with probability `share` a random legal action."""

    __slots__ = ("player", "share")

    def __init__(self, player: Player, share: float) -> None:
        self.player, self.share = player, share

    def __call__(self, view: View, legal: Legal, luck: float) -> Action | None:
        if luck < self.share:
            return random_legal(view, legal, luck / self.share)
        return self.player(view, legal, (luck - self.share) / (1.0 - self.share))


def all_teams() -> dict[str, Team]:
    """Exploiters, random, do-nothing, heuristic, expert, both with noise, role ablations, the muted expert."""
    known = players()
    expert, heuristic = known["expert"], known["heuristic"]
    table = {name: Team(Kind.EXPLOITER, dict.fromkeys(SEATS, player)) for name, player in EXPLOITERS.items()}
    table |= {name: Team(Kind.IDLE, dict.fromkeys(SEATS, known[name])) for name in ("random", "do-nothing")}
    table["heuristic"] = Team(Kind.HEURISTIC, dict.fromkeys(SEATS, heuristic))
    table["expert"] = Team(Kind.EXPERT, dict.fromkeys(SEATS, expert))
    for share in (0.1, 0.2, 0.3, 0.5, 0.7):
        table[f"expert~{share}"] = Team(Kind.NOISY, dict.fromkeys(SEATS, Noisy(expert, share)))
    for share in (0.3, 0.6):
        table[f"heuristic~{share}"] = Team(Kind.NOISY, dict.fromkeys(SEATS, Noisy(heuristic, share)))
    table["expert-mute"] = Team(Kind.MUTED, dict.fromkeys(SEATS, expert), mute=True)
    for role in SEATS:
        table[f"expert-no-{role}"] = Team(Kind.ABLATION, {**dict.fromkeys(SEATS, expert), role: do_nothing})
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """One episode to play."""

    scenario: str
    team: str
    seed: int
    days: int = 30
    table: TeamTable = all_teams


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one match ended."""

    scenario: str
    team: str
    kind: Kind
    seed: int
    value: float
    """Company value at the end, dollars."""
    reward: float
    """Team reward: sum over the six trained roles and all turns."""
    luck: float
    """What chance contributed, dollars (`State.luck`); its expectation should be 0 for every team."""
    won: int
    churned: int
    ledger_gap: int
    """Cents by which cash differed from the sum of the ledger, the largest over the mornings of the episode."""
    finite: bool
    """No reward and no stock became infinite or NaN."""


def play_match(match: Match) -> Result:
    """Play one episode on the fast path, looking into the books every morning."""
    team = match.table()[match.team]
    simulator = Simulator(scenarios.load(match.scenario))
    s = simulator.found(match.seed, match.days)
    total = dict.fromkeys(SEATS, 0.0)
    gap = ledger_gap(s)
    for _ in range(match.days):
        for role, reward in run(simulator, s, team.seats, turns=TURNS_PER_DAY, mute=team.mute).items():
            total[role] = total.get(role, 0.0) + reward
        gap = max(gap, ledger_gap(s), key=abs)
        if s.done:
            break
    value = company_value(s) / 100.0
    return Result(
        scenario=match.scenario,
        team=match.team,
        kind=team.kind,
        seed=match.seed,
        value=value,
        reward=team_reward(total),
        luck=s.luck / 100.0,
        won=s.won,
        churned=s.churned,
        ledger_gap=gap,
        finite=all(map(math.isfinite, (value, s.stability, s.conversion, s.satisfaction(), *total.values()))),
    )


def ledger_gap(s: State) -> int:
    """Cents in the till that no booking explains."""
    return s.cash - sum(s.ledger.values())
