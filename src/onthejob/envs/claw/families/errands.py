"""Errands: operations on files, drawn and combined at random, so that no two of these tasks have the same plan.

The other families are recipes: one plan each, with other names and numbers. These three per persona have no plan. Each instance
draws its operations from one table, chains them (a file that one makes is often what the next works on) and says them in drawn
words. What must hold at the end is computed here in Python, from the same lines, independently of the gold commands.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from onthejob.envs.claw.draw import Draw
from onthejob.envs.claw.families.backend_developer import app_log
from onthejob.envs.claw.families.scene import Family, Scene
from onthejob.envs.claw.families.words import (
    ANIMALS,
    CITIES,
    COLORS,
    FIRST_NAMES,
    HOSTS,
    NOTES,
    RESULTS,
    SENTENCES,
    SERVICES,
    TAGS,
    TOPICS,
)
from onthejob.envs.claw.schema import MAX_ASSERTIONS, Difficulty
from onthejob.errors import ContractError


@dataclass(frozen=True, slots=True)
class _Place:
    """What the workspace of a persona looks like."""

    folders: tuple[str, ...]
    stems: tuple[str, ...]


_PLACES: MappingProxyType[str, _Place] = MappingProxyType(
    {
        "academic-author": _Place(
            ("paper", "drafts", "reviews", "submission"), ("intro", "related", "cover", "quotes", "sources", "reply")
        ),
        "backend-developer": _Place(
            ("service", "config", "ops", "fixtures"), ("routes", "hosts", "jobs", "flags", "changes", "queue")
        ),
        "data-science-researcher": _Place(
            ("data", "raw", "study", "tables"), ("survey", "samples", "cities", "readings", "groups", "codes")
        ),
        "devops-engineer": _Place(
            ("var", "infra", "nodes", "backups"), ("machines", "alerts", "disks", "access", "uptime", "shifts")
        ),
        "embedded-firmware-dev": _Place(
            ("boards", "include", "bench", "release"), ("pins", "sensors", "timings", "parts", "errata", "trace")
        ),
        "indie-game-dev": _Place(
            ("assets", "levels", "text", "builds"), ("monsters", "items", "lines", "scores", "names", "credits")
        ),
        "ml-engineer": _Place(
            ("runs", "configs", "eval", "datasets"), ("labels", "losses", "prompts", "params", "steps", "splits")
        ),
        "technical-writer": _Place(("docs", "pages", "terms", "archive"), ("guide", "faq", "index", "notes", "links", "steps")),
    }
)


_MONTHS = ("January", "March", "May", "June", "August", "October", "November")


class _Desk:
    """The files as they are after the operations drawn so far."""

    def __init__(self, scene: Scene, d: Draw, place: _Place) -> None:
        self.scene, self.d, self.place = scene, d, place
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
        self._names = d.shuffled([*place.stems, *RESULTS])

    def copy(self) -> _Desk:
        """The same files, to be able to take an operation back."""
        other = copy.copy(self)
        other.now, other.kinds, other.counts = dict(self.now), dict(self.kinds), dict(self.counts)
        other.touched, other.folders, other._names = set(self.touched), set(self.folders), list(self._names)
        return other

    def seed(self, kind: str) -> None:
        """One more file, lying there at the start."""
        folder = self.d.pick(("", *self.place.folders))
        path = self.fresh("csv" if kind == "table" else {"log": "log", "settings": "conf"}.get(kind, "txt"), folder)
        lines = _CONTENT[kind](self.d)
        self.scene.text(path, lines)
        self.now[path], self.kinds[path] = lines, kind
        if folder:
            self.folders.add(folder)

    def fresh(self, ending: str, folder: str | None = None) -> str:
        """A path that is not taken, in `folder` or one that is there."""
        if folder is None:
            folder = self.d.pick(("", "", *sorted(self.folders)))
        path = f"{self._names.pop()}{self.d.pick(TAGS)}.{ending}"
        return f"{folder}/{path}" if folder else path

    def file(self, *kinds: str, least: int = 1) -> str:
        """A text file with at least so many lines, of one of `kinds` if any are named; often what was made last.

        Raises:
            _Unsuitable: There is none.
        """
        found = [
            path
            for path, lines in self.now.items()
            if path not in self.counts and len(lines) >= least and (not kinds or self.kinds[path] in kinds)
        ]
        if not found:
            raise _Unsuitable
        return self.last if self.last in found and self.d.below(2) else self.d.pick(found)

    def make(self, path: str, lines: list[str], kind: str) -> None:
        """The file now holds these lines."""
        if not lines or self.now.get(path) == lines:
            raise _Unsuitable
        self.now[path], self.kinds[path], self.last = lines, kind, path
        self.touched.add(path)

    def count(self, path: str, value: int) -> None:
        """The file now holds a number that the agent has to find out."""
        self.now[path], self.kinds[path], self.counts[path] = [str(value)], "number", value
        self.touched.add(path)

    def remove(self, path: str) -> None:
        """The file is not there any more."""
        del self.now[path], self.kinds[path]
        self.touched.add(path)

    def word(self, path: str) -> str:
        """A word that stands in some lines of the file, but not in all."""
        lines = self.now[path]
        words = {word for line in lines for word in line.replace(",", " ").replace("=", " ").split()}
        some = sorted(w for w in words if w.isalpha() and len(w) > 2 and 0 < sum(w in line for line in lines) < len(lines))
        if not some:
            raise _Unsuitable
        return self.d.pick(some)


class _Unsuitable(Exception):
    """The operation cannot be done with the files there are; another one is drawn."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One operation: a clause that asks for it, and the commands that do it."""

    clause: str
    commands: tuple[str, ...]


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


