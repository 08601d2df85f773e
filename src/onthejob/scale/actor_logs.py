"""What became of every worker, learner and sampler of a run: one file each, written by the driver alone.

Lines that workers log come back with their results, so that the nodes of a cluster need no common folder.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from datetime import UTC, datetime
from pathlib import Path

from onthejob.scale.timeline import Timeline
from onthejob.texts import printable

BEFORE = 1000
"""Lines that are kept until there is a folder."""
LINES, CHARACTERS = 100, 500
"""Of one job: lines that are kept, and characters of each."""


class ActorLogs:
    """The logs of all actors of a runtime, and their timeline."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self._lock = threading.Lock()
        self._waiting: deque[tuple[str, str]] = deque(maxlen=BEFORE)
        self._folder: Path | None = None

    def into(self, folder: Path) -> None:
        """Write to `folder` from now on, one file per actor; what came before is written first. Without a line it is not made."""
        self.timeline.into(folder / "timeline.json")
        with self._lock:
            self._folder = folder
            while self._waiting:
                self._write(*self._waiting.popleft())

    def say(self, actor: str, text: str) -> None:
        """Add a line of an actor, with the time."""
        line = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {printable(text)}\n"
        with self._lock:
            if self._folder is None:
                self._waiting.append((actor, line))
            else:
                self._write(actor, line)

    def _write(self, actor: str, line: str) -> None:
        assert self._folder is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^\w.-]", "-", actor.split(" ")[0])
        with (self._folder / f"{name}.log").open("a", encoding="utf-8") as file:
            file.write(line)


class HeardLines(logging.Handler):
    """Keeps the lines that one job logs."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        if len(self.lines) < LINES:
            self.lines.append(f"{record.levelname} {record.getMessage()}"[:CHARACTERS])
