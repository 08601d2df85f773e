"""Whole episodes of teams of scripted players, with their books looked into every morning: the raw numbers of most gates.

Measures only; the gates judge. A match is a pure function of (scenario, team, seed, order), so it can run in any process.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from checks.office.gates.audit import audit, moved_back
from checks.office.gates.teams import SEATS, Kind, TeamTable, all_teams
from onthejob.envs.office import scenarios
from onthejob.envs.office.company_state import TURNS_PER_DAY, CompanyState
from onthejob.envs.office.fast_play import run
from onthejob.envs.office.market import company_value
from onthejob.envs.office.reward_parts import team_reward
from onthejob.envs.office.scenarios.goals import goal_reached
from onthejob.envs.office.simulator import ROLE_NAMES, Simulator

FIRST_SEED = 20_000
"""Gates have seeds of their own within the dev range: the office was calibrated on those from 1,000 on."""
PATH_EVERY = 5
"""Days between two points of a match's path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one match ended."""

    scenario: str
    team: str
    kind: Kind
    seed: int
    order: tuple[str, ...] = ROLE_NAMES
    """Who followed whom."""
    value: float
    """Company value at the end, dollars."""
    reward: float
    """Team reward: sum over the six trained roles and all turns."""
    rewards: tuple[float, ...] = ()
    """The same per role, in the order of `SEATS`."""
    luck: float
    """Contribution of chance, in dollars (`CompanyState.luck`). It is 0 on average for every team."""
    won: int
    churned: int
    goal: bool | None = None
    """Whether the scenario's goal was reached; None without a goal."""
    path: tuple[tuple[float, ...], ...] = ()
    """Visits, monthly revenue, satisfaction, stability and customers every few days."""
    ledger_gap: int
    """Cents by which cash differed from the sum of the ledger, the largest over the mornings of the episode."""
    problems: tuple[str, ...] = ()
    """Invariants that a morning broke (`audit`)."""
    finite: bool
    """No reward and no stock became infinite or NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """One episode to play."""

    scenario: str
    team: str
    seed: int
    days: int = 30
    order: tuple[str, ...] = ROLE_NAMES
    table: TeamTable = all_teams

    def run(self) -> Result:
        """Play it on the fast path."""
        team = self.table()[self.team]
        scenario = scenarios.load(self.scenario)
        simulator = Simulator(scenario, order=self.order)
        s = simulator.found(self.seed, self.days)
        total = dict.fromkeys(SEATS, 0.0)
        gap, problems, path = ledger_gap(s), list(audit(s)), [_point(s)]
        for day in range(1, self.days + 1):
            stages = {a.id: a.stage for a in s.accounts}
            for role, reward in run(simulator, s, team.seats, turns=TURNS_PER_DAY, mute=team.mute).items():
                total[role] = total.get(role, 0.0) + reward
            gap = max(gap, ledger_gap(s), key=abs)
            problems += [*audit(s), *moved_back(stages, s)]
            if day % PATH_EVERY == 0:
                path.append(_point(s))
            if s.done:
                break
        value = company_value(s) / 100.0
        return Result(
            scenario=self.scenario,
            team=self.team,
            kind=team.kind,
            seed=self.seed,
            order=self.order,
            value=value,
            reward=team_reward(total),
            rewards=tuple(total[role] for role in SEATS),
            luck=s.luck / 100.0,
            won=s.won,
            churned=s.churned,
            goal=goal_reached(s, scenario),
            path=tuple(path),
            ledger_gap=gap,
            problems=tuple(dict.fromkeys(problems)),
            finite=all(map(math.isfinite, (value, s.stability, s.conversion, s.satisfaction(), *total.values()))),
        )


def ledger_gap(s: CompanyState) -> int:
    """Cents in the till that no booking explains."""
    return s.cash - sum(s.ledger.values())


def _point(s: CompanyState) -> tuple[float, ...]:
    return (sum(s.traffic), s.mrr() / 100.0, s.satisfaction(), s.stability, float(len(s.customers())))


class Table:
    """Results in the usual order of roles, by scenario and team, in order of seeds."""

    def __init__(self, results: Iterable[Result]) -> None:
        self._rows: dict[tuple[str, str], list[Result]] = defaultdict(list)
        self.kinds: dict[str, Kind] = {}
        for result in sorted((r for r in results if r.order == ROLE_NAMES), key=lambda r: r.seed):
            self._rows[result.scenario, result.team].append(result)
            self.kinds[result.team] = result.kind
        self.scenarios = list(dict.fromkeys(scenario for scenario, _ in self._rows))

    def rows(self, scenario: str, team: str) -> Sequence[Result]:
        """Results of one team, in order of seeds; empty when it did not play there."""
        return self._rows.get((scenario, team), ())

    def of(self, kind: Kind, scenario: str | None = None) -> list[str]:
        """Teams of one kind, that played in this scenario."""
        return [t for t, k in self.kinds.items() if k == kind and (scenario is None or (scenario, t) in self._rows)]

    def one(self, kind: Kind) -> str:
        """The first team of one kind."""
        return self.of(kind)[0]

    def pairs(self, scenario: str, first: str, second: str) -> list[tuple[Result, Result]]:
        """Results of two teams on the seeds that both played."""
        a, b = ({r.seed: r for r in self.rows(scenario, team)} for team in (first, second))
        return [(a[seed], b[seed]) for seed in a if seed in b]

    def values(self, scenario: str, first: str, second: str) -> tuple[list[float], list[float]]:
        """Company values in dollars of two teams, over the seeds that both played."""
        pairs = self.pairs(scenario, first, second)
        return [x.value for x, _ in pairs], [y.value for _, y in pairs]

    def worth(self, scenario: str, team: str) -> float:
        """Mean company value in dollars."""
        return fmean(r.value for r in self.rows(scenario, team))

    def reward(self, scenario: str, team: str) -> float:
        """Mean team reward."""
        return fmean(r.reward for r in self.rows(scenario, team))
