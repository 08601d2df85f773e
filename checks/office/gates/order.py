"""G1: in company value, in every scenario, every exploiter < heuristic < expert < look-ahead oracle."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from checks.office.gates.finding import Finding, Statistics, above, found, nothing
from checks.office.gates.foresight import Foreseen, Foresight
from checks.office.gates.gate import Counts, Job, Played, matches, of_kind
from checks.office.gates.matches import FIRST_SEED, Table
from checks.office.gates.teams import Kind, TeamTable, tuned_for


@dataclass(frozen=True, slots=True)
class Order:
    """Who is better builds more company value, with the interval of every difference above 0."""

    name: str = "G1 order"

    def jobs(self, counts: Counts, table: TeamTable) -> Iterable[Job]:
        yield from matches(counts, table, of_kind(table, Kind.EXPLOITER, Kind.IDLE, Kind.HEURISTIC, Kind.EXPERT))
        yield from tuned_and_oracle(counts, table)

    def judge(self, measured: Played, statistics: Statistics) -> list[Finding]:
        table = measured.table
        findings = []
        for scenario in table.scenarios:
            findings += self._rules(table, scenario, statistics)
            findings += self._oracle(table, scenario, measured, statistics)
        return findings or [nothing(self.name, "no episode was played", "$", "interval above 0")]

    def _rules(self, table: Table, scenario: str, statistics: Statistics) -> list[Finding]:
        heuristic, expert = table.one(Kind.HEURISTIC), table.one(Kind.EXPERT)
        findings = []
        for kind, of in ((Kind.EXPLOITER, "exploiters"), (Kind.IDLE, "idle teams")):
            margins = [(statistics.paired(*table.values(scenario, heuristic, team)), team) for team in table.of(kind, scenario)]
            if not margins:
                findings.append(nothing(self.name, f"{scenario}: no {of} played", "$", "interval above 0"))
            else:
                closest, team = min(margins, key=lambda pair: pair[0].low)
                findings.append(above(self.name, f"{scenario}: heuristic - {team}, the closest of {len(margins)} {of}", closest))
        ahead = statistics.paired(*table.values(scenario, expert, heuristic))
        findings.append(above(self.name, f"{scenario}: expert - heuristic", ahead))
        for tuned in [team for team in table.of(Kind.TUNED, scenario) if team == f"tuned-{scenario}"]:
            ahead = statistics.paired(*table.values(scenario, tuned, expert))
            findings.append(above(self.name, f"{scenario}: scenario-tuned expert - expert", ahead))
        return findings

    def _oracle(self, table: Table, scenario: str, measured: Played, statistics: Statistics) -> list[Finding]:
        pairs = foreseen(table, scenario, measured.of(Foreseen))
        what = f"{scenario}: oracle - scenario-tuned expert"
        if not pairs:
            return [found(self.name, f"{what}: not measured (--oracle-seeds 0)", float("nan"), "$")]
        ahead = statistics.paired([x for x, _ in pairs], [y for _, y in pairs])
        return [above(self.name, f"{what}, {len(pairs)} seeds", ahead)]


def tuned_and_oracle(counts: Counts, table: TeamTable) -> Iterable[Job]:
    """Episodes of every scenario's tuned expert, and of the oracle that improves it, on the same seeds."""
    for scenario in counts.scenarios:
        tuned = tuned_for(scenario, table())
        yield from matches(counts, table, [tuned], [scenario])
        if tuned in table():
            for index in range(counts.oracle_seeds):
                yield Foresight(scenario=scenario, team=tuned, seed=FIRST_SEED + index, days=counts.days, table=table)


def foreseen(table: Table, scenario: str, episodes: Iterable[Foreseen]) -> list[tuple[float, float]]:
    """(oracle's company value, that of the team it improves) in dollars, on the same seeds."""
    pairs = []
    for episode in episodes:
        if episode.scenario == scenario:
            own = [result.value for result in table.rows(scenario, episode.team) if result.seed == episode.seed]
            pairs += [(episode.value, value) for value in own]
    return pairs
