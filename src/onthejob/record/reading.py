"""From rows back to the objects that were recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from onthejob.errors import RecordError
from onthejob.record.codec import load_json, unpack_bytes, unpack_floats, unpack_ids, unpack_text
from onthejob.record.database import Database
from onthejob.record.iteration import context_hash
from onthejob.types import Adapter, Completion, Group, Kind, StopReason, Trajectory, Turn

_CONTEXTS_KEPT = 4096


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
class Episode:
    """A played or evaluated episode as recorded."""

    iteration: int
    name: str
    policies: Mapping[str, str]
    """Actor -> policy version."""
    metrics: Mapping[str, float]
    trajectories: tuple[Trajectory, ...] = ()
    timeline: tuple[Mapping[str, Any], ...] = ()
    """One mapping per environment step."""
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


class ContextReader:
    """Prompts by row id, each checked against its content hash."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[int, tuple[int, ...]] = {}

    def ids(self, row: int) -> tuple[int, ...]:
        """The whole prompt.

        Raises:
            RecordError: the stored prompt does not have the hash it was stored under.
        """
        if row in self._known:
            return self._known[row]
        tails: list[tuple[int, ...]] = []
        head: tuple[int, ...] = ()
        key = b""
        at: int | None = row
        while at is not None:
            if at in self._known:
                head = self._known[at]
                break
            digest, parent, tail = self._database.rows("SELECT hash, parent, tail FROM contexts WHERE id = ?", (at,))[0]
            key = key or digest
            tails.append(unpack_ids(tail))
            at = parent
        ids = head + tuple(token for tail in reversed(tails) for token in tail)
        if context_hash(ids) != key:
            raise RecordError(f"prompt {row} of {self._database.path} is damaged. Restore run.sqlite from a copy.")
        if len(self._known) >= _CONTEXTS_KEPT:
            self._known.clear()
        self._known[row] = ids
        return ids


def _where(**equal: object) -> tuple[str, list[object]]:
    """`WHERE a = ? AND ...` over the arguments that are not None."""
    given = {column: value for column, value in equal.items() if value is not None}
    clause = " AND ".join(f"{column} = ?" for column in given)
    return (f" WHERE {clause}" if clause else ""), list(given.values())


def read_trajectories(database: Database, contexts: ContextReader, owner: str, row: int) -> tuple[Trajectory, ...]:
    """Trajectories of a group (`owner` = `group_id`) or an episode (`episode_id`), in order."""
    heads = database.rows(
        f"SELECT id, task_id, actor, stop, rewards, metrics FROM trajectories WHERE {owner} = ? ORDER BY position", (row,)
    )
    trajectories = []
    for head, task_id, actor, stop, rewards, metrics in heads:
        turns = database.rows(
            "SELECT context_id, text, finish, policy, kind, temperature, valid, ids, logprobs FROM turns "
            "WHERE trajectory_id = ? ORDER BY position",
            (head,),
        )
        trajectories.append(
            Trajectory(
                task_id=task_id,
                actor=actor,
                turns=tuple(_turn(columns, contexts) for columns in turns),
                rewards=unpack_floats(rewards),
                stop=StopReason(stop),
                metrics=load_json(metrics),
            )
        )
    return tuple(trajectories)


def _turn(columns: Sequence[Any], contexts: ContextReader) -> Turn:
    context, text, finish, policy, kind, temperature, valid, ids, logprobs = columns
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


def read_groups(database: Database, iteration: int | None, actor: str | None, key: str | None = None) -> Iterator[Group]:
    """Groups in the order they were recorded, read one at a time."""
    where, values = _where(iteration=iteration, actor=actor, key=key)
    contexts = ContextReader(database)
    for row, name, who, facts in database.rows(
        f"SELECT id, key, actor, facts FROM groups{where} ORDER BY iteration, position", values
    ):
        trajectories = read_trajectories(database, contexts, "group_id", row)
        yield Group(key=name, actor=who, trajectories=trajectories, facts=load_json(facts))


def read_group_keys(database: Database) -> list[tuple[int, str]]:
    """(iteration, key) of all groups in recorded order."""
    return database.rows("SELECT iteration, key FROM groups ORDER BY iteration, position")


