"""Collects everything of one iteration in memory and writes it in one transaction.

Values are checked and encoded when they are handed over, so that a mistake raises where it was made; nothing touches the disk
before the iteration ends.
"""

from __future__ import annotations

import hashlib
import math
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from onthejob.errors import ContractError
from onthejob.files import sha256
from onthejob.record import checksums
from onthejob.record.checksums import EpisodeSums, GroupSums, checksum
from onthejob.record.codec import dump_json, pack_bytes, pack_floats, pack_ids, pack_text
from onthejob.types import Adapter, Group, Trajectory, Turn

WEIGHTS_FILE = "adapter_model.safetensors"
_CLOCK_UNITS = frozenset({"s", "ms", "us", "second", "seconds", "cpu", "rss", "wall"})


def is_clock(name: str) -> bool:
    """True for names of what differs between two runs of the same program: seconds, rates per second, memory in use.

    By the last words of the name: `update_s`, `tokens_per_s`, `seconds`, `tokens_per_second`, `peak_rss`, `rss_mb`, `wall`.
    """
    words = name.rsplit("/", 1)[-1].lower().split("_")
    return words[-1] in _CLOCK_UNITS or "rss" in words or "wall" in words


class MetricRow(NamedTuple):
    """A metric as stored: NaN is NULL with a flag, because SQL has no NaN."""

    name: str
    value: float | None
    is_nan: bool
    is_clock: bool


def metric_rows(values: Mapping[str, float], clocks: Collection[str] | None, where: str) -> list[MetricRow]:
    """Checked rows in the order of `values`. `clocks` names the wall-clock ones; None decides by `is_clock`."""
    rows = []
    for name, value in values.items():
        if not isinstance(value, (Real, np.generic)):
            raise ContractError(f"metric {name!r} of {where} must be a number, got {type(value).__name__}: {value!r:.80}.")
        number = float(value)
        clock = is_clock(name) if clocks is None else name in clocks
        rows.append(MetricRow(name, _stored(number), math.isnan(number), clock))
    return rows


def _stored(number: float) -> float | None:
    """A number as SQLite keeps it, so that a checksum of it is the same before and after: NaN is NULL, and -0.0 is 0.0."""
    return None if math.isnan(number) else number + 0.0


def context_hash(ids: Sequence[int]) -> bytes:
    """Content hash of a prompt: sha256 over its ids as little-endian 32-bit numbers."""
    return hashlib.sha256(np.asarray(ids, dtype="<u4").tobytes()).digest()


class _Context(NamedTuple):
    parent: bytes | None
    tokens: int
    tail: bytes


_REWARDS, _VALID = 4, 5
"""Places of the packed rewards among a trajectory's columns, and of the validity among a turn's."""


class _Trajectory(NamedTuple):
    columns: tuple[Any, ...]
    turns: list[tuple[bytes, tuple[Any, ...]]]


class _Group(NamedTuple):
    columns: tuple[Any, ...]
    trajectories: list[_Trajectory]

    def sums(self) -> GroupSums:
        members = [
            (item.columns[_REWARDS], min((turn[_VALID] for _, turn in item.turns), default=None)) for item in self.trajectories
        ]
        key, actor, *_ = self.columns
        return GroupSums(key, actor, checksum([*self.columns, members]), _body(self.trajectories))


class _Episode(NamedTuple):
    columns: tuple[Any, ...]
    metrics: list[MetricRow]
    trajectories: list[_Trajectory]

    def sums(self) -> EpisodeSums:
        metrics = [_as_columns(row) for row in sorted(self.metrics)]
        return EpisodeSums(self.columns[0], checksum([*self.columns, metrics]), _body(self.trajectories))


def _as_columns(row: MetricRow) -> tuple[Any, ...]:
    return row.name, row.value, int(row.is_nan), int(row.is_clock)


def _body(trajectories: Sequence[_Trajectory]) -> str:
    """Checksum of trajectories with their turns; of a prompt it holds the hash."""
    return checksum([[*item.columns, [(context, *turn) for context, turn in item.turns]] for item in trajectories])


