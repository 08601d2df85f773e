"""G4: every trained role matters: a role that does nothing costs the expert's team.

What the tuned expert's work in the seat is worth among random and among exploiting partners is reported as well. It decides
nothing: that player was tuned for colleagues who use what it provides, and money given to those who waste it is lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from checks.office.gates.finding import Finding, Interval, Percent, Statistics, found, nothing
from checks.office.gates.gate import Counts, Job, Played, matches, of_kind
from checks.office.gates.matches import Table
from checks.office.gates.teams import SEATS, STRANGERS, Kind, TeamTable, tuned_for


@dataclass(frozen=True, slots=True)
class Influence:
    """Costs are shares of the expert's mean value; a star marks a scenario whose own interval is above 0."""

    name: str = "G4 influence"
    least: float = 0.03
    """Share of the expert's company value that doing nothing in one role must cost."""
    scenarios: float = 0.8
    """Share of the scenarios in which it must, beyond chance: four of five."""

    def jobs(self, counts: Counts, table: TeamTable) -> Iterable[Job]:
        yield from matches(counts, table, of_kind(table, Kind.ABLATION, Kind.EXPERT))
        for scenario in counts.scenarios:
            home = tuned_for(scenario, table())
            honest = [f"{home}@{role}/{strangers}" for role in SEATS for strangers in STRANGERS]
            yield from matches(counts, table, [*honest, *of_kind(table, Kind.ABSENT)], [scenario])

    def judge(self, measured: Played, statistics: Statistics) -> list[Finding]:
        table = measured.table
        findings = []
        needed = f"interval above 0, and >= {100 * self.least:.0f} % beyond chance"
        played = table.of(Kind.ABLATION)
        for role in SEATS:
            if f"expert-no-{role}" not in played:
                findings.append(nothing(self.name, f"{role} was never omitted", "% of value", needed))
        for team in played:
            costs, overall = cost_of(table, table.one(Kind.EXPERT), team, statistics)
            held = sum(cost.mean >= self.least and cost.low > 0.0 for cost in costs.values())
            wanted = math.ceil(self.scenarios * len(costs))
            what = f"cost of {team.removeprefix('expert-no-')} doing nothing: {listed(costs)}"
            passed = held >= wanted and overall.low > 0.0
            within = f"{needed} in {wanted} of {len(costs)} scenarios (in {held})"
            findings.append(found(self.name, what, overall.mean, "% of value", within, passed, overall))
        return findings + [self._among(table, strangers, role, statistics) for strangers in STRANGERS for role in SEATS]

    def _among(self, table: Table, strangers: str, role: str, statistics: Statistics) -> Finding:
        """What a good player in one seat is worth among strangers."""
        place = f"@{role}/{strangers}"
        worth: dict[str, Interval] = {}
        differences: list[float] = []
        strata: list[str] = []
        for scenario in table.scenarios:
            good, none = table.values(scenario, _home(scenario, table) + place, f"absent{place}")
            if good:
                worth[scenario] = statistics.paired(good, none)
                differences += [x - y for x, y in zip(good, none, strict=True)]
                strata += [scenario] * len(good)
        if len(differences) < 2:
            return nothing(self.name, f"{role} was never omitted among {strangers}", "$", "to be measured")
        each = ", ".join(f"{s} {w.mean:,.0f}{'*' if w.low > 0.0 else ''}" for s, w in worth.items())
        what = f"{role} among {strangers}: tuned expert - empty seat: {each}"
        interval = statistics.mean(differences, strata)
        return found(self.name, what, interval.mean, "$", interval=interval)


def _home(scenario: str, table: Table) -> str:
    """The tuned team of this scenario, as it is named among strangers."""
    return tuned_for(scenario, {team.partition("@")[0] for team in table.of(Kind.HONEST)})


def cost_of(table: Table, full: str, without: str, statistics: Statistics) -> tuple[dict[str, Interval], Percent]:
    """What `without` loses against `full`: share of `full`'s mean value per scenario, and over all in percent."""
    costs: dict[str, Interval] = {}
    shares: list[float] = []
    strata: list[str] = []
    for scenario in table.scenarios:
        worth, less = table.values(scenario, full, without)
        if worth:
            scale = abs(fmean(worth)) or 1.0
            lost = [(x - y) / scale for x, y in zip(worth, less, strict=True)]
            costs[scenario] = statistics.mean(lost)
            shares += lost
            strata += [scenario] * len(lost)
    return costs, statistics.percent(shares, strata)


def listed(costs: dict[str, Interval]) -> str:
    """Percent per scenario, with a star where the interval is above 0."""
    return ", ".join(f"{scenario} {100 * cost.mean:.0f}{'*' if cost.low > 0.0 else ''}" for scenario, cost in costs.items())
