"""The sampler computes what the model computes, whatever shares a batch, a cache or a process with it."""

from __future__ import annotations

import copy
import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file, save_file

from onthejob.errors import ConfigError, ContractError, ModelError
from onthejob.models.adapter_policy import AdapterPolicy
from onthejob.models.llama import LlamaBatch
from onthejob.models.native.packed_caches import NativeBatch
from onthejob.models.native.shared_library import load_library
from onthejob.models.sampler import LocalSampler
from onthejob.types import Adapter, Completion, Context, Message, Sampling, TextObservation

NATIVE = load_library(bf16=False) is not None
native = pytest.mark.skipif(not NATIVE, reason="there is no compiled code here; see `onthejob doctor`")
ENGINES = [
    pytest.param("llama", "native", id="native", marks=native),
    pytest.param("llama", "torch", id="torch"),
    pytest.param("llama", "transformers", id="transformers"),
    pytest.param("qwen2", "auto", id="qwen2"),
]
T1 = Sampling(temperature=1.0, max_new_tokens=12)
GREEDY = Sampling(temperature=0.0, max_new_tokens=12)

engines = pytest.mark.parametrize(("kind", "engine"), ENGINES)


def prompts_of(chat) -> list[tuple[int, ...]]:
    """Two roles, questions of different lengths, and one prompt without a user's turn."""
    system = [Message("system", "You sell."), Message("system", "You write code, slowly.")]
    asked = [[system[0], Message("user", "x" * n)] for n in (3, 11, 40)] + [[system[1], Message("user", "why?")], [system[1]]]
    return [chat.encode(messages) for messages in asked]


def teacher_forced(model, prompt, completion: Completion, temperature: float) -> torch.Tensor:
    ids = torch.tensor([[*prompt, *completion.token_ids]])
    with torch.no_grad():
        logits = model(ids).logits[0, len(prompt) - 1 : -1].float() / (temperature or 1.0)
    return logits.log_softmax(-1).gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]


def assert_same(ours: list[Completion], theirs: list[Completion], *, atol: float = 1e-5):
    assert [c.token_ids for c in ours] == [c.token_ids for c in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=atol)


@engines
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_logprobs_equal_a_teacher_forced_forward(make_model, chat, kind, engine, temperature):
    model = make_model(kind)
    prompts = [prompt for prompt in prompts_of(chat) for _ in range(4)]
    sampling = Sampling(temperature=temperature, max_new_tokens=20)
    done = LocalSampler(model, chat, engine=engine).generate(prompts, adapter=None, sampling=sampling, seeds=range(len(prompts)))
    for prompt, completion in zip(prompts, done, strict=True):
        expected = teacher_forced(model, prompt, completion, temperature)
        assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


@engines
def test_greedy_equals_transformers_generate(make_model, chat, kind, engine):
    model = make_model(kind)
    prompts = prompts_of(chat)
    done = LocalSampler(model, chat, engine=engine).generate(prompts, adapter=None, sampling=GREEDY, seeds=[0] * len(prompts))
    for prompt, completion in zip(prompts, done, strict=True):
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, pad_token_id=2)
        assert completion.token_ids == tuple(out[0, len(prompt) :].tolist())


@engines
def test_a_reply_does_not_depend_on_what_else_is_sampled(make_model, chat, kind, engine):
    prompts = [prompt for prompt in prompts_of(chat) for _ in range(3)]
    seeds = list(range(len(prompts)))
    together = LocalSampler(make_model(kind), chat, engine=engine).generate(prompts, adapter=None, sampling=T1, seeds=seeds)
    variants = {
        "few rows at once": {"max_rows": 2},
        "few tokens at once": {"max_tokens": 100},
        "no shared beginnings": {"share_beginnings": False},
        "no prefix cache": {"prefix_cache_tokens": 0},
    }
    for options in variants.values():
        sampler = LocalSampler(make_model(kind), chat, engine=engine, **options)
        assert_same(sampler.generate(prompts, adapter=None, sampling=T1, seeds=seeds), together)
    order = np.random.default_rng(0).permutation(len(prompts)).tolist()
    sampler = LocalSampler(make_model(kind), chat, engine=engine)
    shuffled = sampler.generate([prompts[i] for i in order], adapter=None, sampling=T1, seeds=[seeds[i] for i in order])
    assert_same(shuffled, [together[i] for i in order])
    alone = [sampler.generate([p], adapter=None, sampling=T1, seeds=[s])[0] for p, s in zip(prompts, seeds, strict=True)]
    assert_same(alone, together)


