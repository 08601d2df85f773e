"""How surely does an adapter say what demonstrations say? A cheap alarm before anything is played.

For every conversation (or decision): minus the log-probability of its replies; their probability, which is how often sampling at
temperature 1 says the same word for word; and whether each of their tokens has more than half, which is when greedy decoding
does. On demonstrations that were not trained on, these are near what is passed where there is one way to do a task, and they fall
before play does when updates break what was imitated. They say nothing about what is done well in other words.

    onthejob collect --env claw --env.seed 1 --gold.count 60 --gold.near-misses 0 --out others
    python benchmarks/likelihood.py others adapters/claw RUN-OR-FOLDER [--role agent] [--limit 60]

With `--by family` also per family, the least sure first: those of which more should be demonstrated (`collect --gold.focus`).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath

import numpy as np
import torch

from onthejob.commands.player_specs import adapters_for, lora_of
from onthejob.commands.sft_data import demonstration_files, examples_of, read_demonstrations
from onthejob.learn import lora
from onthejob.learn.batch import Path, pack
from onthejob.learn.forward import score, scoring
from onthejob.learn.learner import Learner, LearnerConfig
from onthejob.learn.lora import LoraSpec
from onthejob.stack import Stack, attach_learner, load_stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Likelihood:
    """Of the replies of one conversation."""

    nll: float
    """Sum over their tokens, nats."""
    tokens: int
    lowest: float
    """Probability of the least likely of them."""


def likelihoods(learner: Learner, role: str, conversations: Sequence[Sequence[Path]]) -> list[Likelihood]:
    """One per conversation, whose paths extend each other."""
    found = []
    lora.activate(learner.model, role)
    for paths in conversations:
        # In one row where it fits; in several the sums are the same.
        parts = []
        for row in pack(paths, max_tokens=learner.config.max_tokens, share=True):
            with torch.no_grad(), scoring(learner.model, layout=learner.layout):
                parts.append(score(learner.model, row, layout=learner.layout).logprobs.double().numpy())
        logprobs = np.concatenate(parts)
        found.append(Likelihood(nll=-float(logprobs.sum()), tokens=len(logprobs), lowest=math.exp(logprobs.min())))
    return found


def conversations(stack: Stack, file: FilePath, limit: int) -> list[list[Path]]:
    """The demonstrations of a file as paths, each of one owner and unit."""
    return [
        [
            Path(ids=one.prompt_ids + one.completion_ids, context=len(one.prompt_ids), owner=0, unit=0)
            for one in examples_of(stack.chat, shown)
        ]
        for shown in read_demonstrations(file, limit)
    ]


def by_field(file: FilePath, field: str, found: Sequence[Likelihood]) -> list[tuple[float, str, int]]:
    """(mean probability of the least likely token, value of `field`, conversations), least sure first."""
    values = [str(json.loads(line)[field]) for line in file.read_text(encoding="utf-8").splitlines()]
    lowest: dict[str, list[float]] = {}
    for value, one in zip(values, found, strict=True):
        lowest.setdefault(value, []).append(one.lowest)
    return sorted((float(np.mean(several)), value, len(several)) for value, several in lowest.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demonstrations", type=FilePath)
    parser.add_argument("adapters", nargs="+", help="a run, RUN:N, RUN:best, or a folder")
    parser.add_argument("--role", default="agent")
    parser.add_argument("--limit", type=int, default=0, help="so many conversations, evenly from the file; 0 takes all")
    parser.add_argument("--by", default="", help="a field of the file's lines, e.g. family: its values, least sure first")
    parser.add_argument("--model", default="smollm2-135m")
    given = parser.parse_args()
    if given.by and given.limit:
        parser.error("--by is of all conversations; leave --limit out")
    file = demonstration_files(given.demonstrations, [given.role])[given.role]
    for source in given.adapters:
        stack, learner = attach_learner(
            load_stack(given.model, dtype="float32"),
            [given.role],
            lora=lora_of(source, [given.role], LoraSpec()),
            config=LearnerConfig(),
            seed=0,
            init=adapters_for(source, [given.role]),
        )
        started = time.perf_counter()
        found = likelihoods(learner, given.role, conversations(stack, file, given.limit))
        sums = np.array([one.nll for one in found])
        chance = np.exp(-sums)
        sure = np.array([one.lowest > 0.5 for one in found])
        print(
            f"{source}: {len(found)} conversations, {sum(one.tokens for one in found) / len(found):.0f} tokens of replies each; "
            f"-log p {sums.mean():.2f} +- {sums.std(ddof=1) / math.sqrt(len(sums)):.2f} (median {np.median(sums):.2f}); "
            f"p {chance.mean():.3f} +- {chance.std(ddof=1) / math.sqrt(len(sums)):.3f}; every "
            f"token above half in {sure.mean():.3f} +- {sure.std(ddof=1) / math.sqrt(len(sure)):.3f}; "
            f"{time.perf_counter() - started:.0f} s",
            flush=True,
        )
        for lowest, value, count in by_field(file, given.by, found) if given.by else ():
            print(f"  {lowest:.2f}  {value} ({count})")


if __name__ == "__main__":
    main()
