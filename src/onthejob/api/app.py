"""The viewer's server, assembled: guard, routes, live feed and the built pages on one port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, WebSocket
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles

from onthejob import __version__
from onthejob.api import comparisons, exported, playing, run_routes, watching
from onthejob.api.changed_files import Changes, OpenWork
from onthejob.api.collecting import CollectingRun
from onthejob.api.feed import LiveFeed
from onthejob.api.game_tables import GameTables
from onthejob.api.one_file import PAGES
from onthejob.api.players import Hosted, LoadTeam, Players
from onthejob.api.run_rows import Runs
from onthejob.api.schema_office import Problem, Reset
from onthejob.api.security import LOOPBACK, MAX_BODY, Guard
from onthejob.api.tokens import Tokens
from onthejob.api.worlds import Worlds
from onthejob.compat.websocket_guard import BodyGuard
from onthejob.errors import ConfigError, ContractError, OnTheJobError, RecordError
from onthejob.rollout.game_file import Replay
from onthejob.texts import printable

NO_PAGES = (
    "The viewer's pages are not built. With node >= 20.19 and npm: `npm --prefix viewer ci && npm --prefix viewer run build` "
    "in a checkout, or install onthejob from a wheel. The API under /api works without them.\n"
)


def create_app(
    *,
    token: str,
    hosts: Sequence[str] = LOOPBACK,
    runs: Path | None = None,
    open_run: str = "",
    load: LoadTeam | None = None,
    extra_players: Sequence[str] = (),
    hosted: Hosted | None = None,
    default: Reset | None = None,
    replay: Replay | None = None,
    tables: GameTables | None = None,
    collecting: CollectingRun | None = None,
    open_work: OpenWork | None = None,
    pages: Path = PAGES,
) -> FastAPI:
    """The application.

    Args:
        token: what changes need.
        hosts: names under which the server may be asked.
        runs: folder of recorded runs.
        open_run: the run to show first.
        load: how models are loaded; None: only scripted players can be seated.
        extra_players: names in addition to base and runs that `load` or `hosted` understands.
        hosted: where hosted models come from; None: none can be seated.
        default: the company to found first.
        replay: a recorded game to show instead.
        tables: an environment of the user's own that can be played; None: there is none, and the pages are the office's.
        collecting: receives the turns of seats in training mode; None: no seat can be in it.
        open_work: opens the environment of a run, so that its commands can be executed again; None: none are.
        pages: folder of the built pages.
    """
    players = Players(runs=runs, load=load, extra=extra_players, hosted=hosted)
    worlds = Worlds(players, default or Reset.model_validate({}), replay, collecting)
    store = Runs(runs if runs is not None else Path("runs"))
    tokens = Tokens()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        worlds.close()

    app = FastAPI(
        title="onthejob",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        responses={400: {"model": Problem}, 404: {"model": Problem}, 409: {"model": Problem}, 500: {"model": Problem}},
    )
    env = None if tables is None else tables.describe()
    collect = "" if collecting is None else collecting.name
    app.include_router(
        watching.routes(
            worlds, players, lambda: tokens, runs=runs is not None, open_run=open_run, collect=collect, env=env, pages=pages
        )
    )
    app.include_router(playing.routes(tables))
    reading = run_routes.routes(store, Changes(open_work))
    app.include_router(reading)
    app.include_router(comparisons.routes(store.root))
    app.include_router(exported.routes(reading, lambda name: watching.describe(worlds.all(), runs=True, open_run=name), pages))
    live = LiveFeed(worlds)

    @app.websocket("/ws/live")
    async def feed(socket: WebSocket) -> None:
        await live(socket)

    @app.exception_handler(OnTheJobError)
    async def refuse(_: Request, error: OnTheJobError) -> JSONResponse:
        status = 404 if isinstance(error, RecordError) else 409 if isinstance(error, ContractError) else 400
        return JSONResponse(
            {"detail": printable(str(error))}, status_code=status if isinstance(error, ConfigError) or status != 400 else 500
        )

    if (pages / "index.html").is_file():
        app.mount("/", Pages(directory=pages, html=True))
    else:

        @app.get("/", include_in_schema=False)
        def no_pages() -> Response:
            return PlainTextResponse(NO_PAGES, status_code=503)

    app.add_middleware(GZipMiddleware, minimum_size=2_000, compresslevel=4)
    app.add_middleware(BodyGuard, limit=MAX_BODY)  # type: ignore[arg-type]
    app.add_middleware(Guard, hosts=hosts, token=token)
    return app


class Pages(StaticFiles):
    """Built files: names with a hash never change, the entry page is always asked for."""

    def file_response(self, *args: object, **kwargs: object) -> Response:
        response = super().file_response(*args, **kwargs)  # type: ignore[arg-type]
        hashed = isinstance(response, FileResponse) and "assets" in Path(response.path).parts
        response.headers["cache-control"] = "public, max-age=31536000, immutable" if hashed else "no-cache"
        return response


def openapi() -> dict[str, Any]:
    """The API's description, from which the viewer's types are generated."""
    return create_app(token="", pages=Path("nowhere")).openapi()
