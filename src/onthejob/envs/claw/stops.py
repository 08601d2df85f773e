"""How an agent says that it is done: the stop sentinels, as data.

A sentinel is a line. Where it stands decides whether it counts (`Place`), and the script scanner decides what is a line of its
own: the same words inside a heredoc, a quote or a longer sentence are content. Forms with a side effect (`> file`, `>> file`,
`| tee file`) or with a second command (`; ls`, `&& exit`) match no row, so they run as shell.

Three tables: `STANDARD`, `SEED` (the forms of the ClawGym article after its prose patch) and `LITERAL` (before the patch).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
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
    pattern: str
    """Regular expression that the whole line, without surrounding space, must match. ASCII; no nested repetition."""
    examples: tuple[str, ...]
    """Lines that match."""
    near: tuple[str, ...]
    """Lines that look alike and do not match."""
    _compiled: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_compiled", re.compile(self.pattern, re.ASCII))

    def matches(self, line: str, place: Place) -> bool:
        """True when `line` at `place` says that the task is done."""
        return place in self.places and len(line) <= MAX_LINE and self._compiled.fullmatch(line.strip()) is not None


StopTable = tuple[Sentinel, ...]

_ANYWHERE = frozenset({Place.TEXT, Place.SCRIPT})
_EDGE = frozenset({Place.EDGE})

STANDARD: StopTable = (
    Sentinel(
        name="token",
        places=_ANYWHERE,
        pattern=r"(?i:[*`\"']{0,3}task[ _]?completed?[.!]{0,3}[*`\"']{0,3}[.!]{0,3})",
        examples=("TASK_COMPLETE", "TASK_COMPLETE.", "Task complete!", "**TASK_COMPLETE**", "`TASK_COMPLETE`", "task_complete"),
        near=(
            "The task is complete.",
            "I will say TASK_COMPLETE when I am done.",
            "TASK-COMPLETE",
            "Task completed successfully.",
        ),
    ),
    Sentinel(
        name="echo",
        places=_EDGE,
        pattern=r"(?i:echo)[ \t]+([\"']?)(?i:task[ _]?completed?)[.!]{0,3}\1(?:[ \t]+#.*)?",
        examples=(
            'echo "Task complete."',
            "echo 'Task complete'",
            "echo Task Complete",
            "echo TASK_COMPLETE",
            'echo "Task completed!"',
            'echo "taskcomplete" # done',
        ),
        near=(
            'echo "Task complete." > done.txt',
            'echo "Task complete." >> done.txt',
            'echo "Task complete." | tee done.txt',
            'echo "Task complete."; ls',
            'echo "Task complete." && exit',
            'echo -n "Task complete."',
            'printf "Task complete."',
            'echo "Task completed successfully."',
            'echo "The task is complete."',
            "echo task-complete",
            "exit",
        ),
    ),
)
"""What the environment uses."""

SEED: StopTable = (
    Sentinel(
        name="token",
        places=_ANYWHERE,
        pattern=r"TASK_COMPLETE",
        examples=("TASK_COMPLETE", "  TASK_COMPLETE  "),
        near=("TASK_COMPLETE.", "**TASK_COMPLETE**", "`TASK_COMPLETE`", "task_complete", "Task complete!"),
    ),
    Sentinel(
        name="echo",
        places=_EDGE,
        pattern=r"(?i:echo)[ \t]+([\"']?)(?i:task[ _]?completed?)\.?\1(?:[ \t]+#.*)?",
        examples=('echo "Task complete."', "echo TASK_COMPLETE", "echo 'Task Complete' # done"),
        near=('echo "Task complete!"', 'echo "Task complete." > f', 'echo -n "Task complete."'),
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