_CONTENT: MappingProxyType[str, Callable[[Draw], list[str]]] = MappingProxyType(
    {"prose": _prose, "log": _log, "table": _table, "pairs": _pairs, "settings": _settings, "words": _words}
)


def _first_lines(k: _Desk) -> _Step:
    path = k.file(least=4)
    n, out = k.d.number(2, len(k.now[path]) - 1), k.fresh("txt")
    k.make(out, k.now[path][:n], k.kinds[path])
    clause = k.d.pick(
        (
            f"put the first {n} lines of {path} into {out}",
            f"save the top {n} lines of {path} as {out}",
            f"{out} gets the first {n} lines of {path}",
            f"copy lines 1 to {n} of {path} into the file {out}",
        )
    )
    return _Step(clause, (f"head -n {n} {path} > {out}",))


def _last_lines(k: _Desk) -> _Step:
    path = k.file(least=4)
    n, out = k.d.number(2, len(k.now[path]) - 1), k.fresh("txt")
    k.make(out, k.now[path][-n:], k.kinds[path])
    clause = k.d.pick(
        (
            f"take the last {n} lines of {path} over into {out}",
            f"write the {n} lines at the end of {path} to {out}",
            f"{out} should hold the {n} last lines of {path}",
        )
    )
    return _Step(clause, (f"tail -n {n} {path} > {out}",))


def _without_top(k: _Desk) -> _Step:
    path, out = k.file(least=3), k.fresh("txt")
    k.make(out, k.now[path][1:], k.kinds[path] if k.kinds[path] != "table" else "rows")
    clause = k.d.pick(
        (
            f"write all of {path} but its first line to {out}",
            f"copy {path} without the first line to {out}",
            f"{out} gets {path} from line 2 on",
        )
    )
    return _Step(clause, (f"tail -n +2 {path} > {out}",))


def _lines_with(k: _Desk) -> _Step:
    path = k.file(least=3)
    word, out = k.word(path), k.fresh("txt")
    k.make(out, [line for line in k.now[path] if word in line], "found")
    clause = k.d.pick(
        (
            f"collect the lines of {path} that contain '{word}' in {out}",
            f"write every line of {path} in which '{word}' occurs to {out}",
            f"{out} should have those lines of {path} that mention '{word}'",
            f"find '{word}' in {path} and keep the matching lines as {out}",
        )
    )
    return _Step(clause, (f"grep '{word}' {path} > {out}",))


