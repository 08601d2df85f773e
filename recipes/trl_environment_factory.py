"""One role of the office trained by TRL's own GRPOTrainer, which is given the office as an `environment_factory`.

    python recipes/trl_environment_factory.py --tiny                          # a tiny Llama that was taught the format
    python recipes/trl_environment_factory.py --model DIR --adapter DIR       # SmolLM2 and an adapter of `onthejob sft`

`onthejob model fetch` prints the model's folder. Without an adapter a new LoRA is made; a base model that was never taught the
format earns -1 with every reply and has nothing to learn from. A rollout is one decision: the completion's limit has no room for
the tool's answer, and TRL then ends it. Rewards of a group differ by the replies alone: state and luck are the same.
"""

from __future__ import annotations

import argparse
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

from datasets import Dataset
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from onthejob.compat.trl import OfficeSeat, as_tool_calls, prompt_rows
from onthejob.envs.office.env import OfficeEnvironment
from onthejob.envs.office.tasks import office_tasks
from onthejob.rollout.keys import keyed_choice
from onthejob.testing import teach, tiny_model
from onthejob.types import Message, Split


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
    """A Llama with two layers that writes the office's JSON, and its tokenizer, in which every word of the prompts is a token."""
    taught = examples(role, 120)
    texts = [text for messages, reply in taught for text in (*(message.content for message in messages), reply)]
    words = {word for text in texts for word in re.findall(r"[A-Za-z]+|[0-9]+|[^A-Za-z0-9\s]+", text)}
    made = tiny_model(words=sorted(words))
    teach(made, taught, steps=steps, batch=8)
    return made.model, made.tokenizer


def arguments(about: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--tiny", action="store_true")
    source.add_argument("--model", type=Path, help="folder of a ChatML model")
    parser.add_argument("--adapter", type=Path, help="folder of a LoRA adapter to start from")
    parser.add_argument("--role", default="sales")
    parser.add_argument("--updates", type=int, default=1)
    parser.add_argument("--replies", type=int, default=4, help="per decision (the group's size)")
    parser.add_argument("--decisions", type=int, default=2, help="groups per update")
    parser.add_argument("--ahead", type=int, default=36, help="colleagues' replies after the decision that count")
    parser.add_argument("--taught", type=int, default=60, help="steps that teach the tiny model the format")
    parser.add_argument("--out", type=Path, default=Path("runs/trl"))
    return parser


def load(args: argparse.Namespace):
    """Model, tokenizer, and the LoRA that TRL is to add (None when the model has one)."""
    if args.tiny:
        model, tokenizer = tiny(args.role, args.taught)
    else:
        model, tokenizer = AutoModelForCausalLM.from_pretrained(args.model), AutoTokenizer.from_pretrained(args.model)
    if args.adapter:
        return PeftModel.from_pretrained(model, args.adapter, is_trainable=True), tokenizer, None
    return model, tokenizer, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")


def config(args: argparse.Namespace, **more: Any) -> GRPOConfig:
    size = {"per_device_train_batch_size": args.replies, "num_generations": args.replies, "max_steps": args.updates}
    quiet = {"logging_steps": 1, "save_strategy": "no", "report_to": "none", "disable_tqdm": True}
    given = {"output_dir": str(args.out), "learning_rate": 1e-4, "gradient_accumulation_steps": args.decisions}
    return GRPOConfig(use_cpu=True, bf16=False, gradient_checkpointing=False, **given, **size, **quiet, **more)


def report(trainer: GRPOTrainer, args: argparse.Namespace) -> int:
    """Train, say what came of it, and save the adapter."""
    trainer.train()
    shown = ("reward", "reward_std", "loss", "grad_norm", "tools/call_frequency", "completions/mean_length")
    for row in trainer.state.log_history:
        if "reward" in row:
            print("  ".join(f"{name} {row[name]:.4g}" for name in shown if name in row))
    trainer.save_model(str(args.out))
    return 0


def main(argv: list[str] | None = None) -> int:
    args = arguments(__doc__).parse_args(argv)
    model, tokenizer, lora = load(args)
    tasks = office_tasks(Split.TRAIN, seeds=args.decisions * args.updates, scenarios=["baseline"])
    trainer = GRPOTrainer(
        model=model,
        args=config(args, max_completion_length=48),
        train_dataset=Dataset.from_list(prompt_rows(tasks, args.role, skips=(6,))),
        processing_class=as_tool_calls(tokenizer),
        environment_factory=partial(OfficeSeat, role=args.role, ahead=args.ahead),
        peft_config=lora,
    )
    return report(trainer, args)


if __name__ == "__main__":
    raise SystemExit(main())
