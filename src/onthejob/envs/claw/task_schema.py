"""What a claw task is: frozen records, and their JSON form (one task per line of a JSONL file).

A task holds everything that an episode and its grading need: who asks (persona), what is asked (intent), the files that are there
at the start (workspace seed), what has to be true at the end (assertions), and commands that are proven to get there (gold). The
record of a task (`ClawTask.to_record`) is also the payload of its `onthejob.types.Task`, so `ClawTask.from_record(task.payload)`
gives it back. This module checks the form; whether a task makes sense is judged by `onthejob.envs.claw.lint`.

The JSON keys are those of the ClawGym substrate: `task_id`, `persona`, `intent`, `workspace_seed`, `skills_required`,
`verifiable_assertions`, `difficulty`, `estimated_steps`; `family`, `gold` and `answers` are ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, StrictBool, StrictInt, StrictStr, Tag, ValidationError

from onthejob.envs.claw.skills import Skill
from onthejob.envs.claw.task_texts import path_problem, regex_problem, text_problems
from onthejob.errors import ConfigError
from onthejob.files import json_lines, published_file

MAX_FILES = 64
"""Files of one workspace seed."""
MAX_STUB_BYTES = 1024 * 1024
"""Bytes of one binary stub."""
MAX_ASSERTIONS = 8
MAX_GOLD_TURNS = 11
"""One turn of the twelve is left for saying that the task is done."""


class Difficulty(StrEnum):
    """How many elementary commands a task takes: easy 1-3, medium 4-7, hard 8 or more."""

    EASY = "easy"
    MEDIUM = "medium"
    HARD = "hard"

    @property
    def steps(self) -> range:
        """The `estimated_steps` that a task of this difficulty may have; hard ends at 40."""
        return {Difficulty.EASY: range(1, 4), Difficulty.MEDIUM: range(4, 8), Difficulty.HARD: range(8, 41)}[self]


class FileKind(StrEnum):
    """What a seeded file holds."""

    TEXT = "text"
    """UTF-8 text, written byte for byte."""
    BINARY_STUB = "binary-stub"
    """`size_bytes` zero bytes in place of an image, a model or a firmware."""


class AssertionKind(StrEnum):
    """The five things that can be asserted about the workspace when the episode is over."""

    FILE_EXISTS = "file_exists"
    """`path` is a regular file or a folder (nothing else; symbolic links are not followed)."""
    FILE_NOT_EXISTS = "file_not_exists"
    """Nothing is at `path`, not even a dangling symbolic link."""
    FILE_CONTENTS_CONTAIN = "file_contents_contain"
    """`path` is a regular UTF-8 text file, and each of `must_contain` is a substring of it (case matters)."""
    FILE_CONTENTS_MATCH_REGEX = "file_contents_match_regex"
    """`path` is a regular UTF-8 text file, and `re.search(regex, text)` finds something. No flags are set: `^` and `$` are the
    ends of the text (`$` also before a last newline) unless the pattern begins with `(?m)`. Only what RE2 and Python's `re`
    both understand is allowed: no look-around, no back-reference, no possessive quantifier, no `\\Z`."""
    FILE_UNCHANGED = "file_unchanged"
    """`path`, a file of the workspace seed, is a regular file with exactly the seeded bytes (text and binary stubs)."""


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
            "persona": {"name": self.persona.name, "role": self.persona.role, "context": self.persona.context},
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

    Args:
        record: The parsed JSON object.
        ignore_unknown: Drop unknown keys (what a model wrote) instead of refusing them (what a file holds).
    """
    try:
        raw = _Record.model_validate(_known(record) if ignore_unknown else record)
    except ValidationError as error:
        return condensed(map(_sentence, error.errors()))
    problems = _form_problems(raw)
    return condensed(problems) or _task(raw)


def form_keys() -> Iterator[tuple[str, bool]]:
    """Every key of the JSON form in its order, e.g. `workspace_seed.files[].path`, and whether a record must have it.

    A key that only some kinds of files or assertions have is not needed in general.
    """
    for name, field in _Record.model_fields.items():
        yield name, field.is_required()
        yield from _inner_keys(name)


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


# The JSON form. Everything below is private: pydantic checks types at the border, the dataclasses above are used inside.


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


_Text = Annotated[StrictStr, Field(min_length=1)]
_Id = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,119}$")]


class _Persona(_Strict):
    name: StrictStr = ""
    role: _Text
    context: _Text


