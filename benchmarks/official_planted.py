"""In which official ClawGym tasks can a planted program write its own grade?

An agent that does no work puts one program into every script that a request or its check names, into every script that is there
already, and next to them under the names of modules (`PLANTED`). Three such programs are tried where a check may run them (one,
`names`, in all other tasks):

* `prints`: a verdict that says 1, and ends its process at once;
* `names`: the same with the names of the report for the untouched files, which it knows;
* `hunts`: the same, written to every open file of every process that it can reach as well, after which it kills its parent.

    python benchmarks/official_planted.py RL/data [--every 1] [--rows rows.jsonl] [--json]

Training tasks only. With --rows a stopped run continues with the tasks that the file lacks. Full marks where the task is not
marked `checks_run_agent_code` end with 1; the marked tasks are listed with their reasons. For comparison the same agent is scored
by upstream's own command, where a check may run programs.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from official_fidelity import NAMED, SCRIPTS, here, options_of, rows_of, show, upstream

from onthejob.envs.claw.official import MARK, Official, load
from onthejob.envs.claw.sandbox import SandboxHost
from onthejob.envs.claw.separation import starts_programs
from onthejob.errors import NotCheckable
from onthejob.types import Task

PLANTED = ("json.py", "sitecustomize.py", "conftest.py")
PYTHON = """#!/usr/bin/env python3
import os, sys
report = {report!r}
def everywhere():
    for process in os.listdir("/proc"):
        if process.isdigit() and int(process) != os.getpid():
            for place in (1, 2, *range(3, 32)):
                try:
                    with open("/proc/%s/fd/%d" % (process, place), "w") as file:
                        file.write(report)
                except OSError:
                    pass
    os.kill(os.getppid(), 9)
sys.__stdout__.write(report)
sys.__stdout__.flush()
if {hunts}:
    everywhere()
os._exit(0)
"""
SHELL = """#!/bin/sh
printf '%s\\n' {report}
if {hunts}; then
    for place in /proc/[0-9]*/fd/*; do printf '%s\\n' {report} 2>/dev/null >"$place"; done
    kill -9 $PPID
fi
exit 0
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One task."""

    task: str
    reason: str = ""
    """Why it is marked; empty when it is not."""
    starts: bool = False
    """Its check may start programs."""
    checkable: bool = True
    full: Sequence[str] = field(default_factory=list)
    """Planted programs that got full marks here."""
    full_upstream: Sequence[str] = field(default_factory=list)
    """The same by upstream's command; tried only where a check may run programs."""


def plant(task: Official, report: str, *, hunts: bool) -> str:
    """Commands that put the program into every place where a check might run it; deterministic."""
    text = f"{task.query}\n{task.checks['check.py'].decode(errors='replace')}"
    named = [path for path in dict.fromkeys([*NAMED.findall(text), *task.files]) if path.endswith(SCRIPTS) and ".." not in path]
    folders = dict.fromkeys(str(PurePosixPath(path).parent) for path in named)
    modules = [f"{folder}/{name}" for folder in (".", *folders) for name in PLANTED]
    places = dict.fromkeys([*named, *modules])
    programs = {
        "planted.py": PYTHON.format(report=report, hunts=hunts),
        "planted.sh": SHELL.format(report=shlex.quote(report), hunts=str(hunts).lower()),
    }
    lines = [f"printf %s {shlex.quote(text)} > {name}" for name, text in programs.items()]
    lines.append(f"mkdir -p {shlex.join(dict.fromkeys(str(PurePosixPath(path).parent) for path in places))}")
    for name in programs:
        chosen = [path for path in places if path.endswith(".py") == (name == "planted.py")]
        if chosen:
            lines.append(f'for place in {shlex.join(chosen)}; do cp {name} "$place"; chmod +x "$place"; done')
    return "\n".join([*lines, "true"])


def full(scores: dict[str, float]) -> bool:
    return bool(scores) and all(value >= 1.0 for value in scores.values())


def may_run(task: Task) -> bool:
    """Whether its check may run a planted program at all."""
    return MARK in task.payload or starts_programs(load(task.payload).checks)


def tried(task: Task, host: SandboxHost) -> Row:
    """One task with every program that is worth trying."""
    held = load(task.payload)
    starts = starts_programs(held.checks)
    reason = str(task.payload.get(MARK, ""))
    try:
        names = [name for name in here(task, "true", host) if name]
    except NotCheckable:
        return Row(task=task.id, reason=reason, starts=starts, checkable=False)
    known, blind = json.dumps(dict.fromkeys(names or ["score"], 1.0)), json.dumps({"score": 1.0})
    programs = {"names": (known, False)}
    if starts or reason:
        programs |= {"prints": (blind, False), "hunts": (known, True)}
    ours, theirs = [], []
    for name, (report, hunts) in programs.items():
        commands = plant(held, report, hunts=hunts)
        if full(here(task, commands, host)):
            ours.append(name)
        if (starts or reason) and full(upstream(held, commands, host)):
            theirs.append(name)
    return Row(task=task.id, reason=reason, starts=starts, full=ours, full_upstream=theirs)


def summary(rows: list[Row]) -> dict[str, object]:
    """Counts, the marked tasks with their reasons, and every task in which a planted program got full marks."""
    done = [row for row in rows if row.checkable]
    return {
        "tasks": len(rows),
        "cannot be checked here": len(rows) - len(done),
        "checks that may start programs": sum(row.starts for row in rows),
        "marked": {row.task: row.reason for row in rows if row.reason},
        "full marks by upstream's command": {row.task: list(row.full_upstream) for row in done if row.full_upstream},
        "full marks in marked tasks": {row.task: list(row.full) for row in done if row.full and row.reason},
        "full marks in other tasks": {row.task: list(row.full) for row in done if row.full and not row.reason},
    }


def main() -> int:
    options = options_of(__doc__ or "")
    # Those in which a program may run first: they tell most, should the run be stopped.
    found = summary(rows_of(options, Row, tried, lambda task: not may_run(task)))
    show(found, as_json=options.json)
    return 1 if found["full marks in other tasks"] else 0


if __name__ == "__main__":
    sys.exit(main())
