"""All gates: plans their measurements, runs each once, and has them judged. Where they run is the caller's choice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType
from typing import Any

from checks.office.gates.agreement import Agreement
from checks.office.gates.books import Books, Luck
from checks.office.gates.deviation import Deviation
from checks.office.gates.exact import Determinism
from checks.office.gates.finding import Finding, Statistics
from checks.office.gates.foresight import Foresight
from checks.office.gates.gate import Counts, Gate, Job, Played
from checks.office.gates.headroom import Headroom
from checks.office.gates.influence import Influence
from checks.office.gates.matches import Match
from checks.office.gates.measured import MeasuredJobs
from checks.office.gates.messages import Messages
from checks.office.gates.order import Order
from checks.office.gates.position import Position
from checks.office.gates.scoping import Scoping
from checks.office.gates.signal import Signal
from checks.office.gates.teams import TeamTable, all_teams
from checks.office.gates.variety import Variety

Mapper = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
"""Applies a function to jobs and yields the answers in order, like `map`."""
GATES: MappingProxyType[str, Gate] = MappingProxyType(
    {
        "order": Order(),
        "agreement": Agreement(),
        "deviation": Deviation(),
        "influence": Influence(),
        "headroom": Headroom(),
        "variety": Variety(),
        "messages": Messages(),
        "scoping": Scoping(),
        "determinism": Determinism(),
        "position": Position(),
        "signal": Signal(),
        "books": Books(),
        "luck": Luck(),
    }
)
"""Short name -> gate, in the order of the table: G1 to G12 and what is only reported."""


def measure(
    counts: Counts,
    statistics: Statistics,
    *,
    gates: Sequence[Gate] = tuple(GATES.values()),
    mapper: Mapper = map,
    table: TeamTable = all_teams,
    kept: MeasuredJobs | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Finding]:
    """Play everything that `gates` ask for and judge it.

    Args:
        counts: how much.
        statistics: how intervals and rank agreement are estimated.
        gates: which.
        mapper: runs the jobs, e.g. a pool's `map`.
        table: the teams.
        kept: has what was measured before, and is given what is measured now.
        on_progress: called with (jobs done, jobs in all), of those that were not kept.
    """
    jobs = plan(counts, gates, table)
    outcomes = {} if kept is None else kept.known(jobs)
    missing = [job for job in jobs if job not in outcomes]
    for done, (job, outcome) in enumerate(zip(missing, mapper(work, missing), strict=True), start=1):
        outcomes[job] = outcome
        if kept is not None:
            kept.add(job, outcome)
        if on_progress is not None:
            on_progress(done, len(missing))
    played = Played([outcomes[job] for job in jobs])
    return [finding for gate in gates for finding in gate.judge(played, statistics)]


def work(job: Job) -> Any:
    """Run one job; importable, so that it can be sent to another process."""
    return job.run()


def plan(counts: Counts, gates: Sequence[Gate] = tuple(GATES.values()), table: TeamTable = all_teams) -> list[Job]:
    """All jobs once, the long ones first, so that processes end together."""
    jobs = dict.fromkeys(job for gate in gates for job in gate.jobs(counts, table))
    return sorted(jobs, key=lambda job: 0 if isinstance(job, Foresight) else 2 if isinstance(job, Match) else 1)
