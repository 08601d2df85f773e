"""Start and end of the two TRL recipes: the model, TRL's settings, training, and the report with its exit code.

Imported by `trl_environment_factory.py` and `trl_rollout_func.py`; it is not a command.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from onthejob.envs.office.env import SEATS, OfficeEnvironment
from onthejob.envs.office.tasks import office_tasks
from onthejob.errors import ConfigError
from onthejob.keys import keyed_choice
from onthejob.testing import teach, tiny_model
from onthejob.types import Message, Split, Task

SCENARIOS = ("baseline",)
SKIP = 6
"""Decisions of the role that the heuristic makes before the one that is trained: by then the company has leads and work."""
LEARNING_RATE = {True: 3e-3, False: 1e-4}
"""For the tiny model, and for a real one."""
REMEDY = "Start from an adapter of `onthejob sft` (--adapter), or set more --replies."
SHOWN = ("reward", "frac_reward_zero_std", "grad_norm", "tools/call_frequency", "completions/mean_length")


def examples(role: str, count: int) -> list[tuple[tuple[Message, ...], str]]:
    """Decisions of `role` in training episodes with a random legal reply: the format, and nothing about what is good."""
    found, env = [], OfficeEnvironment()
    for task in office_tasks(Split.TRAIN, seeds=count, days=3, first=1_000):  # other episodes than those trained on
        request = env.reset(task)
        while request is not None and len(found) < count:
            reply = keyed_choice(request.view["legal"], task.seed, len(found))
            if request.actor == role:
                found.append((tuple(request.messages), reply))
            request = env.step(reply).observation
    return found


def tiny(role: str, steps: int):
    """A Llama with two layers that mostly writes the office's JSON, and its tokenizer, which knows every word of the prompts."""
    taught = examples(role, 300)
    texts = [text for messages, reply in taught for text in (*(message.content for message in messages), reply)]
    words = {word for text in texts for word in re.findall(r"[A-Za-z]+|[0-9]+|[^A-Za-z0-9\s]+", text)}
    made = tiny_model(words=sorted(words))
    teach(made, taught, steps=steps, batch=8)
    return made.model, made.tokenizer


def arguments(about: str | None) -> argparse.ArgumentParser:
    """Options of both recipes."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--tiny", action="store_true", help="a tiny Llama that is taught the format first")
    source.add_argument("--model", type=Path, help="folder of a ChatML model")
    parser.add_argument("--adapter", type=Path, help="folder of a LoRA adapter to start from; needed with --model")
    parser.add_argument("--role", choices=SEATS, help="default: the adapter's, or hr for the tiny model")
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--replies", type=int, default=8, help="per decision (the group's size)")
    parser.add_argument("--decisions", type=int, default=4, help="groups per update")
    parser.add_argument("--ahead", type=int, default=36, help="colleagues' replies after the decision that count")
    parser.add_argument("--held-out", type=int, default=16, help="decisions judged before and after; 0 for none")
    parser.add_argument("--taught", type=int, default=200, help="steps that teach the tiny model the format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/trl"))
    return parser


def role_of(args: argparse.Namespace) -> str:
    """The trained role.

    Raises:
        ConfigError: an adapter of another role, or one that does not say its role.
    """
    if args.adapter is None:
        return args.role or "hr"
    meta = args.adapter / "adapter_meta.json"
    known = json.loads(meta.read_text(encoding="utf-8"))["role"] if meta.is_file() else None
    if args.role and known and args.role != known:
        raise ConfigError(f"--adapter {args.adapter} was trained as {known}, got --role {args.role}. Leave --role away.")
    if not (args.role or known):
        raise ConfigError(f"{args.adapter} has no adapter_meta.json that names its role. Set --role.")
    return str(args.role or known)


def load(args: argparse.Namespace, role: str):
    """Model, tokenizer, and the LoRA that TRL is to add (None when the model has one)."""
    if args.tiny:
        model, tokenizer = tiny(role, args.taught)
    else:
        # A checkpoint in bfloat16 is many times slower on a CPU without such products.
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(args.model)
    if args.adapter:
        return PeftModel.from_pretrained(model, args.adapter, is_trainable=True), tokenizer, None
    return model, tokenizer, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")


def tasks_of(args: argparse.Namespace) -> tuple[list[Task], list[Task]]:
    """Episodes to train on, and others that are only judged."""
    trained = office_tasks(Split.TRAIN, seeds=args.decisions * args.updates, scenarios=SCENARIOS)
    held_out = office_tasks(Split.TRAIN, seeds=args.held_out, scenarios=SCENARIOS, first=100_000) if args.held_out else []
    return trained, held_out


def config(args: argparse.Namespace, **more: Any) -> GRPOConfig:
    """TRL's settings; `more` is the recipe's own."""
    size = {"per_device_train_batch_size": args.replies, "num_generations": args.replies, "max_steps": args.updates}
    judged = {"per_device_eval_batch_size": args.replies * args.decisions, "seed": args.seed}
    quiet = {"logging_steps": 1, "save_strategy": "no", "report_to": "none", "disable_tqdm": True}
    given = {"learning_rate": LEARNING_RATE[args.tiny], "gradient_accumulation_steps": args.decisions}
    plain = {"output_dir": str(args.out), "use_cpu": True, "bf16": False, "gradient_checkpointing": False}
    return GRPOConfig(**plain, **given, **size, **judged, **quiet, **more)


class Progress(TrainerCallback):
    """Prints each update as soon as it is made."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if logs and "frac_reward_zero_std" in logs:
            print(
                f"update {state.global_step}  " + "  ".join(f"{name} {logs[name]:.4g}" for name in SHOWN if name in logs),
                flush=True,
            )


def train(trainer: GRPOTrainer, args: argparse.Namespace, *, remedy: str = REMEDY) -> int:
    """Train, print what came of it, and save the adapter; `remedy` is what a run that learned nothing advises.

    Returns:
        0, or 1 when no group of any update had replies of different worth, so that nothing was learned.
    """
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Progress)
    before = judge(trainer, args)
    trainer.train()
    rows = [row for row in trainer.state.log_history if "frac_reward_zero_std" in row]
    dead, norm = (sum(row[name] for row in rows) / len(rows) for name in ("frac_reward_zero_std", "grad_norm"))
    print(f"mean of {len(rows)} updates  frac_reward_zero_std {dead:.4g}  grad_norm {norm:.4g}")
    if dead == 1 or norm == 0:
        print(
            "Nothing was learned: in every group all replies were worth the same (frac_reward_zero_std 1), usually because none "
            f"is a legal action. {remedy}"
        )
        return 1
    if args.held_out:
        print(
            f"held-out reward {before:.4g} -> {judge(trainer, args):.4g} ({args.held_out} decisions, {args.replies} replies each)"
        )
    trainer.save_model(str(args.out))
    return 0


def judge(trainer: GRPOTrainer, args: argparse.Namespace) -> float:
    """Mean reward on the held-out decisions; NaN when there are none."""
    return trainer.evaluate()["eval_reward"] if args.held_out else float("nan")
