"""A run's record as files that other tools read: one JSONL or Parquet file per table.

Tables are `groups`, `turns`, `metrics`, `episodes`, `adapters` and `events`. A turn's row holds its text, its prompt and
completion ids, logprobs, reward and advantage, so that a trainer needs no other table. Written from one frozen state of the
record, streamed, and complete or absent: each file appears under its name when it is whole.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from onthejob.errors import ConfigError, MissingDependency
from onthejob.files import published_file
from onthejob.record.database import explained
from onthejob.record.store import Run
from onthejob.types import Trajectory

if TYPE_CHECKING:
    import pyarrow

_ROWS_PER_BATCH = 2000

# Column types are stated, not guessed from the first rows, so that an empty run gives the same schema as a full one.
_COLUMNS: dict[str, dict[str, str]] = {
    "groups": {
        "iteration": "int64", "key": "string", "actor": "string", "size": "int64", "returns": "list<double>",
        "advantages": "list<double>", "facts": "json",
    },
    "turns": {
        "iteration": "int64", "group": "string", "episode": "string", "trajectory": "int64", "turn": "int64",
        "task": "string", "actor": "string", "policy": "string", "kind": "string", "valid": "bool", "stop": "string",
        "temperature": "double", "reward": "double", "return": "double", "advantage": "double", "text": "string",
        "finish": "string", "prompt_ids": "list<int64>", "completion_ids": "list<int64>", "logprobs": "list<double>",
    },
    "metrics": {"iteration": "int64", "scope": "string", "name": "string", "value": "double", "is_clock": "bool"},
    "episodes": {
        "iteration": "int64", "name": "string", "policies": "json", "metrics": "json", "facts": "json", "timeline": "json",
    },
    "adapters": {"role": "string", "version": "int64", "name": "string", "parent": "string", "digest": "string"},
    "events": {"iteration": "int64", "kind": "string", "payload": "json"},
}  # fmt: skip


class _Writer(Protocol):
    def write(self, row: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


def export(run: Run, out: Path | str, format: str = "jsonl") -> dict[str, Path]:
    """Write all tables into the folder `out` and return table -> file.

    NaN and infinities are null in JSONL, which has neither; Parquet keeps them in numeric columns. Of a run that was opened with
    `skip_damaged`, damaged parts are missing in the tables and listed in `run.damage`.

    Args:
        run: The run, which may still be written by another process.
        out: Folder, made when missing; files of an earlier export are replaced.
        format: `jsonl` or `parquet`.

    Raises:
        ConfigError: another format.
        MissingDependency: Parquet without the extra `export`.
        RecordError: the record cannot be read or the files not be written.
    """
    if format not in ("jsonl", "parquet"):
        raise ConfigError(f"format must be jsonl or parquet, got {format!r}.")
    if format == "parquet":
        _require_pyarrow()
    out = Path(out)
    files: dict[str, Path] = {}
    with explained("export to", out), run.frozen():
        out.mkdir(parents=True, exist_ok=True)
        for table, columns in _COLUMNS.items():
            final = out / f"{table}.{format}"
            with published_file(final) as temporary, closing(_open(temporary, format, columns)) as writer:
                for row in _ROWS[table](run):
                    writer.write(row)
            files[table] = final
    return files


def _open(path: Path, format: str, columns: Mapping[str, str]) -> _Writer:
    return _JsonLines(path) if format == "jsonl" else _Parquet(path, columns)


class _JsonLines:
    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def write(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(_finite(row), allow_nan=False) + "\n")

    def close(self) -> None:
        self._file.close()


class _Parquet:
    def __init__(self, path: Path, columns: Mapping[str, str]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        types = {
            "int64": pa.int64(), "double": pa.float64(), "bool": pa.bool_(), "string": pa.string(), "json": pa.string(),
            "list<double>": pa.list_(pa.float64()), "list<int64>": pa.list_(pa.int64()),
        }  # fmt: skip
        self._schema: pyarrow.Schema = pa.schema([(name, types[kind]) for name, kind in columns.items()])
        self._json = [name for name, kind in columns.items() if kind == "json"]
        self._text = [name for name, kind in columns.items() if kind == "string"]
        self._file = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []

    def write(self, row: dict[str, Any]) -> None:
        for name in self._json:
            row[name] = json.dumps(_finite(row[name]), allow_nan=False)
        for name in self._text:
            if row[name] is not None:  # Arrow's text is UTF-8, which has no lone surrogates
                row[name] = row[name].encode("utf-8", "replace").decode()
        self._rows.append(row)
        if len(self._rows) >= _ROWS_PER_BATCH:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        self._file.write_table(pa.Table.from_pylist(self._rows, schema=self._schema))
        self._rows.clear()

    def close(self) -> None:
        try:
            if self._rows:
                self._flush()
        finally:
            self._file.close()


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def _require_pyarrow() -> None:
    try:
        importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingDependency(
            "exporting to parquet needs pyarrow, which is not installed. Install onthejob[export], or use --format jsonl."
        ) from error


def _groups(run: Run) -> Iterator[dict[str, Any]]:
    for n in run.iterations():
        advantages = run.read_advantages(n)
        for group in run.read_groups(n):
            values = advantages[group.key]
            yield {
                "iteration": n,
                "key": group.key,
                "actor": group.actor,
                "size": len(group),
                "returns": [trajectory.ret for trajectory in group.trajectories],
                "advantages": None if values is None else values.tolist(),
                "facts": group.facts,
            }


def _turns(run: Run) -> Iterator[dict[str, Any]]:
    for n in run.iterations():
        advantages = run.read_advantages(n)
        for group in run.read_groups(n):
            values = advantages[group.key]
            for index, trajectory in enumerate(group.trajectories):
                advantage = None if values is None else float(values[index])
                owner = {"iteration": n, "group": group.key, "episode": None, "trajectory": index, "advantage": advantage}
                yield from _turns_of(trajectory, owner)
        for episode in run.read_episodes(n):
            for index, trajectory in enumerate(episode.trajectories):
                owner = {"iteration": n, "group": None, "episode": episode.name, "trajectory": index, "advantage": None}
                yield from _turns_of(trajectory, owner)


def _turns_of(trajectory: Trajectory, owner: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for index, (turn, reward) in enumerate(zip(trajectory.turns, trajectory.rewards, strict=True)):
        yield {
            **owner,
            "turn": index,
            "task": trajectory.task_id,
            "actor": trajectory.actor,
            "policy": turn.policy_version,
            "kind": str(turn.kind),
            "valid": turn.valid,
            "stop": str(trajectory.stop),
            "temperature": turn.temperature,
            "reward": reward,
            "return": trajectory.ret,
            "text": turn.completion.text,
            "finish": turn.completion.finish_reason,
            "prompt_ids": list(turn.prompt_ids),
            "completion_ids": list(turn.completion.token_ids),
            "logprobs": list(turn.completion.logprobs),
        }


def _metrics(run: Run) -> Iterator[dict[str, Any]]:
    for metric in run.read_metrics():
        yield metric._asdict()


def _episodes(run: Run) -> Iterator[dict[str, Any]]:
    for episode in run.read_episodes():
        yield {
            "iteration": episode.iteration,
            "name": episode.name,
            "policies": episode.policies,
            "metrics": episode.metrics,
            "facts": episode.facts,
            "timeline": episode.timeline,
        }


def _adapters(run: Run) -> Iterator[dict[str, Any]]:
    for adapter in run.adapters():
        yield {
            "role": adapter.role,
            "version": adapter.version,
            "name": adapter.name,
            "parent": adapter.parent,
            "digest": adapter.digest,
        }


def _events(run: Run) -> Iterator[dict[str, Any]]:
    for event in run.read_events():
        yield event._asdict()


_ROWS = {
    "groups": _groups,
    "turns": _turns,
    "metrics": _metrics,
    "episodes": _episodes,
    "adapters": _adapters,
    "events": _events,
}
