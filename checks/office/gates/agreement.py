"""G2: those who earn more reward are those who build more value, and no exploiter out-earns honest work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from checks.office.gates.finding import Finding, Statistics, found, nothing
from checks.office.gates.gate import Counts, Job, Played, matches, of_kind
from checks.office.gates.teams import ONE_SEAT, Kind, TeamTable, tuned_for


@dataclass(frozen=True, slots=True)
class Agreement:
    """Rank agreement of team reward and company value over all teams, per scenario."""

    name: str = "G2 agreement"
    least: float = 0.9
    """Spearman correlation that is needed."""

    def jobs(self, counts: Counts, table: TeamTable) -> Iterable[Job]:
        kinds = [kind for kind in Kind if kind not in (*ONE_SEAT, Kind.TUNED, Kind.MUTED)]
        yield from matches(counts, table, [*of_kind(table, *kinds), "expert-mute"])
        for scenario in counts.scenarios:
            yield from matches(counts, table, [tuned_for(scenario, table())], [scenario])

    def judge(self, measured: Played, statistics: Statistics) -> list[Finding]:
        table = measured.table
        findings = []
        for scenario in table.scenarios:
            teams = [t for t, kind in table.kinds.items() if kind not in ONE_SEAT and table.rows(scenario, t)]
            worth, reward = [table.worth(scenario, t) for t in teams], [table.reward(scenario, t) for t in teams]
            rank = statistics.spearman(reward, worth)
            what = f"{scenario}: team reward and company value, {len(worth)} teams"
            findings.append(found(self.name, what, rank, "Spearman", f">= {self.least}", rank >= self.least))
            earned = table.reward(scenario, table.one(Kind.HEURISTIC))
            paid = [(table.reward(scenario, team), team) for team in table.of(Kind.EXPLOITER, scenario)]
            if paid:
                most, team = max(paid)
                what = f"{scenario}: team reward, heuristic - {team}, the best paid exploiter"
                findings.append(found(self.name, what, earned - most, "reward", "> 0", earned > most))
        return findings or [nothing(self.name, "no episode was played", "Spearman", f">= {self.least}")]
