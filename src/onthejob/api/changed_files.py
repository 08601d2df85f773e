"""What a recorded turn changed in its files, as diffs: the episode's commands are executed again, in a sandbox.

The record holds replies and no contents of files. So the replies up to the turn are acted on in a new sandbox, once without the
turn and once with it, and the files that the turn changed are read from what both left. All that the commands did (exit codes,
what the agent read, which files changed, their sizes) is compared with the record, and what differs is refused and not shown.
"""

from __future__ import annotations

import difflib
import io
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from onthejob.api.schema_runs import ChangedFiles, FileDiff
from onthejob.envs.claw.env import SHOWN_CHANGES, ClawEnvironment
from onthejob.envs.claw.sandbox.unsafe import BACKEND as UNSAFE
from onthejob.envs.claw.workspace import PathKind, Unreadable, Workspace
from onthejob.errors import ContractError, RecordError, SandboxError
from onthejob.record.codec import dump_json, load_json
from onthejob.record.from_rows import RecordedEpisode
from onthejob.types import Task

READ_BYTES = 1 << 16
"""Of a file; a larger one is described and not compared."""
COMPARED_LINES = 2_000
"""The same for lines: comparing takes up to their square."""
SHOWN_LINES = 200
"""Of the diff of one file."""
COMMANDS_S = 60.0
"""Seconds that all commands of one question may take."""
WAIT_S = 30.0
"""Seconds that a question waits for another one."""
AT_THE_END = frozenset({"sentinel", "verdicts", "backend", "layers"})
"""Facts that the end of an episode adds to its last turn."""
SYMBOLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {0x7F: 0x2421}
"""Control characters -> their pictures in Unicode, so that a changed line end is seen."""


class ShellWork(NamedTuple):
    """Shell work in a sandbox, as a run was recorded in it."""

    env: ClawEnvironment
    task_of: Callable[[RecordedEpisode], Task | str]
    """The task of an episode, or why that cannot be said."""


OpenWork = Callable[[Mapping[str, Any], str], AbstractContextManager[ShellWork]]
"""(a run's configuration, its name) -> its shell work; refuses with RecordError what cannot be executed in a sandbox."""


class _Content(NamedTuple):
    """A file, or why its text is not there."""

    text: str | None = None
    """None where there is nothing at the path, and where `note` says why there is no text."""
    note: str = ""
    """Continues a sentence about the file."""


_FOLDER = _Content(note="is a folder")


class Changes:
    """Executes recorded turns again, one question at a time."""

    def __init__(self, open_work: OpenWork | None = None, *, commands_s: float = COMMANDS_S, wait_s: float = WAIT_S) -> None:
        """open_work: opens the environment of a run; None: no command is executed. Seconds as `COMMANDS_S` and `WAIT_S`."""
        self._open_work = open_work
        self._commands_s = commands_s
        self._wait_s = wait_s
        self._one = threading.Lock()

    def of(self, run: str, config: Mapping[str, Any], episode: RecordedEpisode, turn: int) -> ChangedFiles:
        """What the turn of this number, from 0, changed.

        Args:
            run: name.
            config: of the run.
            episode: with its timeline.
            turn: of the episode.

        Raises:
            ConfigError: the task is not what it was.
            ContractError: other questions take too long.
            RecordError: the turn ran no command, cannot be executed in a sandbox here, or does something else than recorded.
        """
        where = f"turn {turn + 1} of episode {episode.name!r} of run {run!r}"
        facts = episode.timeline[turn]["facts"] if turn < len(episode.timeline) else {}
        if "files" not in facts:
            raise RecordError(f"{where} ran no command whose changes were recorded.")
        if not facts["files"]:
            return ChangedFiles(files=[], further=0)
        if any(row["facts"].get("backend") == UNSAFE for row in episode.timeline):
            raise RecordError(f"run {run!r} was recorded without isolation, and its commands are not executed again.")
        if self._open_work is None:
            raise RecordError("this server executes no recorded commands. `onthejob view` does.")
        if not self._one.acquire(timeout=self._wait_s):
            raise ContractError("another recorded turn is being executed again. Ask when it is done.")
        try:
            with self._open_work(config, run) as work:
                return self._again(work, episode, turn, where)
        except SandboxError as error:
            raise RecordError(f"{where} cannot be executed again here: {error}") from error
        finally:
            self._one.release()

    def _again(self, work: ShellWork, episode: RecordedEpisode, turn: int, where: str) -> ChangedFiles:
        if work.env.state()["backend"] == UNSAFE:
            raise RecordError(f"{where} is not executed again: nothing would isolate its commands.")
        task = work.task_of(episode)
        if isinstance(task, str):
            raise RecordError(f"{where} cannot be executed again: {task}.")
        rows = episode.timeline[: turn + 1]
        changed = rows[turn]["facts"]["files"][:SHOWN_CHANGES]
        paths = [str(change["path"]) for change in changed]
        after = self._left(work.env, task, rows, paths, where)
        before = self._left(work.env, task, rows[:turn], paths, where)
        return ChangedFiles(
            files=[_diff(change, before[path], after[path]) for change, path in zip(changed, paths, strict=True)],
            further=int(rows[turn]["facts"].get("files_left_out", 0)),
        )

    def _left(
        self, env: ClawEnvironment, task: Task, rows: Sequence[Mapping[str, Any]], paths: Sequence[str], where: str
    ) -> dict[str, _Content]:
        """What the replies of `rows` left at `paths`; what they do must be what they did."""

        def read(root: Path) -> dict[str, _Content]:
            with Workspace(root) as workspace:
                return {path: _content(workspace, path) for path in paths}

        found, contents = env.left_after(task, [str(row["text"]) for row in rows], read, within_s=self._commands_s / 2)
        for number, (now, row) in enumerate(zip(found, rows, strict=True), start=1):
            recorded = {name: value for name, value in row["facts"].items() if name not in AT_THE_END}
            if load_json(dump_json(now, where)) != recorded:
                raise RecordError(
                    f"{where} cannot be shown: executed again, turn {number} did something else than recorded. A command may "
                    "depend on the time or on chance, or this machine is not that of the record."
                )
        return contents


