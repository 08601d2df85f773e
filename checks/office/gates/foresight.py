"""One episode of the look-ahead oracle."""

from __future__ import annotations

from dataclasses import dataclass, field

from checks.office.gates.oracle import Oracle, Planning
from checks.office.gates.teams import TeamTable, all_teams
from onthejob.envs.office import scenarios
from onthejob.envs.office.market import company_value
from onthejob.envs.office.simulator import Simulator


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """How it ended."""

    scenario: str
    team: str
    """The rule players that the oracle improves."""
    seed: int
    value: float
    """Company value at the end, dollars."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Foresight:
    """The episode to play."""

    scenario: str
    team: str
    seed: int
    days: int = 30
    planning: Planning = field(default_factory=Planning)
    table: TeamTable = all_teams

    def run(self) -> Foreseen:
        """Play it in the main line's luck."""
        simulator = Simulator(scenarios.load(self.scenario))
        s = simulator.found(self.seed, self.days)
        Oracle(simulator, self.table()[self.team].seats, self.planning).play(s, turns=s.horizon)
        return Foreseen(scenario=self.scenario, team=self.team, seed=self.seed, value=company_value(s) / 100.0)
