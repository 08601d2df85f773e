"""How would the team of each iteration run the company? Whole episodes of its stand-ins, in seconds instead of hours.

A run whose branches stand-ins continued (`branch.continuation` stand_ins or both) records how its policies chose in every
iteration. The players with these habits play whole dev episodes here, all together, and once for every role with the
scripted expert in its seat: what that gains is what the role still lacks among the others as they are now. A team that gets
worse while its single decisions get better shows here first.

It is an imitation: besides a share of the expert's own actions it draws action types by their rates and targets at random. So it
compares iterations and runs with each other, and says nothing about dollars of the real team; where it peaks, play that one.

    python benchmarks/stand_in_teams.py runs/a [runs/b ...] [--seeds 8] [--iterations 2 6 12] [--json]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from onthejob.envs.office import scenarios
from onthejob.envs.office.company_state import TURNS_PER_DAY
from onthejob.envs.office.fast_play import run
from onthejob.envs.office.market import company_value
from onthejob.envs.office.policies import Player
from onthejob.envs.office.policies.expert import expert
from onthejob.envs.office.policies.stand_in import StandIn
from onthejob.envs.office.simulator import Simulator
from onthejob.envs.office.tasks import office_tasks
from onthejob.record import Run
from onthejob.rollout.origin import read_origin
from onthejob.rollout.stand_ins import Rates
from onthejob.types import Split, Task


class Estimate(NamedTuple):
    """Mean over tasks with its standard error, dollars."""

    mean: float
    error: float


class Row(NamedTuple):
    """The team of one iteration."""

    run: str
    iteration: int
    team: Estimate
    """Company value at the end, less luck."""
    gains: Mapping[str, Estimate]
    """Role -> what the expert in its seat would add, paired by task."""


def values(tasks: Sequence[Task], seats: Mapping[str, Player]) -> list[float]:
    """Company value less luck, in dollars, of one whole episode per task."""
    found = []
    for task in tasks:
        simulator = Simulator(scenarios.load(task.payload["scenario"]))
        days = int(task.payload["days"])
        state = simulator.found(task.seed, days)
        run(simulator, state, seats, turns=days * TURNS_PER_DAY)
        found.append((company_value(state) - state.luck) / 100.0)
    return found


def estimate(found: Sequence[float]) -> Estimate:
    """Mean and standard error; of one value, no error is known."""
    return Estimate(fmean(found), stdev(found) / sqrt(len(found)) if len(found) > 1 else float("nan"))


def habits_of(run: Run, iteration: int) -> Rates:
    """How the policies of an iteration chose, as the branches recorded it; empty when it has none."""
    for episode in run.read_episodes(iteration, turns=False):
        origin = read_origin(episode.facts, f"episode {episode.name!r} of iteration {iteration}")
        if origin is not None and origin.stand_ins:
            return origin.stand_ins
    return {}


def rows_of(folder: Path, tasks: Sequence[Task], iterations: Sequence[int]) -> list[Row]:
    """One row per iteration that has stand-ins; the first has none, as nothing had been sampled before."""
    rows = []
    with Run.open(folder, readonly=True) as record:
        for iteration in iterations or range(1, (record.last_iteration() or 0) + 1):
            rates = habits_of(record, iteration)
            if not rates:
                continue
            seats: dict[str, Player] = {role: StandIn(habits) for role, habits in rates.items()}
            own = values(tasks, seats)
            gains = {
                role: estimate([new - old for new, old in zip(values(tasks, {**seats, role: expert}), own, strict=True)])
                for role in seats
            }
            rows.append(Row(folder.name, iteration, estimate(own), gains))
    return rows


def show(rows: Sequence[Row]) -> None:
    """A table on the terminal."""
    for row in rows:
        gains = "  ".join(f"{role} {gain.mean:+,.0f} ({gain.error:,.0f})" for role, gain in row.gains.items())
        print(f"{row.run} {row.iteration:3}  ${row.team.mean:,.0f} ({row.team.error:,.0f})  expert instead: {gains}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of recorded runs")
    parser.add_argument("--seeds", type=int, default=8, help="dev episodes per scenario")
    parser.add_argument("--iterations", type=int, nargs="*", default=(), help="only these; all by default")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    tasks = office_tasks(Split.DEV, seeds=options.seeds)
    rows = [row for folder in options.runs for row in rows_of(folder, tasks, options.iterations)]
    if not rows:
        parser.error("no stand-ins were recorded. Train with --branch.continuation both (or stand_ins) and two iterations.")
    if options.json:
        print(json.dumps([row._asdict() for row in rows]))
    else:
        show(rows)


if __name__ == "__main__":
    main()
