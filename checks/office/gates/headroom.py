"""G5: rules do not solve the office, and its goals are neither given away nor out of reach."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from checks.office.gates.finding import Finding, Statistics, above, found, nothing
from checks.office.gates.foresight import Foreseen
from checks.office.gates.gate import Counts, Job, Played, matches
from checks.office.gates.matches import FIRST_SEED
from checks.office.gates.order import foreseen, tuned_and_oracle
from checks.office.gates.teams import SEATS, TeamTable
from checks.office.gates.windows import Gain, LookAhead
from onthejob.envs.office.company_state import TURNS_PER_DAY
from onthejob.envs.office.luck import Sub, draw

EXPERT, RANDOM = "expert", "random"


@dataclass(frozen=True, slots=True)
class Headroom:
    """The oracle's lead over the tuned expert, goals reached by expert and random, and a look-ahead of single decisions."""

    name: str = "G5 headroom"
    lead: float = 0.10
    """Share of the tuned expert's value by which the oracle must be ahead, in each scenario."""
    expert: tuple[float, float] = (0.5, 0.9)
    """Share of the seeds in which the expert reaches the goal: not too rarely, and not always."""
    random: float = 0.05
    """Share in which the random player may."""

    def jobs(self, counts: Counts, table: TeamTable) -> Iterable[Job]:
        latest = max(1, counts.days - 12)
        places = [(window, s, role) for window in range(counts.windows) for s in counts.scenarios for role in SEATS]
        for number, (window, scenario, role) in enumerate(places):
            start = TURNS_PER_DAY * (2 + int(draw(number, Sub.POLICY, 3, window) * latest))
            yield LookAhead(scenario=scenario, role=role, seed=FIRST_SEED + 1_000 + number, start=start, days=counts.days)
        yield from matches(counts, table, [EXPERT, RANDOM])
        yield from tuned_and_oracle(counts, table)

    def judge(self, measured: Played, statistics: Statistics) -> list[Finding]:
        windows = self.windows(measured.of(Gain), statistics)
        return [*self._oracle(measured, statistics), *self._goals(measured, statistics), *windows]

    def _oracle(self, measured: Played, statistics: Statistics) -> list[Finding]:
        findings = []
        for scenario in measured.table.scenarios:
            pairs = foreseen(measured.table, scenario, measured.of(Foreseen))
            if pairs:
                worth = abs(fmean(own for _, own in pairs)) or 1.0
                lead = statistics.percent([(oracle - own) / worth for oracle, own in pairs])
                what = f"{scenario}: lead of the oracle over the scenario-tuned expert, {len(pairs)} seeds"
                needed = f">= {100 * self.lead:.0f} %, interval above 0"
                passed = lead.mean >= 100.0 * self.lead and lead.low > 0.0
                findings.append(found(self.name, what, lead.mean, "% of value", needed, passed, lead))
        return findings

    def _goals(self, measured: Played, statistics: Statistics) -> list[Finding]:
        table = measured.table
        findings = []
        low, high = self.expert
        for scenario in table.scenarios:
            for team in (EXPERT, RANDOM):
                reached = [float(r.goal) for r in table.rows(scenario, team) if r.goal is not None]
                if reached:
                    share = fmean(reached)
                    passed = low <= share <= high if team == EXPERT else share <= self.random
                    bounds = f"{100 * low:.0f} to {100 * high:.0f} %" if team == EXPERT else f"<= {100 * self.random:.0f} %"
                    what = f"{scenario}: seeds in which {team} reaches the goal, of {len(reached)}"
                    findings.append(found(self.name, what, 100.0 * share, "%", bounds, passed, statistics.percent(reached)))
        return findings

    def windows(self, gains: list[Gain], statistics: Statistics) -> list[Finding]:
        """A look-ahead of one step beats the expert over all roles and scenarios; per role it is reported."""
        if not gains:
            return [nothing(self.name, "all roles: no window was played", "$", "interval above 0")]
        findings: list[Finding] = []
        for name in ("all roles", *SEATS):
            chosen = [gain for gain in gains if name in ("all roles", gain.role)]
            if not chosen:
                continue
            interval = statistics.mean([gain.gain for gain in chosen], [gain.role for gain in chosen])
            changes = fmean(gain.changed for gain in chosen)
            what = f"{name}: look-ahead of one decision - expert, {len(chosen)} windows, {changes:.1f} changes in each"
            if name == "all roles":
                findings.append(above(self.name, what, interval))
            else:
                findings.append(found(self.name, what, interval.mean, "$", interval=interval))
        return findings
