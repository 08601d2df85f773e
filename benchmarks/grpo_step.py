"""One GRPO step (forward and backward of one group) with onthejob against TRL 1.16, on the same batch.

Each side runs in a fresh process on one thread; CPU seconds (`process_time`) are immune to other load, memory is the process's
peak resident set. Gradient norms are compared, so that neither side can be fast by being wrong. TRL gets the largest
micro-batch that fits into --memory-gb, found by trying.

    python benchmarks/grpo_step.py [--model DIR] [--case 384,48,4 --case 1500,120,8] [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

CASES = ("384,48,4", "1500,120,8")
TARGETS = {"384,48,4": (3.5, 0.45), "1500,120,8": (4.0, None)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="model folder; default: the embedded SmolLM2-135M")
    parser.add_argument("--case", action="append", help="P,C,K: prompt tokens, completion tokens, replies; repeatable")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--memory-gb", type=float, default=10.0, help="what a process may use before it counts as not fitting")
    parser.add_argument("--repeat", type=int, default=2, help="steps per process; the fastest counts")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--side", choices=("ours", "trl"), help=argparse.SUPPRESS)
    parser.add_argument("--micro", type=int, default=0, help="replies per TRL micro-batch; 0 finds the largest that fits")
    arguments = parser.parse_args()
    if arguments.model is None:
        from onthejob.models.fetch import fetch

        arguments.model = fetch()
    cases = arguments.case or list(CASES)
    if arguments.side:
        sizes = tuple(int(part) for part in cases[0].split(","))
        print(json.dumps(measure(arguments, *sizes)))
        return 0
    results = [compare(arguments, case) for case in cases]
    if arguments.json:
        print(json.dumps(results, indent=2))
    else:
        print_table(results)
    return verdict(results)


def compare(arguments: argparse.Namespace, case: str) -> dict:
    size = int(case.split(",")[2])
    ours = child(arguments, case, side="ours", micro=size)
    if ours is None:
        raise SystemExit("onthejob's step failed; see the message above")
    theirs = None
    micro = arguments.micro or size
    while theirs is None and micro >= 1:
        theirs = child(arguments, case, side="trl", micro=micro)
        micro = micro if theirs else micro // 2
    if theirs is None:
        raise SystemExit("TRL does not fit even with one reply at a time; raise --memory-gb")
    speed, memory = theirs["cpu_s"] / ours["cpu_s"], ours["peak_mb"] / theirs["peak_mb"]
    want_speed, want_memory = TARGETS.get(case, (None, None))
    agree = same_step(ours["grad_norm"], theirs["grad_norm"])
    passed = None
    if want_speed is not None:
        passed = agree and speed >= want_speed and (want_memory is None or memory <= want_memory)
    return {
        "case": case,
        "ours": ours,
        "trl": theirs | {"micro_batch": micro},
        "speedup": speed,
        "memory_ratio": memory,
        "gradients_agree": agree,
        "target": {"speedup": want_speed, "memory_ratio": want_memory},
        "passed": passed,
    }


def same_step(ours: float, theirs: float) -> bool:
    """Are both gradient norms those of one step that moves weights?"""
    return min(ours, theirs) > 0 and abs(ours / theirs - 1) < 1e-3


def child(arguments: argparse.Namespace, case: str, *, side: str, micro: int) -> dict | None:
    """Run one side in a fresh process; None when it ran out of its memory."""
    command = [sys.executable, __file__, "--model", str(arguments.model), "--case", case, "--rank", str(arguments.rank)]
    command += ["--repeat", str(arguments.repeat), "--memory-gb", str(arguments.memory_gb)]
    command += ["--side", side, "--micro", str(micro)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        # The whole comparison takes minutes; an interrupted one should not lose what it has.
        print(f"{case} {side} micro {micro}: {done.stdout.splitlines()[-1]}", file=sys.stderr)
        return json.loads(done.stdout.splitlines()[-1])
    out_of_memory = any(mark in done.stderr for mark in ("can't allocate memory", "not enough memory", "MemoryError"))
    if not out_of_memory:
        print(done.stderr[-2000:], file=sys.stderr)
        raise SystemExit(f"{side} failed with exit code {done.returncode}")
    print(f"{case} {side} micro {micro}: does not fit into {arguments.memory_gb} GB", file=sys.stderr)
    return None


def measure(arguments: argparse.Namespace, prompt: int, completion: int, size: int) -> dict:
    limit = int(arguments.memory_gb * 1e9)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step, model = (our_step if arguments.side == "ours" else trl_step)(arguments, prompt, completion, size)
        best = float("inf")
        for _ in range(arguments.repeat):
            model.zero_grad(set_to_none=True)
            started = time.process_time()
            step()
            best = min(best, time.process_time() - started)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return {
        "cpu_s": round(best, 3),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "grad_norm": float(np.sqrt(sum(float(g.double().square().sum()) for g in gradients))),
    }


def example(prompt: int, completion: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random tokens: no completion shares a beginning with another, which favours neither side."""
    rng = np.random.default_rng(0)
    prompt_ids = rng.integers(1000, 40_000, prompt)
    completions = rng.integers(1000, 40_000, (size, completion))
    completions[:, 0] = 1000 + np.arange(size)
    rewards = rng.normal(size=size)
    return prompt_ids, completions, rewards


