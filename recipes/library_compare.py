"""Matched comparison of any PEFT model with its own base, without the training loop of this package.

    python recipes/library_compare.py --tiny                        # a tiny Llama and a LoRA adapter made on the spot
    python recipes/library_compare.py --model DIR --adapter DIR     # a chat model and a PEFT adapter for it

What you bring is a `Policy`: a class with `version`, `reads` and `act`. What you get: every team on the same held-out tasks
with the same seeds and decoding, paired intervals, and an HTML report. Here the policy calls plain `model.generate`.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from onthejob.api.report import Report, write_report
from onthejob.evaluate import EvaluationCache, Team, compare, scripted_team, shifts, source_fingerprint
from onthejob.evaluate.terminal_tables import comparison_table, differences_table
from onthejob.models.scripted import ScriptedPolicy
from onthejob.testing import Tiny, ToyWorkplace, expert_reply, heuristic_reply, teach, tiny_model, toy_examples, toy_tasks
from onthejob.types import Completion, Context, Sampling, Split

ACTORS: tuple[str, ...] = ("maker", "seller")


class GeneratePolicy:
    """A PEFT model behind `generate`; `adapted=False` answers with the base underneath."""

    reads = "messages"

    def __init__(self, model: PeftModel, tokenizer: Any, *, adapted: bool) -> None:
        self._model, self._tokenizer, self._adapted = model, tokenizer, adapted
        self.version = "adapter" if adapted else "base"

    def act(self, contexts: Sequence[Context], sampling: Sampling) -> list[Completion]:
        """One reply per context; a reply depends on its prompt and seed alone."""
        with nullcontext() if self._adapted else self._model.disable_adapter():
            return [self._reply(context, sampling) for context in contexts]

    @torch.no_grad()
    def _reply(self, context: Context, sampling: Sampling) -> Completion:
        chat = [{"role": message.role, "content": message.content} for message in context.messages]
        text = self._tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        prompt = torch.tensor([self._tokenizer.encode(text, add_special_tokens=False)], device=self._model.device)  # (1, P)
        tempered = {"temperature": sampling.temperature, "top_k": 0} if sampling.temperature > 0 else {}
        options: dict[str, Any] = {"do_sample": bool(tempered), **tempered}
        with torch.random.fork_rng():
            torch.manual_seed(context.seed)
            options |= {"max_new_tokens": sampling.max_new_tokens, "pad_token_id": self._tokenizer.eos_token_id}
            output = self._model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), **options)
        ids = output[0, prompt.shape[1] :].tolist()
        return Completion(text=self._tokenizer.decode(ids, skip_special_tokens=True), token_ids=tuple(ids))


def tiny_adapter(steps: int) -> tuple[PeftModel, Any]:
    """A tiny base that knows the format, and an adapter that has seen the expert play training tasks."""
    tiny, env = tiny_model(seed=0), ToyWorkplace()
    teach(tiny, toy_examples(300), steps=steps)
    model = get_peft_model(tiny.model, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"]))
    examples = []
    for task in toy_tasks(40, split=Split.TRAIN):
        observation = env.reset(task)
        while observation is not None:
            examples.append((tuple(observation.messages), expert_reply(observation, 0)))
            observation = env.step(examples[-1][1]).observation
    teach(Tiny(model=model, tokenizer=tiny.tokenizer), examples, steps=steps, lr=1e-2)  # type: ignore[arg-type]
    return model, tiny.tokenizer


def weights_digest(model: PeftModel) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    for name in ("model", "adapter", "cache", "report"):  # cache: keep finished episodes there; report: write HTML there
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--seeds", type=int, default=12, help="held-out tasks")
    parser.add_argument("--steps", type=int, default=80, help="training steps of the tiny model")
    args = parser.parse_args(arguments)
    if args.tiny:
        model, tokenizer = tiny_adapter(args.steps)
    elif args.model and args.adapter:
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32), args.adapter)
        tokenizer = AutoTokenizer.from_pretrained(args.model)
    else:
        parser.error("pass --tiny, or --model and --adapter")
    digest = weights_digest(model.eval())
    teams = [scripted_team("heuristic", ScriptedPolicy(heuristic_reply, version="heuristic"), ACTORS)]
    for adapted in (False, True):
        policy = GeneratePolicy(model, tokenizer, adapted=adapted)
        seats, prints = dict.fromkeys(ACTORS, policy), dict.fromkeys(ACTORS, f"{policy.version}:{digest}")
        teams.append(Team(name=policy.version, policies=seats, fingerprints=prints, learned=frozenset(ACTORS)))
    tasks = toy_tasks(args.seeds, split=Split.TEST, first_seed=900_000)
    sampling = Sampling(temperature=1.0, max_new_tokens=6)
    with EvaluationCache(args.cache, env=source_fingerprint(ToyWorkplace)) as cache:
        result = compare(teams, tasks, env_factory=ToyWorkplace, cache=cache, sampling=sampling, seed=0, max_turns=40)
    rows = comparison_table(result, metrics=["company_value", "sales", "valid_rate"])
    Console().print(rows, differences_table(result, "company_value", featured="adapter"))
    if args.report:
        moved = shifts(result.actions("base"), result.actions("adapter"), seed=0)
        report = Report(title="Adapter against base", comparison=result, shifts=moved, shift_names=("base", "adapter"))
        print(f"report: {write_report(args.report, report)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
