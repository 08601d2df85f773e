"""The whole algorithm in one file: GRPO on counterfactual branches, one LoRA adapter per role. Read it top to bottom.

    python recipes/grpo_min.py --tiny          # a tiny taught Llama, about half a minute on a laptop
    python recipes/grpo_min.py --model DIR     # any chat model with a ChatML-like template that answers with one word

Each update: put a workplace into some state, sample K replies to what the asked actor sees, try each reply in forks of the
workplace (the same m worlds for all K, so luck cancels), and make the replies that did better than the group's mean more
likely. `train` has the steps of `onthejob/loop.py`, which adds packed shared-prefix rows, versions, a record and resume.
Omitted on purpose: KL term, clip-higher, gradient accumulation, batching over groups.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from typing import NamedTuple

import torch
from peft import LoraConfig, get_peft_model

from onthejob.keys import keyed_choice, keyed_seed
from onthejob.testing import ToyWorkplace, random_legal_reply, teach, tiny_model, toy_examples, toy_tasks
from onthejob.types import Observation, Split

ROLES = ("maker", "seller")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Numbers of the algorithm."""

    updates: int = 16
    groups: int = 8
    """Groups per role and update."""
    replies: int = 8
    """K: replies per group."""
    worlds: int = 4
    """m: worlds over which a reply's value is averaged."""
    turns: int = 4
    """H: length of a branch."""
    lr: float = 3e-3
    clip: float = 0.2
    new_tokens: int = 3
    taught: int = 120
    """Supervised steps of the tiny base before any reinforcement."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """K replies to one prompt, exactly as sampled."""

    prompt: torch.Tensor  # (P,)
    tokens: torch.Tensor  # (K, C), padded after the end-of-turn
    mask: torch.Tensor  # (K, C), 1 on sampled tokens including the end-of-turn
    logprobs: torch.Tensor  # (K, C), when sampled
    texts: list[str]


class Group(NamedTuple):
    """K replies to one prompt, with what each was worth and whether it was legal."""

    sampled: Sampled
    values: list[float]
    legal: list[bool]


def prompt_ids(tokenizer, observation: Observation) -> torch.Tensor:
    chat = [{"role": message.role, "content": message.content} for message in observation.messages]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    return torch.tensor(tokenizer.encode(text, add_special_tokens=False))


def token_logprobs(model, prompt: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Natural log-probability of each token after the prompt and the tokens before it; shape (K, C)."""
    rows = torch.cat([prompt.expand(len(tokens), -1), tokens], dim=1)  # (K, P + C)
    # The token at position t is predicted by the logits at t - 1: the first one by the prompt's last position.
    logits = model(input_ids=rows).logits[:, len(prompt) - 1 : -1].float()  # (K, C, V)
    return logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]


@torch.no_grad()
def sample(model, tokenizer, prompt: torch.Tensor, count: int, *, new_tokens: int, seed: int) -> Sampled:
    """`count` replies at temperature 1; without a KV cache, for clarity."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.empty(count, 0, dtype=torch.long)
    logprobs, mask = torch.empty(count, 0), torch.empty(count, 0)
    open_rows = torch.ones(count)  # 1 while a reply has not sampled its end-of-turn
    for _ in range(new_tokens):
        rows = torch.cat([prompt.expand(count, -1), tokens], dim=1)
        distribution = model(input_ids=rows).logits[:, -1].float().log_softmax(-1)  # (K, V)
        drawn = torch.multinomial(distribution.exp(), 1, generator=generator)  # (K, 1)
        tokens = torch.cat([tokens, drawn], dim=1)
        logprobs = torch.cat([logprobs, distribution.gather(-1, drawn)], dim=1)
        mask = torch.cat([mask, open_rows[:, None]], dim=1)
        open_rows = open_rows * (drawn[:, 0] != tokenizer.eos_token_id)
        if not open_rows.any():
            break
    texts = [tokenizer.decode(row[keep.bool()], skip_special_tokens=True) for row, keep in zip(tokens, mask, strict=True)]
    return Sampled(prompt=prompt, tokens=tokens, mask=mask, logprobs=logprobs, texts=texts)


def branch_values(env: ToyWorkplace, texts: list[str], *, worlds: list[int], turns: int) -> tuple[list[float], list[bool]]:
    """What each reply was worth (mean change of company value over the worlds), and whether it was legal."""
    values, legal = [], []
    for text in texts:
        branches = [env.branch(text, world=world, turns=turns) for world in worlds]
        values.append(statistics.fmean(branch.outcome for branch in branches))
        legal.append(branches[0].valid)
    return values, legal


def group_advantages(values: list[float], legal: list[bool], eps: float = 1e-4) -> torch.Tensor | None:
    """Better or worse than the group, in standard deviations; None when there is nothing to learn; shape (K,).

    Mean and standard deviation are those of the legal replies; an illegal one gets min(legal) - 1, at most -2.
    """
    good = [value for value, ok in zip(values, legal, strict=True) if ok]
    if not good or (max(good) - min(good) <= 1e-9 * max(map(abs, good)) and all(legal)):
        return None
    centre = statistics.fmean(good)
    spread = statistics.stdev(good) if len(good) > 1 else 0.0
    scored = [(value - centre) / (spread + eps) for value in good]
    floor = min(min(scored) - 1.0, -2.0)
    legal_scores = iter(scored)
    return torch.tensor([next(legal_scores) if ok else floor for ok in legal])


def grpo_loss(
    logprobs: torch.Tensor, sampled: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor, *, clip: float
) -> torch.Tensor:
    """Clipped policy gradient: mean over replies of the mean over a reply's tokens (loss `grpo`)."""
    ratio = (logprobs - sampled).exp()  # (K, C); 1 on the first update after sampling
    weight = advantages[:, None]
    gain = torch.minimum(ratio * weight, ratio.clamp(1 - clip, 1 + clip) * weight)
    return -((gain * mask).sum(1) / mask.sum(1)).mean()


