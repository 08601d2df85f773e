"""On an NVIDIA GPU the sampler computes what the model computes there, and what both compute on the CPU."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from onthejob.models.base_model import load_base
from onthejob.models.chat import ChatEncoder
from onthejob.models.draw import draw
from onthejob.models.sampler import Sampler
from onthejob.types import Completion, Message, Sampling

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
ENGINES = [("llama", "torch"), ("llama", "transformers"), ("qwen2", "auto")]
T1 = Sampling(temperature=1.0, max_new_tokens=16)
GREEDY = Sampling(temperature=0.0, max_new_tokens=16)

engines = pytest.mark.parametrize(("kind", "engine"), ENGINES, ids=["torch", "transformers", "qwen2"])


def prompts_of(chat: ChatEncoder) -> list[tuple[int, ...]]:
    """Two roles, questions of different lengths; four replies to each."""
    system = [Message("system", "You sell."), Message("system", "You write code, slowly.")]
    asked = [[system[0], Message("user", "x" * n)] for n in (3, 11, 40)] + [[system[1], Message("user", "why?")]]
    return [chat.encode(messages) for messages in asked for _ in range(4)]


def gaps(model, prompts, done: list[Completion], *, temperature: float = 1.0) -> torch.Tensor:
    """Differences of the replies' log-probabilities to those of the model's own forward, nats."""
    found = []
    for prompt, completion in zip(prompts, done, strict=True):
        ids = torch.tensor([[*prompt, *completion.token_ids]], device=DEVICE)
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float() / temperature
        chosen = logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0]
        found.append(chosen.cpu() - torch.tensor(completion.logprobs))
    return torch.cat(found).abs()


@engines
@pytest.mark.parametrize(("dtype", "mean", "most"), [(torch.float32, 1e-5, 1e-4), (torch.bfloat16, 0.05, 1.0)], ids=str)
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_logprobs_equal_a_plain_forward_on_the_gpu(make_model, chat, kind, engine, dtype, mean, most, temperature):
    model = make_model(kind, dtype=dtype).to(DEVICE)
    prompts = prompts_of(chat)
    sampling = dataclasses.replace(T1, temperature=temperature)
    done = Sampler(model, chat, engine=engine).generate(prompts, adapter=None, sampling=sampling, seeds=range(len(prompts)))
    found = gaps(model, prompts, done, temperature=temperature)
    assert found.mean() < mean
    assert found.max() < most


@engines
def test_adapters_of_several_roles_equal_pefts_own_forward(make_model, make_adapter, chat, kind, engine):
    sampler = Sampler(make_model(kind).to(DEVICE), chat, engine=engine)
    prompts, said = prompts_of(chat), {}
    for seed, role in enumerate(("sales", "dev"), 1):
        saved, trained = make_adapter(kind, seed=seed)
        adapter = dataclasses.replace(saved, role=role)
        sampler.publish(adapter)
        done = sampler.generate(prompts, adapter=adapter.name, sampling=T1, seeds=range(len(prompts)))
        assert gaps(trained.to(DEVICE), prompts, done).max() < 1e-4
        said[role] = done
    assert said["sales"] != said["dev"]
    assert sampler.published == ("sales@0001", "dev@0001")


@engines
@pytest.mark.parametrize("sampling", [GREEDY, T1], ids=["greedy", "sampled"])
def test_replies_in_float32_are_those_of_the_cpu(make_model, make_adapter, chat, kind, engine, sampling):
    """Draws are keyed by seeds and inverted in float64, so the same tokens come out of the same distribution."""
    prompts, replies = prompts_of(chat), []
    for device in ("cpu", DEVICE):
        sampler = Sampler(make_model(kind).to(device), chat, engine=engine)
        sampler.publish(make_adapter(kind)[0])
        replies.append(sampler.generate(prompts, adapter="sales@0001", sampling=sampling, seeds=range(len(prompts))))
    assert [reply.token_ids for reply in replies[0]] == [reply.token_ids for reply in replies[1]]
    for a, b in zip(*replies, strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_shared_trunk_and_conversations_that_go_on_change_nothing(make_model, chat, monkeypatch, goes_on):
    monkeypatch.setattr("onthejob.models.sampler._WORTH", 0)
    monkeypatch.setattr("onthejob.models.sampler._SHARE", 0.0)
    model, system = make_model("llama").to(DEVICE), Message("system", "You sell. " * 8)
    sampler = Sampler(model, chat, goes_on=goes_on)
    contexts = [chat.encode([system, Message("user", "x" * (3 + 8 * i))]) for i in range(4)]
    for turn in range(4):
        done = sampler.generate(contexts, adapter=None, sampling=T1, seeds=range(10 * turn, 10 * turn + 4))
        assert gaps(model, contexts, done).max() < 1e-4
        heard = [Message("user", "y" * (2 + turn))]
        contexts = [chat.extend(ids, reply.token_ids, heard) for ids, reply in zip(contexts, done, strict=True)]
    assert sampler.stats.cached > 0


def test_scores_are_those_of_the_cpu(make_model, chat):
    ids = prompts_of(chat)[0]
    here, there = (Sampler(make_model("llama").to(device), chat).score(ids, adapter=None) for device in ("cpu", DEVICE))
    assert here == pytest.approx(there, abs=1e-4)


def test_the_embedded_model_on_the_gpu(smollm2_path):
    """Sampled log-probabilities against transformers' forward in both dtypes, greedy replies against the CPU."""
    questions = ("What is 2 + 3?", "Name a colour.", "Write one sentence about ships, and another one about the sea.")
    system = Message("system", "You are the sales agent of a small company. Answer with one JSON object and nothing else.")
    greedy = {}
    for dtype, device, mean, most in (
        ("float32", "cpu", None, None),
        ("float32", DEVICE, 1e-4, 2e-3),
        ("bfloat16", DEVICE, 0.1, 1.0),
    ):
        base = load_base(smollm2_path, dtype=dtype, device=device)
        chat = ChatEncoder(base.tokenizer)
        asked = [chat.encode([system, Message("user", question)]) for question in questions]
        sampler = Sampler(base.model, chat)
        greedy[dtype, device] = sampler.generate(asked, adapter=None, sampling=GREEDY, seeds=[0] * len(asked))
        if mean is not None and most is not None:
            prompts = [prompt for prompt in asked for _ in range(8)]
            done = sampler.generate(prompts, adapter=None, sampling=T1, seeds=range(len(prompts)))
            found = gaps(base.model, prompts, done)
            print(f"SmolLM2 {dtype} {device}: gap mean {found.mean():.2e}, max {found.max():.2e} nats")
            assert found.mean() < mean
            assert found.max() < most
    cpu, gpu = greedy["float32", "cpu"], greedy["float32", DEVICE]
    assert [reply.token_ids for reply in cpu] == [reply.token_ids for reply in gpu]


def test_many_rows_are_drawn_as_on_the_cpu():
    """More than are drawn at a time."""
    logits = 3.0 * torch.randn(300, 1_000, generator=torch.Generator().manual_seed(0))
    rows = [row for row in range(300) for _ in range(2)]
    uniform = torch.rand(600, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for temperature in (0.0, 1.0):
        here = draw(logits, rows, uniform, temperature=temperature)
        there = draw(logits.to(DEVICE), rows, uniform.to(DEVICE), temperature=temperature)
        assert sum(a != b for a, b in zip(here[0], there[0], strict=True)) <= 2, "a number on the edge between two tokens"
        same = [index for index, (a, b) in enumerate(zip(here[0], there[0], strict=True)) if a == b]
        assert [there[1][index] for index in same] == pytest.approx([here[1][index] for index in same], abs=1e-4)
