"""On an NVIDIA GPU an update and a warm start are those of the CPU, within the rounding of float32."""

from __future__ import annotations

import gc
import hashlib

import pytest
import torch

from onthejob.learn import lora
from onthejob.learn.forward import Layout
from onthejob.learn.learner import Learner, LearnerConfig
from onthejob.learn.lora import Snapshot, weight_delta
from onthejob.learn.loss import LossConfig
from onthejob.learn.sft import Example, SftConfig, sft
from onthejob.models.base_model import load_base
from onthejob.models.chat import ChatEncoder
from onthejob.models.sampler import Sampler
from onthejob.types import Message, Sampling

from .conftest import VOCAB, make_group, make_turn, random_groups, tiny_base, tiny_peft, update

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
ROLES = ("sales", "dev")


def learner_on(device: str, *, dtype=torch.float32, moved: bool = True, layout: Layout | None = None, **options) -> Learner:
    model = tiny_peft(ROLES, dtype=dtype, moved=moved).to(device)
    return Learner(model, ROLES, config=LearnerConfig(**options), layout=layout)


def digests(learner: Learner) -> dict[str, str]:
    return {
        name: hashlib.sha256(tensor.detach().cpu().float().numpy().tobytes()).hexdigest()
        for name, tensor in learner.model.state_dict().items()
    }


def assert_same_move(learners: list[Learner], role: str, moved: float):
    """Both adapters stand where the other one does, in relation to how far they went."""
    here, there = (lora.state(learner.model, role) for learner in learners)
    # Adam divides by the gradient's own size, so the smallest gradients' rounding shows in some weights.
    assert weight_delta(here, there).l2 < 0.02 * moved


def test_adapters_are_attached_on_the_gpu_as_on_the_cpu():
    spec = lora.LoraSpec(rank=4, alpha=8, logit_scale=True)
    here, there = (lora.attach(tiny_base().to(device), ROLES, spec, seed=3) for device in ("cpu", DEVICE))
    for role in ROLES:
        assert {p.device.type for p in lora.parameters(there, role).values()} == {DEVICE}
        assert weight_delta(lora.state(here, role), lora.state(there, role)) == (0, 0)


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        (LossConfig(), {}),
        (LossConfig(beta=0.1, entropy=0.01), {"epochs": 2}),
        (LossConfig(loss="expected", beta=0.03), {"epochs": 2}),
        (LossConfig(loss="expected"), {"max_tokens": 20}),
        (LossConfig(loss="gspo"), {"layout": Layout.PADDED}),
        (LossConfig(loss="cispo", epsilon_high=5), {"gradient_checkpointing": True}),
    ],
    ids=["grpo", "grpo-kl", "expected", "expected-rows", "gspo-padded", "cispo-checkpointing"],
)
def test_an_update_in_float32_is_that_of_the_cpu(loss, options):
    groups, done, learners = random_groups(2, groups=6), [], []
    for device in ("cpu", DEVICE):
        learner = learner_on(device, lr=1e-3, loss=loss, **options)
        reference = Snapshot.take(learner.model, "sales") if loss.beta else None
        others = {name: digest for name, digest in digests(learner).items() if ".sales." not in name}
        done.append(update(learner, "sales", groups, reference=reference))
        assert {name: digest for name, digest in digests(learner).items() if ".sales." not in name} == others
        learners.append(learner)
    cpu, gpu = done
    assert gpu.skipped == ""
    assert gpu.steps == cpu.steps
    assert learners[1].layout is learners[0].layout
    assert gpu.loss == pytest.approx(cpu.loss, abs=1e-5)
    assert gpu.grad_norm == pytest.approx(cpu.grad_norm, rel=1e-3)
    assert gpu.entropy == pytest.approx(cpu.entropy, rel=1e-4)
    assert_same_move(learners, "sales", cpu.delta_l2)


