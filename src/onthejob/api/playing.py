"""Routes of an environment of the user's own that a person plays."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from onthejob.api.game_tables import Tables
from onthejob.api.schema_play import OpenTable, TableReply, TableView, TaskPage
from onthejob.errors import ConfigError
from onthejob.types import Split

Id = Annotated[str, Path(min_length=1, max_length=40)]


def routes(tables: Tables | None) -> APIRouter:
    """Tasks and tables; None: the server plays no such environment, and says how one is named."""
    api = APIRouter(prefix="/api", tags=["play"])

    def held() -> Tables:
        if tables is None:
            raise ConfigError("this viewer was started without an environment of your own. Name one: onthejob view --env REF.")
        return tables

    @api.get("/tasks")
    def tasks(
        split: Split = Split.TRAIN,
        start: Annotated[int, Query(ge=0, le=2**31)] = 0,
        count: Annotated[int, Query(ge=1, le=500)] = 100,
    ) -> TaskPage:
        return held().tasks(split, start, count)

    @api.post("/tables")
    def open_table(asked: OpenTable) -> TableView:
        return held().open(asked)

    @api.get("/tables/{table}")
    def show(table: Id) -> TableView:
        return held().get(table).view()

    @api.post("/tables/{table}/reply")
    def reply(table: Id, given: TableReply) -> TableView:
        return held().reply(table, given)

    @api.get("/tables/{table}/everything")
    def everything(table: Id) -> TableView:
        return held().get(table).view(reveal=True)

    return api
