"""One role of the office trained by TRL's own GRPOTrainer through `rollout_func`: several decisions in one rollout.

    python recipes/trl_rollout_func.py --tiny                          # a tiny Llama that was taught the format
    python recipes/trl_rollout_func.py --model DIR --adapter DIR       # SmolLM2 and an adapter of `onthejob sft`

TRL hands over the prompts of a batch, here names of tasks, and gets back token ids, log-probabilities and a mask: 1 on what the
model wrote, 0 on what the office said in between. Nothing is re-tokenised: what was sampled is what is trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset
from trl_environment_factory import GRPOTrainer, arguments, config, load, report  # the recipe beside this one

from onthejob.compat.trl import OfficeJob
from onthejob.envs.office.prompt import system_text
from onthejob.envs.office.tasks import office_tasks
from onthejob.types import Split, Task


class Rollouts:
    """Plays `decisions` decisions of one role per prompt; TRL passes every prompt as often as the group is large."""

    def __init__(self, tasks: Sequence[Task], role: str, *, decisions: int, ahead: int, new_tokens: int) -> None:
        self.tasks = {task.id: task for task in tasks}
        self.role, self.decisions, self.ahead, self.new_tokens = role, decisions, ahead, new_tokens

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        rollouts = [self.play(self.tasks[prompt], trainer) for prompt in prompts]
        return {key: [rollout[key] for rollout in rollouts] for key in rollouts[0]}

    def play(self, task: Task, trainer: GRPOTrainer) -> dict[str, Any]:
        """One rollout; an unusable reply is a turn in which nothing is done, and the next decision follows."""
        tokenizer: Any = trainer.processing_class
        job = OfficeJob(role=self.role, decisions=self.decisions, ahead=self.ahead)
        said = job.begin(seed=task.seed, skip=6, **task.payload)
        prompt = encode(tokenizer, f"<|im_start|>system\n{system_text(self.role, 'compact')}<|im_end|>\n" + turn(said))
        completion: list[int] = []
        logprobs: list[float] = []
        mask: list[int] = []
        while said is not None and not job.over:
            if completion:
                cut = completion[-1] != tokenizer.eos_token_id  # the limit came before the end of the reply
                between = encode(tokenizer, ("<|im_end|>\n" if cut else "\n") + turn(said))
                completion, logprobs, mask = completion + between, logprobs + [0.0] * len(between), mask + [0] * len(between)
            ids, values = sample(trainer, prompt + completion, self.new_tokens)
            completion, logprobs, mask = completion + ids, logprobs + values, mask + [1] * len(ids)
            said = job.reply(tokenizer.decode(ids, skip_special_tokens=True))
        return {
            "prompt_ids": prompt,
            "completion_ids": completion,
            "logprobs": logprobs,
            "env_mask": mask,
            "office_return": job.finish(),
        }


def turn(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def encode(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


@torch.no_grad()
def sample(trainer: GRPOTrainer, ids: list[int], new_tokens: int) -> tuple[list[int], list[float]]:
    """One sampled reply, end-of-turn included, and its log-probabilities under the tempered distribution."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    tokenizer: Any = trainer.processing_class
    prompt = torch.tensor([ids], device=model.device)  # (1, P)
    output = model.generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
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
    reply = output.sequences[0, len(ids) :]  # (C,)
    scores = torch.stack(output.scores)[:, 0].float().log_softmax(-1)  # (C, V)
    return reply.tolist(), scores.gather(1, reply[:, None])[:, 0].tolist()


def office_return(office_return: list[float], **_: Any) -> list[float]:
    """What the role was paid: TRL passes on what the rollouts returned under this name."""
    return office_return


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--turns", type=int, default=2, help="decisions in one rollout")
    args = parser.parse_args(argv)
    model, tokenizer, lora = load(args)
    tasks = office_tasks(Split.TRAIN, seeds=args.decisions * args.updates, scenarios=["baseline"], days=30)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=office_return,
        args=config(args, max_completion_length=1024),
        train_dataset=Dataset.from_list([{"prompt": task.id} for task in tasks]),
        processing_class=tokenizer,
        rollout_func=Rollouts(tasks, args.role, decisions=args.turns, ahead=args.ahead, new_tokens=48),
        peft_config=lora,
    )
    return report(trainer, args)


if __name__ == "__main__":
    raise SystemExit(main())