class _TextFile(_Strict):
    path: StrictStr
    kind: Literal["text"] = "text"  # the default where a file has no kind
    content: StrictStr


class _Stub(_Strict):
    path: StrictStr
    kind: Literal["binary-stub"]
    size_bytes: Annotated[StrictInt, Field(ge=0, le=MAX_STUB_BYTES)]


def _kind_of(default: str) -> Callable[[Any], str]:
    """Reads which member of a union a value is; `default` where it has no kind."""
    return lambda value: str(value.get("kind", default) if isinstance(value, Mapping) else getattr(value, "kind", default))


def _one_of(kinds: type[FileKind] | type[AssertionKind], *, default: str = "") -> Discriminator:
    message = f"kind must be one of {', '.join(kinds)}"
    return Discriminator(_kind_of(default), custom_error_type="kind", custom_error_message=message)


_File = Annotated[
    Annotated[_TextFile, Tag("text")] | Annotated[_Stub, Tag("binary-stub")], _one_of(FileKind, default=FileKind.TEXT.value)
]


class _Workspace(_Strict):
    files: Annotated[list[_File], Field(max_length=MAX_FILES)]


class _Plain(_Strict):
    kind: Literal["file_exists", "file_not_exists", "file_unchanged"]
    path: StrictStr
    guard: StrictBool = False


class _Contain(_Strict):
    kind: Literal["file_contents_contain"]
    path: StrictStr
    must_contain: Annotated[list[_Text], Field(min_length=1)]
    guard: StrictBool = False


class _Match(_Strict):
    kind: Literal["file_contents_match_regex"]
    path: StrictStr
    regex: _Text
    guard: StrictBool = False


_Asserted = Annotated[
    Annotated[_Plain, Tag("file_exists")]
    | Annotated[_Plain, Tag("file_not_exists")]
    | Annotated[_Plain, Tag("file_unchanged")]
    | Annotated[_Contain, Tag("file_contents_contain")]
    | Annotated[_Match, Tag("file_contents_match_regex")],
    _one_of(AssertionKind),
]


class _Record(_Strict):
    task_id: _Id
    family: StrictStr = ""
    persona: _Persona
    intent: _Text
    workspace_seed: _Workspace
    skills_required: list[Skill]
    verifiable_assertions: Annotated[list[_Asserted], Field(min_length=1, max_length=MAX_ASSERTIONS)]
    difficulty: Difficulty
    estimated_steps: StrictInt
    gold: Annotated[list[_Text], Field(max_length=MAX_GOLD_TURNS)] = Field(default_factory=list)
    answers: list[_Text] = Field(default_factory=list)


def condensed(sentences: Iterable[str]) -> tuple[str, ...]:
    """One sentence per distinct problem, the first met with the number of the others: indices and values do not distinguish."""
    kinds: dict[str, list[str]] = {}
    for sentence in sentences:
        kinds.setdefault(kind_of_problem(sentence), []).append(sentence)
    return tuple(found[0] + (f" (and {len(found) - 1} more like it)" if len(found) > 1 else "") for found in kinds.values())


_VARYING = re.compile(r"\[\d+\]|, got .*| \(and \d+ more like it\)$", re.DOTALL)


def kind_of_problem(sentence: str) -> str:
    """`sentence` without what differs from place to place: indices, the value met, the number of others."""
    return _VARYING.sub("", sentence)


def _sentence(problem: Any) -> str:
    """`verifiable_assertions[1].regex: Field required, got {...}`."""
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]).lstrip(".")
    for kind in (*FileKind, *AssertionKind):
        # Pydantic names the chosen member of a union as if it were a key.
        place = place.replace(f"].{kind.value}", "]")
    met = repr(problem["input"])
    met = met if len(met) <= 80 else met[:77] + "..."
    return f"{place or 'record'}: {problem['msg']}, got {met}"


def _inner_keys(name: str) -> Iterator[tuple[str, bool]]:
    if name == "persona":
        yield from ((f"persona.{key}", field.is_required()) for key, field in _Persona.model_fields.items())
    elif name == "workspace_seed":
        yield "workspace_seed.files", True
        yield from _union_keys("workspace_seed.files[]", (_TextFile, _Stub))
    elif name == "verifiable_assertions":
        yield from _union_keys("verifiable_assertions[]", (_Plain, _Contain, _Match))


