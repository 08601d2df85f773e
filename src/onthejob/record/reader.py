"""All that can be read of an open record: one method per kind of content, each of which compares with the checksums first."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from onthejob.errors import DamagedRecord, RecordError
from onthejob.record import checkpoints, from_rows, trajectories
from onthejob.record.checksums import SAVE, Checksums, Damage
from onthejob.record.codec import load_json, unpack_bytes
from onthejob.record.database import Database
from onthejob.record.digest import digest
from onthejob.record.from_rows import Event, GroupHead, Live, Metric, RecordedEpisode
from onthejob.types import Adapter, Group

if TYPE_CHECKING:
    import torch


class RecordReader:
    """An open record for reading. `store.Run` opens it, and adds what writes."""

    def __init__(self, path: Path, database: Database, *, skip_damaged: bool) -> None:
        """Read the facts of the run.

        Args:
            path: the run's folder.
            database: its file, open.
            skip_damaged: pass over damaged parts and list them in `damage`, instead of raising.

        Raises:
            DamagedRecord: the facts are missing or damaged.
        """
        self.path = path
        self._database = database
        meta: dict[str, str] = dict(database.rows("SELECT key, value FROM meta"))
        if missing := sorted({"config", "created_at"} - meta.keys()):
            raise DamagedRecord(
                f"{database.path} is damaged: its table `meta` lacks {' and '.join(missing)}. Restore run.sqlite from a copy."
            )
        self._checks = Checksums(database, meta, skip_damaged=skip_damaged)
        self._config = meta["config"]
        if not isinstance(load_json(self._config), dict):
            raise DamagedRecord(
                f"{database.path} is damaged: its configuration is no JSON object. Restore run.sqlite from a copy."
            )
        self.created_at: str = meta["created_at"]
        """UTC, ISO 8601."""

    @property
    def name(self) -> str:
        """The run's folder name."""
        return self.path.name

    @property
    def readonly(self) -> bool:
        """True when opened for reading."""
        return self._database.readonly

    @property
    def config(self) -> dict[str, Any]:
        """The configuration the run was created with, a fresh copy each time."""
        return load_json(self._config)

    def last_iteration(self) -> int | None:
        """Number of the last committed iteration."""
        return self._checks.last()

    def iterations(self) -> list[int]:
        """Numbers of all committed iterations, ascending."""
        return self._checks.iterations()

    def read_groups(self, iteration: int | None = None, actor: str | None = None, key: str | None = None) -> Iterator[Group]:
        """Groups exactly as recorded, in order, one at a time; None does not filter.

        Facts and metrics come back in the types of JSON (tuples as lists).
        """
        return trajectories.read_groups(self._database, self._checks, iteration, actor, key)

    def read_group_keys(self) -> list[tuple[int, str]]:
        """(iteration, key) of all groups in recorded order."""
        return trajectories.read_group_keys(self._database, self._checks)

    def read_group_heads(self, iteration: int | None = None, actor: str | None = None) -> Iterator[GroupHead]:
        """Groups without prompts, tokens and texts, in order; None does not filter."""
        return trajectories.read_group_heads(self._database, self._checks, iteration, actor)

    def read_advantages(
        self, iteration: int | None = None, actor: str | None = None
    ) -> dict[str, npt.NDArray[np.float64] | None]:
        """Group key -> advantages (K,), None when the group was not trained on."""
        return trajectories.read_advantages(self._database, self._checks, iteration, actor)

    def read_episodes(
        self, iteration: int | None = None, name: str | None = None, *, turns: bool = True
    ) -> Iterator[RecordedEpisode]:
        """Episodes in recorded order; `turns=False` omits trajectories and timelines, not their `steps`."""
        return trajectories.read_episodes(self._database, self._checks, iteration, name, turns=turns)

    def read_metrics(self, scope: str | None = None, *, iteration: int | None = None, name: str | None = None) -> list[Metric]:
        """Metrics by iteration, scope and name; None does not filter."""
        return from_rows.read_metrics(self._database, self._checks, iteration, scope, name)

    def read_events(self, iteration: int | None = None, kind: str | None = None) -> list[Event]:
        """Events in recorded order; None does not filter."""
        return from_rows.read_events(self._database, self._checks, iteration, kind)

    def read_live(self, after: int = 0, limit: int = 1000) -> list[Live]:
        """Up to `limit` live messages with a number above `after`, ascending; call again with the last number to follow."""
        return from_rows.read_live(self._database, self._checks, after, limit)

    def adapters(self, role: str | None = None, *, through: int | None = None) -> list[Adapter]:
        """Adapters by role and version that were recorded up to iteration `through`; None does not filter."""
        return from_rows.read_adapters(self._database, self._checks, self.path, role, through)

    def latest_adapter(self, role: str) -> Adapter | None:
        """The newest recorded version of `role`."""
        return max(self.adapters(role), key=lambda adapter: adapter.version, default=None)

    def get_blob(self, key: str) -> bytes:
        """The newest bytes under `key`.

        Raises:
            RecordError: no such key, or the stored bytes do not have their hash.
        """
        keys = from_rows.read_blob_keys(self._database, self._checks)
        if key not in keys:
            raise RecordError(f"no blob {key!r} in {self.path}. run.blob_keys() lists what there is.")
        with self._checks.part(f"blob {key!r}"):
            rows = self._database.rows("SELECT data FROM blobs WHERE hash = ?", (keys[key],))
            data = unpack_bytes(rows[0][0]) if rows else b""
            if hashlib.sha256(data).digest() != keys[key]:
                raise DamagedRecord("its bytes do not have their hash.")
            return data
        raise DamagedRecord(f"blob {key!r} of {self.path} is damaged. {SAVE}", located=True)

    def blob_keys(self, prefix: str = "") -> list[str]:
        """Keys of recorded blobs that start with `prefix`, sorted."""
        return sorted(key for key in from_rows.read_blob_keys(self._database, self._checks) if key.startswith(prefix))

    def counts(self) -> dict[str, int]:
        """Numbers of recorded `groups`, `episodes`, `turns`, `adapters` and `events`."""
        return from_rows.read_counts(self._database, self._checks)

    def totals(self) -> from_rows.RunTotals:
        """Roles with adapters, and the time of all iterations; without a comparison with checksums."""
        return from_rows.read_totals(self._database, self._checks)

    @property
    def damage(self) -> list[Damage]:
        """Parts that were passed over because they are damaged; of a run that was opened with `skip_damaged`."""
        return list(self._checks.damage)

    def unverified(self) -> list[int]:
        """Iterations that an earlier version recorded without checksums: whether they are damaged is not known."""
        return self._checks.unverified()

    def faults_of_structure(self) -> list[Damage]:
        """Faults of the file's pages and indexes that SQLite finds; everything is read."""
        rows: list[tuple[str]] = []
        with self._checks.part("the file"):
            rows = self._database.rows("PRAGMA integrity_check(20)")
        return [Damage(iteration=None, part="the file", problem=text) for (text,) in rows if text != "ok"]

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """All reads inside the block see one state of the record, whatever is committed meanwhile."""
        with self._database.frozen():
            yield

    def latest_checkpoint(self) -> int | None:
        """Newest checkpoint of a committed iteration whose files are intact. Every file is read and hashed."""
        return checkpoints.newest_valid(self.path, self.last_iteration())

    def read_checkpoint(self, n: int) -> dict[str, bytes | dict[str, torch.Tensor]]:
        """Files of checkpoint `n`, checked against its manifest: bytes or tensors, as they were given.

        Raises:
            RecordError: missing or damaged.
        """
        return checkpoints.read(self.path, n)

    def digest(self, *, clocks: bool = False, through: int | None = None) -> str:
        """Hex sha256 over all that was recorded up to iteration `through` (None: all).

        Two runs of the same program have equal digests, killed and resumed or not. Live messages, checkpoints, the run's
        name and, unless `clocks`, commit times and wall-clock metrics do not count.
        """
        with self._checks.part("what the digest covers"):
            return digest(self._database, self._config, clocks=clocks, through=through)
        raise DamagedRecord(f"{self.path} has no digest: a part that it covers is damaged. {SAVE}", located=True)
