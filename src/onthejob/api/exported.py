"""A whole run as one HTML file that opens from disk: the pages, and the answers of the API that they would ask for."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse
from pydantic import BaseModel

from onthejob.api.moment import SINGLE_FILE, single_file
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
    ask: dict[str, Callable[..., Any]] = {route.name: route.endpoint for route in reading.routes}  # type: ignore[attr-defined]

    @api.get("/{name}/export", response_class=HTMLResponse)
    def export(
        name: str,
        groups: Annotated[int, Query(ge=0, le=2_000)] = 120,
        episodes: Annotated[int, Query(ge=0, le=500)] = 24,
    ) -> HTMLResponse:
        view = ask["show"](name)
        rows = _all_groups(ask, name)
        listed: list[EpisodeRow] = ask["episodes"](name, None)
        shown = _spread(rows, groups)
        told = _spread([row for row in listed if not row.error], episodes)
        open_episodes = [ask["episode"](name, row.iteration, row.name) for row in told]
        held = {
            "config": _plain(describe(name)),
            "run": {
                "name": name,
                "info": _plain(view.info),
                "view": _plain(view),
                "metrics": _plain(ask["metrics"](name, None, None)),
                "drift": _plain(ask["drift"](name, None)),
                "rows": _plain(rows),
                "groups": {row.key: _plain(ask["group"](name, row.key)) for row in shown},
                "listed": _plain(listed),
                "episodes": [_plain(one) for one in open_episodes],
                "offices": [
                    {
                        "iteration": one.row.iteration,
                        "episode": one.row.name,
                        "part": _plain(ask["office"](name, one.row.iteration, one.row.name)),
                    }
                    for one in open_episodes
                    if one.office
                ],
            },
        }
        text = single_file(pages / SINGLE_FILE, json.dumps(held, separators=(",", ":"), ensure_ascii=False, allow_nan=False))
        return HTMLResponse(text, headers={"content-disposition": f'attachment; filename="onthejob-run-{name}.html"'})

    return api


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


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value
