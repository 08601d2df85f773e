"""The outcome of an episode: which assertions hold in the workspace that a dead sandbox left.

Fails closed: what cannot be checked does not hold, and the verdict says why. Paths are walked without following links, reads
are capped, seeded files are compared by size and SHA-256, and regular expressions have a time limit (the `regex` package, which
also lets other threads run meanwhile), so no file and no pattern can make grading lie, hang or fail.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import regex
from annotated_types import Ge, Gt

from onthejob.envs.claw.task_schema import Assertion, AssertionKind, SeedFile
from onthejob.envs.claw.workspace import PathKind, Unreadable, Workspace
from onthejob.setting_ranges import check_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class GraderConfig:
    """How much is read."""

    max_bytes: Annotated[int, Ge(1)] = 1 << 20
    """Largest file whose contents are searched; a larger one fails its assertion."""
    regex_s: Annotated[float, Gt(0)] = 1.0
    """Seconds per regular expression; one that needs longer fails its assertion."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedAssertion:
    """One assertion, checked."""

    kind: str
    path: str
    passed: bool
    reason: str = ""
    """Why it does not hold; empty when it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """All assertions of a task, checked. Without assertions nothing is passed."""

    verdicts: tuple[CheckedAssertion, ...]
    score: float | None = None
    """Where a task brings its own checks, which may be met in part: their mean, in [0, 1]."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further figures of the task's own checks, for tables."""
    said: str = ""
    """What the task's own checks printed, for people. It may differ from run to run, so it is not recorded."""

    @property
    def total(self) -> int:
        return len(self.verdicts)

    @property
    def n_passed(self) -> int:
        return sum(verdict.passed for verdict in self.verdicts)

    @property
    def passed(self) -> bool:
        """True when there are assertions and all hold."""
        return self.total > 0 and self.n_passed == self.total

    @property
    def rate(self) -> float:
        """Share of assertions that hold (or the score of the task's own checks), in [0, 1]; 0 without any."""
        if self.score is not None:
            return self.score
        return self.n_passed / self.total if self.total else 0.0


def grade(root: Path, assertions: Sequence[Assertion], seed: Sequence[SeedFile], config: GraderConfig | None = None) -> Grade:
    """Check `assertions` below `root`. Nothing may run in the workspace any more.

    `seed` holds the files of the start, for `file_unchanged`.

    Raises:
        OSError: `root` itself cannot be opened; that is our failure and no grade.
    """
    limits, seeded = config or GraderConfig(), {file.path: file for file in seed}
    with Workspace(root) as workspace:
        return Grade(verdicts=tuple(_verdict(workspace, assertion, seeded, limits) for assertion in assertions))


def _verdict(
    workspace: Workspace, assertion: Assertion, seeded: Mapping[str, SeedFile], limits: GraderConfig
) -> CheckedAssertion:
    try:
        reason = _problem(workspace, assertion, seeded, limits)
    except Unreadable as error:
        reason = str(error)
    return CheckedAssertion(kind=str(assertion.kind), path=assertion.path, passed=not reason, reason=reason)


def _problem(workspace: Workspace, assertion: Assertion, seeded: Mapping[str, SeedFile], limits: GraderConfig) -> str:
    """Why the assertion does not hold; empty when it does."""
    path = assertion.path
    match assertion.kind:
        case AssertionKind.FILE_EXISTS:
            found = workspace.find(path)
            return "" if found in (PathKind.FILE, PathKind.FOLDER) else f"there is {found} at the path"
        case AssertionKind.FILE_NOT_EXISTS:
            found = workspace.find(path)
            return "" if found is PathKind.NOTHING else f"there is {found} at the path"
        case AssertionKind.FILE_CONTENTS_CONTAIN:
            return _contains(_text(workspace, path, limits), assertion.must_contain)
        case AssertionKind.FILE_CONTENTS_MATCH_REGEX:
            return _matches(_text(workspace, path, limits), assertion.regex, limits)
        case AssertionKind.FILE_UNCHANGED:
            if path not in seeded:
                return "was not there at the start"
            data = seeded[path].data
            same = workspace.holds(path, size=len(data), sha256=hashlib.sha256(data).digest())
            return "" if same else "is not what it was"
        case _:
            return f"the assertion kind {assertion.kind!r} is unknown"


def _text(workspace: Workspace, path: str, limits: GraderConfig) -> str:
    try:
        return workspace.read(path, limit=limits.max_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable("is not UTF-8 text") from error


def _contains(text: str, wanted: Sequence[str]) -> str:
    if not wanted or not all(wanted):
        return "the assertion names nothing that must be contained"
    missing = [part for part in wanted if part not in text]
    return f"does not contain {missing[0]!r}" if missing else ""


def _matches(text: str, pattern: str, limits: GraderConfig) -> str:
    if not pattern:
        return "the assertion has no pattern"
    try:
        found = regex.search(pattern, text, flags=regex.V0, timeout=limits.regex_s, concurrent=True)
    except TimeoutError:
        return f"the pattern needs more than {limits.regex_s:g} s"
    except (regex.error, RecursionError, OverflowError, MemoryError) as error:
        return f"the pattern cannot be used ({error})"
    return "" if found else f"does not match {pattern!r}"