def _lines_without(k: _Desk) -> _Step:
    path = k.file(least=3)
    word, out = k.word(path), k.fresh("txt")
    k.make(out, [line for line in k.now[path] if word not in line], k.kinds[path])
    clause = k.d.pick(
        (
            f"write the lines of {path} that do not contain '{word}' to {out}",
            f"copy {path} to {out}, but skip every line with '{word}'",
            f"{out} gets what is left of {path} when all lines with '{word}' are left out",
        )
    )
    return _Step(clause, (f"grep -v '{word}' {path} > {out}",))


def _how_many(k: _Desk) -> _Step:
    path, out = k.file(least=3), k.fresh("txt")
    k.count(out, len(k.now[path]))
    clause = k.d.pick(
        (
            f"write how many lines {path} has to {out}",
            f"count the lines of {path}; the number goes into {out}",
            f"{out} should say how long {path} is, in lines",
        )
    )
    return _Step(clause, (f"wc -l < {path} > {out}",))


def _how_many_with(k: _Desk) -> _Step:
    path = k.file(least=3)
    word, out = k.word(path), k.fresh("txt")
    k.count(out, sum(word in line for line in k.now[path]))
    clause = k.d.pick(
        (
            f"write to {out} in how many lines of {path} '{word}' occurs",
            f"count the lines of {path} with '{word}' and put the number into {out}",
            f"{out} gets the number of lines of {path} that contain '{word}'",
        )
    )
    return _Step(clause, (f"grep -c '{word}' {path} > {out}",))


def _sorted(k: _Desk) -> _Step:
    path, out = k.file("prose", "log", "pairs", "settings", "words", "found", least=3), k.fresh("txt")
    k.make(out, sorted(k.now[path]), k.kinds[path])
    clause = k.d.pick(
        (
            f"sort the lines of {path} into {out}",
            f"write {path} in alphabetical order to {out}",
            f"{out} should hold the lines of {path}, sorted",
        )
    )
    return _Step(clause, (f"sort {path} > {out}",))


def _distinct(k: _Desk) -> _Step:
    path, out = k.file("words", "names", least=3), k.fresh("txt")
    lines = sorted(set(k.now[path]))
    if len(lines) == len(k.now[path]):
        raise _Unsuitable
    k.make(out, lines, "names")
    clause = k.d.pick(
        (
            f"write every different line of {path} once, sorted, to {out}",
            f"sort {path} into {out} and drop repeated lines",
            f"{out} gets the distinct lines of {path} in alphabetical order",
        )
    )
    return _Step(clause, (f"sort -u {path} > {out}",))


def _column(k: _Desk) -> _Step:
    path = k.file("table", "pairs", least=3)
    out, n, comma = k.fresh("txt"), k.d.number(1, 2), k.kinds[path] == "table"
    separator, what = (",", "column") if comma else (" ", "word")
    k.make(out, [line.split(separator)[n - 1] for line in k.now[path]], "names")
    clause = k.d.pick(
        (
            f"write {what} {n} of every line of {path} to {out}",
            f"{out} should hold only the {('first', 'second')[n - 1]} {what} of each line of {path}",
            f"take {what} {n} of {path}, line by line, and save it as {out}",
        )
    )
    return _Step(clause, (f"cut -d'{separator}' -f{n} {path} > {out}",))


def _joined(k: _Desk) -> _Step:
    first = k.file("prose", "log", "words", "pairs", "names")
    second = k.file("prose", "log", "words", "pairs", "names")
    if first == second:
        raise _Unsuitable
    out = k.fresh("txt")
    k.make(out, [*k.now[first], *k.now[second]], "mixed")
    clause = k.d.pick(
        (
            f"join {first} and {second}, in this order, in {out}",
            f"write {first} followed by {second} to {out}",
            f"{out} should have all lines of {first} and then all lines of {second}",
        )
    )
    return _Step(clause, (f"cat {first} {second} > {out}",))


def _copied(k: _Desk) -> _Step:
    path = k.file()
    out = k.fresh(path.rpartition(".")[2])
    k.make(out, list(k.now[path]), k.kinds[path])
    clause = k.d.pick((f"copy {path} to {out}", f"make a copy of {path} named {out}", f"duplicate {path} as {out}"))
    return _Step(clause, (f"cp {path} {out}",))


