"""What large models need, on a tiny random Qwen2: bfloat16 and 4-bit weights, 8-bit moments, gradient checkpointing."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from onthejob.errors import ConfigError
from onthejob.learn import adapter_files, lora
from onthejob.learn.forward import Layout
from onthejob.learn.learner import Learner, LearnerConfig
from onthejob.learn.lora import Snapshot, weight_delta
from onthejob.learn.optimize import Optimizer
from onthejob.models.base_model import load_base
from onthejob.models.chat import ChatEncoder
from onthejob.models.generic import GenericEngine
from onthejob.models.sampler import Sampler
from onthejob.serve.publish import trainer_scores
from onthejob.testing.tiny import tiny_tokenizer
from onthejob.types import Sampling

from .conftest import VOCAB, random_groups, tiny_base, update

SPEC = lora.LoraSpec(rank=32, alpha=32)
IDS = tuple(range(5, 25))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As Qwen2.5-14B is built: grouped heads with biases, a head of its own. Layers large enough to be quantised by blocks."""
    tokenizer = tiny_tokenizer()
    config = Qwen2Config(
        vocab_size=VOCAB,  # More than the tokenizer's, as in Qwen2.5.
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
        initializer_range=128**-0.5,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = Qwen2ForCausalLM(config)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.1)
    folder = tmp_path_factory.mktemp("qwen")
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def learner_on(folder: Path, *, quantize: str = "none", dtype: str = "bfloat16", **options) -> Learner:
    base = load_base(folder, dtype=dtype, quantize=quantize)
    model = lora.attach(base.model, ("sales", "dev"), SPEC, seed=0)
    return Learner(model, ("sales", "dev"), config=LearnerConfig(lr=1e-3, **options))


def base_bytes(learner: Learner) -> int:
    return sum(p.numel() * p.element_size() for name, p in learner.model.named_parameters() if "proj.base_layer.weight" in name)


NEEDS = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="the quantized extra is not installed")
QUANTIZED = pytest.param("nf4", marks=NEEDS)


@pytest.mark.parametrize("quantize", ["none", QUANTIZED])
def test_qwen_is_updated_with_and_without_checkpointing_alike(quantize: str, qwen: Path):
    states, norms = [], []
    for checkpointing in (False, True):
        learner = learner_on(qwen, quantize=quantize, gradient_checkpointing=checkpointing)
        assert learner.layout is Layout.TREE
        before = {n: p.detach().clone() for n, p in learner.model.named_parameters() if "lora_" not in n}
        metrics = update(learner, "sales", random_groups(0, groups=4))
        assert metrics.steps == 1
        assert metrics.delta_l2 > 0
        after = dict(learner.model.named_parameters())
        assert all(torch.equal(tensor, after[name]) for name, tensor in before.items()), "the base is never written to"
        states.append(lora.state(learner.model, "sales"))
        norms.append(metrics.grad_norm)
    assert norms[0] == pytest.approx(norms[1], rel=0.02)
    assert weight_delta(states[0], states[1]).l2 < 0.2 * metrics.delta_l2


@NEEDS
def test_four_bits_are_a_quarter_of_the_memory_and_nearly_the_same_model(qwen: Path):
    whole, four = learner_on(qwen), learner_on(qwen, quantize="nf4")
    assert base_bytes(four) == base_bytes(whole) / 4
    exact, rounded = (torch.tensor(trainer_scores(learner.model, "sales", IDS)) for learner in (whole, four))
    assert 0 < (exact - rounded).abs().mean() < 0.5
    # One step on the same groups moves both in one direction; Adam's first steps are signs, and small gradients change theirs.
    groups = random_groups(0, groups=8)
    deltas = []
    for learner in (whole, four):
        before = lora.state(learner.model, "sales")
        update(learner, "sales", groups)
        after = lora.state(learner.model, "sales")
        deltas.append(torch.cat([(after[name] - before[name]).flatten() for name in before if ".lora_B." in name]))
    assert torch.nn.functional.cosine_similarity(deltas[0], deltas[1], dim=0) > 0.5


@pytest.mark.parametrize("quantize", ["none", QUANTIZED])
@pytest.mark.parametrize("architecture", ["qwen", "llama"])
def test_the_sampler_samples_what_the_trainer_computes(architecture: str, quantize: str, qwen: Path, tmp_path: Path):
    """Also on a Llama, whose fast path reads weights that a 4-bit layer does not have."""
    folder = qwen
    if architecture == "llama":
        folder = tmp_path / "llama"
        tiny_base().save_pretrained(folder)
        tiny_tokenizer().save_pretrained(folder)
    learner = learner_on(folder, quantize=quantize, dtype="float32")
    update(learner, "sales", random_groups(1, groups=2))
    base = load_base(folder, dtype="float32", quantize=quantize)
    sampler = Sampler(learner.model, ChatEncoder(base.tokenizer), base_digest=base.digest)
    assert isinstance(sampler._engine, GenericEngine) is (architecture == "qwen" or quantize == "nf4")
    adapter = adapter_files.save_adapter(
        learner.model, "sales", tmp_path / "adapters", version=1, parent=None, base_digest=base.digest, dtype="float32"
    )
    sampler.publish(adapter)
    (reply,) = sampler.generate([IDS], adapter="sales@0001", sampling=Sampling(max_new_tokens=8), seeds=[0])
    scores = trainer_scores(learner.model, "sales", IDS + reply.token_ids)[len(IDS) - 1 :]
    assert list(reply.logprobs) == pytest.approx(scores, abs=1e-3)


@NEEDS
def test_eight_bit_moments_train_as_thirty_two_bit_ones_in_a_quarter_of_the_memory(qwen: Path):
    moved, held = {}, {}
    for kind in Optimizer:
        learner = learner_on(qwen, dtype="float32", optimizer=kind)
        before = Snapshot.take(learner.model, "sales")
        for seed in range(3):
            update(learner, "sales", random_groups(seed, groups=4))
        moved[kind] = {n: t - before.tensors[n] for n, t in lora.state(learner.model, "sales").items()}
        state = learner.export_state("sales")
        held[kind] = sum(t.numel() * t.element_size() for n, t in state.items() if n.startswith("adam/") and "qmap" not in n)
    exact, rounded = (torch.cat([tensor.flatten() for tensor in moved[kind].values()]) for kind in Optimizer)
    assert torch.nn.functional.cosine_similarity(exact, rounded, dim=0) > 0.9
    assert held[Optimizer.ADAMW_8BIT] < 0.35 * held[Optimizer.ADAMW]


@pytest.mark.parametrize("kind", ["adamw", pytest.param("adamw_8bit", marks=NEEDS)])
def test_training_goes_on_bit_for_bit(kind: str, qwen: Path):
    straight = learner_on(qwen, dtype="float32", optimizer=Optimizer(kind))
    update(straight, "sales", random_groups(0, groups=4))
    saved = straight.export_state("sales")
    update(straight, "sales", random_groups(1, groups=4))
    resumed = learner_on(qwen, dtype="float32", optimizer=Optimizer(kind))
    resumed.import_state("sales", saved)
    again = resumed.export_state("sales")
    assert again.keys() == saved.keys()
    assert all(torch.equal(again[name], saved[name]) for name in saved)
    update(resumed, "sales", random_groups(1, groups=4))
    assert weight_delta(lora.state(straight.model, "sales"), lora.state(resumed.model, "sales")) == (0, 0)


def test_an_unknown_quantisation_is_refused(qwen: Path):
    with pytest.raises(ConfigError, match="none or nf4"):
        load_base(qwen, quantize="int3")
