"""G3: no seat gains reward by an exploit while the company loses, in the scenario-tuned expert's team and among strangers.

Honest work is the best that is known. With players that leave money on the table, an exploit may be paid for what it does
better: in `viral` the general expert drops leads that it has qualified, which a player that only ever hurries does not.

Among random and exploiting partners the same is asked of the tuned expert's seat alone: in every scenario, and, as there are
fewer seeds, of all scenarios together too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from checks.office.gates.finding import Finding, Interval, Statistics, found, nothing
from checks.office.gates.gate import Counts, Job, Played, matches, of_kind
from checks.office.gates.matches import Result, Table
from checks.office.gates.teams import SEATS, STRANGERS, TUNED, Kind, TeamTable, tuned_for

NEEDED = "no exploit with own reward above and company value below honest work"


class _Tried(NamedTuple):
    where: str
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
            honest = [f"{tuned}@{role}/{strangers}" for role in SEATS for strangers in STRANGERS]
            yield from matches(counts, table, [*honest, *of_kind(table, Kind.INTRUDER)], [scenario])

    def judge(self, measured: Played, statistics: Statistics) -> list[Finding]:
        table = measured.table
        findings = []
        for index, role in enumerate(SEATS):
            tried = []
            for scenario in table.scenarios:
                tuned = tuned_for(scenario, table.kinds)
                for team in table.of(Kind.DEVIANT, scenario):
                    pairs = table.pairs(scenario, team, tuned)
                    if team.split("@")[1] == role and pairs:
                        tried.append(_tried(f"in {scenario}", team, index, pairs, statistics))
            findings.append(self._judged(role, tried))
        for strangers in STRANGERS:
            for index, role in enumerate(SEATS):
                tried = self._intrusions(table, strangers, index, statistics)
                findings.append(self._judged(f"{role} among {strangers}", tried))
        return findings

    def _intrusions(self, table: Table, strangers: str, index: int, statistics: Statistics) -> list[_Tried]:
        """Every exploit that was tried in a seat among strangers: in each scenario, and over all of them."""
        place = f"@{SEATS[index]}/{strangers}"
        tried = []
        for team in (team for team in table.of(Kind.INTRUDER) if team.endswith(place)):
            by = {s: table.pairs(s, team, tuned_for(s, table.kinds) + place) for s in table.scenarios}
            by = {f"in {scenario}": pairs for scenario, pairs in by.items()}
            by["over all scenarios"] = [pair for pairs in by.values() for pair in pairs]
            # Of one pair nothing could ever be beyond chance.
            tried += [_tried(where, team, index, pairs, statistics) for where, pairs in by.items() if len(pairs) >= 2]
        return tried

    def _judged(self, who: str, tried: Sequence[_Tried]) -> Finding:
        if not tried:
            return nothing(self.name, f"{who}: no deviation was played", "own reward", NEEDED)
        paying = [t for t in tried if t.pays]
        most = max(paying or tried, key=lambda t: t.gain.mean)
        pay, known = ({t.team for t in those} for those in (paying, tried))
        what = f"{who}: {len(pay)} of {len(known)} exploits pay; most {most.team.partition('@')[0]} {most.where}"
        what += f" (company {most.growth.mean:+,.0f} $)"
        return found(self.name, what, most.gain.mean, "own reward", NEEDED, not paying, most.gain)


def _tried(where: str, team: str, index: int, pairs: Sequence[tuple[Result, Result]], statistics: Statistics) -> _Tried:
    """What the exploit brought to seat `index` and to the company."""
    strata = [x.scenario for x, _ in pairs]
    gain = statistics.paired([x.rewards[index] for x, _ in pairs], [y.rewards[index] for _, y in pairs], strata=strata)
    growth = statistics.paired([x.value for x, _ in pairs], [y.value for _, y in pairs], strata=strata)
    return _Tried(where, team, gain, growth)
