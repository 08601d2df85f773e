"""What do recorded groups teach under each loss? The same groups in the same order, judged on groups that were not learned from.

Takes the branch groups of a run: those up to an iteration are learned from, once or several times; on the later ones the policy
is asked how it would choose among the replies that were valued there (softmax of their log-probabilities), and what it would
expect, in units of the role's scale above their plain mean. A policy that has learned to tell states apart expects more there.
`best of half` is what choosing by one half of the worlds gives on the other half, the ceiling of what the values can tell.

It is off policy: the replies are those of the run, whose policy moved on. So it tells losses apart, not how far a run would get.

With `--return-weight` the groups are valued anew before they are learned from: the change of company value and so much of the
role's own return, both in the run's scales (`BranchConfig.return_weight`), brought to the spread that the group had, so that
weights differ in what they teach and not in how loudly; shrinking goes by the run's own values per world. What is gained is then
said in dollars of the branches' company and in the role's return over a branch, as the run's own values would favour its weight.

    python benchmarks/losses_offline.py RUN --init adapters/sft [--role marketing] [--loss dr_grpo expected] [--lr 5e-4]
    python benchmarks/losses_offline.py RUN --init adapters/sft --loss expected --return-weight 0 0.25 1
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path as FilePath

import numpy as np
import torch

from onthejob.learn import lora
from onthejob.learn.advantage import AdvantageConfig, advantages
from onthejob.learn.batch import Path, pack
from onthejob.learn.forward import score, scoring
from onthejob.learn.learner import Learner, LearnerConfig
from onthejob.learn.lora import LoraSpec
from onthejob.learn.loss import LossConfig
from onthejob.record import Run
from onthejob.stack import attach_learner, find_adapters, load_stack
from onthejob.types import Group, Trajectory

LOSSES = {
    "dr_grpo": (
        LossConfig(loss="dr_grpo", max_completion_tokens=32),
        AdvantageConfig(eps=0.5, shrink=True, invalid_gap=0.3, invalid_ceiling=-0.6),
    ),
    "dr_grpo unscaled": (
        LossConfig(loss="dr_grpo", max_completion_tokens=32),
        AdvantageConfig(scale="none", bound=3.0, shrink=True, invalid_gap=0.3, invalid_ceiling=-0.6),
    ),
    "expected": (
        LossConfig(loss="expected"),
        AdvantageConfig(scale="none", bound=3.0, shrink=True, invalid_gap=0.3, invalid_ceiling=-0.6),
    ),
    "expected, scaled": (
        LossConfig(loss="expected"),
        AdvantageConfig(eps=0.5, shrink=True, invalid_gap=0.3, invalid_ceiling=-0.6),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One state with its different legal replies."""

    paths: tuple[Path, ...]
    values: np.ndarray
    """Scaled value of every reply in every world.  # (replies, worlds)"""
    outcomes: np.ndarray
    """Change of the objective over a branch, mean over the worlds (office: dollars).  # (replies,)"""
    returns: np.ndarray
    """The role's return over a branch, likewise.  # (replies,)"""


def question(group: Group) -> Question | None:
    """None where fewer than two different legal replies were valued."""
    found: dict[str, Path] = {}
    worth: list[tuple[float, float]] = []
    for trajectory, key in zip(group.trajectories, group.facts["keys"], strict=True):
        turn = trajectory.turns[0]
        if trajectory.valid and key not in found:
            ids = turn.prompt_ids + turn.completion.token_ids
            found[key] = Path(ids=ids, context=len(turn.prompt_ids), temperature=turn.temperature or 1.0)
            worth.append((trajectory.metrics["outcome"], trajectory.metrics["return"]))
    if len(found) < 2:
        return None
    outcomes, returns = np.array(worth).T
    values = np.array([group.facts["by_world"][key] for key in found])
    return Question(paths=tuple(found.values()), values=values, outcomes=outcomes, returns=returns)


def valued(group: Group, weight: float, scales: dict[str, float]) -> Group:
    """The group as `return_weight` would have valued it."""
    turns = group.facts["turns"]

    def value(one: Trajectory) -> float:
        return (one.metrics["outcome"] / scales["outcome"] + weight * one.metrics["return"] / scales["return"]) / turns

    old = np.array([one.rewards[0] for one in group.trajectories])
    new = np.array([value(one) for one in group.trajectories])
    if new.std() > 0:
        new = (new - new.mean()) * (old.std() / new.std()) + old.mean()
    again = [replace(one, rewards=(float(reward),)) for one, reward in zip(group.trajectories, new, strict=True)]
    return replace(group, trajectories=tuple(again))


