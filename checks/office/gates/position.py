"""G10: what a role earns does not hang on when it acts: no other order of the roles changes its reward by 5 % or more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from checks.office.gates.finding import Finding, Statistics, found, nothing
from checks.office.gates.gate import Counts, Job, Played
from checks.office.gates.matches import FIRST_SEED, Match, Result
from checks.office.gates.teams import SEATS, TeamTable
from onthejob.envs.office.simulator import ROLE_NAMES

TEAM = "expert"
ORDERS = (ROLE_NAMES[::-1], ROLE_NAMES[3:] + ROLE_NAMES[:3], ROLE_NAMES[::2] + ROLE_NAMES[1::2])
"""Other orders: reversed, begun with the fourth role, every second role first."""


@dataclass(frozen=True, slots=True)
class Position:
    """The expert's team plays in other orders; in each of them a role's reward, over all scenarios, stays what it was."""

    name: str = "G10 position"
    most: float = 0.05
    """Change of a role's reward that is allowed, as a share of its mean."""

    def jobs(self, counts: Counts, table: TeamTable) -> Iterable[Job]:
        for scenario in counts.scenarios:
            for index in range(counts.influence_seeds):
                for order in (ROLE_NAMES, *ORDERS):
                    yield Match(scenario=scenario, team=TEAM, seed=FIRST_SEED + index, days=counts.days, order=order, table=table)

    def judge(self, measured: Played, statistics: Statistics) -> list[Finding]:
        results = [r for r in measured.of(Result) if r.team == TEAM]
        usual = {(r.scenario, r.seed): r for r in results if r.order == ROLE_NAMES}
        others = [r for r in results if r.order != ROLE_NAMES and (r.scenario, r.seed) in usual]
        needed = f"within +-{100 * self.most:.0f} %, in every order too unless by chance"
        if not others:
            return [nothing(self.name, "no other order was played", "% of own reward", needed)]
        findings = []
        for index, role in enumerate(SEATS):
            findings.append(self._role(role, index, usual, others, needed, statistics))
        return findings

    def _role(
        self,
        role: str,
        index: int,
        usual: dict[tuple[str, int], Result],
        others: Sequence[Result],
        needed: str,
        statistics: Statistics,
    ) -> Finding:
        scale = abs(fmean(r.rewards[index] for r in usual.values())) or 1.0
        # One number per episode, the mean over the orders: what the orders share is no error.
        changes = {
            key: fmean(r.rewards[index] - usual[key].rewards[index] for r in others if (r.scenario, r.seed) == key) / scale
            for key in dict.fromkeys((r.scenario, r.seed) for r in others)
        }
        overall = statistics.percent(list(changes.values()), [scenario for scenario, _ in changes])
        by_order = []
        for order in dict.fromkeys(r.order for r in others):
            moved = [r for r in others if r.order == order]
            shares = [(r.rewards[index] - usual[r.scenario, r.seed].rewards[index]) / scale for r in moved]
            by_order.append(statistics.percent(shares, [r.scenario for r in moved]))
        each = ", ".join(f"{change.mean:+.0f}" for change in by_order)
        what = f"{role}: change of reward in {len(by_order)} other orders of roles ({each})"
        # Also in every order: what one gives and another takes is an advantage of position all the same. One order has fewer
        # episodes than all of them, and 18 of them are looked at, so there the whole interval must be outside.
        most = 100.0 * self.most
        passed = abs(overall.mean) < most and all(change.low < most and change.high > -most for change in by_order)
        return found(self.name, what, overall.mean, "% of own reward", needed, passed, overall)
