"""What `runs ls` and `runs show` say, as data; printing is the command line's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from onthejob.errors import RecordError
from onthejob.files import TEMPORARY
from onthejob.record import checkpoints
from onthejob.record.checksums import Damage
from onthejob.record.database import FILE, explained
from onthejob.record.from_rows import Live
from onthejob.record.lock import is_written, was_killed
from onthejob.record.store import Run
from onthejob.types import Adapter

FREED = "server_freed"
"""Kind of the live message about the memory that a model server gave back."""


ENDED = "ended"
"""Kind of the live message with which training ends, with its `stop` and its last iteration."""


class RunStatus(StrEnum):
    """Whether a run is written, and how it was left."""

    RUNNING = "running"
    ENDED = "ended"
    """It came to its own end: its iterations, its time, or a pool with nothing left to teach."""
    STOPPED = "stopped"
    """By its user or by an error; `train --resume` continues it."""
    KILLED = "killed"
    """The process is gone without having closed the record, which holds everything up to its last iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One line of `runs ls`."""

    name: str
    path: Path
    env: str = ""
    """The environment, as the run's configuration names it; empty where it does not say."""
    status: RunStatus = RunStatus.STOPPED
    roles: tuple[str, ...] = ()
    """Trained roles, by name."""
    model: str = ""
    """The base model; empty where the configuration does not say."""
    seconds: float = 0.0
    """Time of its iterations together; pauses are not counted."""
    created_at: str | None = None
    """UTC, ISO 8601; None when the run cannot be read."""
    last_iteration: int | None = None
    groups: int = 0
    episodes: int = 0
    turns: int = 0
    adapters: int = 0
    size_bytes: int = 0
    """Of the record file and its write-ahead log; adapters and checkpoints not counted."""
    unverified: int = 0
    """Iterations that an earlier version recorded, without checksums: a changed number in them is not noticed."""
    damaged: int = 0
    """Damaged parts among those that were read for this; `runs check` reads all."""
    error: str | None = None
    """Why the run cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetails:
    """What `runs show` says of one run."""

    summary: RunSummary
    config: Mapping[str, Any]
    metrics: Mapping[str, Mapping[str, float]]
    """Scope -> name -> the newest value."""
    adapters: Mapping[str, tuple[Adapter, ...]]
    """Role -> versions, ascending."""
    checkpoints: tuple[int, ...]
    """Iterations that have a checkpoint folder."""
    events: Mapping[str, int]
    """Event kind -> how often."""
    freed: tuple[Mapping[str, Any], ...] = ()
    """What memory the run's model server gave back, every time that it ended: `onthejob.serve.freed.Freed.as_dict`, and `at`."""
    damage: tuple[Damage, ...] = ()
    """Parts that are not shown because they are damaged."""


def list_runs(root: Path | str) -> list[RunSummary]:
    """Runs under `root` by name; one that cannot be read is listed with its error.

    Raises:
        RecordError: `root` does not exist or may not be read.
    """
    root = Path(root)
    with explained("list runs in", root):
        folders = sorted(path for path in root.iterdir() if (path / FILE).is_file() and not path.name.startswith(TEMPORARY))
    summaries = []
    for folder in folders:
        try:
            with Run.open(folder, readonly=True, skip_damaged=True) as run:
                summaries.append(summary(run))
        except RecordError as error:
            summaries.append(RunSummary(name=folder.name, path=folder, error=str(error)))
    return summaries


def show(run: Run) -> RunDetails:
    """Summary, configuration and newest state of a run."""
    metrics: dict[str, dict[str, float]] = {}
    for metric in run.read_metrics():  # ascending by iteration: the last one wins
        metrics.setdefault(metric.scope, {})[metric.name] = metric.value
    adapters: dict[str, tuple[Adapter, ...]] = {}
    for adapter in run.adapters():
        adapters[adapter.role] = (*adapters.get(adapter.role, ()), adapter)
    events: dict[str, int] = {}
    for event in run.read_events():
        events[event.kind] = events.get(event.kind, 0) + 1
    return RunDetails(
        summary=summary(run),
        config=run.config,
        metrics=metrics,
        adapters=adapters,
        checkpoints=tuple(checkpoints.numbers(run.path)),
        events=events,
        freed=_freed(run),
        damage=tuple(run.damage),
    )


def _freed(run: Run) -> tuple[Mapping[str, Any], ...]:
    return tuple({"at": message.at, **message.payload} for message in _live(run, FREED))


def _live(run: Run, kind: str) -> Iterator[Live]:
    after = 0
    while messages := run.read_live(after):
        yield from (message for message in messages if message.kind == kind)
        after = messages[-1].seq


def summary(run: Run) -> RunSummary:
    """One line about an open run."""
    files = (run.path / FILE, run.path / f"{FILE}-wal")
    counts, totals, last, unverified = run.counts(), run.totals(), run.last_iteration(), len(run.unverified())
    return RunSummary(
        name=run.name,
        path=run.path,
        env=env_of(run.config),
        status=_status(run, last),
        roles=totals.roles,
        model=_model_of(run.config),
        seconds=totals.seconds,
        created_at=run.created_at,
        last_iteration=last,
        groups=counts["groups"],
        episodes=counts["episodes"],
        turns=counts["turns"],
        adapters=counts["adapters"],
        size_bytes=sum(path.stat().st_size for path in files if path.exists()),
        unverified=unverified,
        damaged=len(run.damage),
    )


def _status(run: Run, last: int | None) -> RunStatus:
    if is_written(run.path):
        return RunStatus.RUNNING
    if was_killed(run.path):
        return RunStatus.KILLED
    if any(message.payload.get("iteration") == last for message in _live(run, ENDED)):
        return RunStatus.ENDED
    # Earlier versions left no message.
    loop = run.config.get("train")
    planned = loop.get("iterations") if isinstance(loop, Mapping) else None
    return RunStatus.ENDED if last is not None and isinstance(planned, int) and last >= planned else RunStatus.STOPPED


def env_of(config: Mapping[str, Any]) -> str:
    """The environment that a run's configuration names; empty where it names none."""
    env = config.get("env")
    named = env.get("ref") if isinstance(env, Mapping) else env
    return named if isinstance(named, str) else ""


def short_ref(ref: str) -> str:
    """An environment's reference without the folders of its file."""
    return ref if "://" in ref else re.sub(r"[^:]*/", "", ref)


def _model_of(config: Mapping[str, Any]) -> str:
    model = config.get("model")
    named = model.get("name") if isinstance(model, Mapping) else model
    return named if isinstance(named, str) else ""
