"""Checksums of what every iteration recorded: written with its commit, compared whenever a part of it is read.

One row of the table `checksums` covers one iteration: a checksum for each group and episode and for its metrics, events, adapters
and blobs, the checksum of the row before it, and one over the row itself. So neither a changed number nor a lost row, group or
iteration is taken for what was recorded. Covered are column values as SQLite returns them: compressed columns stay compressed.
Records of schema version 1 have none; they are read as before, unverified. Nothing here protects against forgery: anyone who can
write the file can write the checksums too.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from onthejob.errors import DamagedRecord
from onthejob.record.database import Database

log = logging.getLogger(__name__)

SAVE = "Restore run.sqlite from a copy; the other parts can still be read: `onthejob runs check` lists what is damaged."
CHECKSUM_KEY = "checksum"
"""Key of the checksum of all other facts in the table `meta`."""
FIRST_KEY = "checksums_from"
"""Key of the first iteration that must have checksums: 0, or where a record of schema version 1 was continued."""

# Numbers become their shortest exact form, text ASCII: the same on every Python.
_FORM: dict[str, Any] = {"check_circular": False, "separators": (",", ":")}
_encode = json.JSONEncoder(**_FORM).encode
_UNREADABLE = (ValueError, TypeError, LookupError, ArithmeticError, MemoryError, RecursionError)
"""What decoding damaged columns raises besides RecordError."""


def checksum(content: object) -> str:
    """Hex of the first 128 bits of a sha256 over columns: nested lists of text, bytes, numbers and None.

    Hashed is their compact JSON, with `[length]` in the place of bytes, and then all bytes in the same order.
    """
    blobs: list[bytes] = []

    def length(blob: bytes) -> list[int]:
        blobs.append(blob)
        return [len(blob)]

    text = json.JSONEncoder(**_FORM, default=length).encode(content)
    total = hashlib.sha256(text.encode("ascii"))
    total.update(b"".join(blobs))
    return total.hexdigest()[:32]


def meta_checksum(meta: Mapping[str, str]) -> str:
    """Of the facts of a run but this one."""
    return checksum(sorted((key, value) for key, value in meta.items() if key != CHECKSUM_KEY))


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A part of a record that does not have the content that was written."""

    iteration: int | None
    """None for what belongs to no iteration, e.g. the file as a whole."""
    part: str
    """E.g. `metrics` or `group day3/sales`."""
    problem: str


class GroupSums(NamedTuple):
    """Checksums of one group."""

    key: str
    actor: str
    head: str
    """Of key, actor, facts, advantages, and rewards and validity by trajectory."""
    body: str
    """Of its trajectories and their turns."""


class EpisodeSums(NamedTuple):
    """Checksums of one episode."""

    name: str
    head: str
    """Of name, policies, facts, timeline and metrics."""
    body: str
    """Of its trajectories and their turns."""


class Sums:
    """Checksums of one iteration; each of the three columns is decoded when it is asked for."""

    def __init__(self, groups: str, episodes: str, rest: str) -> None:
        self._groups, self._episodes, self._rest = groups, episodes, rest

    @cached_property
    def groups(self) -> dict[str, GroupSums]:
        """By key, in recorded order."""
        return {values[0]: GroupSums(*values) for values in json.loads(self._groups)}

    @cached_property
    def episodes(self) -> dict[str, EpisodeSums]:
        """By name, in recorded order."""
        return {values[0]: EpisodeSums(*values) for values in json.loads(self._episodes)}

    @cached_property
    def rest(self) -> Mapping[str, Any]:
        """`committed_at`; `counts` by table; checksums of `metrics`, `events`, `adapters` and `blobs`."""
        return json.loads(self._rest)


def write(
    connection: sqlite3.Connection,
    n: int,
    *,
    groups: Sequence[GroupSums],
    episodes: Sequence[EpisodeSums],
    rest: Mapping[str, Any],
) -> None:
    """Insert the row of iteration `n`; the caller owns the transaction."""
    before = connection.execute("SELECT checksum FROM checksums ORDER BY iteration DESC LIMIT 1").fetchone()
    columns = (before[0] if before else "", _encode(groups), _encode(episodes), _encode(rest))
    connection.execute("INSERT INTO checksums VALUES (?, ?, ?, ?, ?, ?)", (n, checksum([n, *columns]), *columns))