class Iteration:
    """What `run.iteration(n)` hands out. Its methods may be called in any order and number until the block ends."""

    def __init__(self, n: int, folder: Path) -> None:
        self.n = n
        self._folder = folder
        self._contexts: dict[bytes, _Context] = {}
        self._groups: list[_Group] = []
        self._episodes: list[_Episode] = []
        self._metrics: dict[tuple[str, str], MetricRow] = {}
        self._adapters: list[tuple[Any, ...]] = []
        self._events: list[tuple[str, str]] = []
        self.blobs: dict[str, bytes] = {}
        """Put in this iteration and not yet committed."""

    def groups(self, groups: Sequence[Group], advantages: Sequence[npt.ArrayLike | None] | None = None) -> None:
        """Record groups in order, each with its advantages (one per trajectory) or None when it was not trained on.

        Raises:
            ContractError: as many advantages as groups, and per group as many as trajectories, are needed.
        """
        given = [None] * len(groups) if advantages is None else list(advantages)
        if len(given) != len(groups):
            raise ContractError(f"expected one advantages array (or None) per group: {len(groups)} groups, got {len(given)}.")
        for group, values in zip(groups, given, strict=True):
            packed = None
            if values is not None:
                array = np.asarray(values, dtype=np.float64)
                if array.shape != (len(group),):
                    raise ContractError(f"advantages of group {group.key!r} must have shape ({len(group)},), got {array.shape}.")
                packed = pack_floats(array.tolist())
            columns = (group.key, group.actor, dump_json(group.facts, f"facts of group {group.key}"), packed)
            self._groups.append(_Group(columns, [self._trajectory(item) for item in group.trajectories]))

    def episode(
        self,
        name: str,
        *,
        policies: Mapping[str, str],
        metrics: Mapping[str, float],
        trajectories: Sequence[Trajectory] = (),
        timeline: Sequence[Mapping[str, Any]] = (),
        facts: Mapping[str, Any] | None = None,
        clocks: Collection[str] | None = None,
    ) -> None:
        """Record one played or evaluated episode.

        Args:
            name: Unique within the iteration, e.g. `test/baseline-200003/grpo`.
            policies: Actor -> version of the policy that answered for it.
            metrics: Name -> number, e.g. the environment's `state()["metrics"]`.
            trajectories: The turns as sampled, one trajectory per actor; may be omitted for scripted policies.
            timeline: One JSON mapping per environment step, for replay and the viewer.
            facts: JSON; what identifies the episode, e.g. its task.
            clocks: Names of the wall-clock metrics; None decides by their unit (see `is_clock`).
        """
        columns = (
            name,
            dump_json(policies, f"policies of episode {name}"),
            dump_json(facts or {}, f"facts of episode {name}"),
            pack_bytes(dump_json(timeline, f"timeline of episode {name}").encode()),
        )
        rows = metric_rows(metrics, clocks, f"episode {name}")
        self._episodes.append(_Episode(columns, rows, [self._trajectory(item) for item in trajectories]))

    def metrics(self, scope: str, values: Mapping[str, float], *, clocks: Collection[str] | None = None) -> None:
        """Record numbers of this iteration, e.g. scope `train/sales`. NaN is kept as NaN.

        `clocks` names the wall-clock ones among them; None decides by their unit (see `is_clock`).

        Raises:
            ContractError: a value is not a number, or the metric was recorded in this iteration already.
        """
        for row in metric_rows(values, clocks, scope):
            if (scope, row.name) in self._metrics:
                raise ContractError(f"metric {scope}/{row.name} was already recorded in iteration {self.n}; use another scope.")
            self._metrics[scope, row.name] = row

    def adapter(self, adapter: Adapter) -> None:
        """Record an adapter version whose directory is complete on disk.

        Raises:
            ContractError: the directory has no weights file, or its digest is not the adapter's.
        """
        weights = adapter.path / WEIGHTS_FILE
        if not weights.is_file():
            raise ContractError(f"adapter {adapter.name} has no {weights}. Save the adapter before recording it.")
        digest = sha256(weights)
        if adapter.digest not in ("", digest):
            raise ContractError(
                f"adapter {adapter.name} has digest {adapter.digest}, its file has {digest}. Do not edit adapters."
            )
        # Within the run it is named as it lies there, also where the folder of adapters is a link to another disk.
        named = ((adapter.path.absolute(), self._folder.absolute()), (adapter.path.resolve(), self._folder.resolve()))
        stored = next((path.relative_to(run) for path, run in named if path.is_relative_to(run)), named[1][0])
        self._adapters.append((str(adapter.role), int(adapter.version), adapter.parent, digest, stored.as_posix()))

    def event(self, kind: str, payload: Mapping[str, Any]) -> None:
        """Record something that happened, e.g. a dead group or a KL warning; JSON, without clock readings."""
        self._events.append((kind, dump_json(payload, f"event {kind}")))

    def put_blob(self, key: str, data: bytes) -> None:
        """Record bytes under `key`; a later iteration may record newer bytes under the same key."""
        self.blobs[key] = bytes(data)

    def _trajectory(self, trajectory: Trajectory) -> _Trajectory:
        where = f"trajectory of {trajectory.actor} in {trajectory.task_id}"
        if len(trajectory.rewards) != len(trajectory.turns):
            raise ContractError(f"{where} must have one reward per turn: {len(trajectory.turns)} turns, "
                                f"got {len(trajectory.rewards)} rewards.")  # fmt: skip
        rewards = pack_floats(trajectory.rewards)
        metrics = dump_json(trajectory.metrics, f"metrics of {where}")
        ret = _stored(float(trajectory.ret))
        turns: list[tuple[bytes, tuple[Any, ...]]] = []
        previous: tuple[int, ...] = ()
        for turn, reward in zip(trajectory.turns, trajectory.rewards, strict=True):
            if turn.completion.logprobs and len(turn.completion.logprobs) != len(turn.completion.token_ids):
                raise ContractError(f"{where}: a turn has {len(turn.completion.token_ids)} token ids but "
                                    f"{len(turn.completion.logprobs)} logprobs.")  # fmt: skip
            turns.append((self._context(turn.prompt_ids, previous), _turn_columns(turn, reward)))
            previous = turn.prompt_ids
        columns = (trajectory.task_id, trajectory.actor, str(trajectory.stop), ret, rewards, metrics)
        return _Trajectory(columns, turns)

    def _context(self, ids: tuple[int, ...], previous: tuple[int, ...]) -> bytes:
        """Register a prompt; one that continues the trajectory's previous prompt stores only what was appended."""
        packed = pack_ids(ids)  # checks the range before the hash narrows the ids
        key = context_hash(ids)
        if key not in self._contexts:
            parent = None
            if 0 < len(previous) < len(ids) and ids[: len(previous)] == previous:
                parent, packed = context_hash(previous), pack_ids(ids[len(previous) :])
            self._contexts[key] = _Context(parent, len(ids), packed)
        return key

    def insert(self, connection: sqlite3.Connection, committed_at: str) -> None:
        """Write all rows; the caller owns the transaction."""
        connection.execute("INSERT INTO iterations VALUES (?, ?)", (self.n, committed_at))
        contexts = self._insert_contexts(connection)
        for position, group in enumerate(self._groups):
            sql = "INSERT INTO groups (iteration, position, key, actor, facts, advantages) VALUES (?, ?, ?, ?, ?, ?)"
            row = connection.execute(sql, (self.n, position, *group.columns)).lastrowid
            _insert_trajectories(connection, group.trajectories, contexts, group_id=row)
        for position, episode in enumerate(self._episodes):
            sql = "INSERT INTO episodes (iteration, position, name, policies, facts, timeline) VALUES (?, ?, ?, ?, ?, ?)"
            row = connection.execute(sql, (self.n, position, *episode.columns)).lastrowid
            connection.executemany("INSERT INTO episode_metrics VALUES (?, ?, ?, ?, ?)", [(row, *m) for m in episode.metrics])
            _insert_trajectories(connection, episode.trajectories, contexts, episode_id=row)
        metrics = [(self.n, scope, *row) for (scope, _), row in self._metrics.items()]
        connection.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", metrics)
        events = [(self.n, position, *event) for position, event in enumerate(self._events)]
        connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", events)
        for role, version, parent, digest, path in self._adapters:
            row = (role, version, self.n, parent, digest, path)
            connection.execute("INSERT INTO adapters VALUES (?, ?, ?, ?, ?, ?)", row)
        blobs: list[tuple[str, bytes]] = []
        for key, data in self.blobs.items():
            digest = hashlib.sha256(data).digest()
            if not connection.execute("SELECT 1 FROM blobs WHERE hash = ?", (digest,)).fetchone():
                connection.execute("INSERT INTO blobs VALUES (?, ?)", (digest, pack_bytes(data)))
            connection.execute("INSERT INTO blob_keys VALUES (?, ?, ?)", (key, self.n, digest))
            blobs.append((key, digest))
        checksums.write(
            connection,
            self.n,
            groups=[group.sums() for group in self._groups],
            episodes=[episode.sums() for episode in self._episodes],
            rest={
                "committed_at": committed_at,
                "counts": self._counts(),
                "metrics": checksum([(scope, *_as_columns(row)) for (scope, _), row in sorted(self._metrics.items())]),
                "events": checksum(self._events),
                "adapters": checksum(sorted(self._adapters)),
                "blobs": checksum(sorted(blobs)),
            },
        )

    def _counts(self) -> dict[str, int]:
        trajectories = [item for owner in (*self._groups, *self._episodes) for item in owner.trajectories]
        return {
            "groups": len(self._groups),
            "episodes": len(self._episodes),
            "turns": sum(len(item.turns) for item in trajectories),
            "adapters": len(self._adapters),
            "events": len(self._events),
        }

    def _insert_contexts(self, connection: sqlite3.Connection) -> dict[bytes, int]:
        """Row id of every prompt of this iteration; a parent is always registered before its children."""
        ids: dict[bytes, int] = {}
        for key, context in self._contexts.items():
            found = connection.execute("SELECT id FROM contexts WHERE hash = ?", (key,)).fetchone()
            if found:
                ids[key] = found[0]
                continue
            parent = None if context.parent is None else ids[context.parent]
            sql = "INSERT INTO contexts (hash, parent, tokens, tail) VALUES (?, ?, ?, ?)"
            row = connection.execute(sql, (key, parent, context.tokens, context.tail)).lastrowid
            assert row is not None  # an INSERT into a rowid table always has one
            ids[key] = row
        return ids