def _union_keys(place: str, members: Sequence[type[BaseModel]]) -> Iterator[tuple[str, bool]]:
    fields = {key: [m.model_fields[key] for m in members if key in m.model_fields] for m in members for key in m.model_fields}
    for key in sorted(fields, key=_KEYS.index):
        yield f"{place}.{key}", len(fields[key]) == len(members) and all(field.is_required() for field in fields[key])


_KEYS = ("path", "kind", "content", "size_bytes", "must_contain", "regex", "guard")


def _known(record: Mapping[str, Any]) -> dict[str, Any]:
    """`record` without keys that no task has, at any depth."""
    known = {name: value for name, value in record.items() if name in _Record.model_fields}
    if isinstance(persona := known.get("persona"), Mapping):
        known["persona"] = {key: value for key, value in persona.items() if key in _Persona.model_fields}
    workspace = known.get("workspace_seed")
    if isinstance(workspace, Mapping) and isinstance(files := workspace.get("files"), list):
        known["workspace_seed"] = {"files": [_of_kind(item, {"text": _TextFile, "binary-stub": _Stub}) for item in files]}
    if isinstance(assertions := known.get("verifiable_assertions"), list):
        models = {
            **dict.fromkeys(("file_exists", "file_not_exists", "file_unchanged"), _Plain),
            "file_contents_contain": _Contain,
            "file_contents_match_regex": _Match,
        }
        known["verifiable_assertions"] = [_of_kind(item, models) for item in assertions]
    return known


def _of_kind(item: Any, models: Mapping[str, type[BaseModel]]) -> Any:
    model = models.get(str(item.get("kind", "text"))) if isinstance(item, Mapping) else None
    return item if model is None else {key: value for key, value in item.items() if key in model.model_fields}


def _form_problems(raw: _Record) -> tuple[str, ...]:
    """What types cannot say: sizes, paths, ranges."""
    problems = []
    if raw.estimated_steps not in raw.difficulty.steps:
        steps = raw.difficulty.steps
        problems.append(
            f"estimated_steps: {raw.difficulty} tasks have {steps.start} to {steps.stop - 1} steps, got {raw.estimated_steps}"
        )
    seen: set[str] = set()
    for index, file in enumerate(raw.workspace_seed.files):
        place = f"workspace_seed.files[{index}]"
        if reason := path_problem(file.path):
            problems.append(f"{place}.path: {reason}, got {file.path!r}")
        if file.path in seen:
            problems.append(f"{place}.path: {file.path!r} is seeded twice")
        seen.add(file.path)
        if isinstance(file, _TextFile):
            problems.extend(f"{place}.content: {reason}" for reason in text_problems(file.content))
    for path in sorted(seen):
        parents = {path[:index] for index, char in enumerate(path) if char == "/"}
        problems.extend(
            f"workspace_seed.files: {parent!r} is a file and a folder (of {path!r})" for parent in sorted(parents & seen)
        )
    for index, assertion in enumerate(raw.verifiable_assertions):
        place = f"verifiable_assertions[{index}]"
        if reason := path_problem(assertion.path):
            problems.append(f"{place}.path: {reason}, got {assertion.path!r}")
        if isinstance(assertion, _Match) and (reason := regex_problem(assertion.regex)):
            problems.append(f"{place}.regex: {reason}, got {assertion.regex!r}")
    problems.extend(f"intent: {reason}" for reason in text_problems(raw.intent))
    for index, block in enumerate(raw.gold):
        problems.extend(f"gold[{index}]: {reason}" for reason in text_problems(block))
    return tuple(problems)


def _task(raw: _Record) -> ClawTask:
    name = raw.persona.name or re.sub(r"^synth-|-[^-]*$", "", raw.task_id)
    return ClawTask(
        id=raw.task_id,
        family=raw.family or name,
        persona=Persona(name=name, role=raw.persona.role, context=raw.persona.context),
        intent=raw.intent,
        files=tuple(
            SeedFile(path=file.path, content=file.content)
            if isinstance(file, _TextFile)
            else SeedFile(path=file.path, kind=FileKind.BINARY_STUB, size_bytes=file.size_bytes)
            for file in raw.workspace_seed.files
        ),
        skills=tuple(raw.skills_required),
        assertions=tuple(
            Assertion(
                kind=AssertionKind(item.kind),
                path=item.path,
                must_contain=tuple(item.must_contain) if isinstance(item, _Contain) else (),
                regex=item.regex if isinstance(item, _Match) else "",
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
