"""`onthejob sft`: supervised warm start of the roles' adapters from demonstrations."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from queue import Empty, Queue
from typing import Annotated, Literal

import tyro

from onthejob.commands.seats import ModelOptions, adapters_folder, load_model
from onthejob.commands.terminal import Output, Terminal, table
from onthejob.errors import ConfigError
from onthejob.learn.learner import LearnerConfig
from onthejob.learn.lora import LoraSpec
from onthejob.learn.sft import Example, SftConfig, SftMetrics
from onthejob.types import Message

Mark = Literal["expert", "random", "negative"]
Row = tuple[str, int, int, float, float, str]
"""Adapter, demonstrations, steps, first and last loss, path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sft:
    """Train one adapter per role to imitate demonstrations, and write them as version 0 into a folder."""

    data: tyro.conf.Positional[Path] = Path("demonstrations")
    """Folder with one JSONL file per role, as `onthejob collect` writes it."""
    out: Path = Path("adapters/sft")
    """Where the adapters go; `train --init` and every `--team` read them from there."""
    roles: tuple[str, ...] = ()
    """Which roles; none means every role that has a file."""
    limit: int = 0
    """At most this many decisions per role, taken evenly from the file; 0 takes all."""
    processes: int = 1
    """Roles trained side by side, each in a process with its share of the cores and a base model of its own. On a CPU two
    processes with one thread each do more than one with two."""
    init: str = ""
    """Start from these adapters (a run or a folder) instead of from the bare model."""
    max_tokens: int = 2048
    """Tokens of one packed row; bounds memory."""
    sft: Annotated[SftConfig, tyro.conf.arg(name="")] = field(default_factory=SftConfig)
    """Duration and rate."""
    lora: LoraSpec = field(default_factory=LoraSpec)
    """Shape of the adapters."""
    model: ModelOptions = field(default_factory=ModelOptions)
    """The base model."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)

    def run(self, terminal: Terminal) -> int:
        """Train role after role; an adapter is written when its role is done."""
        rows = self.imitate(terminal)
        columns = ("adapter", "demonstrations", "steps", "first loss", "last loss", "path")
        terminal.result([dict(zip(columns, row, strict=True)) for row in rows], table(columns, rows))
        return 0

    def imitate(self, terminal: Terminal) -> list[Row]:
        """`run` without its table.

        Raises:
            ConfigError: there are no demonstrations, or options that cannot work.
        """
        roles = list(demonstration_files(self.data, self.roles))
        if not 1 <= self.processes <= len(roles):
            raise ConfigError(f"processes must be in 1..{len(roles)} (one per role at most), got {self.processes}.")
        return self._imitate(roles, terminal.progress) if self.processes == 1 else self._share(roles, terminal)

    def _imitate(self, roles: Sequence[str], progress: Callable[[str], None]) -> list[Row]:
        """Train `roles` in this process."""
        from onthejob.learn.lora import save_adapter
        from onthejob.learn.sft import sft
        from onthejob.stack import attach_learner, find_adapters

        files = demonstration_files(self.data, roles)
        init = find_adapters(adapters_folder(self.init)) if self.init else None
        stack, learner = attach_learner(
            load_model(self.model, progress),
            list(files),
            lora=self.lora,
            config=LearnerConfig(max_tokens=self.max_tokens),
            seed=self.sft.seed,
            init=init,
        )
        rows = []
        for role, file in files.items():
            examples = [
                Example(
                    prompt_ids=stack.chat.encode(messages), completion_ids=stack.reply_ids(reply), marked=marked, weight=weight
                )
                for messages, reply, marked, weight in read_demonstrations(file, self.limit)
            ]

            def on_progress(step: SftMetrics, role: str = role) -> None:
                if step.step % 10 == 1 or step.step == step.steps:
                    pace = f"{step.tokens_per_s:,.0f} tokens/s, {step.eta_s:,.0f} s left"
                    progress(f"{role} step {step.step}/{step.steps} loss {step.loss:.4f} ({pace})")

            history = sft(learner, role, examples, self.sft, on_progress=on_progress)
            adapter = save_adapter(
                learner.model, role, self.out, version=0, parent=None, base_digest=stack.digest, dtype="float32"
            )
            rows.append((adapter.name, len(examples), len(history), history[0].loss, history[-1].loss, str(adapter.path)))
        return rows

    def _share(self, roles: Sequence[str], terminal: Terminal) -> list[Row]:
        """Train every `processes`-th role in a process of its own, each with its share of the cores."""
        # Not fork: this process may have threads by now.
        context = get_context("spawn")
        threads = max(1, (os.cpu_count() or 1) // self.processes)
        with context.Manager() as manager, ProcessPoolExecutor(self.processes, mp_context=context) as pool:
            said = manager.Queue()
            parts = [
                pool.submit(_imitate_apart, self, roles[index :: self.processes], threads, said)
                for index in range(self.processes)
            ]
            while not all(part.done() for part in parts) or not said.empty():
                with suppress(Empty):
                    terminal.progress(said.get(timeout=0.2))
            return sorted(row for part in parts for row in part.result())


def _imitate_apart(command: Sft, roles: Sequence[str], threads: int, said: Queue[str]) -> list[Row]:
    """What a process of `Sft._share` does."""
    import torch

    torch.set_num_threads(threads)
    return command._imitate(roles, said.put)


def demonstration_files(folder: Path, roles: Sequence[str]) -> dict[str, Path]:
    """Role -> its file.

    Raises:
        ConfigError: the folder has no file, or not that of a named role.
    """
    found = {path.stem: path for path in sorted(folder.glob("[a-z]*.jsonl"))}
    if not found:
        raise ConfigError(f"{folder} holds no demonstrations (ROLE.jsonl). `onthejob collect --out {folder}` makes them.")
    unknown = [role for role in roles if role not in found]
    if unknown:
        raise ConfigError(f"{folder} has no demonstrations of {', '.join(unknown)}; it has {', '.join(found)}.")
    return {role: path for role, path in found.items() if not roles or role in roles}


def read_demonstrations(file: Path, limit: int) -> list[tuple[tuple[Message, ...], str, Mark, float]]:
    """(messages, reply, mark, weight) of every line, or of the lines of `limit` decisions spread over the file.

    Raises:
        ConfigError: a line is not a demonstration.
    """
    decisions: dict[object, list[tuple[tuple[Message, ...], str, Mark, float]]] = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            messages = tuple(Message(str(message["role"]), str(message["content"])) for message in row["messages"])
            marked: Mark = row.get("marked", "expert")
            weight = float(row.get("weight", 1.0))
            if (
                not messages
                or marked not in ("expert", "random", "negative")
                or not isinstance(row["reply"], str)
                or not weight > 0
            ):
                raise ValueError("empty messages, an unknown mark, a weight that is not positive, or a reply that is no text")
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"line {number} of {file} is not a demonstration: {error!r}. Collect the file again.") from error
        decision = (row["task"], row["turn"]) if "task" in row and "turn" in row else number
        decisions.setdefault(decision, []).append((messages, row["reply"], marked, weight))
    chosen = list(decisions.values())
    if 0 < limit < len(chosen):
        chosen = [chosen[index * len(chosen) // limit] for index in range(limit)]
    return [row for rows in chosen for row in rows]