def _turn_columns(turn: Turn, reward: float) -> tuple[Any, ...]:
    completion = turn.completion
    return (
        pack_text(completion.text),
        completion.finish_reason,
        turn.policy_version,
        str(turn.kind),
        _stored(float(turn.temperature)),
        int(turn.valid),
        _stored(float(reward)),
        pack_ids(completion.token_ids),
        pack_floats(completion.logprobs),
    )


def _insert_trajectories(
    connection: sqlite3.Connection,
    trajectories: Sequence[_Trajectory],
    contexts: Mapping[bytes, int],
    *,
    group_id: int | None = None,
    episode_id: int | None = None,
) -> None:
    sql = (
        "INSERT INTO trajectories (group_id, episode_id, position, task_id, actor, stop, ret, rewards, metrics) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
    )
    turn_sql = (
        "INSERT INTO turns (trajectory_id, position, context_id, text, finish, policy, kind, temperature, valid, reward, ids, "
        "logprobs) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    )
    for position, trajectory in enumerate(trajectories):
        row = connection.execute(sql, (group_id, episode_id, position, *trajectory.columns)).lastrowid
        turns = [(row, index, contexts[key], *columns) for index, (key, columns) in enumerate(trajectory.turns)]
        connection.executemany(turn_sql, turns)