def test_long_and_short_prompts_attend_apart_and_sample_the_same(make_model, chat, monkeypatch):
    """Prompts far longer than others get a bucket of their own, whose prompts come and go like the others'."""
    monkeypatch.setattr("onthejob.models.buckets._WORTH", 64)
    model, chat = make_model("llama"), copy.copy(chat)
    # Ends come early and at different times, so that prompts are dropped and others move to their places.
    chat.end_ids = frozenset({2, *range(5, 300, 12)})
    lengths = (300, 40, 290, 42, 12, 120, 118, 10)
    prompts = [chat.encode([Message("system", "You sell."), Message("user", "x" * n)]) for n in lengths for _ in range(2)]
    buckets = []
    arrange = LlamaBatch._arrange
    monkeypatch.setattr(LlamaBatch, "_arrange", lambda batch: (arrange(batch), buckets.append(len(batch._buckets)))[0])
    sampler = LocalSampler(model, chat, engine="torch")
    seeds = list(range(len(prompts)))
    sampling = Sampling(temperature=1.5, max_new_tokens=150)
    together = sampler.generate(prompts, adapter=None, sampling=sampling, seeds=seeds)
    assert max(buckets) >= 3
    assert min(buckets) < max(buckets)
    alone = [sampler.generate([p], adapter=None, sampling=sampling, seeds=[s])[0] for p, s in zip(prompts, seeds, strict=True)]
    assert_same(together, alone)


@engines
def test_a_warm_cache_changes_no_bit(make_model, chat, kind, engine):
    prompts = prompts_of(chat)
    warm = LocalSampler(make_model(kind), chat, engine=engine)
    first = warm.generate(prompts, adapter=None, sampling=T1, seeds=range(5))
    cached = warm.stats.cached
    again = warm.generate(prompts, adapter=None, sampling=T1, seeds=range(5))
    assert again == first
    assert warm.stats.cached - cached > cached
    # A process that resumes at the third call sees the same numbers.
    assert (
        LocalSampler(make_model(kind), chat, engine=engine).generate(prompts, adapter=None, sampling=T1, seeds=range(5)) == first
    )


def talk(sampler: LocalSampler, chat, turns: int, *, conversations: int = 3) -> list[list[Completion]]:
    """Several conversations in lock step, each answered with a message of its own length."""
    contexts = [chat.encode([Message("system", "You sell."), Message("user", "x" * (3 + 8 * i))]) for i in range(conversations)]
    said = []
    for turn in range(turns):
        seeds = [100 * turn + i for i in range(conversations)]
        replies = sampler.generate(contexts, adapter=None, sampling=T1, seeds=seeds)
        said.append(replies)
        contexts = [
            chat.extend(context, reply.token_ids, [Message("user", "y" * (2 + i))])
            for i, (context, reply) in enumerate(zip(contexts, replies, strict=True))
        ]
    return said


@engines
def test_a_conversation_that_goes_on_is_not_computed_again(make_model, chat, kind, engine):
    kept, forgetful = (LocalSampler(make_model(kind), chat, engine=engine, conversation_cache_tokens=n) for n in (4096, 0))
    for ours, theirs in zip(talk(kept, chat, 5), talk(forgetful, chat, 5), strict=True):
        assert_same(ours, theirs)
    assert kept.stats.prefilled + kept.stats.cached == forgetful.stats.prefilled + forgetful.stats.cached
    # Turns 1 and 2 are computed whole; after that only what is new.
    assert kept.stats.prefilled < 0.6 * forgetful.stats.prefilled
    assert talk(LocalSampler(make_model(kind), chat, engine=engine), chat, 5) == talk(
        LocalSampler(make_model(kind), chat, engine=engine), chat, 5
    )


