"""The form of a task: JSON there and back, and a clear sentence for everything that is not a task."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import regex as engine
from pydantic import BaseModel

from onthejob.envs.claw.form import (
    MAX_STUB_BYTES,
    ContainForm,
    MatchForm,
    PersonaForm,
    PlainForm,
    StubForm,
    TaskForm,
    TextFileForm,
)
from onthejob.envs.claw.lint import lint
from onthejob.envs.claw.skills import DESCRIPTIONS, Skill, skills_of
from onthejob.envs.claw.task_schema import (
    AssertionKind,
    ClawTask,
    Difficulty,
    FileKind,
    dump_tasks,
    load_tasks,
    read_record,
)
from onthejob.envs.claw.task_texts import path_problem, regex_problem
from onthejob.errors import ConfigError

RECORD: dict[str, Any] = {
    "task_id": "synth-indie-game-dev-07",
    "family": "sprites",
    "persona": {"name": "indie-game-dev", "role": "Indie game developer", "context": "Builds a game."},
    "intent": "Move fox.png to art/fox.png and list it in art/list.txt.",
    "workspace_seed": {
        "files": [
            {"path": "fox.png", "kind": "binary-stub", "size_bytes": 3},
            {"path": "notes.txt", "kind": "text", "content": "grün\n"},
        ]
    },
    "skills_required": ["file.move", "shell.mkdir"],
    "verifiable_assertions": [
        {"kind": "file_exists", "path": "art/fox.png"},
        {"kind": "file_not_exists", "path": "fox.png"},
        {"kind": "file_contents_contain", "path": "art/list.txt", "must_contain": ["fox", ".png"]},
        {"kind": "file_contents_match_regex", "path": "art/list.txt", "regex": r"^fox\.png\s*$"},
        {"kind": "file_unchanged", "path": "notes.txt"},
    ],
    "difficulty": "easy",
    "estimated_steps": 3,
    "gold": ["mkdir -p art\nmv fox.png art/", "echo 'fox.png' > art/list.txt"],
    "answers": [],
}


def test_a_record_survives_the_way_there_and_back() -> None:
    task = ClawTask.from_record(RECORD)
    assert task.to_record() == RECORD
    assert ClawTask.from_record(json.loads(json.dumps(task.to_record()))) == task
    assert [assertion.kind for assertion in task.assertions] == list(AssertionKind)
    assert [assertion.guard for assertion in task.assertions] == [False, False, False, False, True]
    assert [(file.kind, file.data) for file in task.files] == [
        (FileKind.BINARY_STUB, b"\0\0\0"),
        (FileKind.TEXT, "grün\n".encode()),
    ]


def test_without_a_name_the_persona_is_read_from_the_id() -> None:
    record = {**RECORD, "persona": {"role": "r", "context": "c"}}
    assert ClawTask.from_record(record).persona.name == "indie-game-dev"


def test_a_seed_file_without_a_kind_is_text() -> None:
    record = {**RECORD, "workspace_seed": {"files": [{"path": "a", "content": "x"}, RECORD["workspace_seed"]["files"][1]]}}
    for ignore_unknown in (False, True):
        task = read_record(record, ignore_unknown=ignore_unknown)
        assert isinstance(task, ClawTask)
        assert (task.files[0].kind, task.files[0].data) == (FileKind.TEXT, b"x")


def test_the_same_problem_of_many_places_is_said_once() -> None:
    files = [{"path": f"{number}.txt", "kind": "link"} for number in range(26)]
    said = read_record({**RECORD, "workspace_seed": {"files": files}, "verifiable_assertions": [{"path": "a"}, {"path": "b"}]})
    assert isinstance(said, tuple)
    assert len(said) == 2
    assert said[0].startswith("workspace_seed.files[0]: kind must be one of text, binary-stub, got {'path': '0.txt'")
    assert said[0].endswith("(and 25 more like it)")
    assert said[1].startswith("verifiable_assertions[0]: kind must be one of file_exists, ")
    assert said[1].endswith("(and 1 more like it)")


PAGE = (Path(__file__).parents[3] / "docs/claw-tasks.md").read_text(encoding="utf-8")


def test_the_documented_task_is_one() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", PAGE, flags=re.DOTALL)
    task = ClawTask.from_record(json.loads(example))
    assert lint(task) == ()


def form_keys() -> Iterator[tuple[str, bool]]:
    """Every key of the JSON form in its order, e.g. `workspace_seed.files[].path`, and whether every record must have it."""
    for name, field in TaskForm.model_fields.items():
        yield name, field.is_required()
        yield from inner_keys(name)


def inner_keys(name: str) -> Iterator[tuple[str, bool]]:
    if name == "persona":
        yield from ((f"persona.{key}", field.is_required()) for key, field in PersonaForm.model_fields.items())
    elif name == "workspace_seed":
        yield "workspace_seed.files", True
        yield from union_keys("workspace_seed.files[]", (TextFileForm, StubForm))
    elif name == "verifiable_assertions":
        yield from union_keys("verifiable_assertions[]", (PlainForm, ContainForm, MatchForm))


def union_keys(place: str, members: Sequence[type[BaseModel]]) -> Iterator[tuple[str, bool]]:
    fields = {key: [m.model_fields[key] for m in members if key in m.model_fields] for m in members for key in m.model_fields}
    for key in sorted(fields, key=KEYS.index):
        yield f"{place}.{key}", len(fields[key]) == len(members) and all(field.is_required() for field in fields[key])


KEYS = ("path", "kind", "content", "size_bytes", "must_contain", "regex", "guard")


def test_the_documented_keys_are_those_of_the_form() -> None:
    rows = re.findall(r"^\| `([a-z_.\[\]]+)` \| [a-z ]+ \| ([^|]*) \|", PAGE, flags=re.MULTILINE)
    expected = dict(form_keys())
    assert [name for name, _ in rows] == list(expected)
    assert {name for name, needed in rows if needed == "yes"} == {name for name, needed in expected.items() if needed}
    assert [skill for skill in Skill if f"`{skill}`" not in PAGE] == []


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change of one place of a record, e.g. `workspace_seed.files.0.path`; a value of `...` deletes it."""

    def apply(record: dict[str, Any]) -> None:
        *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        place: Any = record
        for part in parents:
            place = place[part]
        if value is ...:
            del place[last]
        else:
            place[last] = value

    return apply


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("intent", ..., "intent: Field required"),
        ("intent", "", "intent: String should have at least 1 character"),
        ("intent", "a\0b", "intent: must not hold NUL"),
        ("intent", "\ud800", "intent: Input should be a valid string"),
        ("task_id", "../x", "task_id: String should match pattern"),
        ("colour", "red", "colour: Extra inputs are not permitted"),
        ("difficulty", "tricky", "difficulty: Input should be 'easy', 'medium' or 'hard'"),
        ("estimated_steps", 9, "easy tasks have 1 to 3 steps, got 9"),
        ("estimated_steps", "3", "estimated_steps: Input should be a valid integer"),
        ("skills_required", ["file.fly"], r"skills_required\[0\]: Input should be"),
        ("workspace_seed.files.0.path", "/etc/passwd", r"files\[0\].path: must be relative to the workspace"),
        ("workspace_seed.files.0.path", "a/../../b", r"files\[0\].path: must not have empty, . or .. components"),
        ("workspace_seed.files.0.path", "a\nb", r"files\[0\].path: must not hold control characters"),
        ("workspace_seed.files.0.path", "notes.txt", "'notes.txt' is seeded twice"),
        ("workspace_seed.files.0.path", "notes.txt/x", "'notes.txt' is a file and a folder"),
        ("workspace_seed.files.0.size_bytes", -1, "greater than or equal to 0"),
        ("workspace_seed.files.0.size_bytes", MAX_STUB_BYTES + 1, "less than or equal to 1048576"),
        ("workspace_seed.files.0.kind", "symlink", r"files\[0\]"),
        ("workspace_seed.files.1.content", "x" * 70_000, "at most 65536 bytes, got 70000"),
        ("verifiable_assertions", [], "verifiable_assertions: List should have at least 1 item"),
        ("verifiable_assertions.0.kind", "file_is_nice", r"verifiable_assertions\[0\]"),
        ("verifiable_assertions.0.regex", "x", r"verifiable_assertions\[0\].regex: Extra inputs"),
        ("verifiable_assertions.0.path", "..", r"verifiable_assertions\[0\].path: must not have"),
        ("verifiable_assertions.2.must_contain", ..., r"verifiable_assertions\[2\].must_contain: Field required"),
        ("verifiable_assertions.2.must_contain", [], r"verifiable_assertions\[2\].must_contain: List should have at least 1"),
        ("verifiable_assertions.2.must_contain", [""], r"verifiable_assertions\[2\].must_contain\[0\]: String should have"),
        ("verifiable_assertions.3.regex", ..., r"verifiable_assertions\[3\].regex: Field required"),
        ("verifiable_assertions.3.regex", "(", "must be a regular expression"),
        ("verifiable_assertions.3.regex", "x(?=y)", "must not use look-around"),
        ("gold", ["x"] * 12, "gold: List should have at most 11 items"),
    ],
)
def test_what_is_not_a_task_is_refused_with_place_and_reason(path: str, value: Any, said: str) -> None:
    record = copy.deepcopy(RECORD)
    change(path, value)(record)
    with pytest.raises(ConfigError, match=said):
        ClawTask.from_record(record, where="line 3")


