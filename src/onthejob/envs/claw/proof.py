"""The proof that a task is one: doing nothing fails, the gold commands pass.

Who runs the commands and who grades is given by the caller (a sandbox and the grader), so this holds for any backend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from onthejob.envs.claw.lint import Fault, Problem
from onthejob.envs.claw.schema import ClawTask


class Verdict(Protocol):
    """What a grader says about a finished episode."""

    @property
    def passed(self) -> bool:
        """True when every assertion holds."""
        ...


Run = Callable[[ClawTask, Sequence[str]], Verdict]
"""Seed a fresh workspace, run these bash blocks in it one after the other, and grade what is there then."""


def prove(task: ClawTask, run: Run) -> tuple[Problem, ...]:
    """What running the task shows to be wrong with it; empty when no-op fails and gold passes."""
    problems = []
    if run(task, ()).passed:
        problems.append(Problem(fault=Fault.PROOF, message="doing nothing passes. Assert what the task is to bring about."))
    if not task.gold:
        problems.append(Problem(fault=Fault.PROOF, message="there are no gold commands. Give commands that solve the task."))
    elif not (verdict := run(task, task.gold)).passed:
        problems.append(Problem(fault=Fault.PROOF, message=f"the gold commands do not pass: {verdict}. Correct them."))
    return tuple(problems)
