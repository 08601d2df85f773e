"""The contract of a tracker: the part of a run's record that it receives, and when.

A tracker runs in a process of its own, outside the loop. It may hang, refuse or raise without any effect on the run. A tracker of
your own derives from `Tracker` and overrides the methods that it needs; the others do nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from onthejob.types import Adapter

Row = Mapping[str, str | int | float | bool | None]
"""Column -> cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """The run whose record is sent."""

    name: str
    path: Path
    created_at: str
    """UTC, ISO 8601."""
    config: Mapping[str, Any]
    """The options that the run was started with, as JSON."""

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits that tell apart runs of the same name."""
        facts = json.dumps([self.name, self.created_at, self.config], sort_keys=True, default=str)
        return hashlib.sha256(facts.encode("utf-8", "surrogatepass")).hexdigest()[:12]


@runtime_checkable
class Tracker(Protocol):
    """Receives the iterations of one run in ascending order, each at least once."""

    tables: bool = False
    """True: `episodes` and `turns` are called too. They are not even read for a tracker without a use for them."""

    def start(self, run: RunInfo, sent: int | None) -> int | None:
        """Open the tracker, or open it again after an error or a kill.

        Args:
            run: the run.
            sent: newest iteration for which `flush` has returned; None when there is none.

        Returns:
            The newest iteration that the tracker holds completely; sending begins after it. A tracker that cannot tell returns
            `sent`; then an iteration is repeated when the process is killed between sending it and noting that.
        """
        return sent

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """All metrics of iteration `step`, named `SCOPE/NAME`, e.g. `train/sales/loss`; a value may be NaN."""

    def transcripts(self, step: int, rows: Sequence[Row]) -> None:
        """The turns of a few episodes of iteration `step`, a row each; texts are clipped."""

    def episodes(self, step: int, rows: Sequence[Row]) -> None:
        """All episodes of iteration `step`, a row each. Only with `tables`."""

    def turns(self, step: int, rows: Sequence[Row]) -> None:
        """All turns of iteration `step`, a row each. Only with `tables`."""

    def adapter(self, step: int, adapter: Adapter) -> None:
        """An adapter that the run keeps, as it was after iteration `step`; only with --adapters."""

    def flush(self) -> None:
        """Return when everything that was handed over is kept, or raise."""

    def finish(self) -> None:
        """Close the tracker; it may be started again later."""
