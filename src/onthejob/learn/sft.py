"""Supervised warm start: make a role's adapter imitate demonstrations.

Uses the same packed rows as the policy gradient: examples of a role begin with the same system prompt, which is computed once a
row. The optimizer is its own, so that the policy gradient starts with clean moments.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge

from onthejob.errors import ContractError, TrainingError
from onthejob.learn import lora
from onthejob.learn.batch import Path, pack
from onthejob.learn.forward import Layout, score, scoring
from onthejob.learn.learner import LocalLearner
from onthejob.learn.optimize import Totals, make_optimizer, optimizer_step
from onthejob.models.adapter_weights import LOG_LOGIT_SCALE
from onthejob.models.window import refuse_longer
from onthejob.setting_ranges import Usual, check_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One demonstrated reply."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    """Including the end-of-turn token."""
    weight: float = 1.0
    """Of each of its tokens in the loss, > 0."""
    marked: Literal["expert", "random", "near-miss", "negative"] = "expert"
    """Where it comes from; `negative` is kept in the data and never imitated."""
    conversation: str = ""
    """Replies of one conversation have the same name here: each prompt extends the one before it, so that in one packed row the
    conversation is forwarded once. Empty for a reply that stands alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SftConfig:
    """How long and how fast to imitate."""

    lr: Annotated[float, Ge(0)] = 5e-4
    """Peak learning rate of AdamW."""
    epochs: Annotated[int, Ge(1)] = 1
    """Passes over the examples."""
    batch_tokens: Annotated[int, Ge(2)] = 4096
    """Prompt and completion tokens per optimizer step, a prompt counted once for all its completions and a conversation once; the
    last step of an epoch may be smaller."""
    max_steps: Annotated[int | None, Ge(1)] = None
    """Stop after this many optimizer steps."""
    minutes: Annotated[float, Ge(0), Usual("0 sets no limit.")] = 0.0
    """Time limit per role, in minutes after the model is loaded: the learning rate has fallen to 0 by then. The number of steps
    depends on the machine; at least one is made. 0 sets no limit."""
    warmup: Annotated[int, Ge(0)] = 10
    """Steps over which the rate rises linearly."""
    schedule: Literal["linear", "constant"] = "linear"
    """After the warm-up: down to 0 at the last step, or flat."""
    seed: Annotated[int, Ge(0)] = 0
    """Of the order of examples, together with the learner's seed and the role."""

    def __post_init__(self) -> None:
        check_ranges(self, "--")


@dataclass(frozen=True, slots=True, kw_only=True)
class SftMetrics:
    """One optimizer step."""

    step: int
    """From 1."""
    steps: int
    """Steps in all."""
    loss: float
    """Mean negative log-likelihood of a completion token (weighted), nats."""
    grad_norm: float
    lr: float
    skipped: str
    """Why no step was taken; empty when one was."""
    examples: int
    """Imitated in this step."""
    negatives: int
    """Examples marked negative in the whole data set, excluded from the loss."""
    tokens: int
    """Prompt and completion tokens of this step, a prompt counted once for all its completions."""
    nodes: int
    """Tokens forwarded in this step."""
    tokens_per_s: float
    """`tokens` per second since the start."""
    eta_s: float
    """Seconds to the end at this pace."""


def sft(
    learner: LocalLearner,
    role: str,
    examples: Sequence[Example],
    config: SftConfig,
    *,
    on_progress: Callable[[SftMetrics], None] | None = None,
) -> list[SftMetrics]:
    """Train `role` on `examples`, loss on completion tokens only; without `minutes` the same seed gives the same weights.

    Args:
        learner: Holds the model; its max_tokens bounds a row, its optimizers are not touched.
        role: Whose adapter.
        examples: Any order. Those marked negative are counted and skipped.
        config: Duration and rate.
        on_progress: Called after every step.

    Returns:
        One record per optimizer step.

    Raises:
        ConfigError: An example exceeds the model's context.
        ContractError: Unknown role, nothing to imitate, an empty prompt or completion, or a weight that is not finite and > 0.
        TrainingError: No step was taken: loss or gradient were not finite every time.
    """
    if role not in learner.roles:
        raise ContractError(f"this learner does not train {role!r}; it trains {sorted(learner.roles)}.")
    wanted = [example for example in examples if example.marked != "negative"]
    negatives = len(examples) - len(wanted)
    if not wanted:
        raise ContractError(f"no example to imitate: {len(examples)} given, {negatives} of them negative.")
    if any(not 0 < example.weight < math.inf for example in wanted):
        raise ContractError("example weights must be finite and > 0; mark an example 'negative' to leave it out.")
    refuse_longer(learner.window, [example.prompt_ids + example.completion_ids for example in wanted], new_tokens=0)
    plan = list(_plan(wanted, config, _generator(learner.seed, config.seed, role)))[: config.max_steps]
    lora.activate(learner.model, role)
    optimizer = make_optimizer(
        learner.config.optimizer,
        # The logit scale is for practice: imitation would raise it without end.
        {config.lr: [parameter for name, parameter in lora.parameters(learner.model, role).items() if name != LOG_LOGIT_SCALE]},
    )
    history: list[SftMetrics] = []
    limit = 60 * config.minutes or math.inf
    started, seen = time.perf_counter(), 0
    for index, chosen in enumerate(plan):
        spent = (time.perf_counter() - started) / limit if index else 0.0
        if spent >= 1:
            break
        totals, nodes = _accumulate(learner, [wanted[i] for i in chosen])
        share = _rate(index, spent, len(plan), config)
        optimizer_step(optimizer, totals, share=share)
        optimizer.zero_grad(set_to_none=True)
        tokens = _size([wanted[i] for i in chosen])
        seen += tokens
        elapsed = time.perf_counter() - started
        metrics = SftMetrics(
            step=index + 1,
            steps=len(plan),
            loss=totals.loss,
            grad_norm=totals.grad_norm,
            lr=config.lr * share,
            skipped=totals.skipped,
            examples=len(chosen),
            negatives=negatives,
            tokens=tokens,
            nodes=nodes,
            tokens_per_s=seen / elapsed,
            eta_s=max(0.0, min(elapsed / (index + 1) * (len(plan) - index - 1), limit - elapsed)),
        )
        history.append(metrics)
        if on_progress is not None:
            on_progress(metrics)
    if history and all(metrics.skipped for metrics in history):
        raise TrainingError(
            f"none of the {len(history)} steps of {role!r} was taken, the last for a {history[-1].skipped}; numbers must be "
            "finite. Load the model in float32, or look for the example that does it with max_steps=1."
        )
    return history


