"""From rows back to what was recorded: metrics, events, adapters, live messages. Groups and episodes: `trajectories`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from onthejob.errors import DamagedRecord, RecordError
from onthejob.record.checksums import Checksums, number_of, require
from onthejob.record.codec import load_json
from onthejob.record.database import Database
from onthejob.types import Adapter, Trajectory


class Metric(NamedTuple):
    """One recorded number."""

    iteration: int
    scope: str
    name: str
    value: float
    """NaN when NaN was recorded."""
    is_clock: bool
    """True for wall-clock readings and memory, which differ between equal runs."""


class Event(NamedTuple):
    """Something that happened in a committed iteration."""

    iteration: int
    kind: str
    payload: Mapping[str, Any]


class Live(NamedTuple):
    """One progress message; not part of the run's result."""

    seq: int
    """Ascending, never reused."""
    at: str
    """UTC, ISO 8601."""
    kind: str
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEpisode:
    """A played or evaluated episode as recorded."""

    iteration: int
    name: str
    policies: Mapping[str, str]
    """Actor -> policy version."""
    metrics: Mapping[str, float]
    trajectories: tuple[Trajectory, ...] = ()
    timeline: tuple[Mapping[str, Any], ...] = ()
    """One mapping per environment step."""
    steps: int = 0
    """Environment steps, also where the timeline was not read."""
    facts: Mapping[str, Any] = field(default_factory=dict)


class GroupHead(NamedTuple):
    """A group without its prompts, tokens and texts: enough to list and to count, at a fraction of the reading."""

    iteration: int
    key: str
    actor: str
    facts: Mapping[str, Any]
    returns: tuple[float, ...]
    valid: tuple[bool, ...]
    """Per trajectory: every reply of it was usable."""
    trained: bool


def read_metrics(
    database: Database, checks: Checksums, iteration: int | None, scope: str | None, name: str | None
) -> list[Metric]:
    """Metrics by iteration, scope and name."""
    columns = "scope, name, value, is_nan, is_clock"
    return [
        Metric(n, s, key, float("nan") if is_nan else value, bool(clock))
        for n, s, key, value, is_nan, clock in _rows(database, checks, "metrics", columns, "scope, name", iteration)
        if scope in (None, s) and name in (None, key)
    ]


def read_events(database: Database, checks: Checksums, iteration: int | None, kind: str | None) -> list[Event]:
    """Events in recorded order."""
    events: list[Event] = []
    for n, what, payload in _rows(database, checks, "events", "kind, payload", "position", iteration):
        if kind in (None, what):
            with checks.part("events", n):
                events.append(Event(n, what, load_json(payload)))
    return events


def read_adapters(database: Database, checks: Checksums, folder: Path, role: str | None, through: int | None) -> list[Adapter]:
    """Adapters by role and version; the paths of those inside the run follow the run's folder when it is moved."""
    adapters: list[Adapter] = []
    columns = "role, version, parent, digest, path"
    for n, rows in _by_iteration(database, checks, "adapters", "adapters", columns, "role, version"):
        if through is not None and n > through:
            break
        with checks.part("adapters", n):
            adapters += [_adapter(folder, *row) for row in rows]
    chosen = (adapter for adapter in adapters if role in (None, adapter.role))
    return sorted(chosen, key=lambda adapter: (adapter.role, adapter.version))


def _adapter(folder: Path, role: str, version: int, parent: str | None, digest: str, stored: str) -> Adapter:
    relative = PurePosixPath(stored)
    if ".." in relative.parts:
        raise RecordError(f"adapter {role}@{version:04d} of {folder} has the path {stored!r}, which leaves the run's folder.")
    return Adapter(role=role, version=version, path=folder / relative, parent=parent, digest=digest)


def read_blob_keys(database: Database, checks: Checksums) -> dict[str, bytes]:
    """Key -> sha256 of the newest bytes under it."""
    newest: dict[str, bytes] = {}
    for _, rows in _by_iteration(database, checks, "blobs", "blob_keys", "key, hash", "key"):
        newest |= dict(rows)
    return newest


def _by_iteration(
    database: Database, checks: Checksums, part: str, table: str, columns: str, order: str
) -> list[tuple[int, list[tuple[Any, ...]]]]:
    """Rows of a table of few rows by ascending iteration, compared with the checksums; in one state of the record."""
    sound: list[tuple[int, list[tuple[Any, ...]]]] = []
    with database.frozen():
        found: dict[int, list[tuple[Any, ...]]] = {}
        with checks.part(part):
            for n, *row in database.rows(f"SELECT iteration, {columns} FROM {table} ORDER BY {order}"):
                found.setdefault(number_of(n), []).append(tuple(row))
        for n in sorted({*checks.iterations(), *found}):
            with checks.part(part, n):
                rows = found.get(n, [])
                if (sums := checks.of(n)) is not None:
                    require(rows, sums.rest[part])
                sound.append((n, rows))
    return sound