class Checksums:
    """The checksums of one record, and what is done about damage: raised, or collected in `damage` and passed over."""

    def __init__(self, database: Database, meta: Mapping[str, str], *, skip_damaged: bool = False) -> None:
        """Check the facts of the run themselves.

        Raises:
            DamagedRecord: they do not have their checksum; never passed over.
        """
        self.damage: list[Damage] = []
        self._database, self._skip = database, skip_damaged
        self._newest: tuple[int, str, Sums] | None = None
        self._first: int | None = None
        if database.version >= 2:
            if meta.get(CHECKSUM_KEY) != meta_checksum(meta):
                raise DamagedRecord(
                    f"{database.path} is damaged: its table `meta` does not have its checksum. Restore run.sqlite from a copy."
                )
            self._first = int(meta[FIRST_KEY])

    @property
    def exist(self) -> bool:
        """Whether iterations of this record can have checksums."""
        return self._first is not None

    @property
    def skips(self) -> bool:
        """Whether damage is passed over."""
        return self._skip

    @contextmanager
    def part(self, name: str, iteration: int | None = None) -> Iterator[None]:
        """Read one part inside the block: in one state of the record, and with damage named.

        Raises:
            DamagedRecord: the part is damaged, and damage is not to be passed over.
        """
        try:
            with self._database.frozen():
                yield
        except (DamagedRecord, *_UNREADABLE) as error:
            if isinstance(error, DamagedRecord) and error.located:
                raise
            problem = (
                str(error) if isinstance(error, DamagedRecord) else f"it cannot be decoded ({type(error).__name__}: {error})"
            )
            where = name if iteration is None else f"{name} of iteration {iteration}"
            if not self._skip:
                raise DamagedRecord(f"{self._database.path}: {where} is damaged: {problem} {SAVE}", located=True) from error
            damage = Damage(iteration=iteration, part=name, problem=problem)
            if damage not in self.damage:
                log.debug("%s: %s is passed over: %s", self._database.path, where, problem)
                self.damage.append(damage)

    def of(self, n: int) -> Sums | None:
        """The checksums of iteration `n`; None for one that was recorded without.

        Raises:
            DamagedRecord: they are missing or damaged themselves.
        """
        if self._first is None:
            return None
        found = self._database.rows("SELECT checksum FROM checksums WHERE iteration = ?", (n,))
        if not found:
            if n >= self._first and self._database.rows("SELECT 1 FROM iterations WHERE n = ?", (n,)):
                raise DamagedRecord("its checksums are missing.")
            return None
        own = found[0][0]
        if self._newest is None or self._newest[:2] != (n, own):
            self._newest = n, own, self._read(n, own)
        return self._newest[2]

    def _read(self, n: int, own: str) -> Sums:
        columns = self._database.rows('SELECT previous, "groups", episodes, rest FROM checksums WHERE iteration = ?', (n,))[0]
        if checksum([n, *columns]) != own:
            raise DamagedRecord("its row of checksums is damaged.")
        return Sums(*columns[1:])

    def iterations(self) -> list[int]:
        """Numbers of the committed iterations, ascending.

        Raises:
            DamagedRecord: one is missing, or was not recorded.
        """
        committed: list[int] = []
        with self.part("the list of iterations"):
            committed = [number_of(n) for (n,) in self._database.rows("SELECT n FROM iterations ORDER BY n")]
            if self._first is not None:
                self._compare(committed)
        if self._skip and self._first is not None:
            with self.part("the list of iterations"):
                committed = sorted({n for n in committed if n < self._first} | {n for n, _, _ in self._links()})
        return committed

    def last(self) -> int | None:
        """Number of the last committed iteration."""
        with self.part("the list of iterations"):
            newest = self._newest_in("SELECT max(n) FROM iterations")
            if self._first is None:
                return newest
            sealed = self._newest_in("SELECT max(iteration) FROM checksums")
            before = newest is not None and newest < self._first and (sealed is None or sealed < newest)
            if sealed == newest or before:
                return newest
        return max(self.iterations(), default=None)  # it names what is missing

    def _newest_in(self, sql: str) -> int | None:
        newest = self._database.rows(sql)[0][0]
        return None if newest is None else number_of(newest)

    def unverified(self) -> list[int]:
        """Iterations that were recorded without checksums."""
        committed = self.iterations()
        if self._first is None:
            return committed
        first, unverified = self._first, list[int]()
        with self.part("the list of iterations"):
            with_sums = {n for n, _, _ in self._links()}
            unverified = [n for n in committed if n < first and n not in with_sums]
        return unverified

    def _links(self) -> list[tuple[int, str, str]]:
        rows = self._database.rows("SELECT iteration, previous, checksum FROM checksums ORDER BY iteration")
        return [(number_of(n), previous, own) for n, previous, own in rows]

    def _compare(self, committed: Sequence[int]) -> None:
        before, links = "", self._links()
        for n, previous, own in links:
            if previous != before:
                raise DamagedRecord(f"iteration {n} does not follow on the one before it.")
            before = own
        known = {n for n, _, _ in links}
        assert self._first is not None
        required = {n for n in committed if n >= self._first}
        if lost := sorted(known - set(committed)):
            raise DamagedRecord(f"iterations {str(lost)[:80]} have checksums and are not listed.")
        if lost := sorted(required - known):
            raise DamagedRecord(f"iterations {str(lost)[:80]} are listed and have no checksums.")


def number_of(n: object) -> int:
    """The number of an iteration, as a column has it.

    Raises:
        DamagedRecord: it is none.
    """
    if not isinstance(n, int):
        raise DamagedRecord(f"a row belongs to iteration {n!r:.40}.")
    return n


def require(content: object, expected: str) -> None:
    """Compare columns with the checksum that was written with them.

    Raises:
        DamagedRecord: they differ.
    """
    if checksum(content) != expected:
        raise DamagedRecord("its content does not have the checksum that was written with it.")
