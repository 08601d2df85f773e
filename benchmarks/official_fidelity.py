"""Do official ClawGym tasks score here as upstream's own command scores them?

A scripted agent makes every file and folder that a request names and makes scripts executable; where a score for that wants more
(`WANTED`), it writes that too. Its work is scored twice: by `ClawEnvironment` (a second sandbox, a copy of the workspace), and
as upstream does it, by `python3 reward/check.py WORKSPACE` in the agent's own sandbox with `reward` inside the workspace. Where
the two differ, upstream's command is tried with `reward` outside the workspace as well: some checks look for words in the
workspace's scripts and find themselves. Where a check looks at permissions, the same agent without `chmod` tells which of the
named scores depend on them.

    python benchmarks/official_fidelity.py RL/data [--every 1] [--rows rows.jsonl] [--json]

Training tasks only. With --rows a stopped run continues with the tasks that the file lacks. Ends with 1 when a score differs for
another reason. Tasks that cannot be checked on this machine are counted and not compared.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from onthejob.envs.claw.agent_messages import DONE, block
from onthejob.envs.claw.checks import CHECK_S, REPORT_BYTES
from onthejob.envs.claw.env import ClawConfig, ClawEnvironment
from onthejob.envs.claw.official import FOLDERS, Official, as_task, load
from onthejob.envs.claw.sandbox import Limits, SandboxHost, open_host
from onthejob.errors import NotCheckable
from onthejob.types import Split, Task

LIMITS = Limits(output_bytes=REPORT_BYTES)
"""Of both sandboxes, so that the ones started ahead serve both."""
COMMAND_S = 60.0
NAMED = re.compile(r"(?<![\w/:.<-])(?:[\w.-]+/)*[\w-][\w.-]*\.[A-Za-z]\w{0,5}(?![\w/])|(?<![\w/:.<-])(?:[\w.-]+/)+(?!\w|\.\w)")
"""Paths of files (with an ending) and folders (with a slash) in a request; no URLs, no absolute paths."""
SCRIPTS = (".sh", ".bash", ".py", ".pl", ".js")
MODES = re.compile(rb"\bX_OK\b|\bS_IX|\b0o111\b|\bst_mode\b")
"""Occurs in checks that look at permissions."""
RUNNER = "echo ok\n"
WANTED: Mapping[str, Mapping[str, str]] = {
    "0088": {"scripts/run.sh": "#!/usr/bin/env bash\nset -e\necho summary.json\n"},
    "0217": {"scripts/collect_resources": RUNNER},
    "0221": {"scripts/brand_icon_ranker": RUNNER},
    "0225": {"scripts/run.sh": "python3 scripts/fetch_policies.py\n"},
    "0394": {"tests/validate.sh": RUNNER, "tests/validation_report.txt": "overall: ok\n"},
    "0474": {"scripts/build_diaspora_report.sh": RUNNER},
    # Run by its own first line when it is executable, else by Python.
    "0486": {"scripts/extract_catalog.py": "#!/bin/sh\nmkdir -p output && touch output/items.csv output/field_stats.json\n"},
    "0515": {"output/bin/poster_roundup": RUNNER},
    "0786": {"workspace/scripts/predeploy.sh": RUNNER},
    "1198": {"tools/run_validation.sh": RUNNER},
    "1217": {"scripts/run_ci.sh": RUNNER},
    "1425": {"scripts/build_episode_index.sh": RUNNER},
    "1711": {
        "output/tools/run_report.sh": "cat "
        + "output/deobfuscated_traces.txt output/summary/crash_summary.json output/anr/anr_report.json\n"
    },
    "1787": {"scripts/build_weekly_sources": RUNNER},
    "1866": {"scripts/run_weekly_update.sh": RUNNER, "output/logs/weekly_run.log": "completed\n"},
}
"""Training task -> files without which its check gives no credit for an executable script, the first of them. Where a first line
`#!` would be enough, the script has none."""
CONTENT = {
    "sh": "#!/usr/bin/env bash\necho ok\n",
    "py": "#!/usr/bin/env python3\nprint('ok')\n",
    "json": "{}\n",
    "csv": "id,name\n1,a\n",
    "md": "# Title\n\nText.\n",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One task, scored both ways."""

    task: str
    checkable: bool = True
    ours: float = 0.0
    upstream: float = 0.0
    different: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    """Named score -> ours and upstream's; None where it is missing."""
    finds_itself: bool = False
    """Upstream's scores equal ours once `reward` lies outside the workspace."""
    looks_at_modes: bool = False
    by_chmod: Sequence[str] = ()
    """Named scores that upstream raises for the agent's `chmod`."""
    by_chmod_here: Sequence[str] = ()
    """The same, here."""
    seconds: float = 0.0

    @property
    def same(self) -> bool:
        return not self.different and abs(self.ours - self.upstream) < 1e-5


