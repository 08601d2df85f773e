"""GRPO at the sizes that people train: an update of a 7B and a 14B model on one GPU, time and memory.

The weights are random, the architectures those of Qwen2.5-7B and -14B (their published configurations), because neither time nor
memory depends on what the weights are. One role's LoRA adapter, bfloat16, groups of K replies of C tokens to prompts of P tokens
that all begin alike by --shared tokens, as the prompts of one role do. The same update is made with prefix trees and with padded
rows, i.e. every prompt as often as it has replies: the tokens that trainers without sharing forward, here in this package's own
code (no other trainer is timed). How much sharing saves depends on those sizes.

    python benchmarks/gpu_step.py [--model 7b 14b] [--groups 4] [--prompt 1500] [--completion 120] [--replies 8] [--json]
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from onthejob.learn import lora
from onthejob.learn.advantage import AdvantageConfig, estimates
from onthejob.learn.forward import Layout
from onthejob.learn.learner import Learner, LearnerConfig
from onthejob.learn.loss import LossConfig
from onthejob.types import Completion, Group, StopReason, Trajectory, Turn

# hidden, intermediate, layers, heads, key heads, vocabulary
SHAPES = {
    "7b": (3584, 18944, 28, 28, 4, 152_064),
    "14b": (5120, 13824, 48, 40, 8, 152_064),
    "tiny": (64, 128, 2, 4, 2, 1_000),
}
ROLE = "dev"


def base(name: str, device: str) -> Any:
    """A model of this shape with random weights in bfloat16."""
    hidden, middle, layers, heads, kv, vocab = SHAPES[name]
    config = Qwen2Config(
        hidden_size=hidden,
        intermediate_size=middle,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv,
        vocab_size=vocab,
        max_position_embeddings=32_768,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=False,
        use_cache=False,
    )
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def groups(options: argparse.Namespace, vocab: int) -> list[Group]:
    """Random tokens: prompts share their beginning, completions share none."""
    rng = np.random.default_rng(options.seed)
    common = rng.integers(0, vocab, options.shared)
    found = []
    for number in range(options.groups):
        prompt = tuple(np.concatenate([common, rng.integers(0, vocab, options.prompt - options.shared)]).tolist())
        members = []
        for index in range(options.replies):
            reply = rng.integers(0, vocab, options.completion)
            reply[0] = index
            done = Completion(text="", token_ids=tuple(reply.tolist()), logprobs=(-float(np.log(vocab)),) * options.completion)
            turn = Turn(prompt_ids=prompt, completion=done, policy_version="benchmark")
            members.append(
                Trajectory(task_id="t", actor=ROLE, turns=(turn,), rewards=(float(rng.normal()),), stop=StopReason.BRANCH)
            )
        found.append(Group(key=f"g{number}", actor=ROLE, trajectories=tuple(members)))
    return found


def synchronised(device: str) -> float:
    """Seconds, when everything asked of the device is done."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


def peak(device: str) -> float:
    """GiB held at most since the last reset; NaN where the device does not say."""
    return torch.cuda.max_memory_allocated() / 2**30 if device.startswith("cuda") else float("nan")


def updates(options: argparse.Namespace, name: str, model: Any) -> list[dict[str, Any]]:
    """Time and memory of one update by layout, activations kept or recomputed; at rate 0, so that gradients can be compared."""
    rows = []
    taught = groups(options, SHAPES[name][5])
    known = [one.advantages for one in estimates(taught, AdvantageConfig())]
    plain = LearnerConfig(lr=0.0, max_tokens=options.max_tokens, loss=LossConfig(loss="grpo"))
    for layout, checkpointing in ((Layout.TREE, False), (Layout.TREE, True), (Layout.PADDED, False), (Layout.PADDED, True)):
        config = replace(plain, gradient_checkpointing=checkpointing)
        row: dict[str, Any] = {"model": name, "layout": layout.value, "checkpointing": checkpointing}
        try:
            with warnings.catch_warnings():  # renamed in transformers 5.23
                warnings.simplefilter("ignore", FutureWarning)
                model.get_base_model().gradient_checkpointing_disable()
            learner = Learner(model, [ROLE], config=config, layout=layout)
            started = synchronised(options.device)
            metrics = learner.update(ROLE, learner.collate(taught, known))  # warms up
            seconds = [synchronised(options.device) - started]
            if options.device.startswith("cuda"):
                torch.cuda.reset_peak_memory_stats()
            for _ in range(options.repeats):
                started = synchronised(options.device)
                metrics = learner.update(ROLE, learner.collate(taught, known))
                seconds.append(synchronised(options.device) - started)
            row |= {
                "s": statistics.median(seconds[1:]),
                "all_s": seconds,
                "nodes": metrics.nodes,
                "rows": metrics.rows,
                "tokens": metrics.tokens,
                "peak_gib": peak(options.device),
                "grad_norm": metrics.grad_norm,
            }
        except torch.OutOfMemoryError:
            row |= {"s": None, "out_of_memory": True}
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
        gc.collect()
        if options.device.startswith("cuda"):
            torch.cuda.empty_cache()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["7b", "14b"], choices=list(SHAPES))
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=1500, help="tokens of a prompt")
    parser.add_argument("--shared", type=int, default=600, help="of them the same in all prompts")
    parser.add_argument("--completion", type=int, default=120, help="tokens of a reply")
    parser.add_argument("--replies", type=int, default=8, help="replies of a group")
    parser.add_argument("--max-tokens", type=int, default=8192, help="nodes of one forward and backward pass")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3, help="updates timed after one that warms up; the median counts")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not 0 <= options.shared < options.prompt:
        parser.error(f"--shared must be in 0..{options.prompt - 1}, got {options.shared}")
    found = []
    for name in options.model:
        started = synchronised(options.device)
        model = lora.attach(base(name, options.device), [ROLE], lora.LoraSpec(rank=options.rank, alpha=options.rank), seed=0)
        weights = sum(parameter.numel() for parameter in model.parameters()) / 1e9
        print(
            f"{name}: {weights:.2f} billion weights, {synchronised(options.device) - started:.0f} s", file=sys.stderr, flush=True
        )
        found += updates(options, name, model)
        del model
        gc.collect()
    if options.json:
        print(json.dumps(found))
        return verdict(found)
    print(f"{'model':>6} {'layout':>7} {'recompute':>9} {'s':>7} {'nodes':>7} {'passes':>6} {'replies/s':>9} {'GiB':>6} |grad|")
    for row in found:
        head = f"{row['model']:>6} {row['layout']:>7} {'yes' if row['checkpointing'] else 'no':>9}"
        if row["s"] is None:
            print(head, "  out of memory")
            continue
        speed = options.groups * options.replies / row["s"]
        sizes = f"{row['nodes']:7d} {row['rows']:6d} {speed:9.1f} {row['peak_gib']:6.1f}"
        print(f"{head} {row['s']:7.2f} {sizes} {row['grad_norm']:.4f}")
    return verdict(found)


def verdict(rows: list[dict[str, Any]]) -> int:
    """1 when a model's rows are not the same update: a gradient of zero, or norms that differ by more than 5 % (bfloat16)."""
    norms: dict[str, list[float]] = {}
    for row in rows:
        if row["s"] is not None:
            norms.setdefault(row["model"], []).append(row["grad_norm"])
    wrong = [name for name, found in norms.items() if not min(found) > 0 or max(found) > 1.05 * min(found)]
    for name in wrong:
        print(f"{name}: the rows are not the same update, gradient norms {norms[name]}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