@engines
def test_where_conversations_go_on_only_what_is_new_is_computed(make_model, chat, kind, engine, monkeypatch):
    """From the second turn on, and replies neither: what ends a reply is left, and what was heard since."""
    going, whole = (
        LocalSampler(make_model(kind), chat, engine=engine, goes_on=on, conversation_cache_tokens=4096 * on)
        for on in (True, False)
    )
    calls = []
    generate = going.generate

    def seen(prompts, **options):
        calls.append((list(prompts), generate(prompts, **options)))
        return calls[-1][1]

    monkeypatch.setattr(going, "generate", seen)
    for ours, theirs in zip(talk(going, chat, 5), talk(whole, chat, 5), strict=True):
        assert_same(ours, theirs)
    assert going.stats.prefilled + going.stats.cached == whole.stats.prefilled + whole.stats.cached
    first = calls[0][0]
    new = sum(map(len, first)) - (len(first) - 1) * chat.prefix_length(first[0])
    for (asked, replies), (then, _) in pairwise(calls):
        known = [len(prompt) + len(reply.token_ids) - 1 for prompt, reply in zip(asked, replies, strict=True)]
        new += sum(len(prompt) - count for prompt, count in zip(then, known, strict=True))
    assert going.stats.prefilled == new < 0.3 * whole.stats.prefilled
    again = LocalSampler(make_model(kind), chat, engine=engine, goes_on=True, conversation_cache_tokens=4096)
    assert talk(again, chat, 5) == [replies for _, replies in calls]


@engines
def test_replies_to_one_prompt_each_go_on_from_their_own(make_model, chat, kind, engine):
    """Their prompt is kept once; some of them end early and leave the batch, others are cut."""
    prompt = prompts_of(chat)[2]
    found = []
    for goes_on in (True, False):
        sampler = LocalSampler(make_model(kind), chat, engine=engine, goes_on=goes_on, conversation_cache_tokens=100_000)
        replies = sampler.generate(
            [prompt] * 12, adapter=None, sampling=Sampling(temperature=1.5, max_new_tokens=150), seeds=range(12)
        )
        assert {reply.finish_reason for reply in replies} == {"stop", "length"}
        then = [chat.extend(prompt, reply.token_ids, [Message("user", "and?")]) for reply in replies]
        found.append((replies, sampler.generate(then, adapter=None, sampling=T1, seeds=range(12)), sampler.stats.prefilled))
    (ours, after, few), (theirs, after_theirs, many) = found
    assert_same(ours, theirs)
    assert_same(after, after_theirs)
    assert few < 0.5 * many


batches = pytest.mark.parametrize("batch", [pytest.param(NativeBatch, marks=native), LlamaBatch])


@batches
def test_prompts_computed_side_by_side_are_what_they_are_alone(make_model, chat, monkeypatch, batch):
    engine = "native" if batch is NativeBatch else "torch"
    sampler = LocalSampler(make_model("llama"), chat, engine=engine)
    together = sampler.generate(prompts_of(chat), adapter=None, sampling=T1, seeds=range(5))
    monkeypatch.setattr("onthejob.models.buckets.TOGETHER", 1)
    sampler = LocalSampler(make_model("llama"), chat, engine=engine)
    assert_same(sampler.generate(prompts_of(chat), adapter=None, sampling=T1, seeds=range(5)), together)