def adapted(arguments: argparse.Namespace):
    import torch
    from transformers import AutoModelForCausalLM

    from onthejob.learn import lora

    base = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    spec = lora.LoraSpec(rank=arguments.rank, alpha=arguments.rank)
    return lora.attach(base, ["default"], spec, seed=0)


def our_step(arguments: argparse.Namespace, prompt: int, completion: int, size: int):
    from onthejob.learn.advantage import AdvantageConfig, advantages
    from onthejob.learn.batch import collate
    from onthejob.learn.forward import score
    from onthejob.learn.loss import LossConfig, policy_loss
    from onthejob.types import Completion, Group, StopReason, Trajectory, Turn

    model = adapted(arguments)
    prompt_ids, completions, rewards = example(prompt, completion, size)

    def trajectory(reply: np.ndarray, reward: float) -> Trajectory:
        done = Completion(text="", token_ids=tuple(reply.tolist()), logprobs=(0.0,) * completion)
        turn = Turn(prompt_ids=tuple(prompt_ids.tolist()), completion=done, policy_version="benchmark")
        return Trajectory(task_id="t", actor="default", turns=(turn,), rewards=(reward,), stop=StopReason.BRANCH)

    members = tuple(trajectory(reply, float(reward)) for reply, reward in zip(completions, rewards, strict=True))
    group = Group(key="g", actor="default", trajectories=members)
    config = LossConfig(loss="grpo")

    def step() -> None:
        values = advantages(group, AdvantageConfig())
        assert values is not None
        for batch in collate([group], [values], max_tokens=prompt + completion * size):
            policy_loss(score(model, batch.row).logprobs, batch, config).loss.backward()

    return step, model


def trl_step(arguments: argparse.Namespace, prompt: int, completion: int, size: int):
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    prompt_ids, completions, rewards = example(prompt, completion, size)
    centred = rewards - rewards.mean()
    advantages = torch.tensor(centred / (rewards.std(ddof=1) + 1e-4), dtype=torch.float32)
    parts = size // arguments.micro
    # TRL prints while it is built; stdout carries the result.
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=adapted(arguments),
            args=GRPOConfig(
                output_dir=folder,
                use_cpu=True,
                bf16=False,
                report_to="none",
                per_device_train_batch_size=size,
                num_generations=size,
                max_completion_length=completion,
                loss_type="grpo",
                beta=0.0,
                temperature=1.0,
                activation_checkpointing=False,
                disable_tqdm=True,
            ),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            train_dataset=Dataset.from_list([{"prompt": "a"}] * size),
            processing_class=AutoTokenizer.from_pretrained(arguments.model),
        )
    trainer.current_gradient_accumulation_steps = parts
    trainer.model.train()

    def step() -> None:
        for rows in torch.arange(size).split(arguments.micro):
            replies = torch.from_numpy(completions)[rows]
            inputs = {
                "prompt_ids": torch.from_numpy(prompt_ids).expand(len(rows), -1),
                "prompt_mask": torch.ones(len(rows), prompt, dtype=torch.long),
                "completion_ids": replies,
                "completion_mask": torch.ones_like(replies),
                "advantages": advantages[rows],
                "num_items_in_batch": torch.tensor(completion * size),
            }
            trainer._compute_loss(trainer.model, inputs).backward()

    return step, trainer.model


def print_table(results: list[dict]) -> None:
    print(f"{'P,C,K':>12} {'side':>5} {'micro':>6} {'CPU s':>8} {'peak MB':>8} {'|grad|':>10}")
    for result in results:
        for side in ("ours", "trl"):
            row = result[side]
            print(
                f"{result['case']:>12} {side:>5} {row.get('micro_batch', '-'):>6} {row['cpu_s']:8.2f} {row['peak_mb']:8d} "
                f"{row['grad_norm']:10.5f}"
            )
        word = {None: "no target", True: "target met", False: "TARGET MISSED"}[result["passed"]]
        word = word if result["gradients_agree"] else "NOT THE SAME STEP: gradients are 0 or differ"
        print(f"{'':>12} {result['speedup']:.2f}x less CPU, {result['memory_ratio']:.2f} of the memory: {word}")


def verdict(results: list[dict]) -> int:
    """1 when a target was missed, or when the two sides did not make the same step."""
    return int(any(result["passed"] is False or not result["gradients_agree"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