def test_the_gpu_scores_in_the_tree_layout():
    assert learner_on(DEVICE).layout is Layout.TREE
    assert learner_on(DEVICE, dtype=torch.bfloat16).layout is Layout.TREE


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("layout", list(Layout))
def test_an_update_in_bfloat16_is_finite_and_moves_its_role_alone(layout, checkpointing):
    groups = random_groups(2, groups=6)
    exact = update(learner_on("cpu", lr=1e-3), "sales", groups)
    options = {"lr": 1e-3, "layout": layout, "gradient_checkpointing": checkpointing}
    learner = learner_on(DEVICE, dtype=torch.bfloat16, **options)
    before = digests(learner)
    metrics = update(learner, "sales", groups)
    after = digests(learner)
    assert metrics.skipped == ""
    assert all(torch.isfinite(tensor).all() for tensor in lora.state(learner.model, "sales").values())
    assert {name for name in before if before[name] != after[name]} == {name for name in before if ".sales." in name}
    assert metrics.grad_norm == pytest.approx(exact.grad_norm, rel=0.1)
    assert metrics.entropy == pytest.approx(exact.entropy, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_learning_rate_zero_changes_nothing(dtype):
    learner = learner_on(DEVICE, dtype=dtype, lr=0.0)
    before = digests(learner)
    metrics = update(learner, "sales", random_groups(0))
    assert (metrics.delta_l2, metrics.delta_max, metrics.steps) == (0, 0, 1)
    assert digests(learner) == before


def test_a_state_that_was_saved_on_the_gpu_goes_on_there_and_on_the_cpu():
    first = learner_on(DEVICE, lr=1e-3)
    update(first, "sales", random_groups(0))
    saved = first.export_state("sales")
    assert {tensor.device.type for tensor in saved.values()} == {"cpu"}
    straight = update(first, "sales", random_groups(1))
    for device in (DEVICE, "cpu"):
        resumed = learner_on(device, lr=1e-3)
        resumed.import_state("sales", saved)
        again = update(resumed, "sales", random_groups(1))
        assert again.update == straight.update == 2
        assert again.grad_norm == pytest.approx(straight.grad_norm, rel=1e-3)
        assert_same_move([first, resumed], "sales", straight.delta_l2)


@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)])
def test_warm_starts_are_those_of_the_cpu(dtype, near):
    prompt = tuple(range(3, 20))
    shown = [Example(prompt_ids=(*prompt, 30 + i), completion_ids=(40 + i, VOCAB - 1 - i, 2)) for i in range(8)]
    config = SftConfig(lr=1e-3, batch_tokens=64, warmup=0)
    learners = [learner_on(device, dtype=dtype, moved=False) for device in ("cpu", DEVICE)]
    start = lora.state(learners[0].model, "sales")
    cpu, gpu = ([step.loss for step in sft(learner, "sales", shown, config)] for learner in learners)
    assert gpu == pytest.approx(cpu, rel=near)
    if dtype is torch.float32:
        assert_same_move(learners, "sales", weight_delta(start, lora.state(learners[0].model, "sales")).l2)


def test_the_memory_of_a_learner_is_given_back():
    def held() -> int:
        update(learner_on(DEVICE, lr=1e-3), "sales", random_groups(2))
        gc.collect()
        return torch.cuda.memory_allocated()

    assert held() == held(), "after the first one nothing is left that the libraries do not keep for themselves"


@pytest.mark.parametrize(("dtype", "mean"), [("float32", 1e-4), ("bfloat16", 0.1)])
def test_the_embedded_model_is_trained_on_what_it_sampled(smollm2_path, tmp_path, dtype, mean):
    """Sampler and learner share the weights and agree on every token; in float32 the update is that of the CPU."""
    from onthejob.learn.adapter_files import save_adapter

    system, asked = Message("system", "You are the sales agent."), ("Day 3. Offer a demo or wait.", "Day 4. Hold or sell.")
    prompts, done, updates, learners = [], [], [], []
    for device in (DEVICE, "cpu") if dtype == "float32" else (DEVICE,):
        base = load_base(smollm2_path, dtype=dtype, device=device)
        model = lora.attach(base.model, ROLES, lora.LoraSpec(), seed=0)
        learner = Learner(model, ROLES, config=LearnerConfig(lr=1e-3))
        assert learner.layout is Layout.TREE
        if not done:
            # A step away from the base, so that the adapter is not one that does nothing.
            start = [Example(prompt_ids=(1, 2, 3), completion_ids=(4, 5, 2))]
            sft(learner, "sales", start, SftConfig(lr=1e-3, warmup=0))
            moved = Snapshot.take(model, "sales")
            chat = ChatEncoder(base.tokenizer)
            sampler = Sampler(model, chat, base_digest=base.digest)
            adapter = save_adapter(model, "sales", tmp_path, version=1, parent=None, base_digest=base.digest, dtype="float32")
            sampler.publish(adapter)
            prompts = [chat.encode([system, Message("user", text)]) for text in asked for _ in range(4)]
            sampling = Sampling(temperature=1.0, max_new_tokens=12)
            done = sampler.generate(prompts, adapter=adapter.name, sampling=sampling, seeds=range(8))
        lora.load_state(model, "sales", moved.tensors)
        turns = [make_turn(p, reply.token_ids, logprobs=reply.logprobs) for p, reply in zip(prompts, done, strict=True)]
        groups = [make_group(*zip((1.0, 0.5, -0.25, 0.0), turns[i : i + 4], strict=True), key=f"g{i}") for i in (0, 4)]
        updates.append(update(learner, "sales", groups))
        learners.append(learner)
        gap = updates[-1].values["sampling/sampling_logp_difference/mean"]
        print(f"SmolLM2 {dtype} on {device}: trainer and sampler differ by {gap:.2e} nats, gradient {updates[-1].grad_norm:.4f}")
        assert gap < mean
        assert updates[-1].skipped == ""
    if dtype == "float32":
        gpu, cpu = updates
        assert gpu.loss == pytest.approx(cpu.loss, abs=1e-4)
        assert gpu.grad_norm == pytest.approx(cpu.grad_norm, rel=1e-2)
        assert_same_move(learners, "sales", cpu.delta_l2 * 2)
