"""`onthejob tasks list|show|synth|validate`: the claw's file work, its corpora, and the proof that every task is one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from onthejob.commands.terminal import Output, Terminal, table
from onthejob.errors import ConfigError

if TYPE_CHECKING:
    from onthejob.envs.claw.lint import Problem
    from onthejob.envs.claw.proof import Proof
    from onthejob.envs.claw.schema import ClawTask

PROBLEMS_SHOWN = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class List:
    """List the task families: persona, difficulty, and whether training may see them."""

    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Print one row per family."""
        from onthejob.envs.claw.families import FAMILIES
        from onthejob.envs.claw.splits import UNSEEN_DEV, UNSEEN_TEST

        rows = []
        for family in FAMILIES.values():
            splits = "test" if family.name in UNSEEN_TEST else "dev" if family.name in UNSEEN_DEV else "train dev test"
            rows.append((family.name, family.persona, family.difficulty.value, splits, family.summary))
        columns = ("family", "persona", "difficulty", "splits", "what")
        terminal.result([dict(zip(columns, row, strict=True)) for row in rows], table(columns, rows))
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """Show one task as the agent, the grader and the gold commands see it."""

    task: tyro.conf.Positional[str]
    """A task id such as synth-backend-developer-00, or the name of a family (its first task)."""
    file: Path | None = None
    """JSONL file to look it up in; without one, the synthesized corpus of 1,000 tasks."""
    seed: int = 0
    """Seed of the synthesized corpus."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Print the card."""
        from onthejob.envs.claw.schema import load_tasks
        from onthejob.envs.claw.synthesize import synthesize

        tasks = load_tasks(self.file) if self.file else synthesize(1000, seed=self.seed)
        found = next((task for task in tasks if self.task in (task.id, task.family)), None)
        if found is None:
            known = f"{tasks[0].id} to {tasks[-1].id}" if tasks else "none: the file is empty"
            raise ConfigError(
                f"there is no task or family {self.task!r}. Ids are {known}; `onthejob tasks list` shows the families."
            )
        terminal.result(found.to_record(), card(found))
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Synth:
    """Write a corpus as train.jsonl, dev.jsonl and test.jsonl, with a manifest. The same options write the same bytes."""

    out: Path
    """Folder to write; it is created, and must not hold a corpus yet."""
    count: int = 1000
    """Tasks in all, over the three splits."""
    seed: int = 0
    """Seed of the corpus."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Write the files and print how many tasks of which difficulty each has."""
        from onthejob.envs.claw.schema import Difficulty, dump_tasks
        from onthejob.envs.claw.splits import is_unseen, split_of
        from onthejob.envs.claw.synthesize import corpus_digest, synthesize
        from onthejob.types import Split

        if (self.out / "manifest.json").exists():
            raise ConfigError(f"--out {self.out} holds a corpus already. Give another folder, or delete that one.")
        tasks = synthesize(self.count, seed=self.seed)
        parts: dict[Split, list[ClawTask]] = {split: [task for task in tasks if split_of(task) is split] for split in Split}
        self.out.mkdir(parents=True, exist_ok=True)
        for split, chosen in parts.items():
            dump_tasks(chosen, self.out / f"{split.value}.jsonl")
        counts = {
            split.value: {
                **{level.value: sum(task.difficulty is level for task in chosen) for level in Difficulty},
                "all": len(chosen),
                "of unseen families": sum(map(is_unseen, chosen)),
            }
            for split, chosen in parts.items()
        }
        manifest = {"count": self.count, "seed": self.seed, "sha256": corpus_digest(tasks), "tasks": counts}
        (self.out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        columns = ("split", *next(iter(counts.values())))
        terminal.result(manifest, table(columns, [(split, *row.values()) for split, row in counts.items()]))
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Validate:
    """Check tasks: linter clean, doing nothing fails, the gold commands pass. Ends with 2 when a task is not right."""

    files: tyro.conf.Positional[tuple[Path, ...]] = ()
    """JSONL files; without one, the synthesized corpus is checked."""
    count: int = 1000
    """Tasks of the synthesized corpus."""
    seed: int = 0
    """Seed of the synthesized corpus."""
    static: bool = False
    """Only the linter; nothing is run."""
    jobs: int = 4
    """Tasks that are run at the same time."""
    unsafe: bool = False
    """Run gold commands as plain subprocesses, without any isolation."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Print one row per difficulty, then the problems."""
        if self.jobs < 1:
            raise ConfigError(f"--jobs must be >= 1, got {self.jobs}. Try 4.")
        if self.static and self.unsafe:
            raise ConfigError("--unsafe has no effect with --static, which runs nothing. Drop one of them.")
        tasks, problems = self.read()
        proofs: dict[str, Proof] = {} if self.static else self.prove(tasks, terminal)
        for name, proof in proofs.items():
            problems.setdefault(name, []).extend(map(str, proof.problems))
        problems = {name: listed for name, listed in problems.items() if listed}
        rows = [_row(level, chosen, proofs) for level, chosen in _levels(tasks)]
        columns = ("difficulty", "tasks", "families", "steps", "no-op passed", "no-op rate", "gold passed", "gold turns")
        lines = [f"{name}: {sentence}" for name, listed in problems.items() for sentence in listed]
        left = len(lines) - PROBLEMS_SHOWN
        shown = [*lines[:PROBLEMS_SHOWN], *([f"... and {left} more"] if left > 0 else [])]
        verdict = f"{len(problems)} tasks are not right" if problems else f"{len(tasks)} tasks are right"
        data = {"tasks": len(tasks), "problems": problems, "table": [dict(zip(columns, row, strict=True)) for row in rows]}
        terminal.result(data, table(columns, rows), "\n".join(["", *shown, verdict]))
        return 2 if problems else 0

    def read(self) -> tuple[list[ClawTask], dict[str, list[str]]]:
        """The tasks that have the form of one, and what the linter says: task id or place -> problems."""
        from onthejob.envs.claw.lint import lint
        from onthejob.envs.claw.synthesize import synthesize

        if not self.files:
            tasks = synthesize(self.count, seed=self.seed)
            return tasks, {task.id: [str(problem) for problem in lint(task)] for task in tasks}
        tasks, problems = [], {}
        for path in self.files:
            for where, candidate in candidates(path):
                if isinstance(candidate, tuple):
                    problems[where] = [str(problem) for problem in candidate]
                else:
                    tasks.append(candidate)
        repeated = {name: n for name, n in Counter(task.id for task in tasks).items() if n > 1}
        problems.update({name: [f"form: the task_id occurs {n} times. Ids must be unique."] for name, n in repeated.items()})
        if not tasks and not problems:
            raise ConfigError(f"{', '.join(map(str, self.files))} holds no task. Give a JSONL file with one task per line.")
        return tasks, problems

    def prove(self, tasks: Sequence[ClawTask], terminal: Terminal) -> dict[str, Proof]:
        """Run every task with nothing done and with its gold commands."""
        from onthejob.envs.claw.proof import in_sandbox, prove
        from onthejob.envs.claw.sandbox import open_host

        with open_host(unsafe=self.unsafe) as host, ThreadPoolExecutor(self.jobs) as threads:
            run = in_sandbox(host)
            made = threads.map(lambda task: prove(task, run), tasks)
            proofs: dict[str, Proof] = {}
            for task, proof in zip(tasks, made, strict=True):
                proofs[task.id] = proof
                if len(proofs) % 100 == 0:
                    terminal.progress(f"{len(proofs)} of {len(tasks)} tasks run")
            return proofs


def candidates(path: Path) -> Iterable[tuple[str, ClawTask | tuple[Problem, ...]]]:
    """For each line of a JSONL file its place and the task in it, or what is wrong with it.

    Raises:
        ConfigError: The file cannot be read.
    """
    from onthejob.envs.claw.lint import Fault, Problem, validate_candidate

    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}. Give a UTF-8 JSONL file with one task per line.") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            found = validate_candidate(record) if isinstance(record, dict) else f"must be an object, got {type(record).__name__}"
        except (ValueError, RecursionError) as error:
            found = f"is not JSON: {error}"
        yield f"{path}:{number}", (Problem(fault=Fault.FORM, message=found),) if isinstance(found, str) else found


def card(task: ClawTask) -> str:
    """A task for people to read."""
    files = [f"  {file.path} ({file.kind}, {len(file.data)} bytes)" for file in task.files]
    checks = []
    for assertion in task.assertions:
        what = assertion.regex or " | ".join(assertion.must_contain)
        checks.append(f"  {assertion.kind} {assertion.path}{f'  {what}' if what else ''}{'  (guard)' if assertion.guard else ''}")
    gold = [f"  {number}. {line}" for number, block in enumerate(task.gold, start=1) for line in block.splitlines()]
    head = [
        f"{task.id}  family {task.family}  {task.difficulty}  {task.estimated_steps} steps",
        f"{task.persona.role}: {task.persona.context}",
        f"skills: {', '.join(task.skills)}",
    ]
    return "\n".join([*head, "", task.intent, "", "files", *files, "", "assertions", *checks, "", "gold, by turn", *gold])


def _levels(tasks: Sequence[ClawTask]) -> list[tuple[str, list[ClawTask]]]:
    from onthejob.envs.claw.schema import Difficulty

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
