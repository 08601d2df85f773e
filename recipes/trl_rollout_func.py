"""One role of the office trained by TRL's own GRPOTrainer through `rollout_func`: several decisions in one rollout.

    python recipes/trl_rollout_func.py --tiny
    python recipes/trl_rollout_func.py --model DIR --adapter adapters/office/sales@0006 --updates 1 --held-out 0

Options, output and exit code are those of `trl_environment_factory.py`. TRL hands over the prompts of a batch, here names of
tasks, and gets back token ids, log-probabilities and a mask: 1 on what the model wrote, 0 on what the office said in between.
Nothing is re-tokenised: what was sampled is what is trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from datasets import Dataset
from trl_start import SKIP, GRPOTrainer, arguments, config, load, role_of, tasks_of, train  # the file next to this one

from onthejob.compat.trl import OfficeJob
from onthejob.envs.office.prompt import system_text
from onthejob.types import Task


@dataclass(slots=True, kw_only=True)
class Rollout:
    """One job and its tokens so far."""

    job: OfficeJob
    prompt: list[int]
    completion: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)

    def append(self, ids: list[int], logprobs: list[float], *, sampled: bool) -> None:
        self.completion += ids
        self.logprobs += logprobs
        self.mask += [int(sampled)] * len(ids)


class Rollouts:
    """Plays a job of one role per prompt (`OfficeJob` has its arguments); TRL passes a prompt as often as the group is large."""

    def __init__(self, tasks: Sequence[Task], role: str, *, new_tokens: int, **job: int) -> None:
        self.tasks = {task.id: task for task in tasks}
        self.role, self.new_tokens, self.job = role, new_tokens, job

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """All rollouts of a batch, a turn at a time: one call of the model answers all that are still running."""
        rollouts = [self.begin(self.tasks[prompt], trainer) for prompt in prompts]
        while running := [rollout for rollout in rollouts if not rollout.job.over]:
            for rollout, (ids, logprobs) in zip(running, sample(trainer, running, self.new_tokens), strict=True):
                rollout.append(ids, logprobs, sampled=True)
                self.answer(rollout, ids, trainer)
        return {
            "prompt_ids": [rollout.prompt for rollout in rollouts],
            "completion_ids": [rollout.completion for rollout in rollouts],
            "logprobs": [rollout.logprobs for rollout in rollouts],
            "env_mask": [rollout.mask for rollout in rollouts],
            "office_return": [rollout.job.finish() for rollout in rollouts],
        }

    def begin(self, task: Task, trainer: GRPOTrainer) -> Rollout:
        job = OfficeJob(role=self.role, **self.job)
        said = job.begin(seed=task.seed, skip=SKIP, **task.payload)
        text = f"<|im_start|>system\n{system_text(self.role, 'compact')}<|im_end|>\n" + turn(said)
        return Rollout(job=job, prompt=encode(trainer.processing_class, text))

    def answer(self, rollout: Rollout, ids: list[int], trainer: GRPOTrainer) -> None:
        """The office's answer to a reply; an unusable one is a turn without effect, or with --retries is answered by feedback."""
        tokenizer: Any = trainer.processing_class
        said = rollout.job.reply(tokenizer.decode(ids, skip_special_tokens=True))
        if said is not None and not rollout.job.over:
            cut = ids[-1] != tokenizer.eos_token_id  # the limit came before the end of the reply
            between = encode(tokenizer, ("<|im_end|>\n" if cut else "\n") + turn(said))
            rollout.append(between, [0.0] * len(between), sampled=False)


def turn(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def encode(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


@torch.no_grad()
def sample(trainer: GRPOTrainer, rollouts: Sequence[Rollout], new_tokens: int) -> list[tuple[list[int], list[float]]]:
    """One sampled reply for each, end-of-turn included, and its log-probabilities under the tempered distribution."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    tokenizer: Any = trainer.processing_class
    rows = [rollout.prompt + rollout.completion for rollout in rollouts]
    width = max(len(row) for row in rows)
    padded = [[tokenizer.pad_token_id] * (width - len(row)) + row for row in rows]
    attended = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
    output = model.generate(
        input_ids=torch.tensor(padded, device=model.device),  # (B, P)
        attention_mask=torch.tensor(attended, device=model.device),
        do_sample=True,
        temperature=trainer.temperature,
        top_k=0,
        top_p=1.0,
        max_new_tokens=new_tokens,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        return_dict_in_generate=True,
        output_scores=True,
    )
    replies = output.sequences[:, width:]  # (B, C)
    scores = torch.stack(output.scores, 1).float().log_softmax(-1)  # (B, C, V)
    logprobs = scores.gather(2, replies[:, :, None])[:, :, 0]  # (B, C)
    return [upto_end(*row, tokenizer.eos_token_id) for row in zip(replies.tolist(), logprobs.tolist(), strict=True)]


def upto_end(ids: list[int], logprobs: list[float], end: int) -> tuple[list[int], list[float]]:
    """A reply without the padding after its end-of-turn."""
    length = ids.index(end) + 1 if end in ids else len(ids)
    return ids[:length], logprobs[:length]


def office_return(office_return: list[float], **_: Any) -> list[float]:
    """Reward of each rollout, which TRL passes on under the name that the rollouts gave it."""
    return office_return


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--turns", type=int, default=2, help="decisions in one rollout")
    parser.add_argument("--retries", type=int, default=0, help="corrections of an unusable reply, with feedback, 0 to 8")
    args = parser.parse_args(argv)
    role = role_of(args)
    model, tokenizer, lora = load(args, role)
    trained, held_out = tasks_of(args)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=office_return,
        args=config(args, max_completion_length=1024),
        train_dataset=names(trained),
        eval_dataset=names(held_out) if held_out else None,
        processing_class=tokenizer,
        rollout_func=Rollouts(
            [*trained, *held_out], role, new_tokens=48, decisions=args.turns, ahead=args.ahead, retries=args.retries
        ),
        peft_config=lora,
    )
    return train(trainer, args)


def names(tasks: Sequence[Task]) -> Dataset:
    return Dataset.from_list([{"prompt": task.id} for task in tasks])


if __name__ == "__main__":
    raise SystemExit(main())