def expects(learner: Learner, role: str, questions: Sequence[Question]) -> np.ndarray:
    """What the present policy expects above the replies' mean, in every question.

    Returns:
        Of scaled values, sampled and greedily; the policy's entropy; dollars and return, sampled.  # (questions, 5)
    """
    found = []
    lora.activate(learner.model, role)
    for one in questions:
        total = np.zeros(len(one.paths))
        numbered = [replace(path, owner=index) for index, path in enumerate(one.paths)]
        for row in pack(numbered, max_tokens=4096):
            with torch.no_grad(), scoring(learner.model, layout=learner.layout):
                logprobs = score(learner.model, row, layout=learner.layout).logprobs
            np.add.at(total, row.term_source, logprobs.double().numpy())
        odds = np.exp(total - total.max())
        chance, means = odds / odds.sum(), one.values.mean(axis=1)
        entropy = -(chance * np.log(np.maximum(chance, 1e-12))).sum()
        above = [chance @ worth - worth.mean() for worth in (means, one.outcomes, one.returns)]
        found.append((above[0], means[chance.argmax()] - means.mean(), entropy, *above[1:]))
    return np.array(found)


def ceiling(questions: Sequence[Question]) -> np.ndarray:
    """What the reply that is best in half of the worlds is worth in the other half, above the mean; shape (questions,)."""
    found = []
    for one in questions:
        # Pairs of worlds: partners and stand-ins may play every other one.
        pair = np.arange(one.values.shape[1]) // 2 % 2
        for half in (0, 1):
            there = one.values[:, pair != half].mean(axis=1)
            found.append(there[one.values[:, pair == half].mean(axis=1).argmax()] - there.mean())
    return np.array(found).reshape(-1, 2).mean(axis=1)


def parts(groups: Sequence[Group], size: int, epochs: int, seed: int) -> Iterator[list[Group]]:
    """Batches of `size` groups, every group once an epoch."""
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        order = rng.permutation(len(groups))
        for begin in range(0, len(order), size):
            yield [groups[index] for index in order[begin : begin + size]]


def spread(values: np.ndarray) -> str:
    """Mean and its standard error."""
    return f"{values.mean():+.3f} +- {values.std(ddof=1) / math.sqrt(len(values)):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=FilePath)
    parser.add_argument("--init", type=FilePath, required=True, help="adapters from which each loss starts")
    parser.add_argument("--role", nargs="+", default=["marketing"])
    parser.add_argument("--loss", nargs="+", default=list(LOSSES), choices=list(LOSSES))
    parser.add_argument("--lr", type=float, nargs="+", default=[5e-4])
    parser.add_argument("--batch", type=int, default=16, help="groups of one update")
    parser.add_argument("--epochs", type=int, default=1, help="times that every group comes up")
    parser.add_argument("--until", type=float, default=0.75, help="share of the iterations in the first part")
    parser.add_argument("--first", action="store_true", help="learn from the second part and judge on the first")
    parser.add_argument("--passes", type=int, default=1, help="steps of one update on the same groups")
    parser.add_argument("--return-weight", type=float, nargs="+", default=[None], help="value the groups anew")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    run = Run.open(given.run, readonly=True)
    last = math.floor((run.last_iteration() or 0) * given.until)
    adapters = find_adapters(given.init)
    for role in given.role:
        early = [group for n in range(1, last + 1) for group in run.read_groups(n, role)]
        later = [group for n in range(last + 1, (run.last_iteration() or 0) + 1) for group in run.read_groups(n, role)]
        taught, apart = (later, early) if given.first else (early, later)
        held = [found for found in map(question, apart) if found]
        print(f"\n{role}: {len(taught)} groups to learn from, {len(held)} held out; best of half {spread(ceiling(held))}")
        scales = {metric.name: metric.value for metric in run.read_metrics(f"scales/{role}", iteration=0)}
        for name, weight, lr in itertools.product(given.loss, given.return_weight, given.lr):
            loss, advantage = LOSSES[name]
            worth = taught if weight is None else [valued(group, weight, scales) for group in taught]
            teaching = [group for group in worth if advantages(group, advantage) is not None]
            if not teaching:
                raise SystemExit(f"{role}, {name}: none of {len(taught)} groups is alive, so there is nothing to learn from.")
            config = LearnerConfig(lr=lr, epochs=given.passes, loss=loss)
            stack = load_stack(given.model)
            _, learner = attach_learner(stack, [role], lora=LoraSpec(rank=8), config=config, seed=0, init=adapters)
            before, started = expects(learner, role, held), time.perf_counter()
            steps = [
                learner.update(role, learner.collate(part, [advantages(group, advantage) for group in part])).steps
                for part in parts(teaching, given.batch, given.epochs, given.seed)
            ]
            after = expects(learner, role, held)
            gained = after - before
            print(
                f"  {name:18s} {'' if weight is None else f'return x {weight:g}, '}lr {lr:g}, "
                f"{len(teaching)} live groups, {sum(steps)} steps, "
                f"{time.perf_counter() - started:.0f} s: "
                f"expects {spread(after[:, 0])} (start {spread(before[:, 0])}; gained {spread(gained[:, 0])}: "
                f"{spread(gained[:, 3])} dollars, {spread(gained[:, 4])} return), "
                f"greedily {spread(after[:, 1])}, entropy {before[:, 2].mean():.2f} -> {after[:, 2].mean():.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
