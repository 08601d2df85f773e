"""evaluations: the held-out evaluations of a run task by task, kept next to its record, and the verdict on its newest one.

The record has their means. Only pairs of the same tasks tell whether training changed anything, so the rows are kept as well, in
a file of their own: they are no part of what a run has to reproduce.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onthejob.evaluate.findings import Findings, findings, held_out_evidence

log = logging.getLogger(__name__)

FILE = "evaluations.jsonl"
"""One evaluation per line; of an iteration that was played again the last line counts."""
VALID = "valid_rate"


def keep_evaluation(folder: Path, iteration: int, metric: str, tasks: Mapping[str, Mapping[str, float]]) -> None:
    """Append an evaluation to the run in `folder`; a full disk costs the rows and not the run.

    Args:
        folder: of the run.
        iteration: after which it was made; 0 is the start.
        metric: what chooses the best iteration; it and the rate of valid replies are kept.
        tasks: task -> metrics.
    """
    rows = {task: {name: row[name] for name in (metric, VALID) if name in row} for task, row in tasks.items()}
    line = json.dumps({"iteration": iteration, "metric": metric, "tasks": rows})
    try:
        with (folder / FILE).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
    except OSError as error:
        log.warning("cannot keep the evaluation of iteration %d in %s: %s", iteration, folder / FILE, error)


def newest_findings(folder: Path, last: int | None) -> Findings | None:
    """The newest evaluation of a run against that of its start, paired by task; None where there are not both.

    The newest is not chosen by its result, unlike the best one, so that its interval is honest.

    Args:
        folder: of the run.
        last: its last iteration; later evaluations were rewound.
    """
    found = _read(folder / FILE, last)
    start, newest = found.get(0), max(found, default=0)
    if start is None or newest == 0:
        return None
    now = found[newest]
    metric = str(now.get("metric", ""))
    names = ("start", f"iteration {newest}")
    values = [{task: float(row[metric]) for task, row in one["tasks"].items() if metric in row} for one in (start, now)]
    if not values[0].keys() & values[1].keys():
        return None
    shares = [[float(row[VALID]) for row in one["tasks"].values() if VALID in row] for one in (start, now)]
    valid = {name: sum(rows) / len(rows) for name, rows in zip(names, shares, strict=True) if rows}
    evidence = held_out_evidence(*values, names=names, seed=0, valid=valid)
    return findings(evidence, featured=names[1], start=names[0], metric=metric, how="newest evaluation")


def _read(path: Path, last: int | None) -> dict[int, Any]:
    """Iteration -> its evaluation; lines that a killed process left half written are passed over."""
    found: dict[int, Any] = {}
    if not path.is_file():
        return found
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
            iteration, tasks = int(row["iteration"]), row["tasks"]
        except (ValueError, LookupError, TypeError):
            continue
        if isinstance(tasks, dict) and (last is None or iteration <= last):
            found[iteration] = row
    return found
