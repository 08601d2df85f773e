"""Does a task make sense? Finds assertions that cannot hold, that hold anyway, and requests that give the answer away.

Everything here is static: no command is run. That doing nothing fails and that the gold commands pass is proven by
`onthejob.envs.claw.gold_proof`, which runs them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import regex

from onthejob.envs.claw.task_schema import Assertion, AssertionKind, ClawTask, FileKind, read_record


class Fault(StrEnum):
    """What can be wrong with a task."""

    FORM = "form"
    """The record has not the form of a task."""
    BINARY_CONTENT = "binary-content"
    """Text is asserted of a binary stub."""
    UNSATISFIABLE = "unsatisfiable"
    """No workspace can pass."""
    TRIVIAL = "trivial"
    """Holds whatever is done, or repeats another assertion."""
    ALREADY_TRUE = "already-true"
    """Holds before anything is done and is not marked as a guard."""
    FALSE_GUARD = "false-guard"
    """Marked as a guard but does not hold at the start."""
    NOTHING_TO_DO = "nothing-to-do"
    """All assertions are guards: doing nothing passes."""
    LEAK = "leak"
    """The request holds an answer or a gold command."""
    UNNAMED = "unnamed"
    """A file is asserted that neither the request nor the seeded files name: the agent cannot know it."""
    SLOW_REGEX = "slow-regex"
    """A repeated group with a repetition inside can take exponential time."""
    GOLD = "gold"
    """The gold commands leave the workspace, need a network, or hold the stop word."""
    REPEATED = "repeated"
    """Files and assertions repeat those of an existing task. Only authoring finds that: the linter sees one task at a time."""
    PROOF = "proof"
    """Running the task showed that doing nothing passes or that the gold commands fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong with one task."""

    fault: Fault
    message: str
    """What, the value met, and the remedy."""

    def __str__(self) -> str:
        return f"{self.fault}: {self.message}"


Found = Iterator[tuple[Fault, str]]
"""Faults of a task, each with its message."""


def validate_candidate(record: Mapping[str, Any]) -> ClawTask | tuple[Problem, ...]:
    """The task in a record that a person or a model wrote, or everything that is wrong with it (at least one problem).

    Unknown keys are ignored. That gold commands exist and pass is not checked here (`onthejob.envs.claw.gold_proof`).
    """
    parsed = read_record(record, ignore_unknown=True)
    if not isinstance(parsed, ClawTask):
        return tuple(Problem(fault=Fault.FORM, message=sentence) for sentence in parsed)
    return lint(parsed) or parsed


def lint(task: ClawTask) -> tuple[Problem, ...]:
    """What is wrong with a task; empty when nothing is."""
    looks = (_content, _start, _contradictions, _trivia, _leaks, _names, _gold)
    return tuple(Problem(fault=fault, message=message) for look in looks for fault, message in look(task))


def holds_at_start(task: ClawTask, assertion: Assertion) -> bool:
    """Whether an assertion is true of the seeded workspace, before anything is done."""
    files = {file.path: file for file in task.files}
    file = files.get(assertion.path)
    there = file is not None or any(path.startswith(assertion.path + "/") for path in files)
    match assertion.kind:
        case AssertionKind.FILE_EXISTS:
            return there
        case AssertionKind.FILE_NOT_EXISTS:
            return not there
        case AssertionKind.FILE_UNCHANGED:
            return file is not None
        case AssertionKind.FILE_CONTENTS_CONTAIN | AssertionKind.FILE_CONTENTS_MATCH_REGEX:
            return file is not None and file.kind is FileKind.TEXT and _content_holds(assertion, file.content)


def _content_holds(assertion: Assertion, text: str) -> bool:
    if assertion.kind is AssertionKind.FILE_CONTENTS_CONTAIN:
        return all(part in text for part in assertion.must_contain)
    return _found(assertion.regex, text)


def _found(pattern: str, text: str) -> bool:
    """As the grader searches; a pattern that is slow counts as found nowhere and is reported as slow."""
    if _SLOW.search(pattern):
        return False
    try:
        return regex.search(pattern, text, flags=regex.V0, timeout=10.0) is not None
    except (TimeoutError, regex.error):
        return False


_OF_CONTENT = (AssertionKind.FILE_CONTENTS_CONTAIN, AssertionKind.FILE_CONTENTS_MATCH_REGEX)
_SLOW = re.compile(r"(?<!\\)\((?:[^()\\]|\\.)*(?:(?:[^\\(]|\\.)[+*]|\{\d*,\})(?:[^()\\]|\\.)*\)(?:[+*]|\{\d*,\d*\})")


def _content(task: ClawTask) -> Found:
    stubs = {file.path for file in task.files if file.kind is FileKind.BINARY_STUB}
    for assertion in task.assertions:
        if assertion.kind in _OF_CONTENT and assertion.path in stubs:
            yield (
                Fault.BINARY_CONTENT,
                f"{assertion.kind} of {assertion.path}, a binary stub. Assert file_exists or file_unchanged.",
            )


def _start(task: ClawTask) -> Found:
    seeded = {file.path for file in task.files}
    for assertion in task.assertions:
        true = holds_at_start(task, assertion)
        name = f"{assertion.kind} of {assertion.path}"
        if assertion.kind is AssertionKind.FILE_UNCHANGED and assertion.path not in seeded:
            yield Fault.UNSATISFIABLE, f"{name}, which is not a seeded file. Name one of the workspace seed."
        elif assertion.guard and not true:
            yield Fault.FALSE_GUARD, f"{name} is marked as a guard but does not hold in the seeded workspace. Remove guard."
        elif true and not assertion.guard:
            message = f"{name} holds in the seeded workspace. Mark it as a guard, or assert what the task changes."
            yield Fault.ALREADY_TRUE, message
    if all(assertion.guard for assertion in task.assertions):
        yield Fault.NOTHING_TO_DO, "every assertion is a guard, so doing nothing passes. Assert what the task is to bring about."


def _contradictions(task: ClawTask) -> Found:
    gone = {a.path for a in task.assertions if a.kind is AssertionKind.FILE_NOT_EXISTS}
    present = {a.path: a.kind for a in task.assertions if a.kind is not AssertionKind.FILE_NOT_EXISTS}
    files = {a.path for a in task.assertions if a.kind in (*_OF_CONTENT, AssertionKind.FILE_UNCHANGED)}
    kept = {a.path for a in task.assertions if a.kind is AssertionKind.FILE_UNCHANGED}
    seeded = {file.path: file for file in task.files}
    for path in sorted(present):
        above = {path, *(path[:index] for index, char in enumerate(path) if char == "/")}
        for other in sorted(above & gone):
            yield Fault.UNSATISFIABLE, f"{path} must be there, but {other} must not exist. Drop one of them."
        for other in sorted((above - {path}) & files):
            yield Fault.UNSATISFIABLE, f"{path} must be there, but {other} must be a file. Drop one of them."
    for assertion in task.assertions:
        file = seeded.get(assertion.path)
        if assertion.kind not in _OF_CONTENT or assertion.path not in kept or file is None or file.kind is not FileKind.TEXT:
            continue
        if not _content_holds(assertion, file.content):
            message = f"{assertion.path} must stay unchanged, but {assertion.kind} does not hold of it now. Drop one of them."
            yield Fault.UNSATISFIABLE, message


def _trivia(task: ClawTask) -> Found:
    for assertion in task.assertions:
        if any(not part.strip() for part in assertion.must_contain):
            message = f"must_contain of {assertion.path} has a part of blank space only. Give text that the task writes."
            yield Fault.TRIVIAL, message
        if assertion.kind is not AssertionKind.FILE_CONTENTS_MATCH_REGEX:
            continue
        if _SLOW.search(assertion.regex):
            message = (
                f"regex of {assertion.path} repeats a group that repeats inside: {assertion.regex!r}. Write it without nesting."
            )
            yield Fault.SLOW_REGEX, message
        elif all(_found(assertion.regex, text) for text in ("", "\x01", "q7\nZ\n")):
            message = f"regex of {assertion.path} matches any text: {assertion.regex!r}. Give a pattern that only the result has."
            yield Fault.TRIVIAL, message
    seen: set[Assertion] = set()
    for assertion in task.assertions:
        if assertion in seen:
            yield Fault.TRIVIAL, f"{assertion.kind} of {assertion.path} is stated twice. Drop one of them."
        seen.add(assertion)


def _leaks(task: ClawTask) -> Found:
    told = {"the request": task.intent, "the persona": f"{task.persona.role} {task.persona.context}"}
    told["a seeded path"] = "\n".join(file.path for file in task.files)
    checked = "\n".join(part for a in task.assertions if not a.guard for part in (*a.must_contain, a.regex))
    for answer in task.answers:
        for where, text in told.items():
            if re.search(rf"(?<![\w.-]){re.escape(answer)}(?![\w-]|\.\w)", text):
                yield Fault.LEAK, f"the answer {answer!r} occurs in {where}. Ask for it without stating it."
        if answer not in checked.replace("\\", ""):
            yield Fault.LEAK, f"the answer {answer!r} is not part of any assertion. Assert it, or drop it from answers."
    for line in (line.strip() for block in task.gold for line in block.splitlines()):
        if line and line in task.intent:
            yield Fault.LEAK, f"the request holds the gold command {line!r}. Say what is wanted, not how."
    if re.search(r"TASK_COMPLETE|file_contents_|file_unchanged|must_contain", task.intent):
        yield Fault.LEAK, "the request speaks of the stop word or the assertions. Write what a person would."


def _names(task: ClawTask) -> Found:
    """Every word of the names of asserted files must be known to the agent."""
    known = "\n".join([task.intent, *(file.path for file in task.files)]).lower()
    for assertion in task.assertions:
        if assertion.guard:
            continue
        unknown = [word for word in re.findall(r"[a-z0-9]+", assertion.path.lower()) if word not in known]
        if unknown:
            message = (
                f"{assertion.path} is asserted, but {', '.join(unknown)} occurs nowhere in request and files. Name the file."
            )
            yield Fault.UNNAMED, message


_FOREIGN = re.compile(r"(?:^|[\s;|&(`])(curl|wget|ssh|scp|nc|pip3?|apt|apt-get|npm|git|sudo|docker)\s", re.MULTILINE)
# The sandbox has /tmp and /dev of its own. A word between slashes before d or p is a line address of sed.
_OUTSIDE = re.compile(
    r"(?:^|[\s'\"=<>])(/(?!tmp/|dev/(?:null|zero|std(?:in|out|err)|fd/|shm/)|\w+/[dp]['\"])[A-Za-z]+(?:/[\w.]+)+|~/|(?:\S*/)?\.\.(?:/|\s|$))",
    re.MULTILINE,
)


def _gold(task: ClawTask) -> Found:
    for number, block in enumerate(task.gold, start=1):
        if "TASK_COMPLETE" in block:
            yield Fault.GOLD, f"gold turn {number} holds TASK_COMPLETE. Leave it out; it is added in the end."
        if found := _FOREIGN.search(block):
            yield Fault.GOLD, f"gold turn {number} uses {found[1]}. There is no network; use file commands."
        if found := _OUTSIDE.search(block):
            yield Fault.GOLD, f"gold turn {number} leaves the workspace: {found[1]!r}. Use relative paths, or /tmp."