def test_all_problems_are_told_at_once() -> None:
    record = copy.deepcopy(RECORD)
    record["difficulty"], record["estimated_steps"] = "hard", 3
    record["verifiable_assertions"][0]["path"] = "/x"
    problems = read_record(record)
    assert isinstance(problems, tuple)
    assert len(problems) == 2


def test_unknown_keys_of_a_model_are_dropped_at_any_depth() -> None:
    record = copy.deepcopy(RECORD)
    record["thoughts"] = "hm"
    record["persona"]["age"] = 40
    record["workspace_seed"]["note"] = ""
    record["workspace_seed"]["files"][0]["content"] = "PNG"
    record["verifiable_assertions"][0]["why"] = "because"
    assert read_record(record, ignore_unknown=True) == ClawTask.from_record(RECORD)
    assert isinstance(read_record(record), tuple)


@pytest.mark.parametrize(
    "junk", [{}, {"intent": 3}, {"workspace_seed": []}, {"verifiable_assertions": [None, 3]}, {"persona": "x"}]
)
def test_junk_is_reported_and_never_raises(junk: dict[str, Any]) -> None:
    for record in (junk, {**RECORD, **junk}):
        for ignore in (False, True):
            problems = read_record(record, ignore_unknown=ignore)
            assert isinstance(problems, ClawTask) == (record == RECORD)


