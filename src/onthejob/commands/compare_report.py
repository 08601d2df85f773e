"""What `compare --report` shows in addition to the comparison: the record of a team's run, and how its actions moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from onthejob.commands.player_specs import BASE, place_and_iteration
from onthejob.errors import ConfigError

if TYPE_CHECKING:
    from onthejob.api.report import Report
    from onthejob.evaluate.teams import Team
    from onthejob.record import Run
    from onthejob.stack import Stack

RECORD = "run.sqlite"


def run_behind(featured: str, named: Sequence[tuple[str, str]], local: Sequence[str]) -> Path | None:
    """The folder of the run whose adapters the featured team plays, else of the last team that is a run; None without any.

    Args:
        featured: a team's name, or `NAME:ROLE` for one that has only this role of it.
        named: (name, source) of every team, as the command line says it.
        local: the sources that are played by a model of this machine.
    """
    runs: dict[str, Path] = {}
    for name, source in named:
        if source in local and source != BASE:
            folder, _ = place_and_iteration(source)
            if (folder / RECORD).is_file():
                runs[name] = folder
    for name in (featured, featured.rpartition(":")[0], *reversed(runs)):
        if name in runs:
            return runs[name]
    return None


def start_of(run: Run, named: Sequence[tuple[str, str]], made: Sequence[Team], stack: Stack) -> str | None:
    """The name of the team that the run was started from (`--init`), when it is among those that were made."""
    first = {adapter.role: adapter for adapter in reversed(run.adapters())}
    prints = {role: stack.fingerprint(adapter) for role, adapter in first.items()}
    for (name, source), team in zip(named, made, strict=True):
        # By its weights, or by its name where the run keeps them in another precision.
        same = prints and all(team.fingerprints.get(role) == found for role, found in prints.items())
        if same or source == (run.config.get("init") or BASE):
            return name
    return None


def runs_of(named: Sequence[tuple[str, str]], local: Sequence[str]) -> dict[str, str]:
    """Team -> name of the run whose adapters it plays, as `onthejob view` finds the comparisons of a run."""
    found: dict[str, str] = {}
    for name, source in named:
        if source in local and source != BASE and (folder := place_and_iteration(source)[0] / RECORD).is_file():
            found[name] = folder.absolute().parent.name
    return found


def trained_from(run_folder: Path | None, named: Sequence[tuple[str, str]], made: Sequence[Team], stack: Stack | None) -> str:
    """The name of the team that the run in `run_folder` was started from; empty where it is unknown or took no part."""
    from onthejob.record import Run

    if run_folder is None or stack is None:
        return ""
    with Run.open(run_folder, readonly=True) as run:
        return start_of(run, named, made, stack) or ""


def complete(report: Report, *, run_folder: Path | None, made: Sequence[Team], before: str) -> Report:
    """`report` of a comparison with everything else that is known of its featured team.

    Args:
        report: with a comparison and the featured team.
        run_folder: of the run whose record is shown; None where no team is one.
        made: the teams on the command line.
        before: the team whose actions are shown before those of the featured one; empty for the first other team that a model
            plays, else the first other one.
    """
    from onthejob.api.report import with_shifts

    report = replace(report, run=run_folder)
    # Of an earlier comparison's teams the file has no actions.
    others = [team for team in made if team.name != report.featured]
    others.sort(key=lambda team: not team.learned)
    before = before or next((team.name for team in others), "")
    return with_shifts(report, before=before, after=report.featured) if before else report


def check_names(featured: str, before: str, rows: Sequence[str], earlier: Sequence[str]) -> None:
    """Refuse names of teams that will not be in the comparison, before anything is played.

    Args:
        featured: the team whose differences are shown.
        before: `--before`; empty chooses one.
        rows: names of the teams that play.
        earlier: names of the teams that `--beside` adds.
    """
    if featured not in (*earlier, *rows):
        raise ConfigError(f"--featured must be one of {', '.join((*earlier, *rows))}, got {featured!r}.")
    if before and (before not in rows or before == featured):
        raise ConfigError(f"--before must be one of the other teams that play, {', '.join(rows)}, got {before!r}.")
    if before and featured in earlier:
        raise ConfigError(f"--before has no effect with --featured {featured}: an earlier comparison's file has no actions.")
