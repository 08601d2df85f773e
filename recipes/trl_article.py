"""One role of the office with the settings and the reward of the OpenOfficeRL article, by TRL's GRPOTrainer.

It trains on prompts that were collected in episodes, with LoRA on a base in 4 bits, and pays the form of a reply and a judge's
opinion of it.

    python recipes/trl_article.py --tiny
    python recipes/trl_article.py --model DIR --role sales --judge claude-haiku-4-5

DIR is a folder that `onthejob model fetch` prints, of Qwen/Qwen2.5-14B-Instruct in the article; it needs `pip install
'onthejob[trl,quantized]'` and a GPU of 80 GB, and has not run at that size. The first command trains a tiny Llama on a CPU. The
judge is a model of the catalogue or a server, as for `onthejob train --judge`; without one the form alone is paid, 0 to 1.45.

`ARTICLE` holds the article's numbers. Next to each stands what `recipes/office_qwen14b.toml`, the office's own recipe for that
model, does instead. The reward is the main difference: here no reply's effect on the company counts, there nothing else does.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from trl_start import GRPOConfig, GRPOTrainer, tiny, train  # the file next to this one

from onthejob.envs.office import article_reward
from onthejob.envs.office.article import Opinions
from onthejob.envs.office.env import SEATS, OfficeConfig, OfficeEnvironment
from onthejob.envs.office.scenarios import SHIPPED
from onthejob.envs.office.tasks import office_tasks
from onthejob.models.catalogue import make_client
from onthejob.models.hosted import Price
from onthejob.models.transport import Limits, Transport
from onthejob.office import JUDGED
from onthejob.office_players import scripted
from onthejob.rollout.judge import VERDICT_TOKENS, Item, Judge, JudgeConfig
from onthejob.types import Context, Sampling, Split

ARTICLE: MappingProxyType[str, Any] = MappingProxyType({
    "num_generations": 4,                # the same; ours branches each reply in 8 worlds
    "max_completion_length": 1024,       # the same
    "temperature": 0.9,                  # the same
    "learning_rate": 2e-5,               # the same
    "per_device_train_batch_size": 1,    # ours packs the group into one row, the prompt once
    "gradient_accumulation_steps": 4,    # one group per step; ours takes all groups of a role in one
    "num_train_epochs": 3,               # ours plays anew for each of its 50 updates
    "bf16": True,                        # the same
    "optim": "adamw_8bit",               # the same
})  # fmt: skip
"""The article's GRPOConfig, but for `max_steps` (`steps`) and `max_prompt_length`=3072, which TRL 1.16 has no more: `BUDGET`."""
REMEDY = "Warm the model up first (`onthejob sft`, then `onthejob model merge`), and name the merged folder."
STEPS = 50
BUDGET = 2700
"""Tokens of the user message at most; the system message and the template come on top, so a prompt has at most 3072."""
LORA = LoraConfig(
    r=32,
    lora_alpha=32,
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    task_type="CAUSAL_LM",
)


def steps(rows: int) -> int:
    """The article's `max_steps`: three epochs of batches of one prompt, at most 50."""
    return min(STEPS, rows * 3)


def settings(rows: int, args: argparse.Namespace) -> dict[str, Any]:
    """Arguments of GRPOConfig; a tiny model has short replies, a higher rate, and no GPU."""
    quiet = {"output_dir": str(args.out), "logging_steps": 1, "save_strategy": "no", "report_to": "none", "disable_tqdm": True}
    found = {**ARTICLE, "max_steps": steps(rows), "seed": args.seed, **quiet}
    if args.tiny:
        found |= {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "optim": "adamw_torch"}
        found |= {"max_completion_length": 48, "learning_rate": 3e-3}
    return found


def collected(role: str, args: argparse.Namespace, tokenizer: Any) -> list[dict[str, Any]]:
    """What the role was asked in episodes of the expert: {"prompt": messages, "role": role} per decision."""
    config = OfficeConfig() if args.tiny else OfficeConfig(profile="full", budget=BUDGET)
    env = OfficeEnvironment(config, count_tokens=lambda text: len(tokenizer.encode(text, add_special_tokens=False)))
    expert, rows = scripted("expert"), []
    for task in office_tasks(Split.TRAIN, seeds=args.episodes, scenarios=args.scenarios, days=args.days):
        request = env.reset(task)
        while request is not None:
            if request.actor == role:
                prompt = [{"role": message.role, "content": message.content} for message in request.messages]
                rows.append({"prompt": prompt, "role": role})
            (completion,) = expert.act([Context(observation=request, seed=task.seed)], Sampling())
            request = env.step(completion.text).observation
    return rows


def opinions(model: str, transport: Transport) -> Opinions:
    """The judge that `model` names. It ends the run when a tenth of its scores are missing; the article pays 0.25 forever."""
    client, entry = make_client(model, transport)
    judge = Judge(
        client,
        transport,
        rubric=JUDGED,
        config=JudgeConfig(max_tokens=max(VERDICT_TOKENS, entry.max_tokens)),
        price=Price(prompt=entry.input_usd, completion=entry.output_usd),
        schema=entry.schema_,
        temperature=entry.temperature,
    )
    return lambda pairs: judge.scores([Item(*pair) for pair in pairs])


def reward_of(judge: Opinions | None) -> Callable[..., list[float]]:
    """`article_reward` with its judge, under a name that TRL can print."""

    def article(prompts: list[Any], completions: list[Any], role: list[str], **columns: Any) -> list[float]:
        return article_reward(prompts, completions, role, judge=judge)

    return article


def load(args: argparse.Namespace) -> tuple[Any, Any]:
    """Model and tokenizer; a model of DIR in 4 bits."""
    if args.tiny:
        return tiny(args.role, args.taught)
    four = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(args.model, quantization_config=four, dtype=torch.bfloat16, device_map="auto")
    return model, AutoTokenizer.from_pretrained(args.model)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--tiny", action="store_true", help="a tiny Llama that is taught the format first")
    source.add_argument("--model", type=Path, help="folder of a chat model")
    parser.add_argument("--role", choices=SEATS, default="sales")
    parser.add_argument("--judge", default="", help="a model of the catalogue, or openai:URL#MODEL of a server")
    parser.add_argument("--scenarios", nargs="+", choices=SHIPPED, default=["baseline"])
    parser.add_argument("--episodes", type=int, default=1, help="episodes per scenario in which prompts are collected")
    parser.add_argument("--days", type=int, default=30, help="their length")
    parser.add_argument("--taught", type=int, default=100, help="steps that teach the tiny model the format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/trl-article"))
    args = parser.parse_args(argv)
    model, tokenizer = load(args)
    rows = collected(args.role, args, tokenizer)
    with closing(Transport(Limits())) as transport:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=reward_of(opinions(args.judge, transport) if args.judge else None),
            args=GRPOConfig(**settings(len(rows), args)),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            peft_config=LORA,
        )
        return train(trainer, argparse.Namespace(out=args.out, held_out=0), remedy=REMEDY)


if __name__ == "__main__":
    raise SystemExit(main())
