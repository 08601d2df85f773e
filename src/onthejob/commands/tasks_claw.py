"""`onthejob tasks list|show|synth|validate`: the claw's file work, its corpora, and the proof that every task is one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from onthejob.commands.corpus import _levels, _row, corpus_table, write_corpus
from onthejob.commands.named_env import changed
from onthejob.commands.outputs import check_folder
from onthejob.commands.player_specs import ACCOUNT_COLUMNS, HostedOptions, HostedSeats, account_rows
from onthejob.commands.terminal import Output, Terminal, table
from onthejob.errors import ConfigError
from onthejob.files import json_lines

if TYPE_CHECKING:
    from onthejob.envs.claw.gold_proof import GoldProof
    from onthejob.envs.claw.lint import TaskProblem
    from onthejob.envs.claw.task_schema import ClawTask

PROBLEMS_SHOWN = 40
USUAL_COUNT, WRITTEN_COUNT = 1000, 20
"""Default sizes of a corpus: synthesized, and written by a model."""
JOBS = 4
"""Tasks that are run at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFamilies:
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
        # One table per persona: with another column, five would not fit an ordinary terminal.
        by_persona = {
            persona: [(row[0], *row[2:]) for row in rows if row[1] == persona] for persona in dict.fromkeys(r[1] for r in rows)
        }
        shown = [table((columns[0], *columns[2:]), found, title=persona) for persona, found in by_persona.items()]
        terminal.result([dict(zip(columns, row, strict=True)) for row in rows], *shown)
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowTask:
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
        from onthejob.envs.claw.synthesize import synthesize
        from onthejob.envs.claw.task_schema import load_tasks

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
    """Write a corpus as train.jsonl, dev.jsonl and test.jsonl, with a manifest. The same options write the same bytes.

    With --by a hosted model writes the training tasks, of which only those are kept that `tasks validate` would pass; dev and
    test are those of the usual corpus. Ends with 1 when fewer than asked for were accepted.
    """

    out: Path
    """Folder to write; it is created, and must not hold a corpus yet."""
    count: int | None = None
    """Tasks in all, over the three splits; None makes 1,000. With --by: tasks to be written; None asks for 20."""
    seed: int = 0
    """Seed of the corpus; with --by, of the personas, difficulties and skills that are asked for."""
    format: Literal["jsonl", "harbor"] = "jsonl"
    """`harbor` writes one folder per task in the Harbor format instead, below OUT/train, OUT/dev and OUT/test."""
    by: str = ""
    """A hosted model (`openai:URL`, `anthropic:MODEL`, `bedrock:MODEL`) that writes the training tasks."""
    tries: int = 3
    """With --by: candidates per task at most; after each, the model receives what is wrong."""
    unsafe: bool = False
    """With --by: run what the model wrote as plain subprocesses, without any isolation."""
    hosted: HostedOptions = field(default_factory=HostedOptions)
    """With --by: bounds of the hosted model."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Write the files and print how many tasks of which difficulty each has."""
        from onthejob.envs.claw.splits import split_of
        from onthejob.envs.claw.synthesize import corpus_digest, synthesize
        from onthejob.types import Split

        if any((self.out / name).exists() for name in ("manifest.json", "train.jsonl")):
            raise ConfigError(f"--out {self.out} holds a corpus already. Give another folder, or delete that one.")
        check_folder(self.out, "--out")
        if self.by:
            if self.format != "jsonl":
                raise ConfigError("--format harbor has no effect with --by, which writes JSON lines. Leave one of them out.")
            return self._written(terminal)
        needs = [option for option in fields(self) if option.name in ("tries", "unsafe", "hosted") and changed(self, option)]
        if needs:
            raise ConfigError(f"{', '.join('--' + option.name for option in needs)} has no effect without --by. Leave it out.")
        count = USUAL_COUNT if self.count is None else self.count
        tasks = synthesize(count, seed=self.seed)
        parts = {split: [task for task in tasks if split_of(task) is split] for split in Split}
        about = {"count": count, "seed": self.seed, "sha256": corpus_digest(tasks)}
        manifest = write_corpus(self.out, parts, about, harbor=self.format == "harbor")
        terminal.result(manifest, corpus_table(manifest))
        return 0

    def _written(self, terminal: Terminal) -> int:
        """The corpus of a hosted model."""
        from onthejob.commands.author import Author, reply_schema
        from onthejob.envs.claw.gold_proof import in_sandbox, prove
        from onthejob.envs.claw.sandbox import open_host
        from onthejob.envs.claw.splits import split_of
        from onthejob.envs.claw.synthesize import content_key, corpus_digest, synthesize
        from onthejob.envs.claw.task_schema import dump_tasks
        from onthejob.models.catalogue import is_hosted
        from onthejob.types import Split

        count = WRITTEN_COUNT if self.count is None else self.count
        if not is_hosted(self.by):
            raise ConfigError(f"--by names a hosted model, got {self.by!r}. Write openai:URL, anthropic:MODEL or bedrock:MODEL.")
        if not 1 <= count <= 100_000 or self.seed < 0 or self.tries < 1:
            raise ConfigError(f"--by needs count in 1..100000, seed >= 0 and tries >= 1, got {count}, {self.seed}, {self.tries}.")
        with closing(HostedSeats(self.hosted, schema=reply_schema)) as seats, open_host(unsafe=self.unsafe) as host:
            model, run = seats.policy(self.by), in_sandbox(host)
            usual = synthesize(USUAL_COUNT)
            author = Author(
                model,
                lambda task: prove(task, run),
                seed=self.seed,
                tries=self.tries,
                known={content_key(task) for task in usual},
                jobs=JOBS,
            )
            accepted: list[ClawTask] = []
            for first in range(0, count, self.hosted.parallel):
                numbers = range(count)[first : first + self.hosted.parallel]
                failed = author.counts.unanswered.total()
                accepted += author.write(numbers)
                if accepted:
                    # Every reply was paid for: what is proven is kept even when this is interrupted.
                    self.out.mkdir(parents=True, exist_ok=True)
                    dump_tasks(accepted, self.out / "train.jsonl")
                terminal.progress(f"{len(accepted)} of {count} tasks accepted, after {author.counts.asked} candidates")
                if author.counts.unanswered.total() - failed == len(numbers):
                    terminal.warn(f"{self.by} gave no answer to any of the last {len(numbers)} requests; nothing more is asked.")
                    break
            accounts = seats.accounts
        # What a model wrote belongs to no family, and it is unknown which of its tasks are one task in other words. So none of it
        # is held out: it is trained on, and policies are compared on the tasks that all others are compared on.
        held_out = {split: [task for task in usual if split_of(task) is split] for split in (Split.DEV, Split.TEST)}
        digest = corpus_digest([*accepted, *held_out[Split.DEV], *held_out[Split.TEST]])
        about = {"count": count, "seed": self.seed, "by": model.version, "candidates": author.counts.as_dict(), "sha256": digest}
        manifest = write_corpus(self.out, {Split.TRAIN: accepted, **held_out}, about) if accepted else about
        reasons = [(name, "refused", n) for name, n in author.counts.reasons.most_common()]
        reasons += [(name, "not answered", n) for name, n in author.counts.unanswered.most_common()]
        tables = [
            *([corpus_table(manifest)] if accepted else []),
            *([table(("reason", "what", "candidates"), reasons)] if reasons else []),
        ]
        tables.append(table(ACCOUNT_COLUMNS, account_rows(accounts), title="hosted models"))
        said = f"{author.counts.asked} candidates asked for, {author.counts.accepted} accepted, {author.counts.refused} refused"
        terminal.result({**manifest, "hosted": accounts}, *tables, said)
        return 0 if len(accepted) == count else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Validate:
    """Check tasks: linter clean, doing nothing fails, the gold commands pass. Ends with 2 when a task is not right.

    With --env harbor:FOLDER, tasks in the Harbor format: which run here, why the others do not, and for those that run that doing
    nothing scores 0 and their own solution passes.
    """

    files: tyro.conf.Positional[tuple[Path, ...]] = ()
    """JSONL files; without one, the synthesized corpus is checked."""
    env: str = ""
    """`harbor:FOLDER`: check the tasks of this folder instead."""
    runs: int = 2
    """With --env: times that each task is tried, with nothing done and with its solution."""
    report: Path | None = None
    """With --env: write all findings to this file, as JSON."""
    rootfs: Path | None = None
    """With --env: root file system that stands for the tasks' images, as --env.rootfs of other commands."""
    engine: Literal["none", "podman", "docker"] = "none"
    """With --env: container engine that makes the images of tasks which cannot run without, as --env.engine of other commands."""
    count: int = 1000
    """Tasks of the synthesized corpus."""
    seed: int = 0
    """Seed of the synthesized corpus."""
    static: bool = False
    """Only the linter; nothing is run."""
    jobs: int = JOBS
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
        if self.env:
            return self._harbor(terminal)
        if unused := [
            option.name
            for option in fields(self)
            if option.name in ("runs", "report", "rootfs", "engine") and changed(self, option)
        ]:
            raise ConfigError(f"{', '.join(f'--{name}' for name in unused)} has no effect without --env. Leave it out.")
        tasks, problems = self.read()
        proofs: dict[str, GoldProof] = {} if self.static else self.prove(tasks, terminal)
        for name, proof in proofs.items():
            problems.setdefault(name, []).extend(map(str, proof.problems))
        problems = {name: listed for name, listed in problems.items() if listed}
        rows = [_row(level, chosen, proofs) for level, chosen in _levels(tasks)]
        columns = ("difficulty", "tasks", "families", "steps", "no-op passed", "no-op rate", "gold passed", "gold turns")
        lines = distinct_lines(problems)
        left = len(lines) - PROBLEMS_SHOWN
        shown = [*lines[:PROBLEMS_SHOWN], *([f"... and {left} more"] if left > 0 else [])]
        verdict = f"{len(problems)} tasks are not right" if problems else f"{len(tasks)} tasks are right"
        data = {"tasks": len(tasks), "problems": problems, "table": [dict(zip(columns, row, strict=True)) for row in rows]}
        terminal.result(data, table(columns, rows), "\n".join(["", *shown, verdict]))
        return 2 if problems else 0

    def _harbor(self, terminal: Terminal) -> int:
        """Check tasks in the Harbor format."""
        from onthejob.commands.tasks_harbor import check_harbor_options, validate_harbor

        if unused := [
            option.name for option in fields(self) if option.name in ("count", "seed", "unsafe") and changed(self, option)
        ]:
            raise ConfigError(f"{', '.join(f'--{name}' for name in unused)} has no effect with --env. Leave it out.")
        check_harbor_options(self.env, files=self.files, runs=self.runs)
        return validate_harbor(
            terminal,
            self.env,
            rootfs=self.rootfs,
            engine=self.engine,
            static=self.static,
            jobs=self.jobs,
            runs=self.runs,
            report=self.report,
        )

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

    def prove(self, tasks: Sequence[ClawTask], terminal: Terminal) -> dict[str, GoldProof]:
        """Run every task with nothing done and with its gold commands."""
        from onthejob.envs.claw.gold_proof import in_sandbox, prove
        from onthejob.envs.claw.sandbox import open_host

        data = [file.resolve().parent for file in self.files]
        with open_host(unsafe=self.unsafe, data=data) as host, ThreadPoolExecutor(self.jobs) as threads:
            run = in_sandbox(host)
            made = threads.map(lambda task: prove(task, run), tasks)
            proofs: dict[str, GoldProof] = {}
            for task, proof in zip(tasks, made, strict=True):
                proofs[task.id] = proof
                if len(proofs) % 100 == 0:
                    terminal.progress(f"{len(proofs)} of {len(tasks)} tasks run")
            return proofs


