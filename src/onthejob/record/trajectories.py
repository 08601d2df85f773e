"""From rows back to groups and episodes: prompts, turns, trajectories, each compared with its checksum before it is decoded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from onthejob.errors import DamagedRecord
from onthejob.record.checksums import Checksums, Sums, require
from onthejob.record.codec import load_json, unpack_bytes, unpack_floats, unpack_ids, unpack_text
from onthejob.record.database import Database
from onthejob.record.from_rows import Episode, GroupHead
from onthejob.record.iteration import context_hash
from onthejob.types import Completion, Group, Kind, StopReason, Trajectory, Turn

_CONTEXTS_KEPT = 4096
_TURNS = """
SELECT context_id, contexts.hash, text, finish, policy, kind, temperature, valid, reward, ids, logprobs
FROM turns LEFT JOIN contexts ON contexts.id = context_id WHERE trajectory_id = ? ORDER BY position
"""
_MEMBERS = """
SELECT rewards, (SELECT min(valid) FROM turns WHERE trajectory_id = trajectories.id) FROM trajectories
WHERE group_id = ? ORDER BY position
"""


class ContextReader:
    """Prompts by row id, each checked against its content hash."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[int, tuple[int, ...]] = {}

    def ids(self, row: int) -> tuple[int, ...]:
        """The whole prompt.

        Raises:
            DamagedRecord: the stored prompt does not have the hash it was stored under.
        """
        if row in self._known:
            return self._known[row]
        tails: list[tuple[int, ...]] = []
        head: tuple[int, ...] = ()
        key, passed = b"", set[int]()
        at: int | None = row
        while at is not None:
            if at in self._known:
                head = self._known[at]
                break
            found = self._database.rows("SELECT hash, parent, tail FROM contexts WHERE id = ?", (at,))
            if not found or at in passed:
                raise DamagedRecord(f"prompt {row} is damaged: {'a part is missing' if not found else 'it contains itself'}.")
            passed.add(at)
            digest, parent, tail = found[0]
            key = key or digest
            tails.append(unpack_ids(tail))
            at = parent
        ids = head + tuple(token for tail in reversed(tails) for token in tail)
        if context_hash(ids) != key:
            raise DamagedRecord(f"prompt {row} is damaged: it does not have its hash.")
        if len(self._known) >= _CONTEXTS_KEPT:
            self._known.clear()
        self._known[row] = ids
        return ids


def read_groups(
    database: Database, checks: Checksums, iteration: int | None, actor: str | None, key: str | None = None
) -> Iterator[Group]:
    """Groups in the order they were recorded, read one at a time."""
    contexts = ContextReader(database)
    for n, name in _group_keys(database, checks, iteration, actor, key):
        group = None
        with checks.part(f"group {name}", n):
            group = _group(database, checks.of(n), contexts, n, name)
        if group is not None:
            yield group


def read_group_keys(database: Database, checks: Checksums) -> list[tuple[int, str]]:
    """(iteration, key) of all groups in recorded order."""
    return _group_keys(database, checks, None, None, None)


def read_group_heads(database: Database, checks: Checksums, iteration: int | None, actor: str | None) -> Iterator[GroupHead]:
    """The heads of groups in recorded order."""
    for n, name in _group_keys(database, checks, iteration, actor, None):
        head = None
        with checks.part(f"group {name}", n):
            _, who, facts, advantages, members = _head(database, checks.of(n), n, name)
            returns = tuple(sum(unpack_floats(rewards)) for rewards, _ in members)
            valid = tuple(bool(valid) for _, valid in members)
            head = GroupHead(n, name, who, load_json(facts), returns, valid, advantages is not None)
        if head is not None:
            yield head


def read_advantages(
    database: Database, checks: Checksums, iteration: int | None, actor: str | None
) -> dict[str, npt.NDArray[np.float64] | None]:
    """Group key -> advantages (K,), or None for a group that was not trained on; in recorded order."""
    read: dict[str, npt.NDArray[np.float64] | None] = {}
    for n, name in _group_keys(database, checks, iteration, actor, None):
        with checks.part(f"group {name}", n):
            blob = _head(database, checks.of(n), n, name)[3]
            read[name] = None if blob is None else np.array(unpack_floats(blob))
    return read


def read_episodes(
    database: Database, checks: Checksums, iteration: int | None, name: str | None, *, turns: bool
) -> Iterator[Episode]:
    """Episodes in recorded order; without `turns` they hold the number of steps, and neither trajectories nor timelines."""
    contexts = ContextReader(database)
    for n, title in _listed(database, checks, "episodes", "name", iteration):
        if name not in (None, title):
            continue
        episode = None
        with checks.part(f"episode {title}", n):
            episode = _episode(database, checks.of(n), contexts, n, title, turns=turns)
        if episode is not None:
            yield episode


def _group_keys(
    database: Database, checks: Checksums, iteration: int | None, actor: str | None, key: str | None
) -> list[tuple[int, str]]:
    if key is not None and iteration is None:
        with checks.part("the list of groups"):
            found = database.rows("SELECT iteration FROM groups WHERE key = ?", (key,))
            iteration = found[0][0] if found else None  # where a damaged index does not find it, every iteration is searched
    listed = _listed(database, checks, "groups", "key, actor", iteration)
    return [(n, name) for n, name, who in listed if actor in (None, who) and key in (None, name)]


