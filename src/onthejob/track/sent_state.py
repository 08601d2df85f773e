"""What has been sent to one tracker: a small file in the run's folder `track/`, held by one process at a time.

The folder is no part of the record: checksums and digest do not cover it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from filelock import FileLock, Timeout

from onthejob.errors import ConfigError, RecordError
from onthejob.files import published_file
from onthejob.texts import encodable, printable, redacted, secrets_of_environment

FOLDER = "track"
LONGEST_ERROR = 300
"""Characters of an error that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What one tracker holds of one run."""

    tracker: str
    """As it was named."""
    sent: int | None = None
    """Newest iteration that it has confirmed."""
    adapters: tuple[str, ...] = field(default=())
    """Names of adapters that it has taken."""
    error: str = ""
    """The last failure since the last success, without secrets."""
    confirmed_at: float = 0.0
    """When it last confirmed iterations, in seconds since the epoch; 0 for never."""


def state_path(run: Path, tracker: str) -> Path:
    """Where the state of `tracker` is kept."""
    plain = re.sub(r"[^A-Za-z0-9.-]+", "-", tracker)[-40:].strip("-.")
    digest = "" if plain == tracker else f"-{hashlib.sha256(tracker.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
    return run / FOLDER / f"{plain}{digest}.json"


def read_state(run: Path, tracker: str) -> State:
    """The state that is kept; that of a tracker to which nothing was sent when there is none, or it cannot be read."""
    try:
        found = json.loads(state_path(run, tracker).read_text(encoding="utf-8"))
        return State(
            tracker=tracker,
            sent=None if found["sent"] is None else int(found["sent"]),
            adapters=tuple(map(str, found["adapters"])),
            error=str(found["error"]),
            confirmed_at=float(found.get("confirmed_at", 0.0)),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return State(tracker=tracker)


def write_state(run: Path, state: State) -> None:
    """Keep `state`; a process killed meanwhile leaves the state before it.

    Raises:
        RecordError: it cannot be written.
    """
    path = state_path(run, state.tracker)
    try:
        path.parent.mkdir(exist_ok=True)
        with published_file(path) as temporary:
            temporary.write_text(json.dumps(asdict(state)) + "\n", encoding="utf-8")
    except OSError as error:
        raise RecordError(
            f"cannot note in {path} what {state.tracker} has received: {error.strerror or error}. Give this user write "
            "permission on the run's folder, or free disk space."
        ) from error


def noted(state: State, error: BaseException) -> State:
    """`state` with what went wrong, in one line and without secrets."""
    return replace(state, error=said(error))


def said(error: BaseException) -> str:
    """An error of a library in one line, without keys, tokens and control characters."""
    text = " ".join(redacted(f"{type(error).__name__}: {error}", secrets_of_environment(os.environ)).split())
    text = printable(encodable(text))
    return text if len(text) <= LONGEST_ERROR else f"{text[: LONGEST_ERROR - 1]}…"


@contextmanager
def held(run: Path, tracker: str) -> Iterator[None]:
    """Keep other processes from sending the same run to the same tracker."""
    path = state_path(run, tracker).with_suffix(".lock")
    try:
        path.parent.mkdir(exist_ok=True)
        lock = FileLock(path, timeout=0)
        lock.acquire()
    except Timeout:
        raise ConfigError(
            f"another process sends {run} to {tracker}. Wait until it ends: the run that it belongs to, or another `runs sync`."
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{path.parent} cannot be written to: {error.strerror or error}. Give this user write permission on the run's "
            "folder, where what was sent is noted."
        ) from error
    try:
        yield
    finally:
        lock.release()