@pytest.mark.parametrize(
    ("regex", "refused"),
    [
        (r"^a\+b\.c\s*$", False),
        (r"\\1", False),
        (r"\(?x", False),
        (r"[+]+", False),
        ("(?m)^x$", False),
        (r"(a)\1", True),
        (r"x\Z", True),
        ("(?<!a)b", True),
        ("(?>a)b", True),
        ("a*+", True),
        ("x" * 9_000, True),
        (r"^item{i}$", True),
        ("x{s}", True),
        ("done{d}", True),
        ("[[:alpha:]]{2}", True),
        (r"\\cite\{[a-z]{2,4}\}", False),
        ("a{2}b{,3}c{4,}", False),
        (r"[{}\]{]", False),
    ],
)
def test_patterns_mean_the_same_in_re2_and_python(regex: str, refused: bool) -> None:
    assert bool(regex_problem(regex)) is refused


@pytest.mark.filterwarnings("ignore:Possible nested set")
@pytest.mark.parametrize("regex", ["^item{i}$", "x{s}", "done{d}", "[[:alpha:]]{2}"])
def test_what_is_refused_would_mean_something_else_to_the_grader(regex: str) -> None:
    texts = ("item", "q", "don", "ab")
    assert not any(re.search(regex, text) for text in texts)
    assert any(engine.search(regex, text, flags=engine.V0) for text in texts)


def test_paths_stay_inside() -> None:
    assert not any(map(path_problem, ("a", ".env", "a/b c/ü.txt", "a..b")))
    assert all(map(path_problem, ("", "/a", "a/", "a//b", "./a", "..", "a/..", "a\0b", "x" * 201)))


def test_files_hold_one_task_per_line(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    tasks = [ClawTask.from_record({**RECORD, "task_id": f"synth-x-{n}"}) for n in range(2)]
    # Characters at which `str.splitlines` cuts, and JSON does not escape.
    tasks.append(ClawTask.from_record({**RECORD, "task_id": "synth-x-2", "intent": "a\u2028b\u2029c\x85d"}))
    dump_tasks(tasks, path)
    assert load_tasks(path) == tasks
    path.write_text(path.read_text(encoding="utf-8") + "\n{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"tasks\.jsonl:5 is not JSON"):
        load_tasks(path)
    dump_tasks([tasks[0], tasks[0]], path)
    with pytest.raises(ConfigError, match="occurs twice"):
        load_tasks(path)
    path.write_text("[]\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="must be a JSON object, got list"):
        load_tasks(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_tasks(tmp_path / "missing.jsonl")


def test_difficulties_divide_the_number_of_steps() -> None:
    assert [(level.steps.start, level.steps.stop - 1) for level in Difficulty] == [(1, 3), (4, 7), (8, 40)]


def test_fifteen_skills_and_which_a_script_uses() -> None:
    assert len(Skill) == 15 == len(DESCRIPTIONS)
    script = ["mkdir -p out", "grep -c x a.txt > out/n.txt", "find . -name '*.tmp' -delete; mv a.txt b.txt"]
    assert set(skills_of(script)) == {
        Skill.SHELL_MKDIR,
        Skill.SHELL_GREP,
        Skill.SHELL_FIND,
        Skill.FILE_READ,
        Skill.FILE_WRITE,
        Skill.FILE_DELETE,
        Skill.FILE_LIST,
        Skill.FILE_MOVE,
    }
    assert skills_of(["sort -u a | wc -l"]) == (Skill.FILE_READ, Skill.SHELL_WC)
    assert skills_of(["echo 'rm x'"]) == ()
