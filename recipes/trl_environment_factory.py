"""One role of the office trained by TRL's own GRPOTrainer, which is given the office as an `environment_factory`.

    python recipes/trl_environment_factory.py --tiny
    python recipes/trl_environment_factory.py --model DIR --adapter adapters/office/sales@0006 --updates 1 --held-out 0

The first command teaches a tiny Llama HR's format and trains it. The second makes one update of a kept adapter of SmolLM2, whose
folder `onthejob model fetch` prints. Both print, for each update, TRL's share of groups whose replies were all worth the same
(`frac_reward_zero_std`), and with --held-out the mean reward of other decisions before and after. The exit code is 1 when all
groups were like that: a model that was never taught the format earns the same with every reply and has nothing to learn from.

A rollout is one decision: the completion's limit has no room for the tool's answer, and TRL then ends it. Rewards of a group
differ by the replies alone: state and luck are the same.
"""

from __future__ import annotations

from functools import partial

from datasets import Dataset
from trl_start import SKIP, GRPOTrainer, arguments, config, load, role_of, tasks_of, train  # the file next to this one

from onthejob.compat.trl import OfficeSeat, as_tool_calls, prompt_rows


def main(argv: list[str] | None = None) -> int:
    args = arguments(__doc__).parse_args(argv)
    role = role_of(args)
    model, tokenizer, lora = load(args, role)
    trained, held_out = (Dataset.from_list(prompt_rows(tasks, role, skips=(SKIP,))) for tasks in tasks_of(args))
    trainer = GRPOTrainer(
        model=model,
        args=config(args, max_completion_length=48),
        train_dataset=trained,
        eval_dataset=held_out if len(held_out) else None,
        processing_class=as_tool_calls(tokenizer),
        environment_factory=partial(OfficeSeat, role=role, ahead=args.ahead),
        peft_config=lora,
    )
    return train(trainer, args)


if __name__ == "__main__":
    raise SystemExit(main())
