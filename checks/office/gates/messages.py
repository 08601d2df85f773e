"""G7: talking matters: the experts lose when all messages are blanked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from checks.office.gates.finding import Finding, Interval, Statistics, found, nothing
from checks.office.gates.gate import Counts, Job, Played, matches
from checks.office.gates.influence import cost_of, listed
from checks.office.gates.teams import Kind, TeamTable, tuned_for

MUTE = "-mute"


@dataclass(frozen=True, slots=True)
class Messages:
    """What blanking costs the scenario-tuned experts; for the general expert it is reported."""

    name: str = "G7 messages"
    least: float = 0.05
    """Share of company value, mean over the scenarios."""

    def jobs(self, counts: Counts, table: TeamTable) -> Iterable[Job]:
        yield from matches(counts, table, ["expert", "expert" + MUTE])
        for scenario in counts.scenarios:
            tuned = tuned_for(scenario, table())
            yield from matches(counts, table, [tuned, tuned + MUTE], [scenario])

    def judge(self, measured: Played, statistics: Statistics) -> list[Finding]:
        table = measured.table
        needed = f">= {100 * self.least:.0f} %, interval above 0"
        costs: dict[str, Interval] = {}
        shares: list[float] = []
        strata: list[str] = []
        for scenario in table.scenarios:
            tuned = [team for team in table.of(Kind.TUNED, scenario) if table.rows(scenario, team + MUTE)]
            for team in tuned[:1]:
                worth, silent = table.values(scenario, team, team + MUTE)
                scale = abs(fmean(worth)) or 1.0
                lost = [(x - y) / scale for x, y in zip(worth, silent, strict=True)]
                costs[scenario] = statistics.mean(lost)
                shares += lost
                strata += [scenario] * len(lost)
        if not shares:
            return [nothing(self.name, "no tuned expert played muted", "% of value", needed)]
        overall = statistics.percent(shares, strata)
        passed = overall.mean >= 100.0 * self.least and overall.low > 0.0
        what = f"cost of blanking them, scenario-tuned experts: {listed(costs)}"
        findings = [found(self.name, what, overall.mean, "% of value", needed, passed, overall)]
        for expert in table.of(Kind.EXPERT):
            if any(table.rows(scenario, expert + MUTE) for scenario in table.scenarios):
                costs, overall = cost_of(table, expert, expert + MUTE, statistics)
                what = f"cost of blanking them, {expert}: {listed(costs)}"
                findings.append(found(self.name, what, overall.mean, "% of value", interval=overall))
        return findings
