"""The proof that a task is one: doing nothing fails, the gold commands pass, both run and graded like an agent's episode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onthejob.envs.claw.grader import Grade, grade
from onthejob.envs.claw.lint import Fault, Problem
from onthejob.envs.claw.sandbox.sandbox_interface import SandboxHost
from onthejob.envs.claw.task_schema import ClawTask

Run = Callable[[ClawTask, Sequence[str]], Grade]
"""Seed a fresh workspace, run these bash blocks in it one after the other, and grade what is there then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What running a task showed."""

    noop: Grade
    """After doing nothing."""
    gold: Grade | None
    """After the gold commands; None when there are none."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Empty when no-op fails and gold passes."""
        found = []
        if self.noop.passed:
            found.append("doing nothing passes. Assert what the task is to bring about.")
        if self.gold is None:
            found.append("there are no gold commands. Give commands that solve the task.")
        elif not self.gold.passed:
            failed = "; ".join(f"{v.kind} of {v.path}: {v.reason}" for v in self.gold.verdicts if not v.passed)
            found.append(f"the gold commands do not pass ({failed}). Correct them or the assertions.")
        return tuple(Problem(fault=Fault.PROOF, message=message) for message in found)


def prove(task: ClawTask, run: Run) -> Proof:
    """Run a task twice: once with nothing done, once with its gold commands."""
    return Proof(noop=run(task, ()), gold=run(task, task.gold) if task.gold else None)


def in_sandbox(host: SandboxHost) -> Run:
    """Runs scripts in sandboxes of `host`, one fresh sandbox per script; may be called from several threads."""

    def run(task: ClawTask, script: Sequence[str]) -> Grade:
        with host.open({file.path: file.data for file in task.files}) as sandbox:
            for block in script:
                sandbox.run(block)
            return grade(sandbox.collect(), task.assertions, task.files)

    return run
