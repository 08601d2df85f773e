"""`tensorboard`: event files in the run's folder, or in a folder of their own; scalars, and transcripts as text.

Written with the event writer of the package tensorboard, without torch. When writing begins again after a kill, a mark in the new
file makes readers forget what follows the last confirmed iteration. TensorBoard has no place for adapters.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onthejob.errors import ConfigError
from onthejob.track.sent_state import FOLDER
from onthejob.track.tracker import Row, RunInfo, Tracker

if TYPE_CHECKING:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter


def check(what: str) -> None:
    """Refuse a folder that is a file."""
    if what and Path(what).exists() and not Path(what).is_dir():
        raise ConfigError(f"--track tensorboard:{what} is a file. Name the folder that `tensorboard --logdir` reads.")


def tracker(what: str) -> Tracker:
    """The tracker that writes to a folder of the run's name below `what`; without a name, in the run's folder."""
    return TensorBoard(what)


class TensorBoard(Tracker):
    """One event file each time it is started."""

    def __init__(self, what: str) -> None:
        self._folder = Path(what) if what else None

    def start(self, run: RunInfo, sent: int | None) -> int | None:
        """Begin an event file that continues after iteration `sent`."""
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = self._folder / run.name if self._folder else run.path / FOLDER / "tensorboard"
        if not any(folder.glob("events.out.tfevents.*")):
            sent = None  # it was removed: all of it is written again
        self._writer: EventFileWriter = EventFileWriter(str(folder))
        if sent is None:
            self._text(0, "config", f"```json\n{json.dumps(dict(run.config), indent=2, sort_keys=True)}\n```")
        else:
            events = _messages("event")
            started = events.SessionLog(status=events.SessionLog.START)
            self._writer.add_event(events.Event(step=sent + 1, wall_time=time.time(), session_log=started))
        return sent

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        value_of = _messages("summary").Summary.Value
        scalars = [value_of(tag=name, simple_value=value) for name, value in values.items()]
        self._add(step, scalars)

    def transcripts(self, step: int, rows: Sequence[Row]) -> None:
        self._text(step, "transcripts", as_markdown(rows))

    def flush(self) -> None:
        self._writer.flush()

    def finish(self) -> None:
        self._writer.close()

    def _text(self, step: int, tag: str, text: str) -> None:
        from tensorboard.plugins.text import metadata
        from tensorboard.util.tensor_util import make_tensor_proto

        described = metadata.create_summary_metadata(display_name=tag, description="")
        tensor = make_tensor_proto([text.encode("utf-8", "replace")])
        self._add(step, [_messages("summary").Summary.Value(tag=f"{tag}/text_summary", metadata=described, tensor=tensor)])

    def _add(self, step: int, values: Sequence[Any]) -> None:
        summary = _messages("summary").Summary(value=values)
        self._writer.add_event(_messages("event").Event(step=step, wall_time=time.time(), summary=summary))


def _messages(name: str) -> Any:
    """TensorBoard's classes of messages; they are made at import, so that no type is known of them."""
    return importlib.import_module(f"tensorboard.compat.proto.{name}_pb2")


def as_markdown(rows: Sequence[Row]) -> str:
    """Transcripts as a table; replies are code, so that nothing in them is taken for markup."""
    lines = ["| episode | turn | actor | policy | valid | reward | reply |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        cells = [str(row[name]) for name in ("episode", "turn", "actor", "policy", "valid", "reward")]
        reply = str(row["reply"]).replace("`", "'").replace("|", "\\|").replace("\n", " ⏎ ")
        lines.append(f"| {' | '.join(cells)} | `{reply}` |")
    return "\n".join(lines)
