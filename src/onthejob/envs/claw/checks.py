"""Running the checks of an official task, and what they print as a grade.

The checks are programs of others that read what an agent left, and some run what it wrote. So they run in a second sandbox,
after the first one is dead, on a copy of its workspace at the same path. They lie in a read-only folder outside of it, and
Python runs isolated (`-I`) but for that folder and the packages of the sandbox, so that no file of the agent's (`json.py`,
`sitecustomize.py`) is imported in the place of a module. What they print must be one JSON object and nothing else; anything else
scores 0.

A check that starts programs is kept apart from them: it is not in the sandbox as a file, none of the others can look into its
process (it is undumpable), and the descriptor for its report is passed on to none. What they print is data for the check. The
report of a check that runs programs or the agent's own code must have the names that the report for the untouched files has.
"""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from onthejob.envs.claw.copying import copied, roomy
from onthejob.envs.claw.grader import Grade, Verdict
from onthejob.envs.claw.official import Official
from onthejob.envs.claw.sandbox.arguments import BESIDE
from onthejob.envs.claw.sandbox.sandbox_interface import MIB, Content, Limits, SandboxHost
from onthejob.envs.claw.separation import CHECK, starts_programs
from onthejob.envs.claw.workspace import Unreadable

CHECK_S = 60.0
"""Seconds the checks of one task may take."""
REPORT_BYTES = 2 * MIB
"""Longest report of the checks that is read."""
_RUN = """
import os, runpy, sys
packages, sys.argv = sys.argv[1], sys.argv[2:]
sys.path = [os.path.dirname(sys.argv[0]), *sys.path, packages]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""As `python3 check.py WORKSPACE`, with the modules next to check.py and the packages of the sandbox, which `-I` hides."""
_RUN_APART = """
import base64, ctypes, os, sys, types
packages, sys.argv = sys.argv[1], sys.argv[2:]
data = base64.b64decode(sys.stdin.buffer.read())
if ctypes.CDLL(None).prctl(4, 0, 0, 0, 0):
    raise SystemExit("PR_SET_DUMPABLE")
os.closerange(3, 1024)
report = os.dup(1)
os.dup2(os.open(os.devnull, os.O_RDWR), 0)
os.dup2(2, 1)
sys.stdout = sys.__stdout__ = open(report, "w", encoding="utf-8")
sys.path.append(packages)
main = sys.modules["__main__"] = types.ModuleType("__main__")
main.__file__ = sys.argv[0]
exec(compile(data, sys.argv[0], "exec"), main.__dict__)
"""
"""The same for a check that starts programs. Its text comes in base64 on stdin, and is neither a file nor an argument: what it
starts could read those. 4 is PR_SET_DUMPABLE; the new descriptor is closed in every program that is started."""


def check(task: Official, root: Path, *, host: SandboxHost, limits: Limits) -> Grade:
    """The grade that the task's checks give the workspace of a dead sandbox; fails closed.

    Args:
        task: whose checks are run; what they need is here (see `Official.needs`).
        root: the workspace's folder.
        host: makes the second sandbox.
        limits: of the first sandbox; the second may use as much and say more.

    Raises:
        SandboxError: the second sandbox failed, which is our failure and no grade.
    """
    try:
        left = copied(root)
    except Unreadable as error:
        return _failed(f"the workspace {error}")
    grade = _report(task, left, host=host, limits=limits)
    if not grade.rate or not (task.checks_run_agent_code or starts_programs(task.checks)):
        return grade
    wanted, said = (
        {verdict.path for verdict in one.verdicts} for one in (_report(task, task.files, host=host, limits=limits), grade)
    )
    missing = sorted(wanted - said - {""})
    return _failed(f"the report lacks {missing[0]!r}") if missing else grade


def _report(task: Official, files: Mapping[str, Content], *, host: SandboxHost, limits: Limits) -> Grade:
    """What the checks say about these files."""
    room = replace(roomy(limits), output_bytes=REPORT_BYTES)
    apart = starts_programs(task.checks) and not task.checks_run_agent_code
    with host.open(files, room, beside=None if apart else task.checks) as sandbox:
        # HOME: the Python that a check starts would run the agent's own start-up files below its home.
        start = "work=$PWD; cd /; HOME=/tmp exec python3 -I -B -c"
        if apart:
            text = base64.encodebytes(task.checks[CHECK]).decode()
            command = f'{start} {shlex.quote(_RUN_APART)} "$PYTHONPATH" {BESIDE}/{CHECK} "$work" <<\'END\'\n{text}END\n'
        else:
            command = f'{start} {shlex.quote(_RUN)} "$PYTHONPATH" {sandbox.beside}/{CHECK} "$work"'
        result = sandbox.run(command, timeout_s=CHECK_S)
    if result.timed_out:
        return _failed(f"the checks needed more than {CHECK_S:g} s")
    if result.exit_code != 0:
        said = result.stderr.decode("utf-8", "replace").strip().splitlines()
        return _failed(f"the checks ended with {result.exit_code}{': ' + said[-1][:200] if said else ''}")
    if result.stdout_size > len(result.stdout):
        return _failed(f"the checks printed {result.stdout_size} bytes")
    return graded(result.stdout)


def graded(report: bytes) -> Grade:
    """The grade in what the checks printed: one JSON object of numbers in [0, 1]."""
    try:
        scores = json.loads(report)
    except (ValueError, RecursionError):
        return _failed("the checks did not print one JSON value")
    if isinstance(scores, int | float) and not isinstance(scores, bool):
        scores = {"score": scores}
    if not isinstance(scores, dict) or not scores:
        return _failed("the checks printed no scores")
    verdicts, values = [], []
    for name, value in scores.items():
        known = isinstance(value, int | float) and 0.0 <= value <= 1.0
        values.append(float(value) if known else 0.0)
        reason = f"scored {values[-1]:g}" if known else f"is no number in [0, 1]: {str(value)[:60]!r}"
        verdicts.append(
            Verdict(kind="check", path=str(name), passed=values[-1] >= 1.0, reason="" if values[-1] >= 1.0 else reason)
        )
    return Grade(verdicts=tuple(verdicts), score=sum(values) / len(values))


def _failed(reason: str) -> Grade:
    return Grade(verdicts=(Verdict(kind="check", path="", passed=False, reason=reason),), score=0.0)