RowT = TypeVar("RowT")


def obvious(task: Official, wanted: Mapping[str, str], *, chmod: bool = True) -> str:
    """Commands that make what the request names and the workspace lacks, and the files `wanted`; deterministic."""
    paths = [path for path in dict.fromkeys(NAMED.findall(task.query)) if ".." not in path.split("/")]
    absent = [path for path in paths if path not in task.files and not path.endswith("/")]
    folders = dict.fromkeys([path for path in paths if path.endswith("/")] + [str(Path(path).parent) for path in absent])
    lines = [f"mkdir -p {shlex.join(folders)}"] if folders else []
    for path in absent:
        content, quoted = CONTENT.get(path.rpartition(".")[2].lower(), "ok\n"), shlex.quote(path)
        lines.append(f"[ -e {quoted} ] || printf %s {shlex.quote(content)} > {quoted}")
    for path, content in wanted.items():
        lines.append(f"mkdir -p {shlex.quote(str(Path(path).parent))} && printf %s {shlex.quote(content)} > {shlex.quote(path)}")
    scripts = [path for path in paths if path.endswith(SCRIPTS)] + list(wanted)[:1]
    if scripts and chmod:
        lines.append(f"chmod +x {shlex.join(scripts)}")
    return "\n".join([*lines, "true"])


def here(task: Task, command: str, host: SandboxHost) -> dict[str, float]:
    """The named scores of this package; one named `""` is a failure to check.

    Raises:
        NotCheckable: the task's checks need what this machine lacks.
    """
    env = ClawEnvironment(ClawConfig(sandbox=LIMITS), host=host)
    try:
        env.reset(task)
        env.step(block(command))
        facts = env.step(DONE).facts
    finally:
        env.close()
    found = {}
    for verdict in facts["verdicts"]:
        scored = re.fullmatch(r"scored (\S+)", verdict["reason"])
        found[verdict["path"]] = 1.0 if verdict["passed"] else float(scored[1]) if scored else 0.0
    return found


def upstream(task: Official, command: str, host: SandboxHost, *, outside: bool = False) -> dict[str, float]:
    """The named scores by upstream's own command, in the sandbox in which the agent worked; `""` as in `here`.

    With `outside`, `reward` is moved out of the workspace first.
    """
    place, move = ("$aside", 'aside=$(mktemp -d) && mv reward/* "$aside" && ') if outside else ("$work/reward", "")
    files = {**task.files, **{f"reward/{path}": data for path, data in task.checks.items()}}
    with host.open(files, LIMITS) as sandbox:
        sandbox.run(command, timeout_s=COMMAND_S)
        result = sandbox.run(f'work=$PWD; {move}cd / && python3 "{place}/check.py" "$work"', timeout_s=CHECK_S)
    if result.exit_code != 0:
        return {"": 0.0}
    try:
        data = json.loads(result.stdout)
        if isinstance(data, dict) and data:
            return {str(name): float(value) for name, value in data.items()}
        return {"score": float(data)} if isinstance(data, int | float) else {"": 0.0}
    except (ValueError, TypeError):
        return {"": 0.0}