def _moved(k: _Desk) -> _Step:
    path = k.file()
    out = k.fresh(path.rpartition(".")[2])
    lines, kind = k.now[path], k.kinds[path]
    k.remove(path)
    k.make(out, lines, kind)
    clause = k.d.pick((f"rename {path} to {out}", f"move {path} to {out}", f"{path} should be called {out} from now on"))
    return _Step(clause, (f"mv {path} {out}",))


def _deleted(k: _Desk) -> _Step:
    path = k.file()
    if path == k.last or len(k.now) < 2:
        raise _Unsuitable
    k.remove(path)
    clause = k.d.pick((f"delete {path}", f"remove the file {path}", f"{path} is not needed any more, delete it"))
    return _Step(clause, (f"rm {path}",))


def _replaced(k: _Desk) -> _Step:
    path = k.file(least=2)
    old, new = k.word(path), k.d.pick((*COLORS, *ANIMALS, *HOSTS))
    if any(new in line for line in k.now[path]):
        raise _Unsuitable
    k.make(path, [line.replace(old, new) for line in k.now[path]], k.kinds[path])
    clause = k.d.pick(
        (
            f"replace every '{old}' in {path} by '{new}'",
            f"in {path}, write '{new}' wherever it says '{old}'",
            f"change '{old}' to '{new}' everywhere in {path}",
        )
    )
    return _Step(clause, (f"sed -i 's/{old}/{new}/g' {path}",))


def _set(k: _Desk) -> _Step:
    path, value = k.file("settings", least=2), k.d.number(1000, 9999)
    key = k.d.pick([line.partition("=")[0] for line in k.now[path]])
    k.make(path, [f"{key}={value}" if line.startswith(f"{key}=") else line for line in k.now[path]], "settings")
    clause = k.d.pick(
        (
            f"set {key} to {value} in {path}",
            f"in {path} the value of {key} must become {value}",
            f"give {key} the value {value} in {path}",
        )
    )
    return _Step(clause, (f"sed -i 's/^{key}=.*/{key}={value}/' {path}",))


def _dropped(k: _Desk) -> _Step:
    path = k.file(least=3)
    word = k.word(path)
    k.make(path, [line for line in k.now[path] if word not in line], k.kinds[path])
    clause = k.d.pick(
        (
            f"delete the lines with '{word}' from {path}",
            f"take every line that contains '{word}' out of {path}",
            f"{path} must not have lines with '{word}' any more; delete them",
        )
    )
    return _Step(clause, (f"sed -i '/{word}/d' {path}",))


def _appended(k: _Desk) -> _Step:
    path, line = k.file(), k.d.pick(NOTES)
    k.make(path, [*k.now[path], line], "mixed")
    clause = k.d.pick(
        (
            f"add the line '{line}' at the end of {path}",
            f"append '{line}' to {path}",
            f"{path} ends with one more line: '{line}'",
        )
    )
    return _Step(clause, (f"echo '{line}' >> {path}",))


def _on_top(k: _Desk) -> _Step:
    path, line = k.file(), f"{k.d.pick(TOPICS)} of {k.d.pick(_MONTHS)}"
    k.make(path, [line, *k.now[path]], "mixed")
    clause = k.d.pick(
        (
            f"insert '{line}' as the first line of {path}",
            f"put the line '{line}' on top of {path}",
            f"{path} should begin with a new line '{line}'",
        )
    )
    return _Step(clause, (f"sed -i '1i {line}' {path}",))


def _written(k: _Desk) -> _Step:
    out, line = k.fresh("txt"), f"{k.d.pick(NOTES)} {k.d.number(2, 60)}"
    k.make(out, [line], "note")
    clause = k.d.pick(
        (
            f"create {out} with the single line '{line}'",
            f"write '{line}' to a new file {out}",
            f"make a file {out} that says '{line}'",
        )
    )
    return _Step(clause, (f"echo '{line}' > {out}",))


