"""What an episode needs of a task, whatever form the task has: a request, files, and a way to grade what is left of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from onthejob.envs.claw import checks, official
from onthejob.envs.claw.grader import Grade, GraderConfig, grade
from onthejob.envs.claw.sandbox.sandbox_interface import Content, Limits, SandboxHost, SandboxLayout
from onthejob.envs.claw.task_schema import ClawTask
from onthejob.errors import NotCheckable
from onthejob.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One piece of file work."""

    id: str
    intent: str
    files: Mapping[str, Content]
    """Path -> content, at the start."""
    grade: Callable[[Path], Grade]
    """Checks the workspace of a dead sandbox."""
    persona: str = ""
    family: str = ""
    difficulty: str = ""
    layout: SandboxLayout | None = None
    """Where `files` lie inside; None for the usual place."""
    listed: Mapping[str, int] | None = None
    """Files that the request lists: path -> size in bytes; None for all of `files`."""
    start: str = ""
    """Bash text before each command, or where a persistent shell begins, without a line break: folder and variables."""
    place: str = "the workspace folder"
    """Where commands run, as the system message names it."""
    part: str = "assertions"
    """Name of the reward's part that says what was achieved."""
    total_s: float | None = None
    """Seconds that all commands of an episode may take together; None for no such limit."""
    host: SandboxHost | None = None
    """Makes its sandbox; None for the host of the environment."""


def work_of(task: Task, *, host: SandboxHost, grader: GraderConfig, limits: Limits) -> Work:
    """The work in the payload of `task`: the record of a `ClawTask`, or where an official task lies.

    `host` makes the second sandbox, in which checks that come as programs run.

    Raises:
        ConfigError: the payload is neither, or the official task's folder cannot be read or is not what it was.
        NotCheckable: this machine lacks what the task's checks need.
    """
    if official.is_official(task.payload):
        found = official.load(task.payload)
        if missing := found.needs.missing():
            raise NotCheckable(
                f"task {task.id} cannot be checked here: its checks need {', '.join(missing)}, which sandboxes of this machine "
                "do not have. Install it for the whole system, below /usr and not next to this package, or remove the task."
            )
        run = partial(checks.check, found, host=host, limits=limits)
        return Work(id=task.id, intent=found.query, files=found.files, grade=run, family=found.category)
    claw = ClawTask.from_record(task.payload, where=f"the payload of task {task.id!r}")
    return Work(
        id=claw.id,
        intent=claw.intent,
        files={file.path: file.data for file in claw.files},
        grade=partial(_grade, claw, grader),
        persona=claw.persona.name,
        family=claw.family,
        difficulty=str(claw.difficulty),
    )


def _grade(claw: ClawTask, grader: GraderConfig, root: Path) -> Grade:
    return grade(root, claw.assertions, claw.files, grader)
