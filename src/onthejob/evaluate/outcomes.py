"""outcomes: what is known of every run of a folder, from the comparisons kept next to the runs or from its own evaluations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onthejob.evaluate.evaluations import newest_findings
from onthejob.evaluate.findings import Findings, findings_of
from onthejob.evaluate.pass_fail import COMPARISONS

MOST_BYTES = 64 * 2**20
"""Size of a comparison's file above which it is not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The verdict on a run."""

    findings: Findings
    comparison: str
    """Name of the kept comparison that it is of; empty for the run's own evaluations on dev tasks."""


class Outcomes:
    """The verdicts on the runs of one folder. A comparison's file is read again only when it has changed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._read: dict[Path, tuple[int, dict[str, Findings]]] = {}

    def of(self, run: str, last: int | None) -> RunOutcome | None:
        """The verdict of the newest comparison in which `run` took part, those with its start first; else of its evaluations.

        Args:
            run: its name.
            last: its last iteration.
        """
        found = [
            RunOutcome(findings=findings[run], comparison=path.stem) for path, findings in self._comparisons() if run in findings
        ]
        with_start = [one for one in found if one.findings.start]
        if not with_start and (own := newest_findings(self._root / run, last)) is not None:
            return RunOutcome(findings=own, comparison="")
        return next(iter((*with_start, *found)), None)

    def _comparisons(self) -> list[tuple[Path, dict[str, Findings]]]:
        """Files, the newest first, with run -> findings."""
        folder = self._root / COMPARISONS
        files = []
        for path in folder.glob("*.json") if folder.is_dir() else ():
            status = path.stat()
            if status.st_size > MOST_BYTES:
                continue
            if self._read.get(path, (0, {}))[0] != status.st_mtime_ns:
                self._read[path] = (status.st_mtime_ns, _by_run(path))
            files.append((status.st_mtime_ns, path))
        return [(path, self._read[path][1]) for _, path in sorted(files, reverse=True)]


def _by_run(path: Path) -> dict[str, Findings]:
    """Run -> findings of the comparison in a file, which may be of an earlier version or broken."""
    try:
        held: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        teams = dict.fromkeys(row["team"] for row in held["means"])
        # Comparisons of earlier versions do not say which team is a run: its usual name is the run's.
        runs: Mapping[str, str] = held.get("runs", {team: team for team in teams})
        featured = str(held.get("featured", ""))
        found: dict[str, Findings] = {}
        for team in sorted(teams, key=lambda team: team != featured):
            findings = findings_of(held, featured=team) if team in runs else None
            if findings is not None:
                found.setdefault(runs[team], findings)
        return found
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}