def read_live(database: Database, checks: Checksums, after: int, limit: int) -> list[Live]:
    """Up to `limit` live messages with a number above `after`, ascending."""
    own = "checksum" if database.version >= 2 else "NULL"
    messages: list[Live] = []
    rows: list[tuple[Any, ...]] = []
    with checks.part("the list of live messages"):
        sql = f"SELECT seq, at, kind, payload, {own} FROM live WHERE seq > ? ORDER BY seq LIMIT ?"
        rows = database.rows(sql, (after, limit))
        last = database.rows("SELECT seq FROM sqlite_sequence WHERE name = 'live'")
        numbers = [row[0] for row in rows]
        # Numbers are given out one by one, and only the oldest messages are removed.
        gap = numbers != list(range(numbers[0], numbers[0] + len(numbers))) if numbers else False
        if gap or (len(rows) < limit and last and last[0][0] > max(numbers, default=after)):
            raise DamagedRecord("messages are missing.")
    for seq, at, kind, payload, expected in rows:
        with checks.part(f"live message {seq}"):
            if expected is not None:
                require([seq, at, kind, payload], expected)
            messages.append(Live(seq, at, kind, load_json(payload)))
    return messages


def _rows(
    database: Database, checks: Checksums, table: str, columns: str, order: str, iteration: int | None
) -> list[tuple[Any, ...]]:
    """Rows of `metrics` or `events`, each behind its iteration, compared with the checksum of its iteration."""
    found: list[tuple[Any, ...]] = []
    if not checks.exist and iteration is None:
        with checks.part(table):
            found = database.rows(f"SELECT iteration, {columns} FROM {table} ORDER BY iteration, {order}")
        return found
    with database.frozen():
        for n in checks.iterations() if iteration is None else [iteration]:
            with checks.part(table, n):
                rows = database.rows(f"SELECT {columns} FROM {table} WHERE iteration = ? ORDER BY {order}", (n,))
                if (sums := checks.of(n)) is not None:
                    require(rows, sums.rest[table])
                found += [(n, *row) for row in rows]
    return found


_COUNTS = {
    "groups": "SELECT count(*) FROM groups WHERE iteration = ?1",
    "episodes": "SELECT count(*) FROM episodes WHERE iteration = ?1",
    "adapters": "SELECT count(*) FROM adapters WHERE iteration = ?1",
    "events": "SELECT count(*) FROM events WHERE iteration = ?1",
    "turns": """
        SELECT count(*) FROM turns WHERE trajectory_id IN (
            SELECT trajectories.id FROM trajectories JOIN groups ON groups.id = group_id WHERE iteration = ?1
            UNION ALL SELECT trajectories.id FROM trajectories JOIN episodes ON episodes.id = episode_id WHERE iteration = ?1
        )
    """,
}
"""Rows of an iteration that was recorded without checksums."""


def read_counts(database: Database, checks: Checksums) -> dict[str, int]:
    """Table -> number of recorded rows."""
    total = dict.fromkeys(_COUNTS, 0)
    if not checks.exist:
        with checks.part("the numbers of rows"):
            total = {table: database.rows(f"SELECT count(*) FROM {table}")[0][0] for table in _COUNTS}
        return total
    with database.frozen():
        for n in checks.iterations():
            with checks.part("the numbers of rows", n):
                sums = checks.of(n)
                if sums is not None:
                    found = sums.rest["counts"]
                else:
                    found = {table: database.rows(sql, (n,))[0][0] for table, sql in _COUNTS.items()}
                total = {table: total[table] + found[table] for table in total}
    return total


class RunTotals(NamedTuple):
    """What a list of runs shows of one in addition to its counts."""

    roles: tuple[str, ...]
    """Roles with adapters, by name."""
    seconds: float
    """Of all iterations together; pauses are not counted."""


def read_totals(database: Database, checks: Checksums) -> RunTotals:
    """Roles and time of a run. They label it in a list and are not compared with checksums, which would read all of it."""
    with checks.part("the totals"):
        roles = tuple(str(role) for (role,) in database.rows("SELECT DISTINCT role FROM adapters ORDER BY role"))
        sql = "SELECT total(value) FROM metrics WHERE scope = 'time' AND name = 'iteration_s'"
        return RunTotals(roles, float(database.rows(sql)[0][0]))
    return RunTotals((), 0.0)
