"""How much of a policy gradient do other episodes confirm? Of all of an adapter's weights, and of few numbers instead.

Takes a run's live groups, and of each the gradient of the sum over replies of advantage times log-probability, at the adapters
that sampled them (--init, default: the run's version 0; all iterations of a `--dry-run` are sampled by it). What two disjoint
sets of groups share is signal, the rest is luck:

* signal: the mean product of two different groups' gradients, unbiased for the squared norm of the true gradient; t is that by
  its jackknife standard error, share that by the mean squared norm of one group's gradient;
* halves: the cosine between the gradients of two random halves, mean of 200 cuts.

Parts: all weights; the factors A and B; strengths, one number per layer that multiplies its B;
strength, one number for all layers; temperature, one number that multiplies all logits. Of single numbers t is the mean slope by
its standard error.

    python benchmarks/gradient_signal.py RUN [--init FOLDER] [--role agent] [--groups 100] [--max-tokens 6144] [--json]
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from onthejob.learn import lora
from onthejob.learn.advantage import AdvantageConfig, advantages
from onthejob.learn.batch import collate
from onthejob.learn.forward import score, scoring
from onthejob.learn.learner import LearnerConfig, LocalLearner
from onthejob.learn.lora import LoraSpec
from onthejob.record import Run
from onthejob.stack import attach_learner, find_adapters, load_stack, shape_of
from onthejob.types import Group

Floats = npt.NDArray[np.float32]


def gradients(learner: LocalLearner, role: str, groups: list[Group], *, max_tokens: int) -> tuple[Floats, list[str], Floats]:
    """Of each group: the gradient of all weights (groups, weights), the tensors' names, the temperature's slope (groups,)."""
    live = lora.parameters(learner.model, role)
    found, slopes = [], []
    started = time.perf_counter()
    for number, group in enumerate(groups, 1):
        values = advantages(group, AdvantageConfig(scale="none"))
        assert values is not None
        for parameter in live.values():
            parameter.grad = None
        slope = 0.0
        for batch in collate([group], [values], max_tokens=max_tokens):
            with scoring(learner.model, layout=learner.layout):
                scores = score(learner.model, batch.row, layout=learner.layout)
                advantage = torch.from_numpy(batch.advantage)
                (advantage * scores.logprobs).sum().backward()
            # d log p(token) / d log(inverse temperature) = logit - expected logit = log p + entropy.
            slope += float((advantage * (scores.logprobs + scores.entropy).detach()).sum())
        found.append(torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in live.values()]).numpy())
        slopes.append(slope)
        if number % 10 == 0:
            print(f"{number} of {len(groups)} groups, {time.perf_counter() - started:.0f} s", file=sys.stderr)
    return np.stack(found), list(live), np.array(slopes, dtype=np.float32)


def signal(x: Floats) -> dict[str, float]:
    """X (groups, numbers)."""
    count = len(x)
    products = (x @ x.T).astype(np.float64)
    apart = products.sum() - np.trace(products)
    mean = apart / (count * (count - 1))
    without = [(apart - 2 * (products[i].sum() - products[i, i])) / ((count - 1) * (count - 2)) for i in range(count)]
    error = math.sqrt((count - 1) / count * float(np.square(np.array(without) - np.mean(without)).sum()))
    generator, cosines = np.random.default_rng(0), []
    for _ in range(200):
        order = generator.permutation(count)
        a, b = order[: count // 2], order[count // 2 :]
        norms = math.sqrt(products[np.ix_(a, a)].sum() * products[np.ix_(b, b)].sum())
        cosines.append(products[np.ix_(a, b)].sum() / norms)
    return {
        "numbers": x.shape[1],
        "t": mean / error,
        "share": mean / (np.trace(products) / count),
        "halves": float(np.mean(cosines)),
        "halves_sd": float(np.std(cosines)),
    }


def slope(x: Floats) -> dict[str, float]:
    """X (groups,): the slope of one number."""
    return {"numbers": 1, "t": float(x.mean() / (x.std(ddof=1) / math.sqrt(len(x))))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("--init", type=Path, help="folder of the adapters that sampled the groups; default: the run's version 0")
    parser.add_argument("--role", default="agent")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--groups", type=int, default=100, help="at most so many live groups; each takes 4 bytes per weight")
    parser.add_argument("--max-tokens", type=int, default=6144)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    if options.groups < 4:
        parser.error("--groups must be >= 4")
    run = Run.open(options.run, readonly=True)
    live = (
        group for group in run.read_groups(actor=options.role) if advantages(group, AdvantageConfig(scale="none")) is not None
    )
    groups = list(itertools.islice(live, options.groups))
    if len(groups) < 4:
        parser.error(f"{options.run} has {len(groups)} live groups of {options.role}; at least 4 are needed")
    init = find_adapters(options.init or options.run, at="" if options.init else "0")
    stack = load_stack(options.model, dtype="float32")
    shape = shape_of(init, LoraSpec(), where=str(options.init))
    _, learner = attach_learner(stack, [options.role], lora=shape, config=LearnerConfig(), seed=0, init=init)
    lora.activate(learner.model, options.role)
    every, names, slopes = gradients(learner, options.role, groups, max_tokens=options.max_tokens)
    live_weights = lora.parameters(learner.model, options.role)
    edges = np.cumsum([0, *(parameter.numel() for parameter in live_weights.values())])
    of = {name: every[:, start:stop] for name, start, stop in zip(names, edges, edges[1:], strict=False)}
    of_b = {name: part for name, part in of.items() if ".lora_B." in name}
    strengths = np.stack([part @ live_weights[name].detach().numpy().ravel() for name, part in of_b.items()], axis=1)
    results = {
        "all weights": signal(every),
        "A": signal(np.concatenate([part for name, part in of.items() if ".lora_A." in name], axis=1)),
        "B": signal(np.concatenate(list(of_b.values()), axis=1)),
        "strengths": signal(strengths),
        "strength": slope(strengths.sum(axis=1)),
        "temperature": slope(slopes),
    }
    if options.json:
        print(json.dumps({"groups": len(groups), "parts": results}, indent=2))
        return 0
    print(f"{len(groups)} live groups")
    for name, found in results.items():
        line = f"{name:12s} {found['numbers']:9d} numbers: t {found['t']:+.1f}"
        if "share" in found:
            line += f", share {found['share']:+.4f}, cosine of halves {found['halves']:+.3f} (sd {found['halves_sd']:.3f})"
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