@batches
def test_prompts_share_a_trunk_and_sample_the_same(make_model, make_adapter, chat, monkeypatch, batch):
    trunks = []
    make = batch.__init__

    def made(self, *args, trunk=None, **options):
        trunks.append(trunk)
        make(self, *args, trunk=trunk, **options)

    monkeypatch.setattr(batch, "__init__", made)
    engine = "native" if batch is NativeBatch else "torch"
    model, (adapter, _) = make_model("llama"), make_adapter("llama")
    prompts = prompts_of(chat) * 2
    found = {}
    for worth in (1, 10**6):
        monkeypatch.setattr("onthejob.models.sampler._WORTH", worth)
        monkeypatch.setattr("onthejob.models.sampler._SHARE", 0.0)
        trunks.clear()
        # The second one forgets conversations, so that it loads first turns behind which nothing is known.
        samplers = [LocalSampler(model, chat, conversation_cache_tokens=n, engine=engine) for n in (4096, 0)]
        for sampler in samplers:
            sampler.publish(adapter)
        found[worth] = [talk(sampler, chat, 4, conversations=6) for sampler in samplers]
        for sampler in samplers:
            found[worth].append([sampler.generate(prompts, adapter=adapter.name, sampling=T1, seeds=range(len(prompts)))])
        assert any(trunk is not None for trunk in trunks) == (worth == 1)
    for ours, theirs in zip(*([call for calls in runs for call in calls] for runs in found.values()), strict=True):
        assert_same(ours, theirs)


@pytest.mark.parametrize("engine", [pytest.param("native", marks=native), "torch"])
def test_a_conversation_goes_on_with_and_without_its_trunk(make_model, chat, monkeypatch, engine):
    """What was kept next to a trunk serves a call that has none, and the other way round."""
    everything = talk(LocalSampler(make_model("llama"), chat, engine=engine), chat, 6, conversations=5)
    for order in ((1, 10**6), (10**6, 1)):
        sampler, calls = LocalSampler(make_model("llama"), chat, engine=engine), []
        generate = sampler.generate

        def alternating(*args, order=order, calls=calls, generate=generate, **options):
            monkeypatch.setattr("onthejob.models.sampler._WORTH", order[len(calls) % 2])
            monkeypatch.setattr("onthejob.models.sampler._SHARE", 0.0)
            calls.append(1)
            return generate(*args, **options)

        monkeypatch.setattr(sampler, "generate", alternating)
        for ours, theirs in zip(talk(sampler, chat, 6, conversations=5), everything, strict=True):
            assert_same(ours, theirs)
        assert len(calls) == 6


def test_kept_conversations_stay_within_their_bound(make_model, make_adapter, chat):
    sampler = LocalSampler(make_model("llama"), chat, conversation_cache_tokens=150)
    everything = talk(LocalSampler(make_model("llama"), chat), chat, 4)
    for ours, theirs in zip(talk(sampler, chat, 4), everything, strict=True):
        assert_same(ours, theirs)
    assert 0 < len(sampler._conversations) <= 150
    adapter, _ = make_adapter("llama")
    sampler.publish(adapter)
    prompt = chat.extend(prompts_of(chat)[0], everything[0][0].token_ids, [Message("user", "and?")])
    sampler.generate([prompt], adapter=adapter.name, sampling=T1, seeds=[0])
    assert sampler._conversations.adapters[-1] == adapter.name
    sampler.withdraw(adapter.name)
    assert adapter.name not in sampler._conversations.adapters
    sampler.generate(prompts_of(chat), adapter=None, sampling=T1, seeds=range(5))
    assert None not in sampler._conversations.adapters, "contexts without a reply are not kept"


def test_seeds_decide(make_model, chat):
    sampler = LocalSampler(make_model("llama"), chat)
    prompt = prompts_of(chat)[0]
    a, b, c = sampler.generate([prompt] * 3, adapter=None, sampling=T1, seeds=[1, 1, 2])
    assert a == b
    assert a != c
    longer = sampler.generate([prompt], adapter=None, sampling=Sampling(max_new_tokens=30), seeds=[1])[0]
    assert longer.token_ids[:12] == a.token_ids[:12]


def test_samples_follow_the_model(make_model, chat):
    """Relative frequencies of the first token of 4,000 replies against the model's probabilities."""
    model = make_model("llama")
    prompt = prompts_of(chat)[0]
    count = 4000
    once = Sampling(max_new_tokens=1)
    done = LocalSampler(model, chat, max_rows=count).generate([prompt] * count, adapter=None, sampling=once, seeds=range(count))
    with torch.no_grad():
        probabilities = model(torch.tensor([prompt])).logits[0, -1].softmax(-1).numpy()
    seen = np.bincount([c.token_ids[0] for c in done], minlength=len(probabilities)) / count
    spread = np.sqrt(probabilities * (1 - probabilities) / count)
    assert (np.abs(seen - probabilities) < 5 * spread + 2 / count).all()


