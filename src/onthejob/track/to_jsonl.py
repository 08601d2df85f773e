"""`jsonl`: one line per iteration with its metrics and sampled transcripts, in the run's folder or in a file of its own."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onthejob.errors import ConfigError, TrackError
from onthejob.track.sent_state import FOLDER
from onthejob.track.tracker import Row, RunInfo, Tracker

NAME = "metrics.jsonl"


def check(what: str) -> None:
    """Refuse a file that cannot be written."""
    if what:
        writable(Path(what), f"jsonl:{what}")


def tracker(what: str) -> Tracker:
    """The tracker that writes the file `what`; without a name, one in the run's folder."""
    return JsonLines(what)


def writable(path: Path, name: str) -> None:
    """Refuse a file that cannot be written."""
    if path.is_dir():
        raise ConfigError(f"--track {name} is a folder. Give the name of a file.")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--track {name}: there is no folder {path.parent}. Make it, or name another one.")
    target = path if path.exists() else path.absolute().parent
    if not os.access(target, os.W_OK):
        raise ConfigError(f"--track {name} cannot be written to. Give this user write permission, or name another file.")


class JsonLines(Tracker):
    """Appends lines; a line that a kill has cut is removed when the file is opened again."""

    def __init__(self, what: str) -> None:
        self._path = Path(what) if what else None
        self._lines: dict[int, dict[str, Any]] = {}

    def start(self, run: RunInfo, sent: int | None) -> int | None:
        """Find the newest iteration of this run in the file."""
        self._run = run
        if self._path is None:
            self._path = run.path / FOLDER / NAME
            self._path.parent.mkdir(exist_ok=True)
        return newest_in(self._path, run.id)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._line(step)["metrics"] = {name: value if math.isfinite(value) else None for name, value in values.items()}

    def transcripts(self, step: int, rows: Sequence[Row]) -> None:
        self._line(step)["transcripts"] = [dict(row) for row in rows]

    def flush(self) -> None:
        """Append what was handed over, in one piece, and wait until it is on disk."""
        assert self._path is not None  # `start` has set it
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in self._lines.values())
        append(self._path, text.encode())
        self._lines.clear()

    def _line(self, step: int) -> dict[str, Any]:
        return self._lines.setdefault(step, {"run": self._run.name, "id": self._run.id, "iteration": step})


def append(path: Path, data: bytes) -> None:
    """Append to a file, and wait until it is on disk."""
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def newest_in(path: Path, id: str) -> int | None:
    """Newest iteration of run `id` in a file of lines, whose last line is removed when it is not whole.

    Raises:
        TrackError: the file holds something else.
    """
    if not path.exists():
        return None
    newest, good = None, 0
    with path.open("rb+") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                file.truncate(good)
                break
            good += len(line)
            try:
                found = json.loads(line)
                if found["id"] == id:
                    newest = int(found["iteration"])
            except (ValueError, KeyError, TypeError) as error:
                raise TrackError(
                    f"line {number} of {path} is not one of a run. Name another file, or remove this one."
                ) from error
    return newest
