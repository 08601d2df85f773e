"""`onthejob sft`: supervised warm start of the roles' adapters from demonstrations: decisions, or whole conversations."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import tyro

from onthejob.commands.cores import usable_cores
from onthejob.commands.seats import ModelOptions, adapters_for, load_model, lora_of
from onthejob.commands.terminal import Output, Terminal, table
from onthejob.errors import ConfigError
from onthejob.files import json_lines
from onthejob.learn.learner import LearnerConfig
from onthejob.learn.lora import LoraSpec
from onthejob.learn.sft import Example, SftConfig, SftMetrics
from onthejob.rollout.processes import message_queue, worker_pool
from onthejob.types import Message

if TYPE_CHECKING:
    from onthejob.stack import Stack

Mark = Literal["expert", "random", "near-miss", "negative"]
MARKS: tuple[Mark, ...] = ("expert", "random", "near-miss", "negative")
Row = tuple[str, int, int, float, float, str]
"""Adapter, demonstrations, steps, first and last loss, path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sft:
    """Train one adapter per role to imitate demonstrations, and write them as version 0 into a folder.

    A demonstration is one decision (a prompt and its reply), or a whole conversation, of which every reply is imitated.
    """

    data: tyro.conf.Positional[Path] = Path("demonstrations")
    """Folder with one JSONL file per role, as `onthejob collect` writes it."""
    out: Path = Path("adapters/sft")
    """Where the adapters go; `train --init` and every `--team` read them from there."""
    roles: tuple[str, ...] = ()
    """Which roles; none means every role that has a file."""
    limit: int = 0
    """At most this many decisions (or conversations) per role, taken evenly from the file; 0 takes all."""
    marks: tuple[Mark, ...] = ("expert", "random", "near-miss")
    """Only replies with these marks. With `expert` alone the model imitates what the player would do, in states to which its
    random actions led: after few demonstrations its own doubt is variety enough."""
    processes: int = 1
    """Roles trained side by side, each in a process with its share of the cores and a base model of its own. On a CPU two
    processes with one thread each do more than one with two."""
    init: str = ""
    """Start from these adapters (a run or a folder) instead of from the bare model, in their --lora shape."""
    max_tokens: int = 2048
    """Tokens of one packed row; bounds memory."""
    sft: Annotated[SftConfig, tyro.conf.arg(name="")] = field(default_factory=SftConfig)
    """Duration and rate."""
    lora: LoraSpec = field(default_factory=LoraSpec)
    """Shape of the adapters; with --init theirs, in which options left at their defaults follow."""
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
            ConfigError: there are no demonstrations, adapters of these roles are in --out already, or options that cannot work.
        """
        roles = list(demonstration_files(self.data, self.roles))
        if taken := [role for role in roles if (self.out / f"{role}@0000").exists()]:
            raise ConfigError(
                f"{self.out} holds adapters of {', '.join(taken)} already, which are never overwritten. Name another --out, or "
                "the roles that it lacks with --roles."
            )
        if not 1 <= self.processes <= len(roles):
            raise ConfigError(f"processes must be in 1..{len(roles)} (one per role at most), got {self.processes}.")
        # Of all roles, also when each process will know some of them only.
        command = replace(self, lora=lora_of(self.init, roles, self.lora)) if self.init else self
        if self.processes == 1:
            return command._imitate(roles, terminal.progress)
        # Measured once, and not in every process beside the others.
        return replace(command, model=self.model.settled())._share(roles, terminal)

    def _imitate(self, roles: Sequence[str], progress: Callable[[str], None]) -> list[Row]:
        """Train `roles` in this process."""
        from onthejob.learn.adapter_files import save_adapter
        from onthejob.learn.sft import sft
        from onthejob.stack import attach_learner

        files = demonstration_files(self.data, roles)
        init = adapters_for(self.init, files) if self.init else None
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
                example for shown in read_demonstrations(file, self.limit, self.marks) for example in examples_of(stack, shown)
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
        threads = max(1, usable_cores() // self.processes)
        with message_queue() as said, worker_pool(self.processes) as pool:
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


class Demonstration(NamedTuple):
    """One line of a demonstrations file."""

    messages: tuple[Message, ...]
    """What was seen; of a conversation, what was said too."""
    reply: str | None
    """Of a decision; None for a conversation, whose replies are the assistant's messages."""
    marked: Mark
    weight: float
    name: str
    """Of the conversation, unique in the file; empty for a decision."""


def examples_of(stack: Stack, shown: Demonstration) -> list[Example]:
    """What is imitated of one demonstration, as token ids."""
    if shown.reply is not None:
        prompt, reply = stack.chat.encode(shown.messages), stack.chat.reply_ids(shown.reply)
        return [Example(prompt_ids=prompt, completion_ids=reply, marked=shown.marked, weight=shown.weight)]
    return [
        Example(prompt_ids=prompt, completion_ids=reply, marked=shown.marked, weight=shown.weight, conversation=shown.name)
        for prompt, reply in stack.replies(shown.messages)
    ]


def read_demonstrations(file: Path, limit: int, marks: Sequence[Mark] = MARKS) -> list[Demonstration]:
    """Every line with one of `marks`, or such lines of `limit` decisions (or conversations) spread over the file.

    Raises:
        ConfigError: a line is not a demonstration, or none has such a mark.
    """
    decisions: dict[object, list[Demonstration]] = {}
    for number, line in json_lines(file):
        try:
            row = json.loads(line)
            messages = tuple(Message(str(message["role"]), str(message["content"])) for message in row["messages"])
            marked: Mark = row.get("marked", "expert")
            weight = float(row.get("weight", 1.0))
            reply = row.get("reply")
            if not messages or marked not in MARKS or not weight > 0:
                raise ValueError("empty messages, an unknown mark, or a weight that is not positive")
            if not (isinstance(reply, str) or (reply is None and messages[-1].role == "assistant")):
                raise ValueError("neither a reply nor a conversation that ends with one")
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"line {number} of {file} is not a demonstration: {error!r}. Collect the file again.") from error
        name = f"line {number}" if reply is None else ""
        decision = (row["task"], row["turn"]) if "task" in row and "turn" in row else number
        if marked in marks:
            decisions.setdefault(decision, []).append(Demonstration(messages, reply, marked, weight, name))
    if not decisions:
        raise ConfigError(f"{file} has no demonstration marked {', '.join(marks)}. Collect more, or name other marks.")
    chosen = list(decisions.values())
    if 0 < limit < len(chosen):
        chosen = [chosen[index * len(chosen) // limit] for index in range(limit)]
    return [row for rows in chosen for row in rows]
