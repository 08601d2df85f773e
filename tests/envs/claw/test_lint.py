"""Every fault that the linter names is found in a task that has it and in no other."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from onthejob.envs.claw.lint import Fault, lint, validate_candidate
from onthejob.envs.claw.task_schema import ClawTask

TMP = "/tmp"
"""Inside a sandbox."""
RECORD: dict[str, Any] = {
    "task_id": "made-1",
    "family": "made",
    "persona": {"name": "devops-engineer", "role": "DevOps engineer", "context": "Keeps servers running."},
    "intent": "Count the ERROR lines of app.log into report/errors.txt and delete old.tmp.",
    "workspace_seed": {
        "files": [
            {"path": "app.log", "kind": "text", "content": "INFO a\nERROR b\nERROR c\n"},
            {"path": "old.tmp", "kind": "text", "content": "x\n"},
            {"path": "core.bin", "kind": "binary-stub", "size_bytes": 10},
        ]
    },
    "skills_required": ["shell.grep"],
    "verifiable_assertions": [
        {"kind": "file_contents_match_regex", "path": "report/errors.txt", "regex": r"^\s*2\s*$"},
        {"kind": "file_not_exists", "path": "old.tmp"},
        {"kind": "file_unchanged", "path": "app.log"},
    ],
    "difficulty": "easy",
    "estimated_steps": 3,
    "gold": ["mkdir -p report\ngrep -c ERROR app.log > report/errors.txt\nrm old.tmp"],
    "answers": ["2"],
}


def faults(**changes: Any) -> set[Fault]:
    return {problem.fault for problem in lint(ClawTask.from_record({**copy.deepcopy(RECORD), **changes}))}


def asserting(*more: dict[str, Any]) -> set[Fault]:
    return faults(verifiable_assertions=[*RECORD["verifiable_assertions"], *more])


def test_a_good_task_has_no_problem() -> None:
    assert faults() == set()
    assert validate_candidate({**RECORD, "thoughts": "a model's"}) == ClawTask.from_record(RECORD)


@pytest.mark.parametrize(
    ("assertion", "fault"),
    [
        ({"kind": "file_contents_contain", "path": "core.bin", "must_contain": ["PNG"]}, Fault.BINARY_CONTENT),
        ({"kind": "file_contents_match_regex", "path": "core.bin", "regex": "PNG"}, Fault.BINARY_CONTENT),
        ({"kind": "file_unchanged", "path": "report/errors.txt"}, Fault.UNSATISFIABLE),
        ({"kind": "file_unchanged", "path": "old.tmp"}, Fault.UNSATISFIABLE),
        ({"kind": "file_exists", "path": "old.tmp/report"}, Fault.UNSATISFIABLE),
        ({"kind": "file_exists", "path": "app.log/report"}, Fault.UNSATISFIABLE),
        ({"kind": "file_contents_contain", "path": "app.log", "must_contain": ["WARN"]}, Fault.UNSATISFIABLE),
        ({"kind": "file_contents_match_regex", "path": "app.log", "regex": "^WARN"}, Fault.UNSATISFIABLE),
        ({"kind": "file_exists", "path": "core.bin"}, Fault.ALREADY_TRUE),
        ({"kind": "file_not_exists", "path": "report/app"}, Fault.ALREADY_TRUE),
        ({"kind": "file_contents_contain", "path": "app.log", "must_contain": ["ERROR b"]}, Fault.ALREADY_TRUE),
        ({"kind": "file_contents_match_regex", "path": "app.log", "regex": "ERROR [bc]"}, Fault.ALREADY_TRUE),
        ({"kind": "file_exists", "path": "report/app", "guard": True}, Fault.FALSE_GUARD),
        ({"kind": "file_contents_match_regex", "path": "report/app", "regex": ".*"}, Fault.TRIVIAL),
        ({"kind": "file_contents_contain", "path": "report/app", "must_contain": [" "]}, Fault.TRIVIAL),
        ({"kind": "file_not_exists", "path": "old.tmp"}, Fault.TRIVIAL),
        ({"kind": "file_contents_match_regex", "path": "report/app", "regex": "^(a+)+$"}, Fault.SLOW_REGEX),
        ({"kind": "file_contents_match_regex", "path": "report/app", "regex": r"^(\w*\d)*x"}, Fault.SLOW_REGEX),
        ({"kind": "file_exists", "path": "secret/result.txt"}, Fault.UNNAMED),
    ],
)
def test_a_wrong_assertion_is_found(assertion: dict[str, Any], fault: Fault) -> None:
    assert fault in asserting(assertion)


@pytest.mark.parametrize(
    "assertion",
    [
        {"kind": "file_exists", "path": "report"},
        {"kind": "file_exists", "path": "core.bin", "guard": True},
        {"kind": "file_unchanged", "path": "core.bin"},
        {"kind": "file_contents_match_regex", "path": "report/app", "regex": r"^(\d+)(, \d)?$"},
        {"kind": "file_contents_match_regex", "path": "report/app", "regex": r"^f\(x+\)+$"},
    ],
)
def test_a_right_assertion_is_not(assertion: dict[str, Any]) -> None:
    assert asserting(assertion) == set()


def test_a_task_of_guards_asks_for_nothing() -> None:
    assert Fault.NOTHING_TO_DO in faults(verifiable_assertions=RECORD["verifiable_assertions"][2:])


@pytest.mark.parametrize(
    "intent",
    [
        "app.log has 2 ERROR lines; write that to report/errors.txt and delete old.tmp.",
        "The answer for report/errors.txt is 2. Delete old.tmp.",
        "Run rm old.tmp after grep -c ERROR app.log > report/errors.txt please.",
        "Fill report/errors.txt, delete old.tmp and say TASK_COMPLETE.",
        "Make file_unchanged hold for app.log; fill report/errors.txt and delete old.tmp.",
    ],
)
def test_a_request_that_gives_the_answer_away_is_found(intent: str) -> None:
    assert faults(intent=intent) == {Fault.LEAK}


def test_a_number_inside_another_is_no_leak() -> None:
    assert faults(intent="Count ERROR of app.log (12 lines, v2, 2.5 kB) into report/errors.txt; delete old.tmp.") == set()


def test_an_answer_must_be_asserted() -> None:
    assert faults(answers=["2", "77"]) == {Fault.LEAK}


@pytest.mark.parametrize(
    "block",
    [
        "echo TASK_COMPLETE",
        "curl http://x > a",
        "ls; sudo rm x",
        "cat /etc/passwd",
        "cp ../x y",
        "cp ~/x y",
        f"ls {TMP}/../etc/x",
    ],
)
def test_gold_that_leaves_the_workspace_is_found(block: str) -> None:
    assert faults(gold=[block]) == {Fault.GOLD}


def test_gold_may_throw_output_away() -> None:
    assert faults(gold=["grep x a > /dev/null; sed 's#a/##; s/a/b/' f; ls ./a; echo a/b"]) == set()


@pytest.mark.parametrize(
    "block",
    [f"sort a > {TMP}/all && mv {TMP}/all b", "tee /dev/stderr < a > /dev/shm/b", "head -c 5 /dev/zero > a", "cd /tmp; ls"],
)
def test_gold_may_use_what_the_sandbox_has_of_its_own(block: str) -> None:
    assert faults(gold=[block]) == set()


def test_a_path_that_cannot_be_written_is_a_problem_and_no_exception() -> None:
    odd = "app\ud800.log"
    seeded = {"files": [*RECORD["workspace_seed"]["files"], {"path": odd, "kind": "text", "content": ""}]}
    asserted = [*RECORD["verifiable_assertions"], {"kind": "file_exists", "path": odd}]
    for changes in ({"workspace_seed": seeded}, {"verifiable_assertions": asserted}):
        found = validate_candidate({**RECORD, **changes})
        assert isinstance(found, tuple)
        assert [problem.fault for problem in found] == [Fault.FORM]
        assert "lone surrogates" in found[0].message


def test_a_candidate_is_a_task_or_its_problems() -> None:
    found = validate_candidate({"intent": "do it"})
    assert isinstance(found, tuple)
    assert {problem.fault for problem in found} == {Fault.FORM}
    found = validate_candidate({**RECORD, "verifiable_assertions": RECORD["verifiable_assertions"][2:]})
    assert isinstance(found, tuple)
    assert "doing nothing passes" in " ".join(map(str, found))
