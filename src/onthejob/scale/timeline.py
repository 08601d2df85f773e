"""What every actor did when, as a trace that https://ui.perfetto.dev and chrome://tracing show.

The file is the JSON array of the trace event format, whose last bracket may be missing: so events are appended, and what a killed
driver wrote can be read. Each driver that wrote to it is a process of the trace, each actor a thread.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

BEFORE = 1000
"""Events that are kept until there is a file."""
LARGEST = 50_000_000
"""Bytes of the file after which nothing is added."""
DRIVER = "driver"
"""The track of the loop's own parts."""


class Timeline:
    """The trace of a run; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[str] = deque(maxlen=BEFORE)
        self._tracks: dict[str, int] = {}
        self._path: Path | None = None

    def into(self, path: Path) -> None:
        """Write to `path` from now on; what came before is written first. Without an event it is not made."""
        with self._lock:
            self._path = path
            if self._tracks:
                self._write([*map(self._named, self._tracks), *self._waiting])
            self._waiting.clear()

    def did(self, actor: str, what: str, seconds: float, *, ago: float = 0.0) -> None:
        """An actor did something that took so many seconds and ended now, or `ago` seconds before.

        What the driver did is kept once an actor did something: alone it says nothing that the record does not.
        """
        if actor == DRIVER and not self._tracks:
            return
        began = time.time() - ago - seconds
        with self._lock:
            new = actor not in self._tracks
            if new:
                # The loop's parts come first.
                self._tracks[actor] = 0 if actor == DRIVER else len(self._tracks) + 1
            event = self._event("X", actor, name=what, ts=round(1e6 * began), dur=round(1e6 * seconds))
            if self._path is None:
                self._waiting.append(event)
            else:
                self._write([self._named(actor), event] if new else [event])

    def _named(self, actor: str) -> str:
        return self._event("M", actor, name="thread_name", args={"name": actor})

    def _event(self, kind: str, actor: str, **fields: Any) -> str:
        return json.dumps({"ph": kind, "pid": os.getpid(), "tid": self._tracks[actor], **fields})

    def _write(self, events: list[str]) -> None:
        assert self._path is not None
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            size = file.tell()
            if size < LARGEST:
                file.write(("" if size else "[\n") + "".join(f"{event},\n" for event in events))