def read_group_heads(database: Database, iteration: int | None, actor: str | None) -> Iterator[GroupHead]:
    """The heads of groups in recorded order."""
    where, values = _where(iteration=iteration, actor=actor)
    for row, n, key, who, facts, trained in database.rows(
        f"SELECT id, iteration, key, actor, facts, advantages IS NOT NULL FROM groups{where} ORDER BY iteration, position", values
    ):
        members = database.rows(
            "SELECT rewards, (SELECT min(valid) FROM turns WHERE trajectory_id = trajectories.id) FROM trajectories "
            "WHERE group_id = ? ORDER BY position",
            (row,),
        )
        returns = tuple(sum(unpack_floats(rewards)) for rewards, _ in members)
        valid = tuple(bool(valid) for _, valid in members)
        yield GroupHead(n, key, who, load_json(facts), returns, valid, bool(trained))


def read_advantages(database: Database, iteration: int | None, actor: str | None) -> dict[str, npt.NDArray[np.float64] | None]:
    """Group key -> advantages (K,), or None for a group that was not trained on; in recorded order."""
    where, values = _where(iteration=iteration, actor=actor)
    rows = database.rows(f"SELECT key, advantages FROM groups{where} ORDER BY iteration, position", values)
    return {key: None if blob is None else np.array(unpack_floats(blob)) for key, blob in rows}


def read_episodes(database: Database, iteration: int | None, name: str | None, *, turns: bool) -> Iterator[Episode]:
    """Episodes in recorded order; without `turns` their trajectories and timelines stay on disk."""
    where, values = _where(iteration=iteration, name=name)
    contexts = ContextReader(database)
    for row, n, title, policies, facts in database.rows(
        f"SELECT id, iteration, name, policies, facts FROM episodes{where} ORDER BY iteration, position", values
    ):
        metrics = database.rows("SELECT name, value, is_nan FROM episode_metrics WHERE episode_id = ? ORDER BY name", (row,))
        timeline: tuple[Mapping[str, Any], ...] = ()
        if turns:
            blob = database.rows("SELECT timeline FROM episodes WHERE id = ?", (row,))[0][0]
            timeline = tuple(load_json(unpack_bytes(blob).decode()))
        yield Episode(
            iteration=n,
            name=title,
            policies=load_json(policies),
            metrics={key: float("nan") if is_nan else value for key, value, is_nan in metrics},
            trajectories=read_trajectories(database, contexts, "episode_id", row) if turns else (),
            timeline=timeline,
            facts=load_json(facts),
        )


def read_metrics(database: Database, iteration: int | None, scope: str | None, name: str | None) -> list[Metric]:
    """Metrics by iteration, scope and name."""
    where, values = _where(iteration=iteration, scope=scope, name=name)
    rows = database.rows(
        f"SELECT iteration, scope, name, value, is_nan, is_clock FROM metrics{where} ORDER BY iteration, scope, name", values
    )
    return [Metric(n, s, key, float("nan") if is_nan else value, bool(clock)) for n, s, key, value, is_nan, clock in rows]


def read_events(database: Database, iteration: int | None, kind: str | None) -> list[Event]:
    """Events in recorded order."""
    where, values = _where(iteration=iteration, kind=kind)
    rows = database.rows(f"SELECT iteration, kind, payload FROM events{where} ORDER BY iteration, position", values)
    return [Event(n, what, load_json(payload)) for n, what, payload in rows]


def read_adapters(database: Database, folder: Path, role: str | None) -> list[Adapter]:
    """Adapters by role and version; the paths of those inside the run follow the run's folder when it is moved."""
    where, values = _where(role=role)
    rows = database.rows(f"SELECT role, version, parent, digest, path FROM adapters{where} ORDER BY role, version", values)
    adapters = []
    for who, version, parent, digest, stored in rows:
        relative = PurePosixPath(stored)
        if ".." in relative.parts:
            raise RecordError(f"adapter {who}@{version:04d} of {folder} has the path {stored!r}, which leaves the run's folder.")
        adapters.append(Adapter(role=who, version=version, path=folder / relative, parent=parent, digest=digest))
    return adapters
