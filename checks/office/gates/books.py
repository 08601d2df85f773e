"""G12: the ledger balances to the cent, nothing overflows, no invariant breaks; and the luck account, which is reported."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from checks.office.gates.finding import Finding, Statistics, found, nothing
from checks.office.gates.gate import Counts, Job, Played, matches, of_kind
from checks.office.gates.matches import Result
from checks.office.gates.teams import Kind, TeamTable
from onthejob.envs.office.simulator import ROLE_NAMES


@dataclass(frozen=True, slots=True)
class Books:
    """What every episode of every gate must leave behind."""

    name: str = "G12 books"

    def jobs(self, counts: Counts, table: TeamTable) -> Iterable[Job]:
        return matches(counts, table, of_kind(table, Kind.IDLE, Kind.EXPLOITER, Kind.NOISY), seeds=counts.seeds)

    def judge(self, measured: Played, statistics: Statistics) -> list[Finding]:
        results = measured.of(Result)
        if not results:
            return [nothing(self.name, "no episode was played", "cents", "0")]
        gap = max(abs(result.ledger_gap) for result in results)
        infinite = sum(not result.finite for result in results)
        broken = [problem for result in results for problem in result.problems]
        what = f"invariants broken on a morning of {len(results)} episodes" + (f": {broken[0]}" if broken else "")
        return [
            found(
                self.name, f"largest difference of cash and ledger, {len(results)} episodes", float(gap), "cents", "0", gap == 0
            ),
            found(self.name, "episodes with a number that is not finite", float(infinite), "episodes", "0", infinite == 0),
            found(self.name, what, float(len(broken)), "mornings", "0", not broken),
        ]


@dataclass(frozen=True, slots=True)
class Luck:
    """Whether the luck account of branches is unbiased: what it takes for chance and was skill, branches do not reward."""

    name: str = "luck account"
    tolerance: float = 2_000.0
    """Dollars of an episode's company value that a mean may differ from 0, also where that is beyond chance."""

    def jobs(self, counts: Counts, table: TeamTable) -> Iterable[Job]:
        return matches(counts, table, of_kind(table, Kind.EXPERT, Kind.HEURISTIC, Kind.IDLE))

    def judge(self, measured: Played, statistics: Statistics) -> list[Finding]:
        findings = []
        for kind in (Kind.EXPERT, Kind.HEURISTIC, Kind.IDLE):
            played = [result for result in measured.of(Result) if result.kind == kind and result.order == ROLE_NAMES]
            if not played:
                findings.append(nothing(self.name, f"no {kind} team played", "$", "0 within the interval"))
            else:
                # Episodes of one seed share their luck: a seed is one draw.
                seeds = dict.fromkeys(result.seed for result in played)
                interval = statistics.mean([fmean(r.luck for r in played if r.seed == seed) for seed in seeds])
                what = f"mean over {len(seeds)} seeds, {len(played)} episodes, {kind} teams"
                needed = f"0 within the interval, or +-{self.tolerance:,.0f}"
                passed = interval.low <= 0.0 <= interval.high or abs(interval.mean) <= self.tolerance
                findings.append(found(self.name, what, interval.mean, "$", needed, passed, interval))
        return findings
