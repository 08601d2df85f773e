"""Tiny real models and hand-made groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import LlamaConfig, LlamaForCausalLM

from onthejob.learn import lora
from onthejob.learn.advantage import AdvantageConfig, estimates
from onthejob.learn.learner import UpdateMetrics
from onthejob.learn.lora import Snapshot
from onthejob.types import Completion, Group, Learner, StopReason, Trajectory, Turn

VOCAB = 512


def update(
    learner: Learner,
    role: str,
    groups: Sequence[Group],
    *,
    advantage: AdvantageConfig | None = None,
    reference: Snapshot | None = None,
) -> UpdateMetrics:
    """An update with the advantages of `advantage`."""
    made = estimates(groups, advantage or AdvantageConfig())
    return learner.update(role, learner.collate(groups, [one.advantages for one in made]), reference=reference)


def tiny_base(dtype: torch.dtype = torch.float32, *, seed: int = 0) -> LlamaForCausalLM:
    """Two layers, grouped key heads; weights large enough that predictions are far from uniform."""
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.15,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).to(dtype)


def tiny_peft(
    roles: Sequence[str] = ("sales",), *, dtype: torch.dtype = torch.float32, seed: int = 0, moved: bool = True
) -> PeftModel:
    """`moved` gives B a value, so that every LoRA tensor has a gradient and adapters differ from the base."""
    model = lora.attach(tiny_base(dtype), roles, lora.LoraSpec(rank=4, alpha=8), seed=seed)
    if moved:
        generator = torch.Generator().manual_seed(seed + 1)
        for role in roles:
            with torch.no_grad():
                for name, parameter in lora.parameters(model, role).items():
                    if ".lora_B." in name:
                        parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def make_turn(prompt: Sequence[int], reply: Sequence[int], *, logprobs: Sequence[float] | None = None, **fields) -> Turn:
    values = tuple(logprobs) if logprobs is not None else tuple(-1.0 for _ in reply)
    completion = Completion(text="", token_ids=tuple(reply), logprobs=values)
    return Turn(prompt_ids=tuple(prompt), completion=completion, policy_version="test", **fields)


def make_group(*members: tuple[float, Turn | Sequence[Turn]], key: str = "g", actor: str = "sales") -> Group:
    """Each member: (return, its turn or turns)."""
    trajectories = []
    for ret, turns in members:
        several = (turns,) if isinstance(turns, Turn) else tuple(turns)
        rewards = (float(ret),) + (0.0,) * (len(several) - 1)
        trajectories.append(Trajectory(task_id="t", actor=actor, turns=several, rewards=rewards, stop=StopReason.BRANCH))
    return Group(key=key, actor=actor, trajectories=tuple(trajectories))


def random_groups(
    seed: int,
    *,
    groups: int = 2,
    size: int = 4,
    prompt: tuple[int, int] = (5, 12),
    reply: tuple[int, int] = (1, 6),
    actor: str = "sales",
    common: int = 3,
) -> list[Group]:
    """Ragged prompts with a common beginning; the last two replies of every group are equal, the first two begin alike."""
    rng = np.random.default_rng(seed)

    def draw(low: int, high: int) -> list[int]:
        return rng.integers(3, VOCAB, int(rng.integers(low, high + 1))).tolist()

    start = draw(common, common) if common else []
    made = []
    for index in range(groups):
        context = start + draw(*prompt)
        replies = [draw(*reply) for _ in range(size)]
        replies[1] = replies[0][:1] + replies[1]
        replies[-1] = list(replies[-2])
        members = []
        for tokens in replies:
            logprobs = (-6 - rng.random(len(tokens))).tolist()
            members.append((float(rng.normal()), make_turn(context, tokens, logprobs=logprobs)))
        made.append(make_group(*members, key=f"g{index}", actor=actor))
    return made


def gradients(model: PeftModel, role: str = "sales") -> dict[str, torch.Tensor]:
    found = {name: p.grad.clone() for name, p in lora.parameters(model, role).items() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


@pytest.fixture
def tiny() -> Callable[..., PeftModel]:
    return tiny_peft