def some_state(role: str, *keys: int | str, seed: int) -> tuple[ToyWorkplace, Observation]:
    """A workplace at a random turn of `role`, after random legal play."""
    env = ToyWorkplace()
    task = keyed_choice(toy_tasks(64), seed, "task", *keys)
    observation: Observation | None = env.reset(task)
    stop_at = 2 * (keyed_seed(seed, "turn", *keys) % 5) + ROLES.index(role)
    for turn in range(stop_at):
        assert observation is not None  # five days are ten turns
        observation = env.step(random_legal_reply(observation, keyed_seed(seed, "reply", turn, *keys))).observation
    assert observation is not None
    return env, observation


def play(model, tokenizer, role: str, number: int, index: int, options: Options) -> Group:
    """K replies to what `role` sees in some state, each tried in forks of it."""
    key = keyed_seed(options.seed, role, number, index)
    env, seen = some_state(role, number, index, seed=options.seed)
    prompt = prompt_ids(tokenizer, seen)
    sampled = sample(model, tokenizer, prompt, options.replies, new_tokens=options.new_tokens, seed=key)
    worlds = [1 + (key + world) % 9_999 for world in range(options.worlds)]
    return Group(sampled, *branch_values(env, sampled.texts, worlds=worlds, turns=options.turns))


@torch.no_grad()
def company_value(model, tokenizer, *, episodes: int, options: Options) -> float:
    """Mean final company value of whole episodes on held-out seeds, all roles sampled."""
    values = []
    for task in toy_tasks(episodes, split=Split.DEV, first_seed=1):
        env = ToyWorkplace()
        observation: Observation | None = env.reset(task)
        while observation is not None:
            model.set_adapter(observation.actor)
            seed = keyed_seed(options.seed, task.id, env.state()["turn"])
            prompt = prompt_ids(tokenizer, observation)
            reply = sample(model, tokenizer, prompt, 1, new_tokens=options.new_tokens, seed=seed).texts[0]
            observation = env.step(reply).observation
        values.append(env.state()["metrics"]["company_value"])
    return statistics.fmean(values)


def build(model_path: str | None, options: Options):
    """A model with one adapter per role, and its tokenizer."""
    if model_path is None:
        tiny = tiny_model(seed=options.seed)
        # A warm start from a stochastic teacher (60 % random legal replies): the format, and a reason to look at the prices.
        teach(tiny, toy_examples(256, seed=options.seed, expert_share=0.4), steps=options.taught)
        model, tokenizer = tiny.model, tiny.tokenizer
    else:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(model_path)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        config = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
        peft_model = get_peft_model(model, config, adapter_name=ROLES[0])
        for role in ROLES[1:]:
            peft_model.add_adapter(role, config)
    return peft_model.eval(), tokenizer


def train(model_path: str | None, options: Options, *, episodes: int = 40) -> tuple[float, float]:
    """Train all roles; returns the held-out company value before and after.

    Raises:
        SystemExit: no group of any update was live, so that no weight moved.
    """
    model, tokenizer = build(model_path, options)
    own, optimizers = {}, {}
    for role in ROLES:
        model.set_adapter(role)
        own[role] = [parameter for name, parameter in model.named_parameters() if f".{role}." in name]
        optimizers[role] = torch.optim.AdamW(own[role], lr=options.lr, weight_decay=0.0)
    before = company_value(model, tokenizer, episodes=episodes, options=options)
    live_groups = 0
    for number in range(options.updates):
        line = [f"update {number + 1:3d}/{options.updates}"]
        for role in ROLES:
            model.set_adapter(role)
            # 1 Play: groups of K replies to one prompt.
            groups = [play(model, tokenizer, role, number, index, options) for index in range(options.groups)]
            # 2 Advantages: within each group; None where it teaches nothing.
            advantages = [group_advantages(group.values, group.legal) for group in groups]
            # 3 Collate: what is trained on. A dead group is never forwarded again.
            batch = [(group.sampled, found) for group, found in zip(groups, advantages, strict=True) if found is not None]
            # 4 Loss: forward, loss, backward, step.
            losses = [
                grpo_loss(token_logprobs(model, one.prompt, one.tokens), one.logprobs, found, one.mask, clip=options.clip)
                for one, found in batch
            ]
            if losses:
                optimizers[role].zero_grad()
                torch.stack(losses).mean().backward()
                torch.nn.utils.clip_grad_norm_(own[role], 1.0)
                optimizers[role].step()
            live_groups += len(batch)
            legal = statistics.fmean(ok for group in groups for ok in group.legal)
            line.append(f"{role}: legal {legal:4.0%} live {len(batch)}/{options.groups}")
        print("   ".join(line))
    if not live_groups:
        raise SystemExit("Nothing was learned: in every group all replies were worth the same. Teach the model the format first.")
    after = company_value(model, tokenizer, episodes=episodes, options=options)
    print(f"company value on {episodes} held-out seeds: {before:.0f} before, {after:.0f} after")
    return before, after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--tiny", action="store_true", help="a tiny taught Llama")
    source.add_argument("--model", help="folder of a chat model in HF format")
    parser.add_argument("--updates", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    train(arguments.model, Options(updates=arguments.updates, seed=arguments.seed))


if __name__ == "__main__":
    main()
