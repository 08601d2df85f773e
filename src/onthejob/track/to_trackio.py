"""`trackio`: a local project that `trackio show` opens, or the Space or server of $TRACKIO_SPACE_ID or $TRACKIO_SERVER_URL.

Metrics and transcripts of an iteration are one entry. What cannot be delivered to a Space or server is kept by trackio itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onthejob.errors import TrackError
from onthejob.track.tracker import Row, RunInfo, Tracker
from onthejob.types import Adapter

if TYPE_CHECKING:
    import trackio

KEPT_S = 30.0
"""Seconds in which a local entry must be on disk."""


def check(what: str) -> None:
    """Nothing is refused: a project's name is free."""


def tracker(what: str) -> Tracker:
    """The tracker of project `what`, default `onthejob`."""
    return Trackio(what or "onthejob")


class Trackio(Tracker):
    """One run of a project."""

    def __init__(self, project: str) -> None:
        self._project = project
        self._entries: dict[int, dict[str, Any]] = {}

    def start(self, run: RunInfo, sent: int | None) -> int | None:
        """Open the run again, or begin it; a local project states its newest entry."""
        import trackio

        self._name = f"{run.name}-{run.id[:6]}"
        self._remote = bool(os.environ.get("TRACKIO_SPACE_ID") or os.environ.get("TRACKIO_SERVER_URL"))
        self._run: trackio.Run = trackio.init(
            self._project,
            name=self._name,
            config={"onthejob_id": run.id, **run.config},
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return sent if self._remote else self._newest()

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._entries.setdefault(step, {}).update(values)

    def transcripts(self, step: int, rows: Sequence[Row]) -> None:
        import trackio

        self._entries.setdefault(step, {})["transcripts"] = trackio.Table(data=[dict(row) for row in rows])  # type: ignore[list-item]

    def adapter(self, step: int, adapter: Adapter) -> None:
        self._run.log_artifact(str(adapter.path), name=f"{self._name}-{adapter.role}", type="model")

    def flush(self) -> None:
        """Log what was handed over; returns when a local project has it on disk."""
        for step, entry in sorted(self._entries.items()):
            self._run.log(entry, step=step)
        newest, self._entries = max(self._entries, default=None), {}
        if newest is None or self._remote:
            return
        until = time.monotonic() + KEPT_S
        while (kept := self._newest()) is None or kept < newest:
            if time.monotonic() > until:
                raise TrackError(f"trackio has not kept iteration {newest} within {KEPT_S:.0f} s. Check its folder and the disk.")
            time.sleep(0.05)

    def finish(self) -> None:
        """Finish the open run, which is this one."""
        import trackio

        trackio.finish()

    def _newest(self) -> int | None:
        from trackio.sqlite_storage import SQLiteStorage

        return SQLiteStorage.get_max_step_for_run(self._project, self._name)
