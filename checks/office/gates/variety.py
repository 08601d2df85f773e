"""G6: scenarios are different worlds: each has its own best play, and the same play leaves another trace in each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from checks.office.gates.finding import Finding, Statistics, above, found, nothing
from checks.office.gates.gate import Counts, Job, Played, matches
from checks.office.gates.teams import TUNED, Kind, TeamTable, tuned_for

HOME = "baseline"
Path = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Variety:
    """The expert tuned to a scenario beats the baseline's there; a nearest-centroid rule tells scenarios apart by their KPIs."""

    name: str = "G6 variety"
    least: float = 0.8
    """Share of held-out episodes whose scenario is recognised."""

    def jobs(self, counts: Counts, table: TeamTable) -> Iterable[Job]:
        yield from matches(counts, table, ["expert"])
        for scenario in counts.scenarios:
            yield from matches(counts, table, dict.fromkeys([TUNED + HOME, tuned_for(scenario, table())]), [scenario])

    def judge(self, measured: Played, statistics: Statistics) -> list[Finding]:
        table = measured.table
        findings = []
        for scenario in table.scenarios:
            own, home = TUNED + scenario, TUNED + HOME
            if scenario != HOME and own in table.of(Kind.TUNED, scenario) and home in table.of(Kind.TUNED, scenario):
                ahead = statistics.paired(*table.values(scenario, own, home))
                findings.append(above(self.name, f"{scenario}: its own tuned expert - the baseline's", ahead))
        paths = {s: [r.path for r in table.rows(s, table.one(Kind.EXPERT))] for s in table.scenarios}
        if len(paths) >= 2:
            share = told_apart(paths)
            what = f"episodes of the expert whose scenario their KPIs tell, {len(paths)} scenarios"
            needed = f">= {100 * self.least:.0f} %"
            findings.append(found(self.name, what, 100.0 * share, "%", needed, share >= self.least))
        return findings or [nothing(self.name, "fewer than two scenarios were played", "%", f">= {100 * self.least:.0f} %")]


def told_apart(paths: Mapping[str, Sequence[Path]]) -> float:
    """Share of episodes that are nearest to the mean of their own scenario's other episodes; KPIs in standard deviations."""
    length = min(len(path) for rows in paths.values() for path in rows)
    flat = {name: [[x for point in path[:length] for x in point] for path in rows] for name, rows in paths.items()}
    columns = list(zip(*(row for rows in flat.values() for row in rows), strict=True))
    scales = [(fmean(column), pstdev(column) or 1.0) for column in columns]
    scaled = {name: [[(x - m) / d for x, (m, d) in zip(row, scales, strict=True)] for row in rows] for name, rows in flat.items()}
    right = total = 0
    for name, rows in scaled.items():
        for index, row in enumerate(rows):
            others = {n: [r for i, r in enumerate(rs) if n != name or i != index] for n, rs in scaled.items()}
            distances = {n: math.dist(row, [fmean(c) for c in zip(*rs, strict=True)]) for n, rs in others.items() if rs}
            right += min(distances, key=lambda n: distances[n]) == name
            total += 1
    return right / total if total else math.nan
