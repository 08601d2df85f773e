"""notes: what people write about a run (tags, a note, a star), in a file next to its record and never in the record itself."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onthejob.errors import ConfigError, RecordError
from onthejob.files import published_file

FILE = "notes.json"
MOST_TAGS, MOST_TAG, MOST_NOTE = 20, 40, 4_000
"""Tags of a run, and characters of a tag and of a note, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """What is written about one run.

    Raises:
        ConfigError: too many tags, or a text is empty, too long or has a line break where none belongs.
    """

    tags: tuple[str, ...] = ()
    note: str = ""
    star: bool = False
    """A baseline, to which others are compared by eye."""

    def __post_init__(self) -> None:
        if len(self.tags) > MOST_TAGS or len(set(self.tags)) != len(self.tags):
            raise ConfigError(f"a run has at most {MOST_TAGS} tags, each once, got {len(self.tags)}. Drop some.")
        for tag in self.tags:
            if not tag.strip() or tag != tag.strip() or len(tag) > MOST_TAG or not tag.isprintable() or "," in tag:
                raise ConfigError(f"a tag has 1 to {MOST_TAG} printable characters and no comma, got {tag!r}. Choose another.")
        if len(self.note) > MOST_NOTE:
            raise ConfigError(f"a note has at most {MOST_NOTE} characters, got {len(self.note)}. Shorten it.")


def read_notes(folder: Path) -> Notes:
    """The notes of the run in `folder`; none where there is no file, or one that holds something else."""
    held = _held(folder / FILE)
    try:
        return Notes(
            tags=tuple(str(tag) for tag in held.get("tags", ())), note=str(held.get("note", "")), star=held.get("star") is True
        )
    except (ConfigError, TypeError):
        return Notes()


def write_notes(folder: Path, notes: Notes) -> None:
    """Write the notes of the run in `folder`; what else the file holds stays.

    Raises:
        RecordError: there is no such run, or the file cannot be written.
    """
    path = folder / FILE
    if not folder.is_dir():
        raise RecordError(f"there is no run {folder.name!r}.")
    text = json.dumps({**_held(path), **asdict(notes)}, ensure_ascii=False, indent=2)
    try:
        with published_file(path) as temporary:
            temporary.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error}. Free space, or give this user permission.") from error


def _held(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