def _filed(k: _Desk) -> _Step:
    """A file goes into a folder that is not there yet."""
    path, folder = k.file(), k.d.pick(RESULTS)
    if folder in k.folders or "/" in path:
        raise _Unsuitable
    move = k.d.below(2)
    lines, kind = k.now[path], k.kinds[path]
    if move:
        k.remove(path)
    k.make(f"{folder}/{path}", list(lines), kind)
    k.folders.add(folder)
    verb = ("copy", "move")[move]
    clause = k.d.pick(
        (
            f"create the folder {folder} and {verb} {path} into it",
            f"make a folder {folder}; {verb} {path} there",
            f"{verb} {path} into a new folder {folder}",
        )
    )
    return _Step(clause, (f"mkdir -p {folder}", f"{('cp', 'mv')[move]} {path} {folder}/"))


_OPERATIONS = (
    _first_lines,
    _last_lines,
    _without_top,
    _lines_with,
    _lines_without,
    _how_many,
    _how_many_with,
    _sorted,
    _distinct,
    _column,
    _joined,
    _copied,
    _moved,
    _deleted,
    _replaced,
    _set,
    _dropped,
    _appended,
    _on_top,
    _written,
    _filed,
)


_TRIALS = 2000
"""Operations drawn for one task; some ten in a hundred fit the files there are."""


def _errands(s: Scene, d: Draw, place: _Place, steps: int, seeds: int) -> None:
    k = _Desk(s, d, place)
    for kind in d.some(tuple(_CONTENT), seeds):
        k.seed(kind)
    done: list[_Step] = []
    left = steps
    for _ in range(_TRIALS):
        if left == 0:
            break
        trial = k.copy()
        try:
            step = d.pick(_OPERATIONS)(trial)
        except _Unsuitable:
            continue
        # One assertion is left for a guard.
        if len(step.commands) <= left and len(trial.touched) < MAX_ASSERTIONS:
            k = trial
            done.append(step)
            left -= len(step.commands)
    else:
        raise ContractError(f"{_TRIALS} operations were drawn and {left} of {steps} commands are still missing.")
    _say(s, d, [step.clause for step in done])
    _do(s, d, done)
    _expect(s, k)


def _say(s: Scene, d: Draw, clauses: list[str]) -> None:
    if len(clauses) <= 3 and d.below(2):
        parts = [clause[0].upper() + clause[1:] if not _is_path(clause) else clause for clause in clauses]
        starts = ("", *("Then " if d.below(2) else "" for _ in parts[1:]))
        s.say(
            " ".join(f"{start}{clause if start else part}." for start, clause, part in zip(starts, clauses, parts, strict=True))
        )
    else:
        s.ask(("Some file work, in this order:", "Please do this, one after the other:", "The list of today:"), *clauses)


def _is_path(clause: str) -> bool:
    """The clause begins with a path, whose letters must stay as they are."""
    return "." in clause.split()[0]


def _do(s: Scene, d: Draw, done: list[_Step]) -> None:
    """Gold turns of one to three operations each."""
    bounds = [0]
    while bounds[-1] < len(done):
        bounds.append(min(len(done), bounds[-1] + d.number(1, 3)))
    for start, stop in pairwise(bounds):
        s.do(*(command for step in done[start:stop] for command in step.commands))


def _expect(s: Scene, k: _Desk) -> None:
    for path in sorted(k.touched):
        if path in k.counts:
            s.value(path, k.counts[path])
        elif path in k.now:
            s.exact(path, k.now[path])
        elif path in s.files:
            s.gone(path)
    kept = [path for path in s.files if path not in k.touched]
    s.unchanged(*kept[: min(2, MAX_ASSERTIONS - len(s.assertions))])


def _family(persona: str, place: _Place, difficulty: Difficulty) -> Family:
    name, low, high, seeds = {
        Difficulty.EASY: ("errand", 1, 3, 2),
        Difficulty.MEDIUM: ("errands", 4, 6, 3),
        Difficulty.HARD: ("round", 8, 9, 4),
    }[difficulty]

    def build(s: Scene, d: Draw) -> None:
        _errands(s, d, place, d.number(low, high), seeds)

    build.__doc__ = f"Operations drawn at random, {low} to {high} commands."
    return Family(name=f"{name}-{persona}", persona=persona, difficulty=difficulty, build=build)


# By difficulty first, so that the splits of small corpora have all of them (see `splits`).
FAMILIES = tuple(_family(persona, place, difficulty) for difficulty in Difficulty for persona, place in _PLACES.items())
