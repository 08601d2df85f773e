"""The workspace of an errand while it is being made: files, and what the operations drawn so far have made of them."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from onthejob.envs.claw.families.backend_developer import app_log
from onthejob.envs.claw.families.scene import Scene
from onthejob.envs.claw.families.words import (
    ANIMALS,
    CITIES,
    COLORS,
    FIRST_NAMES,
    HOSTS,
    RESULTS,
    SENTENCES,
    SERVICES,
    TAGS,
    TOPICS,
)
from onthejob.envs.claw.keyed_choices import Draw


@dataclass(frozen=True, slots=True)
class Step:
    """One operation: a clause that asks for it, and the commands that do it."""

    clause: str
    """Imperative, without a full stop; a path at its beginning keeps its letters."""
    commands: tuple[str, ...]


class Desk:
    """The files as they are after the operations drawn so far."""

    def __init__(self, scene: Scene, d: Draw, *, folders: Sequence[str], stems: Sequence[str]) -> None:
        """folders: of seeded files; stems: of the names of files, besides those of results."""
        self.scene, self.d = scene, d
        self.now: dict[str, list[str]] = {}
        """Path -> lines of every text file."""
        self.kinds: dict[str, str] = {}
        """Path -> what its lines look like: prose, log, table, pairs, settings or words."""
        self.folders: set[str] = set()
        """Folders that are there."""
        self.counts: dict[str, int] = {}
        """Path of a file that holds one number -> the number."""
        self.touched: set[str] = set()
        """Paths that an assertion will be about."""
        self.last = ""
        """The file made or changed by the operation before."""
        self.named: set[str] = set()
        """Every path that was ever given out."""
        self.assigned: set[tuple[str, str]] = set()
        """Path and key of settings that were given a value."""
        self._seeded = tuple(folders)
        self._names = d.shuffled([*stems, *RESULTS])

    def copy(self) -> Desk:
        """The same files, to be able to take an operation back."""
        other = copy.copy(self)
        other.now, other.kinds, other.counts = dict(self.now), dict(self.kinds), dict(self.counts)
        other.touched, other.folders, other._names = set(self.touched), set(self.folders), list(self._names)
        other.named, other.assigned = set(self.named), set(self.assigned)
        return other

    def seed(self, kind: str) -> None:
        """One more file, lying there at the start."""
        folder = self.d.pick(("", *self._seeded))
        path = self.fresh("csv" if kind == "table" else {"log": "log", "settings": "conf"}.get(kind, "txt"), folder)
        lines = CONTENT[kind](self.d)
        self.scene.text(path, lines)
        self.now[path], self.kinds[path] = lines, kind
        if folder:
            self.folders.add(folder)

    def fresh(self, ending: str, folder: str | None = None) -> str:
        """A path that is not taken, in `folder` or one that is there."""
        if folder is None:
            folder = self.d.pick(("", "", *sorted(self.folders)))
        name = f"{self._names.pop()}{self.d.pick(TAGS)}.{ending}"
        path = f"{folder}/{name}" if folder else name
        self.named.add(path)
        return path

    def file(self, *kinds: str, least: int = 1) -> str:
        """A text file with at least so many lines, of one of `kinds` if any are named; often what was made last.

        Raises:
            Unsuitable: There is none.
        """
        found = [
            path
            for path, lines in self.now.items()
            if path not in self.counts and len(lines) >= least and (not kinds or self.kinds[path] in kinds)
        ]
        if not found:
            raise Unsuitable
        return self.last if self.last in found and self.d.below(2) else self.d.pick(found)

    def make(self, path: str, lines: list[str], kind: str) -> None:
        """The file now holds these lines."""
        if not lines or self.now.get(path) == lines:
            raise Unsuitable
        self.now[path], self.kinds[path], self.last = lines, kind, path
        self.touched.add(path)

    def count(self, path: str, value: int) -> None:
        """The file now holds a number that the agent has to find out."""
        self.now[path], self.kinds[path], self.counts[path] = [str(value)], "number", value
        self.touched.add(path)

    def remove(self, path: str) -> None:
        """The file is not there any more.

        Raises:
            Unsuitable: It was not seeded: that a file made on the way is gone cannot be asserted, as doing nothing passes that.
        """
        if path not in self.scene.files:
            raise Unsuitable
        del self.now[path], self.kinds[path]
        self.touched.add(path)

    def step(self, commands: str, *clauses: str) -> Step:
        """An operation: its commands, one a line, and one of several clauses that ask for it."""
        return Step(self.d.pick(clauses), tuple(commands.split("\n")))

    def word(self, path: str) -> str:
        """A word that stands in some lines of the file, but not in all, whatever is taken for a word and for the same letters.

        Raises:
            Unsuitable: There is none.
        """
        lines = self.now[path]
        words = sorted({word for line in lines for word in re.findall(r"[^\W\d_]{3,}", line)})
        some = [
            w for w in words if 0 < sum(w in line for line in lines) < len(lines) and all(_plainly(w, line) for line in lines)
        ]
        if not some:
            raise Unsuitable
        return self.d.pick(some)


def _plainly(word: str, line: str) -> bool:
    """The word occurs in the line as often as its letters do, in capitals and small letters and inside other words."""
    return len(re.findall(word, line, re.IGNORECASE)) == len(re.findall(rf"\b{word}\b", line))


class Unsuitable(Exception):
    """The operation cannot be done with the files there are; another one is drawn."""


def _prose(d: Draw) -> list[str]:
    return d.some(SENTENCES, d.number(4, 8))


def _log(d: Draw) -> list[str]:
    return app_log(d, d.number(6, 12))


def _table(d: Draw) -> list[str]:
    rows = [f"{name},{d.pick(COLORS)},{d.number(2, 99)}" for name in d.some(CITIES, d.number(5, 9))]
    return ["city,group,value", *rows]


def _pairs(d: Draw) -> list[str]:
    return [f"{d.pick(FIRST_NAMES)} {d.pick(SERVICES)} {d.number(2, 99)}" for _ in range(d.number(5, 9))]


def _settings(d: Draw) -> list[str]:
    return [f"{key}={d.number(1, 900)}" for key in d.some((*TOPICS, *SERVICES), d.number(4, 7))]


def _words(d: Draw) -> list[str]:
    few = d.some((*ANIMALS, *HOSTS), d.number(4, 6))
    return [*d.shuffled(few), *(d.pick(few) for _ in range(d.number(2, 5)))]


CONTENT: MappingProxyType[str, Callable[[Draw], list[str]]] = MappingProxyType(
    {"prose": _prose, "log": _log, "table": _table, "pairs": _pairs, "settings": _settings, "words": _words}
)
