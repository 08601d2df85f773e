"""`onthejob tasks validate --env harbor:FOLDER`: which tasks run here, why the others do not, and whether they are right."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onthejob.commands.outputs import check_writable
from onthejob.commands.terminal import Terminal, table
from onthejob.errors import ConfigError
from onthejob.files import published_file

if TYPE_CHECKING:
    from onthejob.envs.harbor.container_engine import Engine, EngineName
    from onthejob.envs.harbor.proof import Proof
    from onthejob.envs.harbor.support import Support

SCHEME = "harbor:"
SHOWN = 40
"""Tasks that are not right, of which a line says why."""


def validate_harbor(
    terminal: Terminal,
    ref: str,
    *,
    rootfs: Path | None,
    engine: EngineName,
    static: bool,
    jobs: int,
    runs: int,
    report: Path | None,
) -> int:
    """Print a table of reasons and one of findings; returns 2 when a task that ran is wrong.

    Args:
        terminal: where all is shown.
        ref: `harbor:FOLDER`.
        rootfs: stands for the tasks' images; None for this machine's system.
        engine: makes the images of tasks that cannot run without.
        static: run nothing.
        jobs: tasks that run at the same time.
        runs: how often each task is tried, with nothing done and with its solution.
        report: file for all findings, as JSON.
    """
    from onthejob.envs.harbor.packages import system_at
    from onthejob.envs.harbor.support import table_of
    from onthejob.interop.harbor import check_engine, engine_at, environment, found_in

    check_engine(engine, rootfs, prefix="--")
    makes, system = engine_at(engine), system_at(rootfs)
    folder = environment(ref.removeprefix(SCHEME)).folder
    found = {one.id: one for one in found_in(folder, system, None if makes is None else makes.name)}
    if report is not None:
        check_writable(report, "--report")
    supports = {name: one.support for name, one in found.items()}
    folders = {name: (one.task.folder if one.task else None) for name, one in found.items()}
    proofs = {} if static else _proofs(terminal, folders, jobs, runs, rootfs, makes)
    tables = [_refused(table_of(supports), supports), *([_findings(proofs, supports)] if proofs else [])]
    rows = {name: _row(supports[name], proofs.get(name)) for name in found}
    data = {"ref": ref, "runs": runs, "tasks": rows}
    if report is not None:
        with published_file(report) as temporary:
            temporary.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    wrong = [name for name, proof in proofs.items() if str(proof.finding) not in ("right", "unproven", "refused")]
    lines = [f"{name}: {proofs[name].finding}: {' '.join(proofs[name].why.split())[:200]}" for name in wrong[:SHOWN]]
    lines += [f"... and {len(wrong) - SHOWN} more"] if len(wrong) > SHOWN else []
    terminal.result(
        data, *tables, "\n".join(["", *lines, f"{len(wrong)} of {len(found)} tasks are wrong" if proofs else ""]).rstrip()
    )
    return 2 if wrong else 0


def _proofs(
    terminal: Terminal, folders: Mapping[str, Path | None], jobs: int, runs: int, rootfs: Path | None, engine: Engine | None
) -> dict[str, Proof]:
    """Every task's proof, by name."""
    from onthejob.envs.harbor.folder import read
    from onthejob.envs.harbor.harbor_work import open_images
    from onthejob.envs.harbor.proof import Finding, Proof, prove
    from onthejob.envs.harbor.support import support_of
    from onthejob.interop.harbor import HarborRules

    name_of_engine = None if engine is None else engine.name

    def one(name: str) -> Proof:
        folder = folders[name]
        if folder is None:
            return Proof(finding=Finding.REFUSED, why="not in the format")
        task = read(folder)
        return prove(task, support_of(task, system=images.system, engine=name_of_engine), images, runs=runs)

    made: dict[str, Proof] = {}
    data = sorted({folder.parent for folder in folders.values() if folder is not None})
    limits = HarborRules().sandbox
    with open_images(limits, data=data, rootfs=rootfs, engine=engine) as images, ThreadPoolExecutor(jobs) as threads:
        for name, proof in zip(folders, threads.map(one, folders), strict=True):
            made[name] = proof
            if len(made) % 50 == 0:
                terminal.progress(f"{len(made)} of {len(folders)} tasks run")
    return made


def _refused(rows: Mapping[Any, Mapping[str, Any]], supports: Mapping[str, Support]) -> Any:
    """The table of what runs here and why the rest does not."""
    runnable = [support for support in supports.values() if not support.refusals]
    marked = sum(bool(support.mark) for support in runnable)
    listed: list[tuple[Any, ...]] = [("runs here", len(runnable), len(runnable), f"{marked} of them marked")]
    for reason, row in rows.items():
        listed.append(
            (str(reason), row["tasks"], row["only"], ", ".join(f"{detail} ({count})" for detail, count in row["most"])[:100])
        )
    return table(("reason", "tasks", "for this alone", "most often"), listed, title=f"{len(supports)} tasks")


def _findings(proofs: Mapping[str, Proof], supports: Mapping[str, Support]) -> Any:
    """The table of what running them showed."""
    counts = Counter((str(proof.finding), bool(supports[name].mark)) for name, proof in proofs.items())
    findings: Sequence[str] = list(dict.fromkeys(finding for finding, _ in counts))
    rows = [(finding, counts[finding, False], counts[finding, True]) for finding in sorted(findings)]
    return table(("finding", "tasks", "marked tasks"), rows, title="what running them showed")


def _row(support: Support, proof: Proof | None) -> dict[str, Any]:
    """What a report says of a task."""
    row: dict[str, Any] = {
        "refusals": [[str(one.reason), one.detail] for one in support.refusals],
        "notes": list(support.notes),
        "marked": support.mark,
    }
    return row | ({} if proof is None else proof.as_dict())


def check_harbor_options(ref: str, *, files: Sequence[Path], runs: int) -> None:
    """Refuse options that mean nothing for Harbor tasks."""
    if not ref.startswith(SCHEME):
        raise ConfigError(f"--env {ref} has no tasks that can be validated. Name harbor:FOLDER, or leave it out for the claw's.")
    if files:
        raise ConfigError("files and --env both say which tasks. Leave one of them out.")
    if runs < 1:
        raise ConfigError(f"--runs must be >= 1, got {runs}. Set --runs 2.")