def candidates(path: Path) -> Iterable[tuple[str, ClawTask | tuple[TaskProblem, ...]]]:
    """For each line of a JSONL file its place and the task in it, or what is wrong with it."""
    from onthejob.envs.claw.lint import TaskFault, TaskProblem, validate_candidate

    try:
        lines = json_lines(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}. Give a UTF-8 JSONL file with one task per line.") from error
    for number, line in lines:
        try:
            record = json.loads(line)
            found = validate_candidate(record) if isinstance(record, dict) else f"must be an object, got {type(record).__name__}"
        except (ValueError, RecursionError) as error:
            found = f"is not JSON: {error}"
        yield f"{path}:{number}", (TaskProblem(fault=TaskFault.FORM, message=found),) if isinstance(found, str) else found


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


def distinct_lines(problems: Mapping[str, Sequence[str]]) -> list[str]:
    """One line per distinct problem: the first task that has it, and how many others do."""
    from onthejob.envs.claw.form import kind_of_problem

    tasks: dict[str, list[str]] = {}
    shown: dict[str, str] = {}
    for name, sentences in problems.items():
        for sentence in sentences:
            kind = kind_of_problem(sentence)
            tasks.setdefault(kind, []).append(name)
            shown.setdefault(kind, sentence)
    others = {kind: len(set(names)) - 1 for kind, names in tasks.items()}
    return [
        f"{names[0]}{f' and {others[kind]} other tasks' if others[kind] else ''}: {shown[kind]}" for kind, names in tasks.items()
    ]
