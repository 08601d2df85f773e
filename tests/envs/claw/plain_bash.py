"""Trusted gold commands in a temporary folder, with an own reading of the five assertion kinds: independent of sandbox and grader."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onthejob.envs.claw.schema import Assertion, AssertionKind, ClawTask


@dataclass(frozen=True)
class Outcome:
    failed: tuple[Assertion, ...]
    output: str

    @property
    def passed(self) -> bool:
        return not self.failed


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


def play(task: ClawTask, script: Sequence[str], root: Path) -> Outcome:
    """Seed `root` (empty), run each block as its own `bash -c`, and check."""
    seed_workspace(task, root)
    shown = []
    for block in script:
        done = subprocess.run(
            ["bash", "-c", block],
            cwd=root,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        shown.append(f"[{done.returncode}] {done.stdout}{done.stderr}")
    failed = tuple(assertion for assertion in task.assertions if not holds(task, assertion, root))
    return Outcome(failed=failed, output="\n".join(shown))
