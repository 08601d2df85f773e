"""G3: no seat of the scenario-tuned expert's team gains reward by an exploit while the company loses.

Honest work is the best that is known. Beside players that leave money on the table, an exploit may be paid for what it does
better: in `viral` the general expert drops leads that it has qualified, which somebody who only ever hurries does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from onthejob.envs.office.gates.finding import Finding, Interval, Statistics, found, nothing
from onthejob.envs.office.gates.gate import Counts, Job, Played, matches, of_kind
from onthejob.envs.office.gates.teams import SEATS, TUNED, Kind, TeamTable, tuned_for


class _Tried(NamedTuple):
    scenario: str
    team: str
    gain: Interval
    """Own reward, deviating less honest."""
    growth: Interval
    """Company value in dollars, deviating less honest."""

    @property
    def pays(self) -> bool:
        """It earns more than honest work, and the company is worse off, both beyond chance."""
        return self.gain.low > 0.0 and self.growth.high < 0.0


@dataclass(frozen=True, slots=True)
class Deviation:
    """Per role, the most profitable exploit; it fails when one raises the own reward and lowers company value."""

    name: str = "G3 deviation"

    def jobs(self, counts: Counts, table: TeamTable) -> Iterable[Job]:
        deviants = of_kind(table, Kind.DEVIANT)
        for scenario in counts.scenarios:
            tuned = tuned_for(scenario, table())
            home = tuned.removeprefix(TUNED)
            yield from matches(counts, table, [tuned, *(t for t in deviants if t.endswith(f"@{home}"))], [scenario])

    def judge(self, measured: Played, statistics: Statistics) -> list[Finding]:
        table = measured.table
        needed = "no exploit with own reward above and company value below honest work"
        findings = []
        for index, role in enumerate(SEATS):
            tried = []
            for scenario in table.scenarios:
                tuned = tuned_for(scenario, table.kinds)
                for team in table.of(Kind.DEVIANT, scenario):
                    pairs = table.pairs(scenario, team, tuned)
                    if team.split("@")[1] == role and pairs:
                        gain = statistics.paired([x.rewards[index] for x, _ in pairs], [y.rewards[index] for _, y in pairs])
                        growth = statistics.paired([x.value for x, _ in pairs], [y.value for _, y in pairs])
                        tried.append(_Tried(scenario, team, gain, growth))
            if not tried:
                findings.append(nothing(self.name, f"{role}: no deviation was played", "own reward", needed))
                continue
            paying = [t for t in tried if t.pays]
            most = max(paying or tried, key=lambda t: t.gain.mean)
            what = f"{role}: {len(paying)} of {len(tried)} exploits pay; most {most.team.partition('@')[0]} in {most.scenario}"
            what += f" (company {most.growth.mean:+,.0f} $)"
            findings.append(found(self.name, what, most.gain.mean, "own reward", needed, not paying, most.gain))
        return findings
