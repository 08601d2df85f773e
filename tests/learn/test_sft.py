from __future__ import annotations

import dataclasses
import hashlib
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from onthejob.errors import ConfigError, ContractError, TrainingError
from onthejob.learn import lora
from onthejob.learn.forward import Layout
from onthejob.learn.learner import LearnerConfig, LocalLearner
from onthejob.learn.lora import Snapshot, weight_delta
from onthejob.learn.sft import Example, SftConfig, sft

from .conftest import VOCAB, tiny_peft


def examples(count: int = 24, *, seed: int = 0, **fields) -> list[Example]:
    """A common system prompt, then one of four questions with its own answer."""
    rng = np.random.default_rng(seed)
    system = tuple(rng.integers(3, VOCAB, 6).tolist())
    answers = [tuple(rng.integers(3, VOCAB, 2 + k).tolist()) for k in range(4)]
    return [Example(prompt_ids=(*system, 10 + i % 4), completion_ids=answers[i % 4], **fields) for i in range(count)]


def learner_for(*, dtype=torch.float32, max_tokens: int = 2048) -> LocalLearner:
    return LocalLearner(
        tiny_peft(("sales", "dev"), dtype=dtype, moved=False), ["sales", "dev"], config=LearnerConfig(max_tokens=max_tokens)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_answers_are_learned_by_heart(dtype):
    learner = learner_for(dtype=dtype)
    others = _digest(learner, except_role="sales")
    seen = []
    config = SftConfig(lr=3e-2, epochs=12, batch_tokens=128, warmup=2)
    metrics = sft(learner, "sales", examples(), config, on_progress=seen.append)
    assert seen == metrics
    assert metrics[0].loss > 4
    assert metrics[-1].loss < 1
    assert [m.step for m in metrics] == list(range(1, metrics[0].steps + 1))
    assert metrics[-1].eta_s == 0
    assert metrics[-1].tokens_per_s > 0
    assert metrics[0].nodes < metrics[0].tokens
    assert _digest(learner, except_role="sales") == others
    model = learner.model
    for example in examples(4):
        ids = torch.tensor([example.prompt_ids + example.completion_ids])
        with torch.no_grad():
            predicted = model(input_ids=ids).logits[0].argmax(-1)
        assert tuple(predicted[len(example.prompt_ids) - 1 : -1].tolist()) == example.completion_ids


def test_a_conversation_is_one_unit_with_the_gradients_of_its_replies():
    """Three replies, each prompt growing from the last: every reply is scored, and what they share is forwarded once."""
    rng = np.random.default_rng(4)
    said = [
        tuple(rng.integers(3, VOCAB, size).tolist()) for size in (9, 4, 5, 3, 6, 2)
    ]  # prompt, reply, heard, reply, heard, reply
    prompts = [sum(said[: 2 * k + 1], ()) for k in range(3)]
    replies = [said[2 * k + 1] for k in range(3)]
    apart = [Example(prompt_ids=prompt, completion_ids=reply) for prompt, reply in zip(prompts, replies, strict=True)]
    together = [dataclasses.replace(example, conversation="one") for example in apart]
    config = SftConfig(lr=1e-2, epochs=2, batch_tokens=4096, warmup=0)
    learners = learner_for(), learner_for()
    histories = [sft(learner, "sales", data, config) for learner, data in zip(learners, (apart, together), strict=True)]
    assert [m.loss for m in histories[0]] == pytest.approx([m.loss for m in histories[1]], rel=1e-5)
    assert [m.examples for m in histories[1]] == [3, 3]
    assert histories[1][0].tokens == histories[1][0].nodes == sum(map(len, said)), "the conversation counts once"
    assert histories[0][0].tokens > histories[1][0].tokens
    # Cut at a size that a conversation alone exceeds, it still is one step, and single replies are several.
    small = dataclasses.replace(config, batch_tokens=20, epochs=1)
    assert len(sft(learner_for(), "sales", together, small)) == 1
    assert len(sft(learner_for(), "sales", apart, small)) == 3


def test_a_warm_start_without_any_step_is_no_success():
    learner = learner_for()
    before = Snapshot.take(learner.model, "sales")
    hook = next(iter(lora.parameters(learner.model, "sales").values())).register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(TrainingError, match=r"none of the 2 steps of 'sales' .* non-finite gradient"):
        sft(learner, "sales", examples(), SftConfig(batch_tokens=80))
    hook.remove()
    assert weight_delta(before, Snapshot.take(learner.model, "sales")) == (0, 0)


def test_negatives_are_counted_and_change_nothing():
    negatives = [dataclasses.replace(e, completion_ids=(7, 7), marked="negative") for e in examples(6, seed=1)]
    states = []
    for data in (examples(), [*negatives[:3], *examples(), *negatives[3:]]):
        learner = learner_for()
        metrics = sft(learner, "sales", data, SftConfig(max_steps=3, batch_tokens=64))
        states.append(lora.state(learner.model, "sales"))
        assert metrics[0].negatives == len(data) - 24
        assert sum(m.examples for m in metrics) <= 24
    assert weight_delta(*states) == (0, 0)


def test_loss_is_the_weighted_mean_over_completion_tokens():
    data = [dataclasses.replace(e, weight=w) for e, w in zip(examples(3), (1.0, 0.5, 3.0), strict=True)]
    learner = learner_for()
    total = weight = 0.0
    for example in data:
        ids = torch.tensor([example.prompt_ids + example.completion_ids])
        with torch.no_grad():
            logprobs = learner.model(input_ids=ids).logits[0].log_softmax(-1)[:-1].gather(-1, ids[0, 1:, None])[:, 0]
        scored = logprobs[len(example.prompt_ids) - 1 :]
        total -= example.weight * scored.sum().item()
        weight += example.weight * len(scored)
    (metrics,) = sft(learner, "sales", data, SftConfig(batch_tokens=1000))
    assert metrics.loss == pytest.approx(total / weight, rel=1e-5)


@pytest.mark.parametrize("layout", list(Layout))
def test_gradients_do_not_depend_on_rows_or_layout(layout):
    norms, losses = [], []
    for max_tokens in (2048, 24):
        learner = learner_for(max_tokens=max_tokens)
        learner.layout = layout
        (metrics,) = sft(learner, "sales", examples(), SftConfig(batch_tokens=10_000))
        norms.append(metrics.grad_norm)
        losses.append(metrics.loss)
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_same_seed_same_weights_other_seed_other_order():
    config = SftConfig(max_steps=4, batch_tokens=64, lr=1e-2)
    states = []
    for seed in (0, 0, 1):
        learner = learner_for()
        sft(learner, "sales", examples(), dataclasses.replace(config, seed=seed))
        states.append(lora.state(learner.model, "sales"))
    assert weight_delta(states[0], states[1]) == (0, 0)
    assert weight_delta(states[0], states[2]).l2 > 0


def test_every_example_is_seen_once_an_epoch():
    metrics = sft(learner_for(), "sales", examples(25), SftConfig(epochs=3, batch_tokens=50))
    assert sum(m.examples for m in metrics) == 75
    assert all(m.tokens <= 50 for m in metrics)


def test_replies_to_one_prompt_share_a_step_and_its_prompt():
    prompts = [(5, 6, 7, 10 + i) for i in range(8)]
    data = [Example(prompt_ids=prompt, completion_ids=(20 + k, 3), weight=0.5) for k in range(3) for prompt in prompts]
    metrics = sft(learner_for(), "sales", data, SftConfig(lr=1e-3, batch_tokens=2 * (4 + 3 * 2)))
    assert [m.examples for m in metrics] == [6] * 4
    assert all(m.tokens == 2 * (4 + 3 * 2) for m in metrics)
    assert all(m.nodes == 3 + 2 * (1 + 3 * 2) for m in metrics), "the common beginning and each prompt are computed once"


def test_schedules():
    config = SftConfig(lr=1.0, epochs=3, batch_tokens=100, warmup=2, max_steps=6)
    data = examples(100)
    linear = [m.lr for m in sft(learner_for(), "sales", data, dataclasses.replace(config, lr=1e-3))]
    assert linear == pytest.approx([1e-3 * x for x in (1 / 3, 2 / 3, 1, 3 / 4, 1 / 2, 1 / 4)])
    flat = [m.lr for m in sft(learner_for(), "sales", data, dataclasses.replace(config, lr=1e-3, schedule="constant"))]
    assert flat == pytest.approx([1e-3 * x for x in (1 / 3, 2 / 3, 1, 1, 1, 1)])


def test_a_time_limit_ends_the_steps_with_the_rate_down(monkeypatch: pytest.MonkeyPatch):
    clock = itertools.count()
    monkeypatch.setattr("onthejob.learn.sft.time", SimpleNamespace(perf_counter=lambda: 3.0 * next(clock)))
    config = SftConfig(lr=1e-3, epochs=9, batch_tokens=64, warmup=2, minutes=1.0)
    done = sft(learner_for(), "sales", examples(), config)
    rates = [metrics.lr for metrics in done]
    assert 2 < len(done) < done[0].steps
    assert rates[0] < rates[1] <= 1e-3
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert rates[-1] < 0.25e-3
    assert 0 <= done[-1].eta_s < done[0].eta_s <= 60
    (only,) = sft(learner_for(), "sales", examples(), dataclasses.replace(config, minutes=0.01))
    assert only.lr > 0


def test_learning_rate_zero_and_policy_gradient_moments_stay():
    learner = learner_for()
    before, state = Snapshot.take(learner.model, "sales"), learner.export_state("sales")
    sft(learner, "sales", examples(), SftConfig(lr=0.0, max_steps=2))
    assert weight_delta(before, Snapshot.take(learner.model, "sales")) == (0, 0)
    assert learner.export_state("sales").keys() == state.keys()


def test_bad_requests():
    learner = learner_for()
    with pytest.raises(ContractError, match="does not train"):
        sft(learner, "hr", examples(), SftConfig())
    with pytest.raises(ContractError, match="2 of them negative"):
        sft(learner, "sales", examples(2, marked="negative"), SftConfig())
    with pytest.raises(ContractError, match="weights"):
        sft(learner, "sales", examples(2, weight=0.0), SftConfig())
    with pytest.raises(ContractError, match="context"):
        sft(learner, "sales", [Example(prompt_ids=(), completion_ids=(1,))], SftConfig())
    for options in (
        {"lr": -1.0},
        {"epochs": 0},
        {"batch_tokens": 1},
        {"warmup": -1},
        {"max_steps": 0},
        {"minutes": -1.0},
        {"schedule": "cosine"},
    ):
        with pytest.raises(ConfigError):
            SftConfig(**options)


def _digest(learner: LocalLearner, *, except_role: str) -> dict[str, str]:
    return {
        name: hashlib.sha256(tensor.detach().float().numpy().tobytes()).hexdigest()
        for name, tensor in learner.model.state_dict().items()
        if f".{except_role}." not in name
    }


def test_examples_beyond_the_context_are_refused_and_not_trained():
    learner = learner_for()
    assert learner.window == 512
    long = Example(prompt_ids=(5,) * 500, completion_ids=(6,) * 12)
    sft(learner, "sales", [long], SftConfig(max_steps=1))
    before = _digest(learner, except_role="dev")
    with pytest.raises(ConfigError, match="a text of 513 tokens exceeds the model's context of 512"):
        sft(learner, "sales", [*examples(4), dataclasses.replace(long, completion_ids=(6,) * 13)], SftConfig(max_steps=1))
    assert _digest(learner, except_role="dev") == before
