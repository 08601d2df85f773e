"""`wandb`: a run of a project; $WANDB_MODE, $WANDB_PROJECT, $WANDB_ENTITY and $WANDB_DIR mean what they mean to wandb.

With WANDB_MODE=offline nothing leaves the machine: the files lie in the run's folder `track/wandb` until `wandb sync` uploads
them.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onthejob.errors import ConfigError
from onthejob.track.sent_state import FOLDER
from onthejob.track.tracker import Row, RunInfo, Tracker
from onthejob.types import Adapter

if TYPE_CHECKING:
    import wandb

MODES = ("online", "offline", "shared")
INIT_S = 60.0
"""Seconds in which the service must answer."""
HEAD = b":W&B"
BLOCK, HEADER = 32768, 7
"""Of the log files: fragments lie in blocks, each behind a checksum, a length and a kind (1 whole, 2 first, 3 middle, 4 last)."""


def check(what: str) -> None:
    """Refuse a mode in which nothing would be kept."""
    mode = os.environ.get("WANDB_MODE", "online")
    if mode not in MODES:
        raise ConfigError(
            f"--track wandb keeps nothing with WANDB_MODE={mode}. Set it to online or offline, or drop the tracker."
        )


def tracker(what: str) -> Tracker:
    """The tracker of project `what`, default $WANDB_PROJECT or `onthejob`."""
    return Wandb(what or os.environ.get("WANDB_PROJECT") or "onthejob")


class Wandb(Tracker):
    """One run; its id follows from ours, so that it is found again."""

    def __init__(self, project: str) -> None:
        self._project = project
        self._entries: dict[int, dict[str, Any]] = {}

    def start(self, run: RunInfo, sent: int | None) -> int | None:
        """Resume the run or begin it; the service, or offline the files, state its newest iteration."""
        import wandb

        folder = Path(os.environ.get("WANDB_DIR") or run.path / FOLDER)
        folder.mkdir(parents=True, exist_ok=True)
        offline = os.environ.get("WANDB_MODE") == "offline"
        held = max(steps_in(folder, run.id), default=None) if offline else None
        self._run: wandb.Run = wandb.init(
            project=self._project,
            id=run.id,
            name=run.name,
            dir=str(folder),
            config=dict(run.config),
            resume=None if offline else "allow",
            reinit="finish_previous",
            settings=wandb.Settings(
                console="off", silent=True, disable_code=True, disable_git=True, x_disable_stats=True, init_timeout=INIT_S
            ),
        )
        self._id = run.id
        if offline:
            return held
        return self._run.starting_step - 1 if self._run.starting_step else None

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._entries.setdefault(step, {}).update(values)

    def transcripts(self, step: int, rows: Sequence[Row]) -> None:
        import wandb

        columns: list[Any] = list(rows[0])
        table = wandb.Table(columns=columns, data=[[row[column] for column in columns] for row in rows])
        self._entries.setdefault(step, {})["transcripts"] = table

    def adapter(self, step: int, adapter: Adapter) -> None:
        import wandb

        made = wandb.Artifact(f"{self._id}-{adapter.role}", type="model", metadata={"digest": adapter.digest, "step": step})
        made.add_dir(str(adapter.path))
        self._run.log_artifact(made, aliases=[adapter.name.replace("@", "-")])

    def flush(self) -> None:
        """Hand over what was collected; wandb's own process writes it, and what it has lost is seen at the next start."""
        for step, entry in sorted(self._entries.items()):
            self._run.log(entry, step=step, commit=True)
        self._entries = {}

    def finish(self) -> None:
        """Wait until everything is written, or uploaded."""
        self._run.finish()


def steps_in(folder: Path, id: str) -> Iterator[int]:
    """Iterations of run `id` that the files of earlier offline runs below `folder` hold."""
    records: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    for path in sorted(folder.glob(f"wandb/offline-run-*-{id}/run-{id}.wandb")):
        for content in log_records(path.read_bytes()):
            record = records.Record()
            record.ParseFromString(content)
            if record.WhichOneof("record_type") == "history":
                yield record.history.step.num


def log_records(data: bytes) -> Iterator[bytes]:
    """The whole records of a wandb log file; what a kill has cut ends it."""
    if not data.startswith(HEAD):
        return
    place, parts = HEADER, b""
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK  # too little room for a header: the block is filled up
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        part = data[place + HEADER : place + HEADER + length]
        if kind not in (1, 2, 3, 4) or len(part) < length:
            return
        parts = part if kind in (1, 2) else parts + part
        if kind in (1, 4):
            yield parts
        place += HEADER + length