def _content(workspace: Workspace, path: str) -> _Content:
    """What the agent left at `path`."""
    match workspace.find(path.removesuffix("/")):
        case PathKind.NOTHING:
            return _Content()
        case PathKind.FILE:
            try:
                data = workspace.read(path.removesuffix("/"), limit=READ_BYTES)
            except Unreadable as error:
                return _Content(note=str(error))
        case PathKind.FOLDER:
            return _FOLDER
        case PathKind.OTHER:
            return _Content(note="is a link or a special file")
        case PathKind.UNKNOWN:
            return _Content(note="cannot be read")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        return _Content(note=f"is binary, {len(data)} bytes")
    if (lines := text.count("\n")) > COMPARED_LINES:
        return _Content(note=f"has {lines} lines, more than the {COMPARED_LINES} that are compared")
    return _Content(text)


def _diff(change: Mapping[str, Any], before: _Content, after: _Content) -> FileDiff:
    note, lines = _note(change, before, after), []
    if not note:
        made = difflib.unified_diff(_lines(before.text), _lines(after.text))
        lines = [text for line in list(made)[2:] for text in _shown(line)]
    return FileDiff(
        path=str(change["path"]),
        what=str(change["what"]),
        lines=lines[:SHOWN_LINES],
        further=max(0, len(lines) - SHOWN_LINES),
        note=f"{note[0].upper()}{note[1:]}." if note else "",
    )


def _note(change: Mapping[str, Any], before: _Content, after: _Content) -> str:
    """Why a file has no diff; empty where it has one."""
    path, what = str(change["path"]), str(change["what"])
    # The list of changes names empty folders alone, with a slash.
    if path.endswith("/"):
        there = after == _FOLDER
        return "it is an empty folder" if what == "created" else f"it {'is no longer' if there else 'was'} an empty folder"
    sides = [(f"{when} " if what == "changed" else "", one.note) for when, one in (("before", before), ("afterwards", after))]
    if any(note for _, note in sides):
        return "; ".join(f"{when}it {note}" for when, note in sides if note)
    if before.text is after.text is None:
        return "it cannot be found by this name"
    if (before.text or "") == (after.text or ""):
        return "it is empty" if not after.text else "its text is the same"
    return ""


def _lines(text: str | None) -> list[str]:
    """With their ends. A line ends with a line feed alone, as in other tools' diffs."""
    return list(io.StringIO(text or "", newline="\n"))


def _shown(line: str) -> list[str]:
    """A line of a diff, and the sign that it is a last one without an end."""
    text = line.removesuffix("\n").translate(SYMBOLS)
    return [text] if line.endswith("\n") else [text, "\\ No newline at end of file"]
