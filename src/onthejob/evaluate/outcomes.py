"""outcomes: what is known of every run of a folder, from the comparisons kept next to the runs or from its own evaluations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onthejob.evaluate.evaluations import newest_findings
from onthejob.evaluate.findings import Findings, evidence_of, findings_of
from onthejob.evaluate.pass_fail import COMPARISONS
from onthejob.evaluate.statistics import IntervalEstimate

MOST_BYTES = 64 * 2**20
"""Size of a comparison's file above which it is not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The verdict on a run."""

    findings: Findings
    comparison: str
    """Name of the kept comparison that it is of; empty for the run's own evaluations on dev tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDifference:
    """A run less another one, on the same tasks under the same settings."""

    estimate: IntervalEstimate
    """Paired by task."""
    metric: str
    comparison: str
    """Name of the kept comparison in which both took part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A comparison's file, by run; empty for one that is broken."""

    findings: Mapping[str, Findings] = field(default_factory=dict)
    differences: Mapping[tuple[str, str], IntervalEstimate] = field(default_factory=dict)
    """(run, other run) -> the first less the second."""


class Outcomes:
    """The verdicts on the runs of one folder. A comparison's file is read again only when it has changed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._read: dict[Path, tuple[int, _Kept]] = {}

    def of(self, run: str, last: int | None) -> RunOutcome | None:
        """The verdict of the newest comparison in which `run` took part, those with its start first; else of its evaluations.

        Args:
            run: its name.
            last: its last iteration.
        """
        found = [
            RunOutcome(findings=kept.findings[run], comparison=path.stem)
            for path, kept in self._comparisons()
            if run in kept.findings
        ]
        with_start = [one for one in found if one.findings.start]
        if not with_start and (own := newest_findings(self._root / run, last)) is not None:
            return RunOutcome(findings=own, comparison="")
        return next(iter((*with_start, *found)), None)

    def differences(self, baseline: str) -> dict[str, RunDifference]:
        """Run -> its paired difference from `baseline`, of the newest comparison in which both took part.

        A run that was never in one comparison with `baseline` has no entry: means over different tasks are not subtracted.
        """
        found: dict[str, RunDifference] = {}
        for path, kept in self._comparisons():
            for (run, other), estimate in kept.differences.items():
                if other == baseline:
                    metric = kept.findings[run].metric
                    found.setdefault(run, RunDifference(estimate=estimate, metric=metric, comparison=path.stem))
        return found

    def _comparisons(self) -> list[tuple[Path, _Kept]]:
        """Files, the newest first."""
        folder = self._root / COMPARISONS
        files = []
        for path in folder.glob("*.json") if folder.is_dir() else ():
            status = path.stat()
            if status.st_size > MOST_BYTES:
                continue
            if path not in self._read or self._read[path][0] != status.st_mtime_ns:
                self._read[path] = (status.st_mtime_ns, _by_run(path))
            files.append((status.st_mtime_ns, path))
        return [(path, self._read[path][1]) for _, path in sorted(files, reverse=True)]


def _by_run(path: Path) -> _Kept:
    """What the comparison in a file says about runs; the file may be of an earlier version or broken."""
    try:
        held: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        teams = dict.fromkeys(row["team"] for row in held["means"])
        # Comparisons of earlier versions do not say which team is a run: its usual name is the run's.
        runs: Mapping[str, str] = held.get("runs", {team: team for team in teams})
        featured = str(held.get("featured", ""))
        found: dict[str, Findings] = {}
        played: dict[str, str] = {}  # run -> the team that stands for it
        for team in sorted(teams, key=lambda team: team != featured):
            findings = findings_of(held, featured=team) if team in runs else None
            if findings is not None and runs[team] not in found:
                found[runs[team]], played[runs[team]] = findings, team
        return _Kept(findings=found, differences=_differences(held, found, played))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return _Kept()


def _differences(
    held: Mapping[str, Any], findings: Mapping[str, Findings], played: Mapping[str, str]
) -> dict[tuple[str, str], IntervalEstimate]:
    """(run, other run) -> paired difference of the metric on which the runs are judged."""
    if len(played) < 2:
        return {}
    evidence = evidence_of(held, next(iter(findings.values())).metric)
    pairs = {(run, other): (played[run], played[other]) for run in played for other in played if run != other}
    return {runs: found for runs, teams in pairs.items() if (found := evidence.difference(*teams)) is not None}
