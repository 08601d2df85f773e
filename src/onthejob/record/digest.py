"""One hash over what a run recorded: equal for a run that was killed and resumed and one that was not.

Hashed are decoded values in a canonical order, not bytes of the file, so that row ids, page layout, the compressor's version
and the folder's name do not matter. Live messages, checkpoints, timestamps and wall-clock metrics do not count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from onthejob.record.codec import load_json, unpack_bytes, unpack_floats, unpack_ids, unpack_text
from onthejob.record.database import Database

_TURNS = """
SELECT contexts.hash, text, finish, policy, kind, temperature, valid, ids, logprobs
FROM turns JOIN contexts ON contexts.id = context_id WHERE trajectory_id = ? ORDER BY position
"""


def digest(database: Database, config: str, *, clocks: bool, through: int | None) -> str:
    """Hex sha256 over iterations <= `through` (None: all); with `clocks` also over times and wall-clock metrics."""
    total = hashlib.sha256()
    with database.frozen():
        for item in _items(database, config, clocks=clocks, through=through):
            # repr of built-in values is exact (floats with all bits) and unambiguous.
            total.update(repr(item).encode("utf-8", "surrogatepass"))
            total.update(b"\n")
    return total.hexdigest()


def _items(database: Database, config: str, *, clocks: bool, through: int | None) -> Iterator[tuple[Any, ...]]:
    yield "config", config
    for n, committed_at in database.rows("SELECT n, committed_at FROM iterations ORDER BY n"):
        if through is not None and n > through:
            return
        yield ("iteration", n, committed_at) if clocks else ("iteration", n)
        yield from _groups(database, n)
        yield from _episodes(database, n, clocks=clocks)
        for table, columns, order in (
            ("metrics", "scope, name, value, is_nan", "scope, name"),
            ("events", "kind, payload", "position"),
            ("adapters", "role, version, parent, digest", "role, version"),
            ("blob_keys", "key, hash", "key"),
        ):
            hidden = " AND NOT is_clock" if table == "metrics" and not clocks else ""
            for row in database.rows(f"SELECT {columns} FROM {table} WHERE iteration = ?{hidden} ORDER BY {order}", (n,)):
                yield table, *row


def _groups(database: Database, n: int) -> Iterator[tuple[Any, ...]]:
    sql = "SELECT id, key, actor, facts, advantages FROM groups WHERE iteration = ? ORDER BY position"
    for row, key, actor, facts, advantages in database.rows(sql, (n,)):
        yield "group", key, actor, facts, None if advantages is None else unpack_floats(advantages)
        yield from _trajectories(database, "group_id", row)


def _episodes(database: Database, n: int, *, clocks: bool) -> Iterator[tuple[Any, ...]]:
    sql = "SELECT id, name, policies, facts, timeline FROM episodes WHERE iteration = ? ORDER BY position"
    for row, name, policies, facts, timeline in database.rows(sql, (n,)):
        yield "episode", name, policies, facts, load_json(unpack_bytes(timeline).decode())
        hidden = "" if clocks else " AND NOT is_clock"
        sql = f"SELECT name, value, is_nan FROM episode_metrics WHERE episode_id = ?{hidden} ORDER BY name"
        for metric in database.rows(sql, (row,)):
            yield "metric", *metric
        yield from _trajectories(database, "episode_id", row)


def _trajectories(database: Database, owner: str, row: int) -> Iterator[tuple[Any, ...]]:
    sql = f"SELECT id, task_id, actor, stop, rewards, metrics FROM trajectories WHERE {owner} = ? ORDER BY position"
    for head, task_id, actor, stop, rewards, metrics in database.rows(sql, (row,)):
        yield "trajectory", task_id, actor, stop, unpack_floats(rewards), metrics
        for context, text, finish, policy, kind, temperature, valid, ids, logprobs in database.rows(_TURNS, (head,)):
            yield (
                "turn", context, unpack_text(text), finish, policy, kind, temperature, valid,
                unpack_ids(ids), unpack_floats(logprobs),
            )  # fmt: skip