def compared(task: Task, host: SandboxHost) -> Row:
    """One task both ways."""
    start, held = time.monotonic(), load(task.payload)
    wanted = WANTED.get(task.id.rpartition("_")[2], {})
    command = obvious(held, wanted)
    try:
        ours = here(task, command, host)
    except NotCheckable:
        return Row(task=task.id, checkable=False)
    theirs = upstream(held, command, host)
    modes = MODES.search(held.checks["check.py"]) is not None
    raised: list[tuple[str, ...]] = [(), ()]
    if modes:
        plain = obvious(held, wanted, chmod=False)
        for index, (with_chmod, without) in enumerate(((theirs, upstream(held, plain, host)), (ours, here(task, plain, host)))):
            raised[index] = tuple(name for name, value in with_chmod.items() if value > without.get(name, 0.0))
    different = differences(ours, theirs)
    return Row(
        task=task.id,
        ours=sum(ours.values()) / len(ours),
        upstream=sum(theirs.values()) / len(theirs),
        different=different,
        finds_itself=bool(different) and not differences(ours, upstream(held, command, host, outside=True)),
        looks_at_modes=modes,
        by_chmod=raised[0],
        by_chmod_here=raised[1],
        seconds=time.monotonic() - start,
    )


def differences(ours: Mapping[str, float], theirs: Mapping[str, float]) -> dict[str, tuple[float | None, float | None]]:
    """Named score -> both values, where one is missing or they differ by more than rounding."""
    return {
        name: (ours.get(name), theirs.get(name))
        for name in sorted({*ours, *theirs})
        if name not in ours or name not in theirs or abs(ours[name] - theirs[name]) > 1e-5
    }


def summary(rows: list[Row]) -> dict[str, object]:
    """Counts, and every difference."""
    done = [row for row in rows if row.checkable]
    return {
        "tasks": len(rows),
        "cannot be checked here": len(rows) - len(done),
        "same score": sum(row.same for row in done),
        "find upstream's check.py in the workspace": {row.task: dict(row.different) for row in done if row.finds_itself},
        "another score": {row.task: dict(row.different) for row in done if not row.same and not row.finds_itself},
        "credit given": sum(row.upstream > 0 for row in done),
        "checks that look at permissions": sum(row.looks_at_modes for row in done),
        "of these, credit for chmod upstream": sum(bool(row.by_chmod) for row in done),
        "of these, the same credit here": sum(
            bool(row.by_chmod) and list(row.by_chmod) == list(row.by_chmod_here) for row in done
        ),
        "seconds a task": sum(row.seconds for row in done) / max(1, len(done)),
    }


def options_of(doc: str) -> argparse.Namespace:
    """The options of a benchmark on official tasks, which `doc` describes."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the folder that holds clawgym_train and clawgym_eval")
    parser.add_argument("--every", type=int, default=1, help="only every n-th task")
    parser.add_argument("--rows", type=Path, help="write one JSON line per task here, as they are done")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser.parse_args()


def rows_of(
    options: argparse.Namespace,
    kind: Callable[..., RowT],
    work: Callable[[Task, SandboxHost], RowT],
    last: Callable[[Task], bool],
) -> list[RowT]:
    """One row per chosen training task: those of `--rows`, then what `work` makes of the others.

    Args:
        options: of `options_of`.
        kind: class of the rows, whose `task` is the task's id.
        work: makes one.
        last: true for tasks that can wait, which come after all others.
    """
    path: Path | None = options.rows
    lines = path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
    earlier: list[Any] = [kind(**json.loads(line)) for line in lines]
    rows = {row.task: row for row in earlier}
    folders = sorted((options.data / FOLDERS[Split.TRAIN]).glob("task_*"))[:: options.every]
    with open_host() as host:
        for task in sorted((as_task(folder, Split.TRAIN) for folder in folders), key=last):
            if task.id in rows:
                continue
            rows[task.id] = work(task, host)
            if path is not None:
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(rows[task.id])) + "\n")
    return list(rows.values())


def show(found: Mapping[str, object], *, as_json: bool) -> None:
    """Print a summary."""
    print(json.dumps(found, indent=2) if as_json else "\n".join(f"{name}: {value}" for name, value in found.items()))


def without_modes(task: Task) -> bool:
    """Whether its check does not look at permissions."""
    return MODES.search(load(task.payload).checks["check.py"]) is None


def main() -> int:
    options = options_of(__doc__ or "")
    # Those that look at permissions first: they tell most, should the run be stopped.
    found = summary(rows_of(options, Row, compared, without_modes))
    show(found, as_json=options.json)
    return 1 if found["another score"] else 0


if __name__ == "__main__":
    sys.exit(main())
