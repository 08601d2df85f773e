"""The run that a tracker is opened with.

`Tracker` in `types/services.py` is the contract, `KINDS` in `track/place.py` lists the built-in ones, each in a `to_NAME.py`.

A tracker runs in a process of its own, outside the loop. It may hang, refuse or raise without any effect on the run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onthejob.types import Row, Tracker

__all__ = ["Row", "RunInfo", "Tracker"]


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