def _accumulate(learner: LocalLearner, examples: Sequence[Example]) -> tuple[Totals, int]:
    """Gradients of the mean loss of `examples`, whatever rows they are cut into."""
    # An example (or a conversation) is a unit of its own, so that rows fill up; equal beginnings still meet: units are sorted.
    units: dict[str | int, int] = {}
    paths = []
    for index, example in enumerate(examples):
        unit = units.setdefault(example.conversation or index, len(units))
        ids = example.prompt_ids + example.completion_ids
        paths.append(Path(ids=ids, context=len(example.prompt_ids), owner=unit, unit=unit))
    total = sum(example.weight * len(example.completion_ids) for example in examples)
    weights = np.array([example.weight for example in examples], dtype=np.float32) / total
    totals, nodes = Totals(), 0
    for row in pack(paths, max_tokens=learner.config.max_tokens, share=learner.layout is Layout.TREE):
        with scoring(learner.model, layout=learner.layout):
            logprobs = score(learner.model, row, layout=learner.layout).logprobs
            loss = -(logprobs * torch.from_numpy(weights[row.term_source]).to(logprobs.device)).sum()
            loss.backward()
        totals.add(loss.item(), {}, {}, terms=len(row.term_pair))
        nodes += len(row)
    return totals, nodes


def _plan(examples: Sequence[Example], config: SftConfig, rng: np.random.Generator) -> Iterator[list[int]]:
    """Indices of each optimizer step's examples: prompts shuffled every epoch, cut at batch_tokens.

    All replies to one prompt, and all replies of one conversation, stay in one step, where the packed row computes what they have
    in common once.
    """
    by_start: dict[tuple[int, ...] | str, list[int]] = {}
    for index, example in enumerate(examples):
        by_start.setdefault(example.conversation or example.prompt_ids, []).append(index)
    together = list(by_start.values())
    for _ in range(config.epochs):
        chosen: list[int] = []
        filled = 0
        for place in rng.permutation(len(together)).tolist():
            size = _size([examples[index] for index in together[place]])
            if chosen and filled + size > config.batch_tokens:
                yield chosen
                chosen, filled = [], 0
            chosen += together[place]
            filled += size
        yield chosen


def _generator(root: int, seed: int, role: str) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(root, spawn_key=(seed, *role.encode())))


def _rate(index: int, spent: float, steps: int, config: SftConfig) -> float:
    """Share of the peak rate in step `index` (from 0) of `steps`, when `spent` of the time limit has passed."""
    rising = (index + 1) / (config.warmup + 1)
    if config.schedule == "constant":
        return min(1.0, rising)
    falling = min(steps - index, (1 - spent) * steps) / max(1, steps - config.warmup)
    return min(1.0, rising, falling)


def _size(examples: Sequence[Example]) -> int:
    """Tokens of these examples, equal prompts and what a conversation repeats counted once."""
    alone = [example for example in examples if not example.conversation]
    prompts = {example.prompt_ids for example in alone}
    said: dict[str, int] = {}
    for example in examples:
        if example.conversation:
            size = len(example.prompt_ids) + len(example.completion_ids)
            said[example.conversation] = max(size, said.get(example.conversation, 0))
    return sum(map(len, prompts)) + sum(len(example.completion_ids) for example in alone) + sum(said.values())
