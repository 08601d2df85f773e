"""The proof that a Harbor task is one, here: doing nothing fails and its solution passes, each as often as asked.

A task without a solution is unproven. One whose own solution fails may need what this machine lacks; the report quotes what its
tests said, so that its authors can be asked.
"""

from __future__ import annotations

import base64
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from onthejob.envs.claw.grader import Grade
from onthejob.envs.claw.sandbox.sandbox_interface import ItemKind, as_item
from onthejob.envs.harbor.folder import SOLUTION, HarborTask
from onthejob.envs.harbor.harbor_work import Images, start_of
from onthejob.envs.harbor.image import Image
from onthejob.envs.harbor.support import Support
from onthejob.envs.harbor.verify import LAYOUT, STAND_INS, verify


class Finding(StrEnum):
    """What became of a task, in the order in which a table shows it."""

    RIGHT = "right"
    """Doing nothing fails, the solution passes."""
    UNPROVEN = "unproven"
    """Doing nothing fails, and there is no solution."""
    NOOP = "doing nothing scores"
    SOLUTION = "the solution fails"
    UNSTEADY = "unsteady"
    """Two runs of the same differ."""
    REFUSED = "refused"


INSTALLS = re.compile(r"\b(apt|apt-get|pip3?|curl|uv|uvx)\b")
"""Occurs in solutions that install what is here already."""
PLAYABLE = frozenset({Finding.RIGHT, Finding.UNPROVEN})


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What running a task showed."""

    finding: Finding
    noop: tuple[float, ...] = ()
    """Rewards of doing nothing, one a run."""
    solution: tuple[float, ...] = ()
    """Rewards of its solution."""
    why: str = ""
    """What the tests said where that is not as it should be, or of doing nothing where there is no solution."""
    wall_s: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """In JSON's types."""
        found = {"finding": str(self.finding), "noop": list(self.noop), "solution": list(self.solution)}
        return {**found, "why": self.why, "wall_s": round(self.wall_s, 3)}


def prove(task: HarborTask, support: Support, images: Images, *, runs: int = 2) -> Proof:
    """Run a task with nothing done and with its solution.

    Each is done `runs` times.

    Raises:
        SandboxError: a sandbox failed.
    """
    start = time.monotonic()
    if support.refusals:
        return Proof(finding=Finding.REFUSED, why="; ".join(f"{one.reason}: {one.detail}" for one in support.refusals))
    image = images.of(task)
    if image.refusals:
        return Proof(finding=Finding.REFUSED, why="; ".join(f"{one.reason}: {one.detail}" for one in image.refusals))
    noop = [attempt(task, image, images, "", marked=bool(support.mark)) for _ in range(runs)]
    script = solution_script(task)
    gold = [attempt(task, image, images, script, marked=bool(support.mark)) for _ in range(runs)] if script else []
    finding, why = _finding(noop, gold)
    return Proof(
        finding=finding,
        noop=tuple(grade.rate for grade in noop),
        solution=tuple(grade.rate for grade in gold),
        why=why,
        wall_s=time.monotonic() - start,
    )


def _finding(noop: list[Grade], gold: list[Grade]) -> tuple[Finding, str]:
    """The finding of several runs, and what the tests said of the first that shows it."""
    if len({grade.rate for grade in noop}) > 1 or len({grade.rate for grade in gold}) > 1:
        return Finding.UNSTEADY, "; ".join(sorted({_said(grade) for grade in (*noop, *gold)}))
    if any(grade.rate > 0.0 for grade in noop):
        return Finding.NOOP, f"reward {noop[0].rate:g}"
    if not gold:
        return Finding.UNPROVEN, _said(noop[0])
    return (Finding.RIGHT, "") if all(grade.passed for grade in gold) else (Finding.SOLUTION, _said(gold[0]))


def attempt(task: HarborTask, image: Image, images: Images, script: str, *, marked: bool) -> Grade:
    """The grade of what a script leaves, run like one command of an agent; an empty script does nothing."""
    host = images.host_of(image)
    with host.open(dict(image.files), images.limits, layout=LAYOUT) as sandbox:
        if script:
            stand_ins = STAND_INS if INSTALLS.search(task.solution_text) else ""
            sandbox.run(f"{stand_ins}{start_of(image)}{script}", timeout_s=task.agent_s)
        root = sandbox.collect()
        return verify(task, image, root, host=host, limits=images.limits, marked=marked)


def solution_script(task: HarborTask) -> str:
    """Bash text that puts the solution's folder to /solution and runs it; empty where there is none."""
    if not task.has_solution:
        return ""
    lines = ["mkdir -p /solution"]
    for path, content in sorted(task.solution.items()):
        item = as_item(path, content)
        place = shlex.quote(f"/solution/{path}")
        if item.kind is ItemKind.FILE:
            lines += [
                f"mkdir -p $(dirname {place}); base64 -d > {place} <<'END_OF_FILE'",
                *base64.encodebytes(item.data).decode().splitlines(),
                "END_OF_FILE",
            ]
    env = task.section("solution").get("env", {})
    for name, value in env.items() if isinstance(env, Mapping) else ():
        if str(name).isidentifier():
            lines.append(f"export {name}={shlex.quote(str(value))}")
    return "\n".join([*lines, f"chmod +x /solution/{SOLUTION}", f"bash /solution/{SOLUTION}"])


def _said(grade: Grade) -> str:
    reason = grade.verdicts[0].reason if grade.verdicts else ""
    return f"{reason}: {grade.said}" if grade.said else reason
