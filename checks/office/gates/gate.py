"""What a gate is: it says which jobs it needs, and judges what was measured. Where jobs run is the caller's choice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from checks.office.gates.finding import Finding, Statistics
from checks.office.gates.matches import FIRST_SEED, Match, Result, Table
from checks.office.gates.teams import Kind, Team, TeamTable
from onthejob.envs.office.scenarios import SHIPPED
from onthejob.errors import ConfigError

Outcome = TypeVar("Outcome")


class Job(Protocol):
    """One measurement: a pure function of its fields, hashable and importable by name, so that any process can run it once."""

    def run(self) -> Any:
        """What was measured."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How much is measured."""

    scenarios: tuple[str, ...] = SHIPPED
    seeds: int = 30
    """Episodes per team and scenario, at least 2."""
    influence_seeds: int = 60
    """Episodes of the experts, ablations and muted teams: their differences are small. At least `seeds`."""
    deviation_seeds: int = 30
    """Episodes per exploit, seat and scenario, at least 2 and at most `influence_seeds`."""
    partner_seeds: int = 10
    """Episodes per exploit, seat and scenario among random and exploiting partners, at least 1; three times as many with honest
    work in the seat or an empty one."""
    oracle_seeds: int = 10
    """Episodes of the look-ahead oracle per scenario, at most `influence_seeds`; two minutes each. 0 omits it."""
    windows: int = 6
    """Look-ahead windows per role and scenario."""
    states: int = 7
    """States per role and scenario: whose sampled actions are compared, and in which secrets are changed."""
    days: int = 30
    """Length of the episodes; the exactness checks play as long."""

    def __post_init__(self) -> None:
        if not 3 <= self.days <= 90:
            raise ConfigError(f"days must be in 3..90 for a look-ahead to have a future, got {self.days}. Use 30.")
        few = self.seeds < 2 or self.influence_seeds < self.seeds or self.windows < 1 or self.states < 1
        if few or not self.scenarios or not 2 <= self.deviation_seeds <= self.influence_seeds:
            got = (self.seeds, self.influence_seeds, self.deviation_seeds, self.windows, self.states, list(self.scenarios))
            raise ConfigError(
                "gates need a scenario, seeds >= 2 (one episode has no spread), influence seeds >= seeds, deviation seeds of 2 "
                f"to the influence seeds, windows >= 1 and states >= 1, got {got}. Set --seeds 8 --influence-seeds 24."
            )
        if self.partner_seeds < 1:
            raise ConfigError(f"partner seeds must be >= 1, got {self.partner_seeds}. Set --partner-seeds 10.")
        if not 0 <= self.oracle_seeds <= self.influence_seeds or self.oracle_seeds == 1:
            raise ConfigError(
                f"oracle seeds must be 0 or 2 to the influence seeds, got {self.oracle_seeds}. Set --oracle-seeds 10."
            )


QUICK = Counts(seeds=12, influence_seeds=24, deviation_seeds=3, partner_seeds=1, oracle_seeds=0, windows=1, states=2)
"""Some two minutes on two cores; without the oracle, whose episodes take two minutes each."""


class Played:
    """All outcomes of one measurement, by what they are."""

    def __init__(self, outcomes: Sequence[Any]) -> None:
        self.outcomes = outcomes
        self.table = Table(self.of(Result))

    def of(self, kind: type[Outcome]) -> list[Outcome]:
        """All outcomes of one type, in the order of their jobs."""
        return [outcome for outcome in self.outcomes if isinstance(outcome, kind)]


class Gate(Protocol):
    """One property of the office."""

    @property
    def name(self) -> str:
        """E.g. `G1 order`."""
        ...

    def jobs(self, counts: Counts, table: TeamTable) -> Iterable[Job]:
        """What has to be measured; jobs that several gates need are run once."""
        ...

    def judge(self, measured: Played, statistics: Statistics) -> list[Finding]:
        """What was found; a gate without measurements does not hold."""
        ...


HOSTS = 3
"""Episodes of honest work and of an empty seat among strangers, per episode of an exploit: their differences are smaller."""
MORE_SEEDS = frozenset({Kind.EXPERT, Kind.TUNED, Kind.ABLATION, Kind.MUTED})
"""Kinds of teams whose differences are small."""


def matches(
    counts: Counts, table: TeamTable, names: Iterable[str], scenarios: Sequence[str] = (), seeds: int | None = None
) -> Iterable[Match]:
    """Episodes of these teams in all scenarios (or those named); teams that the table does not have are skipped."""
    known = table()
    for scenario in scenarios or counts.scenarios:
        for name in names:
            if name in known:
                for index in range(seeds_of(known[name], counts) if seeds is None else seeds):
                    yield Match(scenario=scenario, team=name, seed=FIRST_SEED + index, days=counts.days, table=table)


def seeds_of(team: Team, counts: Counts) -> int:
    """How many episodes a team plays per scenario."""
    if team.kind == Kind.DEVIANT:
        return counts.deviation_seeds
    if team.kind == Kind.INTRUDER:
        return counts.partner_seeds
    if team.kind in (Kind.HONEST, Kind.ABSENT):
        return HOSTS * counts.partner_seeds
    return counts.influence_seeds if team.kind in MORE_SEEDS else counts.seeds


def of_kind(table: TeamTable, *kinds: Kind) -> list[str]:
    """Names of the teams of these kinds."""
    return [name for name, team in table().items() if team.kind in kinds]
