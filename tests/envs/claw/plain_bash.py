"""Trusted gold commands in a temporary folder, graded, with an own reading of the five assertion kinds, apart from the grader."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from onthejob.envs.claw.grader import Grade, grade
from onthejob.envs.claw.task_schema import Assertion, AssertionKind, ClawTask


def seed_workspace(task: ClawTask, root: Path) -> None:
    for file in task.files:
        path = root / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.data)


def holds(task: ClawTask, assertion: Assertion, root: Path) -> bool:
    path = root / assertion.path
    match assertion.kind:
        case AssertionKind.FILE_EXISTS:
            return path.is_file() or path.is_dir()
        case AssertionKind.FILE_NOT_EXISTS:
            return not os.path.lexists(path)
        case AssertionKind.FILE_CONTENTS_CONTAIN:
            return path.is_file() and all(part in path.read_bytes().decode() for part in assertion.must_contain)
        case AssertionKind.FILE_CONTENTS_MATCH_REGEX:
            return path.is_file() and re.search(assertion.regex, path.read_bytes().decode()) is not None
        case AssertionKind.FILE_UNCHANGED:
            (seeded,) = (file for file in task.files if file.path == assertion.path)
            return path.is_file() and path.read_bytes() == seeded.data


def play(task: ClawTask, script: Sequence[str], root: Path) -> Grade:
    """Seed `root` (new), run each block as its own `bash -c`, and grade; the two readings of the assertions must agree."""
    root.mkdir()
    seed_workspace(task, root)
    for block in script:
        subprocess.run(
            ["bash", "-c", block],
            cwd=root,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
    own = [holds(task, assertion, root) for assertion in task.assertions]
    graded = grade(root, task.assertions, task.files)
    assert own == [verdict.passed for verdict in graded.verdicts], (task.id, own, graded)
    return graded
