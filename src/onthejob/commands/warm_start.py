"""`onthejob sft`: supervised warm start of the roles' adapters from demonstrations: decisions, or whole conversations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from onthejob.commands.cores import usable_cores
from onthejob.commands.outputs import check_folder
from onthejob.commands.player_specs import ModelOptions, adapters_for, load_model, lora_of
from onthejob.commands.sft_data import (
    Demonstration,
    Mark,
    bundled_demonstrations,
    collected_demonstrations,
    demonstration_files,
    encoded,
    read_demonstrations,
)
from onthejob.commands.terminal import Output, Terminal, table
from onthejob.errors import ConfigError
from onthejob.learn.learner import LearnerConfig
from onthejob.learn.lora import LoraSpec
from onthejob.learn.sft import Example, SftConfig, SftMetrics
from onthejob.learn.sharing import PER_ROLE, adapter_sets, check_equal
from onthejob.processes import message_queue, worker_pool

if TYPE_CHECKING:
    from onthejob.models.chat import ChatEncoder

DATA = Path("demonstrations")
Row = tuple[str, int, int, float, float, str]
"""Adapter, demonstrations, steps, first and last loss, path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sft:
    """Train one adapter per role to imitate demonstrations, and write them as version 0 into a folder.

    A demonstration is one decision (a prompt and its reply), or a whole conversation, of which every reply is imitated. With
    --from-bundles demonstrations are the better ones of the trajectories that a run sampled, with --collected those of the turns
    that a running office sampled, token for token.
    """

    data: tyro.conf.Positional[Path] = DATA
    """Folder with one JSONL file per role, as `onthejob collect` writes it."""
    from_bundles: Path | None = None
    """Imitate trajectories of this file instead, which `onthejob runs export RUN --bundles` wrote; of the same tokenizer."""
    min_reward: float | None = None
    """With --from-bundles: imitate trajectories of at least this return; None imitates those above the mean of their group."""
    collected: str = ""
    """Imitate the better-paid turns of this run of collected turns instead, which `play office --mode training` or
    `view --collect` wrote; of the same tokenizer."""
    keep_share: float = 0.25
    """With --collected: share of each role's turns that is imitated, in (0, 1]: those that were paid most above the mean of the
    role's turns of the same scenario within three days. Turns below that mean never are."""
    return_turns: int = 14
    """With --collected: turns of the environment over which the role's own rewards are added up, from its turn on; the office
    has 14 a day."""
    out: Path = Path("adapters/sft")
    """Folder of the adapters; `train --init` and every `--team` read them from there."""
    roles: tuple[str, ...] = ()
    """Roles to train; none means every role that has a file."""
    limit: int = 0
    """At most this many decisions (or conversations) per role, taken evenly from the file; 0 takes all."""
    marks: tuple[Mark, ...] = ("expert", "random", "near-miss")
    """Only replies with these marks. With `expert` alone the model imitates what the player would do, in states to which its
    random actions led: after few demonstrations its own doubt is variety enough."""
    processes: int = 1
    """Roles trained side by side, each in a process with its share of the cores and a base model of its own. On a CPU two
    processes with one thread each do more than one with two."""
    adapters: str = PER_ROLE
    """Roles that share an adapter, as for `train`: it imitates the demonstrations of all of them."""
    init: str = ""
    """Start from these adapters (a run or a folder) instead of from the bare model, in their --lora shape."""
    max_tokens: int = 2048
    """Tokens of one packed row; bounds memory."""
    sft: Annotated[SftConfig, tyro.conf.arg(name="")] = field(default_factory=SftConfig)
    """Duration and rate."""
    adapter_dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of the weights on disk; bfloat16 halves the file."""
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
        """`run` without its table."""
        self._check()
        # Of all roles, and before the model is looked at: a broken line should cost nothing.
        demonstrations = self._demonstrations()
        roles = list(demonstrations)
        if taken := [role for role in roles if (self.out / f"{role}@0000").exists()]:
            raise ConfigError(
                f"{self.out} holds adapters of {', '.join(taken)} already, which are never overwritten. Name another --out, or "
                "the roles that it lacks with --roles."
            )
        check_folder(self.out, "--out")
        sets = adapter_sets(self.adapters, roles)
        if not 1 <= self.processes <= len(sets):
            raise ConfigError(f"processes must be in 1..{len(sets)} (one per adapter at most), got {self.processes}.")
        if self.init:
            check_equal(self.adapters, roles, adapters_for(self.init, roles), self.init)
        from onthejob.stack import plan_lora

        # Of all roles, also when each process will know some of them only.
        shape = lora_of(self.init, roles, self.lora) if self.init else self.lora
        command = replace(self, lora=plan_lora(self.model.name, shape, progress=terminal.progress))
        if self.processes == 1:
            return command._imitate(demonstrations, terminal.progress)
        # Measured once, and not in every process while the others run.
        return replace(command, model=self.model.settled())._share(demonstrations, terminal)

    def _check(self) -> None:
        if not self.collected:
            usual = Sft()
            if (self.keep_share, self.return_turns) != (usual.keep_share, usual.return_turns):
                raise ConfigError("--keep-share and --return-turns have no effect without --collected. Leave them out.")
        else:
            if self.from_bundles is not None or self.data != DATA:
                other = self.data if self.from_bundles is None else f"--from-bundles {self.from_bundles}"
                raise ConfigError(f"{other} and --collected {self.collected} both say what is imitated. Leave one out.")
            if self.marks != Sft().marks:
                raise ConfigError("--marks has no effect with --collected, whose turns have none. Use --keep-share.")
            if not 0.0 < self.keep_share <= 1.0 or self.return_turns < 1:
                got = f"{self.keep_share} and {self.return_turns}"
                raise ConfigError(f"keep_share must be in (0, 1] and return_turns >= 1, got {got}. Set --keep-share 0.25.")
        if self.from_bundles is None:
            if self.min_reward is not None:
                raise ConfigError("--min-reward has no effect without --from-bundles. Leave it out, or name a file of bundles.")
            return
        if self.data != DATA:
            raise ConfigError(f"{self.data} and --from-bundles {self.from_bundles} both say what is imitated. Leave one out.")
        if self.marks != Sft().marks:
            raise ConfigError("--marks has no effect with --from-bundles, whose trajectories have none. Use --min-reward.")

    def _demonstrations(self) -> dict[str, list[Demonstration]]:
        """Role -> what is imitated."""
        if self.from_bundles is not None:
            return bundled_demonstrations(self.from_bundles, self.roles, min_reward=self.min_reward, limit=self.limit)
        if self.collected:
            return collected_demonstrations(
                self.collected, self.roles, keep_share=self.keep_share, window=self.return_turns, limit=self.limit
            )
        files = demonstration_files(self.data, self.roles)
        return {role: read_demonstrations(file, self.limit, self.marks) for role, file in files.items()}

    def _imitate(self, demonstrations: Mapping[str, Sequence[Demonstration]], progress: Callable[[str], None]) -> list[Row]:
        """Train the roles of `demonstrations` in this process."""
        from onthejob.learn.adapter_files import save_adapter
        from onthejob.learn.sft import sft
        from onthejob.stack import attach_learner

        roles = list(demonstrations)
        init = adapters_for(self.init, roles) if self.init else None
        examples: dict[str, list[Example]] = {}

        def encode(chat: ChatEncoder) -> None:
            for role, found in demonstrations.items():
                source = self.from_bundles or (Path(self.collected) if self.collected else self.data / f"{role}.jsonl")
                examples[role] = encoded(chat, source, found)

        stack, learner = attach_learner(
            load_model(self.model, progress, encode, sampled=False),
            roles,
            lora=self.lora,
            config=LearnerConfig(max_tokens=self.max_tokens),
            seed=self.sft.seed,
            init=init,
        )
        rows = []
        for lead, members in adapter_sets(self.adapters, roles).items():

            def on_progress(step: SftMetrics, who: str = "+".join(members)) -> None:
                if step.step % 10 == 1 or step.step == step.steps:
                    pace = f"{step.tokens_per_s:,.0f} tokens/s, {step.eta_s:,.0f} s left"
                    progress(f"{who} step {step.step}/{step.steps} loss {step.loss:.4f} ({pace})")

            shown = [example for role in members for example in examples[role]]
            history = sft(learner, lead, shown, self.sft, on_progress=on_progress)
            for role in members:
                if role != lead:
                    learner.import_state(role, learner.export_state(lead))
                adapter = save_adapter(
                    learner.model, role, self.out, version=0, parent=None, base_digest=stack.digest, dtype=self.adapter_dtype
                )
                rows.append((adapter.name, len(shown), len(history), history[0].loss, history[-1].loss, str(adapter.path)))
        return rows

    def _share(self, demonstrations: Mapping[str, Sequence[Demonstration]], terminal: Terminal) -> list[Row]:
        """Train every `processes`-th adapter in a process of its own, each with its share of the cores."""
        sets = list(adapter_sets(self.adapters, list(demonstrations)).values())
        threads = max(1, usable_cores() // self.processes)
        with message_queue() as said, worker_pool(self.processes) as pool:
            parts = [
                pool.submit(_imitate_apart, *self._part(sets[index :: self.processes], demonstrations), threads, said)
                for index in range(self.processes)
            ]
            while not all(part.done() for part in parts) or not said.empty():
                with suppress(Empty):
                    terminal.progress(said.get(timeout=0.2))
            return sorted(row for part in parts for row in part.result())

    def _part(
        self, sets: Sequence[Sequence[str]], demonstrations: Mapping[str, Sequence[Demonstration]]
    ) -> tuple[Sft, dict[str, Sequence[Demonstration]]]:
        """This command, and the demonstrations, for the roles of some sets alone."""
        shared = ["+".join(members) for members in sets if len(members) > 1]
        own = {role: demonstrations[role] for members in sets for role in members}
        return replace(self, adapters=",".join(shared) or PER_ROLE), own


def _imitate_apart(
    command: Sft, demonstrations: Mapping[str, Sequence[Demonstration]], threads: int, said: Queue[str]
) -> list[Row]:
    """What a process of `Sft._share` does."""
    import torch

    torch.set_num_threads(threads)
    return command._imitate(demonstrations, said.put)
