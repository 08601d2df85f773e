"""What evaluation has already paid for: branches, replies, whole episodes and measurements of gates in one SQLite file.

Every key names everything the value depends on (code of the environment, state, reply, luck; for replies and episodes also the
policy, the decoding, and the code by which models reply and episodes are played and measured), so a cache may be shared between
runs and is never invalidated, only missed. Writes are committed in small batches by one process: a killed evaluation loses at
most the batch in flight.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sqlite3
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

from onthejob.checkout import checks_folder
from onthejob.errors import RecordError
from onthejob.files import connected
from onthejob.types import Sampling

_SOURCE_SUFFIXES = frozenset({".py", ".pl", ".toml", ".json", ".yaml", ".yml", ".txt"})
_SCHEMA = """
CREATE TABLE IF NOT EXISTS branches (
  env TEXT NOT NULL, state TEXT NOT NULL, turns INTEGER NOT NULL, reply TEXT NOT NULL, world INTEGER NOT NULL,
  outcome REAL NOT NULL, ret REAL NOT NULL, played INTEGER NOT NULL, valid INTEGER NOT NULL,
  PRIMARY KEY (env, state, turns, reply, world)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS replies (
  policy TEXT NOT NULL, state TEXT NOT NULL, decoding TEXT NOT NULL, sample INTEGER NOT NULL, reply TEXT NOT NULL,
  PRIMARY KEY (policy, state, decoding, sample)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS episodes (
  env TEXT NOT NULL, team TEXT NOT NULL, task TEXT NOT NULL, settings TEXT NOT NULL, result TEXT NOT NULL,
  PRIMARY KEY (env, team, task, settings)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS measurements (
  env TEXT NOT NULL, job TEXT NOT NULL, outcome TEXT NOT NULL, PRIMARY KEY (env, job)) WITHOUT ROWID;
"""


class BranchKey(NamedTuple):
    """Which branch: `reply` is canonical, `turns` the horizon asked for."""

    state: str
    turns: int
    reply: str
    world: int


class BranchValue(NamedTuple):
    """What a branch was worth, unscaled."""

    outcome: float
    """Change of the environment's objective."""
    ret: float
    """Return of the actor who decided."""
    played: int
    """Turns until the horizon or the episode's end."""
    valid: bool


class ReplyKey(NamedTuple):
    """Which reply: `policy` is a fingerprint, `sample` counts draws from 0."""

    policy: str
    state: str
    decoding: str
    sample: int


class EvaluationCache:
    """A context manager over the cache file; `None` keeps everything in memory."""

    def __init__(self, path: Path | None, *, env: str) -> None:
        """Open or create the cache.

        Args:
            path: SQLite file, created with its folder.
            env: Fingerprint of the environment's code, e.g. from `source_fingerprint`.

        Raises:
            RecordError: The file cannot be opened or is no evaluation cache.
        """
        self.env = env
        self._played = f"{env}:{playing_fingerprint()}"
        self._path = path
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._db = connected(":memory:" if path is None else path, "PRAGMA journal_mode=WAL;" + _SCHEMA, timeout=30.0)
        except (sqlite3.Error, OSError) as error:
            raise RecordError(f"cannot open the evaluation cache {path}: {error}. Delete it or pass another --cache.") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._db.close()

    def branches(self, state: str, turns: int) -> dict[BranchKey, BranchValue]:
        """Every branch known from `state` with this horizon."""
        rows = self._db.execute(
            "SELECT reply, world, outcome, ret, played, valid FROM branches WHERE env=? AND state=? AND turns=?",
            (self.env, state, turns),
        )
        return {
            BranchKey(state, turns, reply, world): BranchValue(outcome, ret, played, bool(valid))
            for reply, world, outcome, ret, played, valid in rows
        }

    def add_branches(self, values: Mapping[BranchKey, BranchValue]) -> None:
        """Store branches in one transaction."""
        self._write(
            "INSERT OR REPLACE INTO branches VALUES (?,?,?,?,?,?,?,?,?)",
            ((self.env, *key, value.outcome, value.ret, value.played, int(value.valid)) for key, value in values.items()),
        )

    def reply(self, key: ReplyKey) -> str | None:
        """The reply recorded under `key`, or None."""
        row = self._db.execute(
            "SELECT reply FROM replies WHERE policy=? AND state=? AND decoding=? AND sample=?",
            (f"{self._played}:{key.policy}", *key[1:]),
        ).fetchone()
        return None if row is None else row[0]

    def add_replies(self, replies: Mapping[ReplyKey, str]) -> None:
        """Store replies in one transaction. They depend on the environment's code too, because it renders the prompt."""
        self._write(
            "INSERT OR REPLACE INTO replies VALUES (?,?,?,?,?)",
            ((f"{self._played}:{key.policy}", *key[1:], reply) for key, reply in replies.items()),
        )

    def episode(self, team: str, task: str, settings: str) -> dict[str, Any] | None:
        """The episode's recorded result, or None."""
        row = self._db.execute(
            "SELECT result FROM episodes WHERE env=? AND team=? AND task=? AND settings=?", (self._played, team, task, settings)
        ).fetchone()
        return None if row is None else json.loads(row[0])

    def add_episodes(self, team: str, settings: str, results: Mapping[str, Mapping[str, Any]]) -> None:
        """Store results by task key in one transaction."""
        self._write(
            "INSERT OR REPLACE INTO episodes VALUES (?,?,?,?,?)",
            ((self._played, team, task, settings, json.dumps(result)) for task, result in results.items()),
        )

    def measurements(self) -> dict[str, str]:
        """Job -> outcome of everything measured with this code, both as texts of the caller's."""
        return dict(self._db.execute("SELECT job, outcome FROM measurements WHERE env=?", (self.env,)))

    def add_measurements(self, outcomes: Mapping[str, str]) -> None:
        """Store outcomes by job in one transaction."""
        self._write(
            "INSERT OR REPLACE INTO measurements VALUES (?,?,?)",
            ((self.env, job, outcome) for job, outcome in outcomes.items()),
        )

    def _write(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        try:
            with self._db:
                self._db.executemany(statement, rows)
        except sqlite3.Error as error:
            raise RecordError(f"cannot write the evaluation cache {self._path}: {error}. Free space or move it.") from error


def source_fingerprint(environment: type, *, settings: str = "") -> str:
    """sha256 (16 hex digits) over the code and data files an environment class lives among.

    Values computed by one version of an economy are wrong for the next, so they are cached under this. A class in a folder of
    its own below a package (`onthejob.envs.office`) is identified by that folder, a class in a single module by its file.
    Name in `settings` what else changes prompts or branches, e.g. the `repr` of a configuration that is not the default.
    """
    module = inspect.getmodule(environment)
    if module is None or module.__file__ is None:
        raise RecordError(f"{environment!r} has no source file to identify it by. Pass a fingerprint of its version instead.")
    file = Path(module.__file__)
    in_own_folder = (module.__package__ or "").count(".") >= 2
    files = sorted(file.parent.rglob("*")) if in_own_folder else [file]
    return _fingerprint(file.parent, [path for path in files if path.is_file() and path.suffix in _SOURCE_SUFFIXES], settings)


@cache
def playing_fingerprint() -> str:
    """sha256 (16 hex digits) over our code by which models reply, and by which episodes are played and measured.

    In a checkout also over the players of `checks/`, which no environment's own folder holds.
    """
    package = Path(__file__).parents[1]
    names = ("evaluate/comparison.py", "rollout/episode.py", "keys.py", "rollout/play.py", "rollout/reading.py")
    others = [package / name for name in names]
    checks = checks_folder()
    measuring = "" if checks is None else _fingerprint(checks, sorted(checks.rglob("players/*.py")))
    return _fingerprint(package, [*sorted(package.glob("models/*.py")), *others], measuring)


def _fingerprint(folder: Path, files: Iterable[Path], settings: str = "") -> str:
    digest = hashlib.sha256(settings.encode())
    for path in files:
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def decoding_name(sampling: Sampling) -> str:
    """Cache key of a way to decode, e.g. `t1_n32`."""
    return f"t{sampling.temperature:g}_n{sampling.max_new_tokens}"