def _listed(database: Database, checks: Checksums, table: str, columns: str, iteration: int | None) -> list[tuple[Any, ...]]:
    """Iteration and `columns` of all `groups` or `episodes`, in recorded order; compared with what was recorded."""
    listed: list[tuple[Any, ...]] = []
    if not checks.exist and iteration is None:
        with checks.part(f"the list of {table}"):
            listed = database.rows(f"SELECT iteration, {columns} FROM {table} ORDER BY iteration, position")
        return listed
    with database.frozen():
        for n in checks.iterations() if iteration is None else [iteration]:
            with checks.part(f"the list of {table}", n):
                rows = database.rows(f"SELECT {columns} FROM {table} WHERE iteration = ? ORDER BY position", (n,))
                if (sums := checks.of(n)) is not None:
                    width = len(columns.split(", "))
                    recorded = [one[:width] for one in (sums.groups if table == "groups" else sums.episodes).values()]
                    rows = recorded if checks.skips else _same(rows, recorded)
                listed += [(n, *row) for row in rows]
    return listed


def _same(listed: list[Any], recorded: list[Any]) -> list[Any]:
    if listed != recorded:
        raise DamagedRecord(f"{len(recorded)} were recorded, and {len(listed)} or others are found.")
    return recorded


def _head(database: Database, sums: Sums | None, n: int, key: str) -> tuple[Any, ...]:
    """Row id, actor, facts and advantages of a group, and (rewards, validity) of its trajectories; compared with its checksum."""
    found = database.rows("SELECT id, actor, facts, advantages FROM groups WHERE iteration = ? AND key = ?", (n, key))
    if not found:
        raise DamagedRecord("it is missing.")
    row, actor, facts, advantages = found[0]
    members = database.rows(_MEMBERS, (row,))
    if sums is not None:
        require([key, actor, facts, advantages, members], sums.groups[key].head)
    return row, actor, facts, advantages, members


def _group(database: Database, sums: Sums | None, contexts: ContextReader, n: int, key: str) -> Group:
    row, actor, facts, _, _ = _head(database, sums, n, key)
    expected = None if sums is None else sums.groups[key].body
    trajectories = _trajectories(database, contexts, "group_id", row, expected)
    return Group(key=key, actor=actor, trajectories=trajectories, facts=load_json(facts))


def _episode(database: Database, sums: Sums | None, contexts: ContextReader, n: int, name: str, *, turns: bool) -> Episode:
    sql = "SELECT id, policies, facts, timeline FROM episodes WHERE iteration = ? AND name = ?"
    found = database.rows(sql, (n, name))
    if not found:
        raise DamagedRecord("it is missing.")
    row, policies, facts, blob = found[0]
    metrics = database.rows(
        "SELECT name, value, is_nan, is_clock FROM episode_metrics WHERE episode_id = ? ORDER BY name", (row,)
    )
    expected = None
    if sums is not None:
        require([name, policies, facts, blob, metrics], sums.episodes[name].head)
        expected = sums.episodes[name].body
    timeline: tuple[Mapping[str, Any], ...] = tuple(load_json(unpack_bytes(blob).decode()))
    return Episode(
        iteration=n,
        name=name,
        policies=load_json(policies),
        metrics={metric: float("nan") if is_nan else value for metric, value, is_nan, _ in metrics},
        trajectories=_trajectories(database, contexts, "episode_id", row, expected) if turns else (),
        timeline=timeline if turns else (),
        steps=len(timeline),
        facts=load_json(facts),
    )


def _trajectories(
    database: Database, contexts: ContextReader, owner: str, row: int, expected: str | None
) -> tuple[Trajectory, ...]:
    """Trajectories of a group (`owner` = `group_id`) or an episode (`episode_id`), in order."""
    sql = f"SELECT id, task_id, actor, stop, ret, rewards, metrics FROM trajectories WHERE {owner} = ? ORDER BY position"
    heads = database.rows(sql, (row,))
    turns = [database.rows(_TURNS, (head[0],)) for head in heads]
    if expected is not None:
        # Row ids are omitted: they say where a row lies, and not what was recorded.
        require([[*head[1:], [turn[1:] for turn in rows]] for head, rows in zip(heads, turns, strict=True)], expected)
    return tuple(
        Trajectory(
            task_id=task_id,
            actor=actor,
            turns=tuple(_turn(columns, contexts) for columns in rows),
            rewards=unpack_floats(rewards),
            stop=StopReason(stop),
            metrics=load_json(metrics),
        )
        for (_, task_id, actor, stop, _, rewards, metrics), rows in zip(heads, turns, strict=True)
    )


def _turn(columns: Sequence[Any], contexts: ContextReader) -> Turn:
    context, _, text, finish, policy, kind, temperature, valid, _, ids, logprobs = columns
    completion = Completion(
        text=unpack_text(text), token_ids=unpack_ids(ids), logprobs=unpack_floats(logprobs), finish_reason=finish
    )
    return Turn(
        prompt_ids=contexts.ids(context),
        completion=completion,
        policy_version=policy,
        kind=Kind(kind),
        temperature=temperature,
        valid=bool(valid),
    )
