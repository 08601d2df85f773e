"""Four pieces of the training step, each on its own, on any PEFT model and without the training loop of this package.

    python recipes/library_lora.py --tiny          # a tiny Llama with a LoRA adapter made on the spot
    python recipes/library_lora.py --model DIR     # any causal LM folder; LoRA is attached by plain PEFT

1 a snapshot of an adapter that is applied and taken back bit for bit, 2 how far two adapters are apart, 3 advantages of a group
of replies, 4 a packed GRPO step: the common prompt once, log-probabilities and gradients as if every reply had run alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from rich.console import Console
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from onthejob.learn.advantage import AdvantageConfig, advantages
from onthejob.learn.batch import Batch, collate, pack
from onthejob.learn.batch import Path as Sequence
from onthejob.learn.forward import Layout, choose_layout, score
from onthejob.learn.lora import Snapshot, parameters, weight_delta
from onthejob.learn.loss import LossConfig, policy_loss
from onthejob.types import Completion, Group, StopReason, Trajectory, Turn

ADAPTER = "default"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--tiny", action="store_true", help="a random Llama of two layers")
    source.add_argument("--model", type=Path, help="folder of a causal LM")
    arguments = parser.parse_args(argv)
    torch.manual_seed(0)
    base = tiny_llama() if arguments.tiny else AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    model = get_peft_model(base, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    console = Console()
    console.print(f"1 snapshot and 2 delta: {snapshot_and_delta(model)}")
    console.print(f"3 advantages: {group_advantages()}")
    console.print(f"4 packed step: {packed_step(model)}")
    return 0


def snapshot_and_delta(model: PeftModel) -> str:
    """Take an adapter's weights, change them, and look at the old policy for a moment."""
    reference = Snapshot.take(model, ADAPTER)
    with torch.no_grad():
        for parameter in parameters(model, ADAPTER).values():
            parameter.add_(0.01 * torch.randn_like(parameter))
    moved = weight_delta(reference, Snapshot.take(model, ADAPTER))
    present = Snapshot.take(model, ADAPTER)
    with reference.applied(model, ADAPTER):  # Here the model is the reference policy.
        assert weight_delta(reference, Snapshot.take(model, ADAPTER)) == (0, 0)
    assert weight_delta(present, Snapshot.take(model, ADAPTER)) == (0, 0)
    return f"l2 {moved.l2:.4f}, largest change {moved.max_abs:.4f}; put back bit for bit"


def group_advantages() -> list[float]:
    """The last of four replies was not legal: it gets a penalty, and no say in the baseline of the others."""
    values = advantages(example_group(), AdvantageConfig(scale="std"))
    assert values is not None  # None is a group that teaches nothing.
    return [round(float(value), 3) for value in values]


def packed_step(model: PeftModel) -> str:
    """One gradient of the GRPO loss on a group, and the proof that packing changed nothing."""
    group = example_group()
    values = advantages(group, AdvantageConfig())
    assert values is not None
    layout = choose_layout(model)
    (batch,) = collate([group], [values], max_tokens=2048)
    gradient, alone_gradient = (loss_gradient(model, batch, each) for each in (layout, Layout.PADDED))
    norm = float(gradient.norm())
    apart = float((gradient - alone_gradient).norm()) / norm

    turns = [turn for trajectory in group.trajectories for turn in trajectory.turns]
    alone = [Sequence(ids=t.prompt_ids + t.completion.token_ids, context=len(t.prompt_ids)) for t in turns]
    with torch.no_grad():
        single = [score(model, pack([path], max_tokens=2048)[0], layout=layout).logprobs for path in alone]
    by_reply = torch.from_numpy(batch.row.term_source).argsort(stable=True)
    with torch.no_grad():
        packed = score(model, batch.row, layout=layout).logprobs
    gap = float((packed[by_reply] - torch.cat(single)).abs().max())
    tokens = sum(len(path.ids) for path in alone)
    if not (norm > 0 and apart < 1e-3 and gap < 1e-3):
        raise SystemExit(
            f"packing changed the step: gradient norm {norm:.1e}, {apart:.1e} of it off, log-probabilities {gap:.1e} off"
        )
    return (
        f"{tokens} tokens as {len(batch.row)} nodes ({layout}), gradient norm {norm:.3e} within {apart:.1e} of itself, "
        f"log-probabilities within {gap:.1e}"
    )


def loss_gradient(model: PeftModel, batch: Batch, layout: Layout) -> torch.Tensor:
    """Gradient of the GRPO loss; the padded layout runs every reply alone behind a prompt of its own."""
    policy_loss(score(model, batch.row, layout=layout).logprobs, batch, LossConfig(loss="grpo")).loss.backward()
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad(set_to_none=True)
    return found


def example_group() -> Group:
    """Four replies to one prompt of 32 tokens, as a sampler would have recorded them."""
    generator = torch.Generator().manual_seed(0)
    prompt = tuple(torch.randint(3, 250, (32,), generator=generator).tolist())
    trajectories = []
    for reward, legal in ((0.1, True), (0.7, True), (0.4, True), (0.0, False)):
        reply = tuple(torch.randint(3, 250, (6,), generator=generator).tolist())
        completion = Completion(text="", token_ids=reply, logprobs=(-5.5,) * len(reply))
        turn = Turn(prompt_ids=prompt, completion=completion, policy_version="recorded", valid=legal)
        trajectories.append(
            Trajectory(task_id="example", actor=ADAPTER, turns=(turn,), rewards=(reward,), stop=StopReason.BRANCH)
        )
    return Group(key="example", actor=ADAPTER, trajectories=tuple(trajectories))


def tiny_llama() -> LlamaForCausalLM:
    """Small enough for a second; the vocabulary is that of the example group."""
    config = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
    return LlamaForCausalLM(config)


if __name__ == "__main__":
    raise SystemExit(main())
