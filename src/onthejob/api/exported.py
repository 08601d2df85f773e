"""A whole run as one HTML file that opens from disk: the pages, and the answers of the API that they would ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from onthejob.api.one_file import single_file
from onthejob.api.schema_office import Config
from onthejob.api.schema_runs import EpisodeRow, GroupPage, GroupRow

T = TypeVar("T")
PAGE = 500
"""Groups per question to our own listing, its largest page."""


def routes(reading: APIRouter, describe: Callable[[str], Config], pages: Path) -> APIRouter:
    """The export of runs.

    Args:
        reading: routes of recorded runs, whose answers are put into the file.
        describe: a run's name -> the configuration of pages that open with it.
        pages: folder of the built pages.
    """
    api = APIRouter(prefix="/api/runs", tags=["runs"])

    @api.get("/{name}/export", response_class=HTMLResponse)
    def export(
        name: str,
        groups: Annotated[int, Query(ge=0, le=2_000)] = 120,
        episodes: Annotated[int, Query(ge=0, le=500)] = 24,
    ) -> HTMLResponse:
        held = {"config": describe(name), "run": answers(reading, name, groups=groups, episodes=episodes)}
        return HTMLResponse(
            single_file(held, pages), headers={"content-disposition": f'attachment; filename="onthejob-run-{name}.html"'}
        )

    return api


def answers(reading: APIRouter, name: str, *, groups: int, episodes: int) -> dict[str, Any]:
    """What the pages of a run ask for.

    Args:
        reading: routes of recorded runs.
        name: of the run.
        groups: groups, at most, that are held whole.
        episodes: episodes, at most, that are held turn by turn.
    """
    ask: dict[str, Callable[..., Any]] = {route.name: route.endpoint for route in reading.routes}  # type: ignore[attr-defined]
    view = ask["show"](name)
    rows = _all_groups(ask, name)
    listed: list[EpisodeRow] = ask["episodes"](name, None)
    told = [ask["episode"](name, row.iteration, row.name) for row in _spread([r for r in listed if not r.error], episodes)]
    return {
        "name": name,
        "info": view.info,
        "view": view,
        "overview": ask["overview"](name),
        "metrics": ask["metrics"](name, None, None),
        "drift": ask["drift"](name, None),
        "rows": rows,
        "groups": {row.key: ask["group"](name, row.key) for row in _spread(rows, groups)},
        "listed": listed,
        "episodes": told,
        "offices": [
            {"iteration": row.iteration, "episode": row.name, "part": ask["office"](name, row.iteration, row.name)}
            for row in (one.row for one in told if one.office)
        ],
    }


def _all_groups(ask: dict[str, Callable[..., Any]], name: str) -> list[GroupRow]:
    found: list[GroupRow] = []
    while True:
        page: GroupPage = ask["groups"](name, None, None, len(found), PAGE)
        found += page.rows
        if not page.rows or len(found) >= page.total:
            return found


def _spread(rows: Sequence[T], most: int) -> list[T]:
    """At most `most` of them, evenly over the whole, the last one among them."""
    if len(rows) <= most:
        return list(rows)
    return [rows[(index + 1) * len(rows) // most - 1] for index in range(most)]
