"""Plans all measurements of the gates, runs them, and has them judged. How the jobs are spread over processes is the caller's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from onthejob.envs.office.gates import judge
from onthejob.envs.office.gates.exact import Check, check_exactness, check_processes, digest_command
from onthejob.envs.office.gates.headroom import Gain, LookAhead, look_ahead
from onthejob.envs.office.gates.judge import Finding, Statistics, Table
from onthejob.envs.office.gates.matches import FIRST_SEED, SEATS, Kind, Match, Result, TeamTable, all_teams, play_match
from onthejob.envs.office.gates.signal import Sample, Spread, take_sample
from onthejob.envs.office.luck import Sub, draw
from onthejob.envs.office.scenarios import SHIPPED
from onthejob.envs.office.state import TURNS_PER_DAY
from onthejob.errors import ConfigError

Job = Match | LookAhead | Sample
Outcome = Result | Gain | Spread
Mapper = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
"""Applies a function to jobs and yields the answers in order, like `map`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How much is measured."""

    scenarios: tuple[str, ...] = SHIPPED
    seeds: int = 30
    """Episodes per team and scenario, at least 2."""
    influence_seeds: int = 60
    """Episodes of the expert and of its ablations: their differences are small. At least `seeds`."""
    windows: int = 6
    """Look-ahead windows per role and scenario."""
    states: int = 7
    """States per role and scenario whose sampled actions are compared."""
    days: int = 30
    """Length of the episodes; the exactness checks play as long."""

    def __post_init__(self) -> None:
        if not 3 <= self.days <= 90:
            raise ConfigError(f"days must be in 3..90 for a look-ahead to have a future, got {self.days}. Use 30.")
        if self.seeds < 2 or self.influence_seeds < self.seeds or self.windows < 1 or self.states < 1 or not self.scenarios:
            got = f"{list(self.scenarios)}, {self.seeds}, {self.influence_seeds}, {self.windows} and {self.states}"
            raise ConfigError(
                "gates need a scenario, seeds >= 2 (one episode has no spread), influence seeds >= seeds, windows >= 1 and "
                f"states >= 1, got {got}. Set --seeds 8 --influence-seeds 24."
            )


QUICK = Counts(seeds=8, influence_seeds=24, windows=1, states=2)
"""At most 90 seconds on two cores."""


def measure(
    counts: Counts,
    statistics: Statistics,
    *,
    mapper: Mapper = map,
    table: TeamTable = all_teams,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Finding]:
    """Play everything and judge it.

    Args:
        counts: how much.
        statistics: how intervals and rank agreement are estimated.
        mapper: runs the jobs, e.g. a pool's `map`.
        table: the teams.
        on_progress: called with (jobs done, jobs in all).
    """
    jobs = plan(counts, table)
    outcomes = []
    for outcome in mapper(work, jobs):
        outcomes.append(outcome)
        if on_progress is not None:
            on_progress(len(outcomes), len(jobs))
    scenario = counts.scenarios[0]
    turns = counts.days * TURNS_PER_DAY
    checks = check_exactness(scenario, FIRST_SEED, turns=turns)
    checks.append(check_processes(digest_command(scenario, FIRST_SEED, turns)))
    return judged(outcomes, checks, statistics)


def work(job: Job) -> Outcome:
    """Run one job; importable, so that it can be sent to another process."""
    if isinstance(job, Match):
        return play_match(job)
    return look_ahead(job) if isinstance(job, LookAhead) else take_sample(job)


def plan(counts: Counts, table: TeamTable = all_teams) -> list[Job]:
    """All jobs, the long ones first, so that processes end together."""
    jobs: list[Job] = []
    latest = max(1, counts.days - 12)
    for number, (window, scenario, role) in enumerate(
        (window, scenario, role) for window in range(counts.windows) for scenario in counts.scenarios for role in SEATS
    ):
        start = TURNS_PER_DAY * (2 + int(draw(number, Sub.POLICY, 3, window) * latest))
        jobs.append(LookAhead(scenario=scenario, role=role, seed=FIRST_SEED + 1_000 + number, start=start, days=counts.days))
    for number, (_, scenario, role) in enumerate(
        (state, scenario, role) for state in range(counts.states) for scenario in counts.scenarios for role in SEATS
    ):
        turn = int(draw(number, Sub.POLICY, 4, 0) * TURNS_PER_DAY * max(1, counts.days - 2))
        jobs.append(Sample(scenario=scenario, role=role, seed=FIRST_SEED + 5_000 + number, turn=turn, days=counts.days))
    seeds = {Kind.EXPERT: counts.influence_seeds, Kind.ABLATION: counts.influence_seeds, Kind.MUTED: counts.influence_seeds}
    jobs += [
        Match(scenario=scenario, team=name, seed=FIRST_SEED + index, days=counts.days, table=table)
        for scenario in counts.scenarios
        for name, team in table().items()
        for index in range(seeds.get(team.kind, counts.seeds))
    ]
    return jobs


def judged(outcomes: Sequence[Outcome], checks: Sequence[Check], statistics: Statistics) -> list[Finding]:
    """All findings, in the order of the gates."""
    results = [outcome for outcome in outcomes if isinstance(outcome, Result)]
    gains = [outcome for outcome in outcomes if isinstance(outcome, Gain)]
    spreads = [outcome for outcome in outcomes if isinstance(outcome, Spread)]
    table = Table(results)
    return [
        *judge.judge_order(table, statistics),
        *judge.judge_agreement(table, statistics),
        *judge.judge_influence(table, statistics),
        *judge.judge_headroom(gains, statistics),
        *judge.judge_signal(spreads),
        *judge.judge_books(results, checks),
        *judge.report_luck(results, statistics),
    ]