@engines
def test_the_end_of_turn_stops_a_reply(make_model, chat, kind, engine):
    sampler = LocalSampler(make_model(kind), chat, engine=engine)
    prompts = [prompt for prompt in prompts_of(chat) for _ in range(30)]
    limit = Sampling(temperature=1.5, max_new_tokens=40)
    done = sampler.generate(prompts, adapter=None, sampling=limit, seeds=range(len(prompts)))
    stopped = [c for c in done if c.finish_reason == "stop"]
    cut = [c for c in done if c.finish_reason == "length"]
    assert len(stopped) > 5
    assert len(cut) > 5
    assert all(c.token_ids[-1] == 2 and 2 not in c.token_ids[:-1] for c in stopped)
    assert all(len(c.token_ids) == 40 and 2 not in c.token_ids for c in cut)
    assert all(len(c.token_ids) == len(c.logprobs) for c in done)
    assert all(c.text == chat.decode(c.token_ids) and "<|im_end|>" not in c.text for c in done)


@engines
@pytest.mark.parametrize("targets", ["all", "q_proj,v_proj"])
def test_a_published_adapter_equals_peft(make_model, make_adapter, chat, kind, engine, targets):
    adapter, trained = make_adapter(kind, targets=targets)
    base = make_model(kind)
    sampler = LocalSampler(base, chat, engine=engine)
    prompts = [prompt for prompt in prompts_of(chat) for _ in range(2)]
    before = sampler.generate(prompts, adapter=None, sampling=T1, seeds=range(10))
    sampler.publish(adapter)
    done = sampler.generate(prompts, adapter="sales@0001", sampling=T1, seeds=range(10))
    for prompt, completion in zip(prompts, done, strict=True):
        assert completion.logprobs == pytest.approx(teacher_forced(trained, prompt, completion, 1.0).tolist(), abs=1e-4)
    assert done != before
    assert sampler.generate(prompts, adapter=None, sampling=T1, seeds=range(10)) == before


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings", "ignore:Setting `save_embedding_layers`")
@engines
def test_an_adapter_of_the_head_is_refused(make_model, make_adapter, chat, kind, engine):
    adapter, _ = make_adapter(kind, targets="q_proj,lm_head")
    with pytest.raises(ModelError, match=r"lm_head.* belongs to no linear layer of the base other than the output head"):
        LocalSampler(make_model(kind), chat, engine=engine).publish(adapter)


@engines
def test_neither_side_of_a_shared_base_notices_the_other(make_model, make_adapter, wrap, chat, kind, engine):
    config = LoraConfig(r=4, target_modules=["q_proj", "down_proj"])
    training = wrap(make_model(kind), config)
    for name, parameter in training.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(generator=torch.Generator().manual_seed(0))
    state = {name: tensor.clone() for name, tensor in training.state_dict().items()}
    trainable = {name for name, parameter in training.named_parameters() if parameter.requires_grad}
    prompts = prompts_of(chat)
    adapter, _ = make_adapter(kind)
    sampler = LocalSampler(training, chat, engine=engine)
    alone = LocalSampler(make_model(kind), chat, engine=engine)
    for one in (sampler, alone):
        one.publish(adapter)
    for name in (None, "sales@0001"):
        ours = sampler.generate(prompts, adapter=name, sampling=T1, seeds=range(5))
        assert ours == alone.generate(prompts, adapter=name, sampling=T1, seeds=range(5))
    assert all(torch.equal(tensor, state[name]) for name, tensor in training.state_dict().items())
    assert {name for name, parameter in training.named_parameters() if parameter.requires_grad} == trainable
    # The weights are shared, not copied.
    own = {tensor.data_ptr() for tensor in sampler._engine.model.parameters()}
    assert own <= {tensor.data_ptr() for tensor in training.parameters()}


