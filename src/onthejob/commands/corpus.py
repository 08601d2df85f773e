"""A corpus of claw tasks as files, and as a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onthejob.commands.terminal import Listing, table
from onthejob.files import published_file

if TYPE_CHECKING:
    from onthejob.envs.claw.gold_proof import Proof
    from onthejob.envs.claw.task_schema import ClawTask
    from onthejob.types import Split


def write_corpus(
    out: Path, parts: Mapping[Split, Sequence[ClawTask]], about: Mapping[str, Any], *, harbor: bool = False
) -> dict[str, Any]:
    """Write every split, as JSON lines or in the Harbor format, and a manifest that begins with `about`; returns the manifest."""
    from onthejob.envs.claw.splits import is_unseen
    from onthejob.envs.claw.task_schema import Difficulty, dump_tasks
    from onthejob.envs.harbor.claw_export import write

    out.mkdir(parents=True, exist_ok=True)
    for split, chosen in parts.items():
        if harbor:
            write({task.id: task for task in chosen}, out / split.value)
        else:
            dump_tasks(chosen, out / f"{split.value}.jsonl")
    counts = {
        split.value: {
            **{level.value: sum(task.difficulty is level for task in chosen) for level in Difficulty},
            "all": len(chosen),
            "of unseen families": sum(map(is_unseen, chosen)),
        }
        for split, chosen in parts.items()
    }
    manifest = {**about, "tasks": counts}
    with published_file(out / "manifest.json") as temporary:
        temporary.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return manifest


def corpus_table(manifest: Mapping[str, Any]) -> Listing:
    """How many tasks of which difficulty each split has."""
    counts = manifest["tasks"]
    columns = ("split", *next(iter(counts.values())))
    return table(columns, [(split, *row.values()) for split, row in counts.items()])


def _levels(tasks: Sequence[ClawTask]) -> list[tuple[str, list[ClawTask]]]:
    from onthejob.envs.claw.task_schema import Difficulty

    levels = [(level.value, [task for task in tasks if task.difficulty is level]) for level in Difficulty]
    return [*((name, chosen) for name, chosen in levels if chosen), ("all", list(tasks))]


def _row(level: str, tasks: Sequence[ClawTask], proofs: dict[str, Proof]) -> tuple[Any, ...]:
    """Shares and means over the tasks of one difficulty; None where nothing was run."""
    run = [proofs[task.id] for task in tasks if task.id in proofs]
    return (
        level,
        len(tasks),
        len({task.family for task in tasks}),
        _mean(tasks, lambda task: task.estimated_steps),
        _mean(run, lambda proof: proof.noop.passed),
        _mean(run, lambda proof: proof.noop.rate),
        _mean(run, lambda proof: proof.gold is not None and proof.gold.passed),
        _mean(tasks, lambda task: len(task.gold)),
    )


def _mean(values: Sequence[Any], of: Callable[[Any], float]) -> float | None:
    return sum(map(of, values)) / len(values) if values else None
