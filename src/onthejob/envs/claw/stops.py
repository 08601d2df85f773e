"""How an agent says that it is done: the stop sentinels, as data.

A sentinel is a line. Where it stands decides whether it counts (`Place`), and the script scanner decides what is a line of its
own: the same words inside a heredoc, a quote or a longer sentence are content. Forms with a side effect (`> file`, `>> file`,
`| tee file`) or with a second command (`; ls`, `&& exit`) match no row, so they run as shell.

Three tables: `STANDARD`, `SEED` (the forms of the ClawGym article after its prose patch) and `LITERAL` (before the patch).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from onthejob.errors import ConfigError

MAX_LINE = 200
"""Characters; a longer line is never a sentinel."""


class Place(StrEnum):
    """Where a sentinel may stand."""

    TEXT = "text"
    """A line outside any block."""
    SCRIPT = "script"
    """A line of the bash block that begins a command; it is not a command and is taken out of what runs."""
    EDGE = "edge"
    """The first or the last command line of the bash block; it is a command and runs with the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentinel:
    """One form of saying so."""

    name: str
    """Recorded with the turn."""
    places: frozenset[Place]
    pattern: re.Pattern[str]
    """What the whole line, without surrounding space, must match. ASCII; no nested repetition."""

    def matches(self, line: str, place: Place) -> bool:
        """True when `line` at `place` says that the task is done."""
        return place in self.places and len(line) <= MAX_LINE and self.pattern.fullmatch(line.strip()) is not None


StopTable = tuple[Sentinel, ...]

_ANYWHERE = frozenset({Place.TEXT, Place.SCRIPT})
_EDGE = frozenset({Place.EDGE})

STANDARD: StopTable = (
    Sentinel(
        name="token",
        places=_ANYWHERE,
        pattern=re.compile(r"(?i:[*`\"']{0,3}task[ _]?completed?[.!]{0,3}[*`\"']{0,3}[.!]{0,3})", re.ASCII),
    ),
    Sentinel(
        name="echo",
        places=_EDGE,
        pattern=re.compile(r"(?i:echo)[ \t]+([\"']?)(?i:task[ _]?completed?)[.!]{0,3}\1(?:[ \t]+#.*)?", re.ASCII),
    ),
)
"""What the environment uses."""

SEED: StopTable = (
    Sentinel(name="token", places=_ANYWHERE, pattern=re.compile(r"TASK_COMPLETE", re.ASCII)),
    Sentinel(
        name="echo",
        places=_EDGE,
        pattern=re.compile(r"(?i:echo)[ \t]+([\"']?)(?i:task[ _]?completed?)\.?\1(?:[ \t]+#.*)?", re.ASCII),
    ),
)
"""The forms that the article's patched parser knew; traps are decided as everywhere here."""

LITERAL: StopTable = SEED[:1]
"""`TASK_COMPLETE` and nothing else: the article's parser before the prose patch."""

TABLES: MappingProxyType[str, StopTable] = MappingProxyType({"standard": STANDARD, "seed": SEED, "literal": LITERAL})


def stop_table(name: str) -> StopTable:
    """The table of this name.

    Raises:
        ConfigError: there is none.
    """
    if name not in TABLES:
        raise ConfigError(f"unknown stop table {name!r}; known are {', '.join(TABLES)}. Set stops to 'standard'.")
    return TABLES[name]


def sentinel_at(table: StopTable, line: str, place: Place) -> Sentinel | None:
    """The row that `line` at `place` matches."""
    return next((sentinel for sentinel in table if sentinel.matches(line, place)), None)
