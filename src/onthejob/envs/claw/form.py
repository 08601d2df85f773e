"""The JSON form of a claw task: pydantic checks types at the border, and every problem is a sentence.

Inside, the records of `onthejob.envs.claw.task_schema` are used, whose fields are documented there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, StrictBool, StrictInt, StrictStr, Tag, ValidationError

from onthejob.envs.claw.skills import Skill
from onthejob.envs.claw.task_texts import path_problem, regex_problem, text_problems

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


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


_Text = Annotated[StrictStr, Field(min_length=1)]
_Id = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,119}$")]


class PersonaForm(_Strict):
    """Who asks."""

    name: StrictStr = ""
    role: _Text
    context: _Text


class TextFileForm(_Strict):
    """A text file of the seed."""

    path: StrictStr
    kind: Literal["text"] = "text"  # the default where a file has no kind
    content: StrictStr


class StubForm(_Strict):
    """A binary file of the seed."""

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
    Annotated[TextFileForm, Tag("text")] | Annotated[StubForm, Tag("binary-stub")], _one_of(FileKind, default=FileKind.TEXT.value)
]


class SeedForm(_Strict):
    """What is there at the start."""

    files: Annotated[list[_File], Field(max_length=MAX_FILES)]


class PlainForm(_Strict):
    """An assertion about a path alone."""

    kind: Literal["file_exists", "file_not_exists", "file_unchanged"]
    path: StrictStr
    guard: StrictBool = False


class ContainForm(_Strict):
    """An assertion that a text holds others."""

    kind: Literal["file_contents_contain"]
    path: StrictStr
    must_contain: Annotated[list[_Text], Field(min_length=1)]
    guard: StrictBool = False


class MatchForm(_Strict):
    """An assertion that a text matches."""

    kind: Literal["file_contents_match_regex"]
    path: StrictStr
    regex: _Text
    guard: StrictBool = False


_Asserted = Annotated[
    Annotated[PlainForm, Tag("file_exists")]
    | Annotated[PlainForm, Tag("file_not_exists")]
    | Annotated[PlainForm, Tag("file_unchanged")]
    | Annotated[ContainForm, Tag("file_contents_contain")]
    | Annotated[MatchForm, Tag("file_contents_match_regex")],
    _one_of(AssertionKind),
]


class TaskForm(_Strict):
    """A task."""

    task_id: _Id
    family: StrictStr = ""
    persona: PersonaForm
    intent: _Text
    workspace_seed: SeedForm
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


def read_form(record: Mapping[str, Any], *, ignore_unknown: bool = False) -> TaskForm | tuple[str, ...]:
    """The form, or what is wrong with it, one sentence per distinct problem; arguments as in `schema.read_record`."""
    try:
        raw = TaskForm.model_validate(_known(record) if ignore_unknown else record)
    except ValidationError as error:
        return condensed(map(_sentence, error.errors()))
    return condensed(_form_problems(raw)) or raw


def _known(record: Mapping[str, Any]) -> dict[str, Any]:
    """`record` without keys that no task has, at any depth."""
    known = {name: value for name, value in record.items() if name in TaskForm.model_fields}
    if isinstance(persona := known.get("persona"), Mapping):
        known["persona"] = {key: value for key, value in persona.items() if key in PersonaForm.model_fields}
    workspace = known.get("workspace_seed")
    if isinstance(workspace, Mapping) and isinstance(files := workspace.get("files"), list):
        known["workspace_seed"] = {"files": [_of_kind(item, {"text": TextFileForm, "binary-stub": StubForm}) for item in files]}
    if isinstance(assertions := known.get("verifiable_assertions"), list):
        models = {
            **dict.fromkeys(("file_exists", "file_not_exists", "file_unchanged"), PlainForm),
            "file_contents_contain": ContainForm,
            "file_contents_match_regex": MatchForm,
        }
        known["verifiable_assertions"] = [_of_kind(item, models) for item in assertions]
    return known


def _of_kind(item: Any, models: Mapping[str, type[BaseModel]]) -> Any:
    model = models.get(str(item.get("kind", "text"))) if isinstance(item, Mapping) else None
    return item if model is None else {key: value for key, value in item.items() if key in model.model_fields}


def _form_problems(raw: TaskForm) -> tuple[str, ...]:
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
        if isinstance(file, TextFileForm):
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
        if isinstance(assertion, MatchForm) and (reason := regex_problem(assertion.regex)):
            problems.append(f"{place}.regex: {reason}, got {assertion.regex!r}")
    problems.extend(f"intent: {reason}" for reason in text_problems(raw.intent))
    for index, block in enumerate(raw.gold):
        problems.extend(f"gold[{index}]: {reason}" for reason in text_problems(block))
    return tuple(problems)
