"""Judges the measured numbers: one finding per gate and scenario, each with its number, what is needed, and whether it held.

Intervals come from the caller (`Statistics`), because environments import nothing of the evaluation.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import NamedTuple, Protocol

from onthejob.envs.office.gates.exact import Check
from onthejob.envs.office.gates.headroom import Gain
from onthejob.envs.office.gates.matches import SEATS, Kind, Result
from onthejob.envs.office.gates.signal import Spread

MIN_SPEARMAN = 0.9
MIN_INFLUENCE = 0.03
"""Share of the expert's company value that doing nothing in one role must cost."""
INFLUENCE_SCENARIOS = 0.8
"""Share of the scenarios in which it must: four of five."""
MIN_ALIVE = 0.8
MIN_SPREAD = 0.05
"""Standard deviation between sampled actions, as a share of the role's scale, from which a group is alive."""


class Interval(Protocol):
    """An estimate with the ends of its interval."""

    @property
    def mean(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


class Percent(NamedTuple):
    """An interval in percent."""

    mean: float
    low: float
    high: float


class Paired(Protocol):
    """Estimates the mean of first - second, position by position, with a 95 % interval."""

    def __call__(
        self, first: Sequence[float], second: Sequence[float], /, *, strata: Sequence[Hashable] | None = None
    ) -> Interval:
        """strata: one key per position; what differs between strata is a fixed fact and no source of error."""
        ...


class Statistics(NamedTuple):
    """How differences and rank agreement are estimated."""

    paired: Paired
    spearman: Callable[[Sequence[float], Sequence[float]], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One number that was asked for."""

    gate: str
    what: str
    value: float
    """In `unit`; NaN when there was nothing to measure, which never passes."""
    unit: str
    low: float | None = None
    """Ends of the 95 % interval, where one was estimated."""
    high: float | None = None
    needed: str
    """What must hold, in words; empty for a number that is only reported."""
    passed: bool | None
    """None: reported only."""


def _found(
    gate: str, what: str, value: float, unit: str, needed: str = "", passed: bool | None = None, interval: Interval | None = None
) -> Finding:
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return Finding(gate=gate, what=what, value=value, unit=unit, low=low, high=high, needed=needed, passed=passed)


class Table:
    """Results by scenario and team, in order of seeds."""

    def __init__(self, results: Iterable[Result]) -> None:
        self._rows: dict[tuple[str, str], list[Result]] = defaultdict(list)
        self.kinds: dict[str, Kind] = {}
        for result in sorted(results, key=lambda r: r.seed):
            self._rows[result.scenario, result.team].append(result)
            self.kinds[result.team] = result.kind
        self.scenarios = list(dict.fromkeys(scenario for scenario, _ in self._rows))

    def of(self, kind: Kind) -> list[str]:
        """Teams of one kind."""
        return [team for team, k in self.kinds.items() if k == kind]

    def one(self, kind: Kind) -> str:
        """The first team of one kind."""
        return self.of(kind)[0]

    def values(self, scenario: str, first: str, second: str) -> tuple[list[float], list[float]]:
        """Company values in dollars of two teams, over the seeds that both played."""
        a, b = ({r.seed: r.value for r in self._rows[scenario, team]} for team in (first, second))
        seeds = [seed for seed in a if seed in b]
        return [a[seed] for seed in seeds], [b[seed] for seed in seeds]

    def worth(self, scenario: str, team: str) -> float:
        """Mean company value in dollars."""
        return fmean(r.value for r in self._rows[scenario, team])

    def reward(self, scenario: str, team: str) -> float:
        """Mean team reward."""
        return fmean(r.reward for r in self._rows[scenario, team])


def judge_order(table: Table, statistics: Statistics) -> list[Finding]:
    """Exploiters < heuristic < expert in company value, in every scenario; no exploiter out-earns the heuristic in reward."""
    findings = []
    heuristic, expert = table.one(Kind.HEURISTIC), table.one(Kind.EXPERT)
    for scenario in table.scenarios:
        margins = [(statistics.paired(*table.values(scenario, heuristic, team)), team) for team in table.of(Kind.EXPLOITER)]
        if margins:
            closest, team = min(margins, key=lambda pair: pair[0].low)
            findings.append(_above("order", f"{scenario}: heuristic - {team}, the closest of {len(margins)} exploiters", closest))
        ahead = statistics.paired(*table.values(scenario, expert, heuristic))
        findings.append(_above("order", f"{scenario}: expert - heuristic", ahead))
        earned = table.reward(scenario, heuristic)
        paid = [(table.reward(scenario, team), team) for team in table.of(Kind.EXPLOITER)]
        if paid:
            most, team = max(paid)
            what = f"{scenario}: team reward, heuristic - {team}, the best paid exploiter"
            findings.append(_found("reward order", what, earned - most, "reward", "> 0", earned > most))
    return findings


def _above(gate: str, what: str, interval: Interval) -> Finding:
    return _found(gate, what, interval.mean, "$", "interval above 0", interval.low > 0.0, interval)


def judge_agreement(table: Table, statistics: Statistics) -> list[Finding]:
    """Over all teams, those who earn more reward are those who build more value: Spearman per scenario."""
    findings = []
    for scenario in table.scenarios:
        worth = [table.worth(scenario, team) for team in table.kinds]
        reward = [table.reward(scenario, team) for team in table.kinds]
        rank = statistics.spearman(reward, worth)
        what = f"{scenario}: team reward and company value, {len(worth)} teams"
        findings.append(_found("agreement", what, rank, "Spearman", f">= {MIN_SPEARMAN}", rank >= MIN_SPEARMAN))
    return findings


def judge_influence(table: Table, statistics: Statistics) -> list[Finding]:
    """Doing nothing in a trained role costs the expert's company, in most scenarios; blanked messages are reported.

    Costs are shares of the expert's mean value; a star marks a scenario whose own interval is above 0.
    """
    findings = []
    expert = table.one(Kind.EXPERT)
    for team in [*table.of(Kind.ABLATION), *table.of(Kind.MUTED)]:
        costs: dict[str, Interval] = {}
        shares: list[float] = []
        strata: list[str] = []
        for scenario in table.scenarios:
            worth, without = table.values(scenario, expert, team)
            scale = abs(fmean(worth)) or 1.0
            lost = [(x - y) / scale for x, y in zip(worth, without, strict=True)]
            costs[scenario] = statistics.paired(lost, [0.0] * len(lost))
            shares += lost
            strata += [scenario] * len(lost)
        overall = statistics.paired(shares, [0.0] * len(shares), strata=strata)
        percent = Percent(100.0 * overall.mean, 100.0 * overall.low, 100.0 * overall.high)
        listed = ", ".join(f"{scenario} {100 * cost.mean:.0f}{'*' if cost.low > 0.0 else ''}" for scenario, cost in costs.items())
        if table.kinds[team] == Kind.MUTED:
            findings.append(_found("messages", f"cost of blanking them: {listed}", percent.mean, "% of value", interval=percent))
            continue
        held = sum(cost.mean >= MIN_INFLUENCE for cost in costs.values())
        wanted = math.ceil(INFLUENCE_SCENARIOS * len(costs))
        what = f"cost of {team.removeprefix('expert-no-')} doing nothing: {listed}"
        needed = f"interval above 0, and >= {100 * MIN_INFLUENCE:.0f} % in {wanted} of {len(costs)} scenarios (in {held})"
        findings.append(
            _found("influence", what, percent.mean, "% of value", needed, held >= wanted and percent.low > 0.0, percent)
        )
    return findings


def judge_headroom(gains: Sequence[Gain], statistics: Statistics) -> list[Finding]:
    """A look-ahead of one step beats the expert over all roles and scenarios; per role it is reported."""
    findings: list[Finding] = []
    if not gains:
        return [_found("headroom", "all roles: no window was played", math.nan, "$", "interval above 0", False)]
    for name in ("all roles", *SEATS):
        chosen = [gain for gain in gains if name in ("all roles", gain.role)]
        if not chosen:
            continue
        roles = [gain.role for gain in chosen]
        interval = statistics.paired([gain.gain for gain in chosen], [0.0] * len(chosen), strata=roles)
        what = f"{name}: look-ahead - expert, {len(chosen)} windows, {fmean(g.changed for g in chosen):.1f} changes in each"
        if name == "all roles":
            findings.append(_above("headroom", what, interval))
        else:
            findings.append(_found("headroom", what, interval.mean, "$", interval=interval))
    return findings


def judge_signal(spreads: Sequence[Spread]) -> list[Finding]:
    """Most groups of sampled actions differ by more than a twentieth of what is usual for their role."""
    by_role: dict[str, list[float]] = defaultdict(list)
    for spread in spreads:
        if len(spread.values) >= 2:
            by_role[spread.role].append(stdev(spread.values))
    alive: list[bool] = []
    findings = []
    for role, deviations in by_role.items():
        scale = math.sqrt(fmean(x * x for x in deviations))
        living = [scale > 0.0 and x > MIN_SPREAD * scale for x in deviations]
        alive += living
        what = f"{role}: {sum(living)} of {len(living)} states; usual difference ${scale:,.0f}"
        findings.append(_found("signal", what, 100.0 * fmean(living), "% alive"))
    share = fmean(alive) if alive else math.nan
    needed, what = f">= {100 * MIN_ALIVE:.0f} %", f"all roles: {sum(alive)} of {len(alive)} states"
    return [_found("signal", what, 100.0 * share, "% alive", needed, share >= MIN_ALIVE), *findings]


def judge_books(results: Sequence[Result], checks: Sequence[Check]) -> list[Finding]:
    """The ledger balances to the cent, nothing overflows, and equal seeds give equal bytes."""
    gap = max((abs(result.ledger_gap) for result in results), default=-1)
    broken = sum(not result.finite for result in results)
    what = f"largest difference of cash and ledger, {len(results)} episodes"
    findings = [
        _found("ledger", what, float(gap), "cents", "0", gap == 0),
        _found(
            "ledger", "episodes with a number that is not finite", float(broken), "episodes", "0", bool(results) and broken == 0
        ),
    ]
    for check in checks:
        what = check.what + (f" ({check.detail})" if check.detail else "")
        findings.append(_found("determinism", what, float(check.held), "held", "1", check.held))
    return findings


def report_luck(results: Sequence[Result], statistics: Statistics) -> list[Finding]:
    """Whether the luck account of branches is unbiased: its mean should be 0 for every team. Reported only."""
    findings = []
    for kind in (Kind.EXPERT, Kind.HEURISTIC, Kind.IDLE):
        luck = [result.luck for result in results if result.kind == kind]
        if luck:
            interval = statistics.paired(luck, [0.0] * len(luck))
            what = f"mean over {len(luck)} episodes, {kind} teams"
            findings.append(_found("luck account", what, interval.mean, "$", interval=interval))
    return findings
