"""What a claw task is: frozen records, and their JSON form (one task per line of a JSONL file).

A task holds everything that an episode and its grading need: who asks (persona), what is asked (intent), the files that are there
at the start (workspace seed), what has to be true at the end (assertions), and commands that are proven to get there (gold). The
record of a task (`ClawTask.to_record`) is also the payload of its `onthejob.types.Task`, so `ClawTask.from_record(task.payload)`
gives it back. `onthejob.envs.claw.form` checks the form; whether a task makes sense is judged by `onthejob.envs.claw.lint`.

The JSON keys are those of the ClawGym substrate: `task_id`, `persona`, `intent`, `workspace_seed`, `skills_required`,
`verifiable_assertions`, `difficulty`, `estimated_steps`; `family`, `gold` and `answers` are ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onthejob.envs.claw.form import (
    MAX_ASSERTIONS,
    AssertionKind,
    ContainForm,
    Difficulty,
    FileKind,
    MatchForm,
    TaskForm,
    TextFileForm,
    read_form,
)
from onthejob.envs.claw.skills import Skill
from onthejob.errors import ConfigError
from onthejob.files import json_lines, published_file

__all__ = [
    "MAX_ASSERTIONS", "Assertion", "AssertionKind", "ClawTask", "Difficulty", "FileKind", "Persona", "SeedFile", "dump_tasks",
    "load_tasks", "read_record",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Assertion:
    """One verifiable statement about the workspace at the end of an episode."""

    kind: AssertionKind
    path: str
    """Relative to the workspace root, `/`-separated; never absolute, no `.` or `..` components."""
    must_contain: tuple[str, ...] = ()
    """For `file_contents_contain`: one or more substrings. Empty for the other kinds."""
    regex: str = ""
    """For `file_contents_match_regex`: the pattern. Empty for the other kinds."""
    guard: bool = False
    """True when it holds already in the seeded workspace and protects it; `file_unchanged` is always a guard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedFile:
    """One file that is there when the episode begins."""

    path: str
    """As `Assertion.path`."""
    kind: FileKind = FileKind.TEXT
    content: str = ""
    """Of a text file."""
    size_bytes: int = 0
    """Of a binary stub, in [0, MAX_STUB_BYTES]; 0 for text files, whose size follows from the content."""

    @property
    def data(self) -> bytes:
        """The file's bytes."""
        return self.content.encode() if self.kind is FileKind.TEXT else bytes(self.size_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Persona:
    """Who asks."""

    name: str
    """Key such as `backend-developer`; groups the results."""
    role: str
    context: str
    """One or two sentences about the situation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClawTask:
    """One piece of verifiable file work."""

    id: str
    """`synth-<persona>-<number>` for synthesized tasks; unique within a corpus. JSON key `task_id`."""
    family: str
    """Tasks of one family differ in names, numbers, files and wording only; statistics and held-out sets are kept per family."""
    persona: Persona
    intent: str
    """The request, 1-3 sentences or a short list: with the file listing, all that the agent receives."""
    files: tuple[SeedFile, ...]
    """The workspace seed."""
    skills: tuple[Skill, ...]
    """Informational: what the gold commands use."""
    assertions: tuple[Assertion, ...]
    """1 to MAX_ASSERTIONS; the task is passed when all hold."""
    difficulty: Difficulty
    estimated_steps: int
    """Elementary commands of a straightforward solution; in `difficulty.steps`."""
    gold: tuple[str, ...] = ()
    """Bash blocks, one per turn, after which every assertion holds (without the final TASK_COMPLETE). Each is run as a fresh
    `bash -c` at the workspace root. Empty only for candidates whose solvability is not proven yet."""
    answers: tuple[str, ...] = ()
    """Values the agent has to work out (a count, the name of the best run); they must not occur in the intent or a path."""

    def to_record(self) -> dict[str, Any]:
        """The JSON form: plain dicts, lists, strings, numbers and booleans."""
        return {
            "task_id": self.id,
            "family": self.family,
            "persona": asdict(self.persona),
            "intent": self.intent,
            "workspace_seed": {"files": [_file_record(file) for file in self.files]},
            "skills_required": [skill.value for skill in self.skills],
            "verifiable_assertions": [_assertion_record(assertion) for assertion in self.assertions],
            "difficulty": self.difficulty.value,
            "estimated_steps": self.estimated_steps,
            "gold": list(self.gold),
            "answers": list(self.answers),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any], *, where: str = "task") -> ClawTask:
        """The task that `to_record` described.

        Args:
            record: The parsed JSON object; unknown keys are refused.
            where: Named in the error, e.g. `tasks.jsonl:17`.

        Raises:
            ConfigError: It has not the form of a task; the message lists every distinct problem.
        """
        parsed = read_record(record)
        if isinstance(parsed, ClawTask):
            return parsed
        raise ConfigError(f"{where} is not a claw task: {'; '.join(parsed)}")


def read_record(record: Mapping[str, Any], *, ignore_unknown: bool = False) -> ClawTask | tuple[str, ...]:
    """The task, or what is wrong with the form of its record, one sentence per distinct problem.

    With `ignore_unknown`, keys that no task has (a model wrote them) are dropped and not refused.
    """
    found = read_form(record, ignore_unknown=ignore_unknown)
    return _task(found) if isinstance(found, TaskForm) else found


def load_tasks(path: Path) -> list[ClawTask]:
    """The tasks of a JSONL file, in order; empty lines are skipped.

    Raises:
        ConfigError: The file cannot be read, a line is not a task, or an id occurs twice.
    """
    try:
        lines = json_lines(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"claw tasks {path} cannot be read: {error}. Give a UTF-8 JSONL file.") from error
    tasks: dict[str, ClawTask] = {}
    for number, line in lines:
        where = f"{path}:{number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{where} is not JSON: {error}. Each line must hold one task object.") from error
        if not isinstance(record, dict):
            raise ConfigError(f"{where} must be a JSON object, got {type(record).__name__}.")
        task = ClawTask.from_record(record, where=where)
        if task.id in tasks:
            raise ConfigError(f"{where}: task_id {task.id!r} occurs twice. Ids must be unique in a corpus.")
        tasks[task.id] = task
    return list(tasks.values())


def dump_tasks(tasks: Iterable[ClawTask], path: Path) -> None:
    """Write one task per line, whole or not at all; the same tasks always give the same bytes."""
    lines = [json.dumps(task.to_record(), ensure_ascii=False, separators=(",", ":")) + "\n" for task in tasks]
    with published_file(path) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8")


def _task(raw: TaskForm) -> ClawTask:
    name = raw.persona.name or re.sub(r"^synth-|-[^-]*$", "", raw.task_id)
    return ClawTask(
        id=raw.task_id,
        family=raw.family or name,
        persona=Persona(name=name, role=raw.persona.role, context=raw.persona.context),
        intent=raw.intent,
        files=tuple(
            SeedFile(path=file.path, content=file.content)
            if isinstance(file, TextFileForm)
            else SeedFile(path=file.path, kind=FileKind.BINARY_STUB, size_bytes=file.size_bytes)
            for file in raw.workspace_seed.files
        ),
        skills=tuple(raw.skills_required),
        assertions=tuple(
            Assertion(
                kind=AssertionKind(item.kind),
                path=item.path,
                must_contain=tuple(item.must_contain) if isinstance(item, ContainForm) else (),
                regex=item.regex if isinstance(item, MatchForm) else "",
                guard=item.guard or item.kind == AssertionKind.FILE_UNCHANGED,
            )
            for item in raw.verifiable_assertions
        ),
        difficulty=raw.difficulty,
        estimated_steps=raw.estimated_steps,
        gold=tuple(raw.gold),
        answers=tuple(raw.answers),
    )


def _file_record(file: SeedFile) -> dict[str, Any]:
    held = {"content": file.content} if file.kind is FileKind.TEXT else {"size_bytes": file.size_bytes}
    return {"path": file.path, "kind": file.kind.value, **held}


def _assertion_record(assertion: Assertion) -> dict[str, Any]:
    record: dict[str, Any] = {"kind": assertion.kind.value, "path": assertion.path}
    if assertion.kind is AssertionKind.FILE_CONTENTS_CONTAIN:
        record["must_contain"] = list(assertion.must_contain)
    if assertion.kind is AssertionKind.FILE_CONTENTS_MATCH_REGEX:
        record["regex"] = assertion.regex
    implied = assertion.kind is AssertionKind.FILE_UNCHANGED
    return {**record, "guard": True} if assertion.guard and not implied else record