def test_publishing_replaces_older_versions_of_the_role(make_model, make_adapter, chat):
    sampler = LocalSampler(make_model("llama"), chat)
    first, _ = make_adapter("llama", seed=1, version=1)
    second, _ = make_adapter("llama", seed=2, version=2)
    sampler.publish(first)
    sampler.publish(first)
    prompt = prompts_of(chat)[0]
    one = sampler.generate([prompt], adapter=first.name, sampling=T1, seeds=[0])
    sampler.publish(second, keep=True)
    assert sampler.published == ("sales@0001", "sales@0002")
    assert sampler.generate([prompt], adapter=second.name, sampling=T1, seeds=[0]) != one
    assert sampler.generate([prompt], adapter=first.name, sampling=T1, seeds=[0]) == one
    third, _ = make_adapter("llama", seed=3, version=3)
    sampler.publish(third)
    assert sampler.published == ("sales@0003",)
    with pytest.raises(ContractError, match=r"sales@0001.*not published"):
        sampler.generate([prompt], adapter=first.name, sampling=T1, seeds=[0])
    other, _ = make_adapter("llama", seed=4, version=3)
    with pytest.raises(ContractError, match="immutable"):
        sampler.publish(other)


def test_damaged_adapters_are_refused(make_model, make_adapter, chat, tmp_path):
    sampler = LocalSampler(make_model("llama"), chat, base_digest="b" * 64)
    good, _ = make_adapter("llama")
    tensors = load_file(good.path / "adapter_model.safetensors")
    config = json.loads((good.path / "adapter_config.json").read_text())
    some = next(iter(tensors))

    def broken(name: str, *, tensors=tensors, config=config, meta=None, digest="") -> Adapter:
        folder = tmp_path / name
        folder.mkdir()
        save_file(tensors, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps(config))
        if meta is not None:
            (folder / "adapter_meta.json").write_text(json.dumps(meta))
        return Adapter(role="sales", version=1, path=folder, digest=digest)

    nan = torch.full_like(tensors[some], torch.nan)
    cases = {
        "not finite": broken("nan", tensors=tensors | {some: nan}),
        "no linear layer": broken("unknown", tensors={"base_model.model.nowhere.lora_A.weight": nan}),
        "shapes": broken("shape", tensors=tensors | {some: tensors[some][:, :3].contiguous()}),
        "use_dora": broken("dora", config=config | {"use_dora": True}),
        "r, an integer in 1..65536": broken("rank", config=config | {"r": 0}),
        "the record says": broken("digest", digest="c" * 64),
        "trained on the base": broken("base", meta={"base_digest": "a" * 64}),
        "cannot be read": Adapter(role="sales", version=1, path=tmp_path / "missing"),
    }
    for why, adapter in cases.items():
        with pytest.raises(ModelError, match=why):
            sampler.publish(adapter)
    (cases["not finite"].path / "adapter_model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(ModelError, match="cannot be read"):
        sampler.publish(cases["not finite"])
    assert sampler.published == ()
    sampler.publish(broken("fine", meta={"base_digest": "b" * 64}))


def test_misuse_is_refused(make_model, chat):
    model = make_model("llama")
    sampler = LocalSampler(model, chat)
    assert sampler.generate([], adapter=None, sampling=T1, seeds=[]) == []
    with pytest.raises(ContractError, match="one seed for each"):
        sampler.generate([(1, 2)], adapter=None, sampling=T1, seeds=[])
    with pytest.raises(ContractError, match="non-empty"):
        sampler.generate([()], adapter=None, sampling=T1, seeds=[1])
    with pytest.raises(ConfigError, match="temperature"):
        sampler.generate([(1, 2)], adapter=None, sampling=Sampling(temperature=-1.0), seeds=[1])
    for limits in ({"max_rows": 0}, {"max_tokens": 0}):
        with pytest.raises(ConfigError, match="max_rows and max_tokens must be >= 1"):
            LocalSampler(model, chat, **limits)


@engines
@pytest.mark.parametrize(
    ("limits", "most"), [({"max_rows": 7}, (7, 10**6)), ({"max_tokens": 400}, (10**6, 400))], ids=["rows", "tokens"]
)
def test_no_more_rows_and_tokens_are_held_at_once_than_allowed(make_model, chat, kind, engine, limits, most, monkeypatch):
    sampler = LocalSampler(make_model(kind), chat, engine=engine, **limits)
    held = []
    make = sampler._engine.batch

    def batch(lengths, *, rows, new_tokens, **options):
        if rows:
            held.append((rows, sum(lengths) + rows * new_tokens))
        return make(lengths, rows=rows, new_tokens=new_tokens, **options)

    monkeypatch.setattr(sampler._engine, "batch", batch)
    prompts = [prompt for prompt in prompts_of(chat) for _ in range(10)]
    sampling = Sampling(max_new_tokens=12)
    sampler.generate(prompts, adapter=None, sampling=sampling, seeds=range(len(prompts)))
    rows, tokens = (list(numbers) for numbers in zip(*held, strict=True))
    assert sum(rows) == len(prompts)
    assert (max(rows) <= most[0], max(tokens) <= most[1]) == (True, True)
    assert max(rows) == 7 or max(tokens) > 300, "the limit is used"
    held.clear()
    long = prompts[0] * 11  # above the limit, within the model's context of 512
    sampler.generate([long, long], adapter=None, sampling=sampling, seeds=[0, 1])
    if "max_tokens" in limits:
        assert [rows for rows, _ in held] == [1, 1], "what is larger than the limit is sampled alone"


@pytest.mark.parametrize("worth", [1, 10**6], ids=["trunk", "no trunk"])
def test_bfloat16_stays_near_a_teacher_forced_forward(make_model, chat, monkeypatch, worth):
    monkeypatch.setattr("onthejob.models.sampler._WORTH", worth)
    monkeypatch.setattr("onthejob.models.sampler._SHARE", 0.0)
    model = make_model("llama", dtype=torch.bfloat16)
    prompts = [prompt for prompt in prompts_of(chat) for _ in range(4)]
    done = LocalSampler(model, chat).generate(prompts, adapter=None, sampling=T1, seeds=range(20))
    gaps = [
        (torch.tensor(completion.logprobs) - teacher_forced(model, prompt, completion, 1.0)).abs()
        for prompt, completion in zip(prompts, done, strict=True)
    ]
    assert torch.cat(gaps).mean() < 0.05


def test_the_policy_answers_contexts(make_model, make_adapter, chat):
    sampler = LocalSampler(make_model("llama"), chat)
    adapter, _ = make_adapter("llama")
    sampler.publish(adapter)
    messages = (Message("system", "You sell."), Message("user", "Day 1"))
    observation = TextObservation(actor="sales", messages=messages)
    contexts = [Context(observation=observation, prompt_ids=chat.encode(messages), seed=seed) for seed in (5, 6)]
    policy = AdapterPolicy(sampler, chat, adapter=adapter.name, name="sales")
    assert (policy.reads, policy.version) == ("tokens", "sales@0001")
    assert AdapterPolicy(sampler, chat, adapter=None, name="base").version == "base"
    expected = sampler.generate([c.prompt_ids for c in contexts], adapter=adapter.name, sampling=T1, seeds=[5, 6])
    assert policy.act(contexts, T1) == expected


def test_the_embedded_model_answers(smollm2_path):
    """The converted model talks sense, and its numbers are the ones transformers computes from the folder."""
    from onthejob.models.base_model import load_base
    from onthejob.models.chat import ChatEncoder

    base = load_base(smollm2_path, dtype="float32")
    chat = ChatEncoder(base.tokenizer)
    prompt = chat.encode([Message("user", "What is the capital of France?")])
    sampler = LocalSampler(base.model, chat, base_digest=base.digest)
    greedy, *sampled = [
        sampler.generate([prompt] * n, adapter=None, sampling=Sampling(temperature=t, max_new_tokens=12), seeds=range(n))
        for n, t in ((1, 0.0), (4, 1.0))
    ]
    assert "Paris" in greedy[0].text
    assert greedy[0].finish_reason == "stop"
    for completion in (*greedy, *sampled[0]):
        expected = teacher_forced(base.model, prompt, completion, 1.0)
        assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
