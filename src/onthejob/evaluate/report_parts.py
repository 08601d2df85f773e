"""The parts of a report that no comparison holds: what a run's record tells, and how its actions moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from onthejob.errors import ConfigError
from onthejob.evaluate.behaviours import UNNAMED, Counts, shifts
from onthejob.evaluate.recorded import RecordedRun, annotated_turns, training_curves
from onthejob.evaluate.report_data import Report


def with_run(report: Report, run: RecordedRun, *, decode: Callable[[Sequence[int]], str]) -> Report:
    """`report` with the run's settings, training curves and five annotated turns.

    Args:
        report: anything.
        run: an open record.
        decode: token ids of the run's prompts to text.
    """
    return replace(report, config=run.config, curves=training_curves(run), turns=annotated_turns(run, decode=decode))


def with_shifts(report: Report, *, before: str, after: str) -> Report:
    """`report` with the action distributions, per role, of two teams of its comparison.

    Actors whose actions the environment does not name are omitted: shares of nameless actions say nothing.

    Raises:
        ConfigError: there is no comparison, or it lacks one of the teams.
    """
    comparison = report.comparison
    if comparison is None or not {before, after} <= set(comparison.teams):
        known = ", ".join(comparison.teams) if comparison is not None else "none"
        raise ConfigError(f"actions are compared of two teams of the comparison ({known}), got {before!r} and {after!r}.")
    first, second = _named(comparison.actions(before)), _named(comparison.actions(after))
    return replace(report, shifts=shifts(first, second, seed=comparison.seed), shift_names=(before, after))


def _named(actions: Mapping[str, Counts]) -> dict[str, Counts]:
    return {actor: counts for actor, counts in actions.items() if UNNAMED not in counts}
