"""Two tables of a run, one row per episode and one per turn, in a place that appends: the part that all such places share.

Every row has a key that ascends within its run. A table states the newest key that it holds, and rows up to that key are never
appended, so that nothing is doubled after a kill, or after a request of which only the answer was lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from onthejob.track.tracker import Row, RunInfo, Tracker

EPISODES, TURNS = "episodes", "turns"
FIRST = {
    EPISODES: ("run", "key", "iteration", "episode", "task", "stop", "error", "turns", "reward", "policies"),
    TURNS: (
        "run", "key", "iteration", "episode", "task", "turn", "actor", "policy", "kind", "valid", "action", "reward", "others",
    ),
}  # fmt: skip
"""Table -> columns that it always has; rewards of roles, parts of rewards and metrics follow as they occur."""


class RowSheet(Protocol):
    """One table that keeps rows."""

    def newest(self, id: str) -> str:
        """The greatest key of run `id`; empty when there is none."""
        ...

    def append(self, rows: Sequence[Row]) -> None:
        """Append rows; new columns are added at the right. Returns when they are kept."""
        ...


class Tables(Tracker):
    """Episodes and turns, each in a sheet."""

    tables = True

    def __init__(self) -> None:
        self._sheets: Mapping[str, RowSheet] = {}
        self._pending: dict[str, list[Row]] = {EPISODES: [], TURNS: []}
        self._newest: dict[str, str] = {}

    def opened(self, run: RunInfo) -> Mapping[str, RowSheet]:
        """The sheets; called once, by `start`."""
        raise NotImplementedError

    def start(self, run: RunInfo, sent: int | None) -> int | None:
        """Ask both sheets for their newest rows; an iteration of which a part is there is handed over again, and completed."""
        self._sheets = self.opened(run)
        self._newest = {name: sheet.newest(run.id) for name, sheet in self._sheets.items()}
        there = [int(key.split("/")[1]) for key in self._newest.values() if key]
        return min(there) - 1 if len(there) == len(self._newest) else None

    def episodes(self, step: int, rows: Sequence[Row]) -> None:
        self._pending[EPISODES] += rows

    def turns(self, step: int, rows: Sequence[Row]) -> None:
        self._pending[TURNS] += rows

    def flush(self) -> None:
        """Append the rows that the sheets do not hold."""
        for name, sheet in self._sheets.items():
            rows = [row for row in self._pending[name] if str(row["key"]) > self._newest[name]]
            if rows:
                sheet.append(rows)
                self._newest[name] = str(rows[-1]["key"])
            self._pending[name] = []


def columns_with(known: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """`known` columns, and those of `rows` that are new, in the order in which they occur."""
    return list(dict.fromkeys([*known, *(column for row in rows for column in row)]))


def greatest_key(keys: Sequence[object], id: str) -> str:
    """The greatest of the keys that belong to run `id`."""
    return max((key for key in keys if isinstance(key, str) and key.startswith(f"{id}/")), default="")
