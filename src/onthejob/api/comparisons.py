"""Routes of matched comparisons: the files that `onthejob compare --name` keeps next to the runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from pydantic import ValidationError

from onthejob.api.schema_runs import ComparisonInfo, ComparisonView, DifferenceView, FindingsView, McNemarView, MeanView
from onthejob.errors import RecordError
from onthejob.evaluate.findings import Findings, findings_of
from onthejob.evaluate.pass_fail import COMPARISONS
from onthejob.record.store import check_name

MOST_BYTES = 64 * 2**20


def routes(runs: Path) -> APIRouter:
    """All routes of the comparisons kept next to `runs`."""
    folder = runs / COMPARISONS
    api = APIRouter(prefix="/api/comparisons", tags=["runs"])

    @api.get("")
    def list_all() -> list[ComparisonInfo]:
        return [_info(path) for path in sorted(folder.glob("*.json"))] if folder.is_dir() else []

    @api.get("/{name}")
    def show(name: str) -> ComparisonView:
        check_name(name, "comparison")
        return read(folder / f"{name}.json")

    return api


def read(path: Path) -> ComparisonView:
    """The comparison in a file.

    Raises:
        RecordError: there is none, or it holds something else.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise RecordError(f"{path.name} has more than {MOST_BYTES} bytes. A comparison is smaller.")
        held: Any = json.loads(path.read_text(encoding="utf-8"))
        return view(path.stem, held)
    except FileNotFoundError as error:
        raise RecordError(
            f"there is no comparison {path.stem!r}. `onthejob compare ... --name {path.stem}` makes one."
        ) from error
    except (OSError, ValidationError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise RecordError(f"{path.name} holds no comparison: {type(error).__name__}. Make it with `compare --name`.") from error


def view(name: str, held: Mapping[str, Any]) -> ComparisonView:
    """A comparison's document, see `onthejob.evaluate.pass_fail.document`, as the pages read it."""
    means = [MeanView.model_validate(row) for row in held["means"]]
    return ComparisonView(
        name=name,
        teams=list(dict.fromkeys(row.team for row in means)),
        tasks=len(held["tasks"]),
        settings={str(name): value for name, value in held["settings"].items()},
        metrics=list(dict.fromkeys(row.metric for row in means)),
        strata=list(dict.fromkeys(row.stratum for row in means)),
        means=means,
        differences=[DifferenceView.model_validate(row) for row in held["differences"]],
        mcnemar=[McNemarView.model_validate(row) for row in held.get("mcnemar", ())],
        failed=len(held.get("failed", ())),
        verdict=findings_view(findings_of(held)),
    )


def findings_view(found: Findings | None) -> FindingsView | None:
    """A verdict as the pages read it."""
    return None if found is None else FindingsView.model_validate(found.as_dict())


def _info(path: Path) -> ComparisonInfo:
    try:
        found = read(path)
    except RecordError as error:
        return ComparisonInfo(name=path.stem, teams=[], tasks=0, error=str(error))
    return ComparisonInfo(name=found.name, teams=found.teams, tasks=found.tasks, error=None)
