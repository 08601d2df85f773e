"""Every architecture is trained, sampled, saved and merged as it computes, or refused in one line before it is loaded."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from onthejob.cli import main
from onthejob.errors import ConfigError, ModelError
from onthejob.learn import lora
from onthejob.learn.adapter_files import load_adapter, read_spec, save_adapter
from onthejob.learn.batch import Path as TokenPath
from onthejob.learn.batch import pack
from onthejob.learn.forward import Layout, choose_layout, score
from onthejob.learn.lora import LoraSpec
from onthejob.learn.merge import merge_adapter
from onthejob.models.base_model import skeleton, weights_digest
from onthejob.models.chat import ChatEncoder
from onthejob.models.sampler import Sampler
from onthejob.stack import check_sampler, plan_lora
from onthejob.testing.tiny import tiny_tokenizer
from onthejob.types import Completion, Message, Sampling

from .architectures import ARCHITECTURES, LAYERS, SEVEN, build, write
from .templates import FAMILIES, Family, family_tokenizer, own_ids

SUPPORTED = [name for name, row in ARCHITECTURES.items() if not row.refused]
QUICK = ("llama", "qwen2-window", "gemma2", "phi3", "gpt-neox", "mixtral")
"""Those of the fast tests: separate and fused layers, windows, soft caps, other names, experts."""
SPEC = LoraSpec(rank=3, alpha=6)
REPLIES = Sampling(temperature=1.0, max_new_tokens=8)
IDS = torch.randint(3, 300, (60,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONTHEJOB_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_models_are_tiny_and_use_the_tokenizer(name):
    model = build(name)
    assert sum(parameter.numel() for parameter in model.parameters()) < 80_000
    assert model.config.vocab_size == len(tiny_tokenizer())


@pytest.mark.parametrize("name", [name for name, row in ARCHITECTURES.items() if row.refused])
def test_what_cannot_be_computed_is_refused_without_weights(name, tmp_path: Path):
    folder = write(name, tmp_path / "base")
    (folder / "model.safetensors").unlink()
    with pytest.raises((ConfigError, ModelError), match=ARCHITECTURES[name].refused):
        prepare(str(folder))


@pytest.mark.parametrize(
    ("name", "family"),
    [
        pytest.param(name, family, marks=() if name in QUICK else pytest.mark.slow)
        for name, family in zip(SUPPORTED, cycle(FAMILIES), strict=False)
    ],
)
def test_trained_sampled_saved_and_merged_as_it_computes(name: str, family: str, tmp_path: Path):
    row, folder, said = ARCHITECTURES[name], write(name, tmp_path / "base"), []
    spec = prepare(str(folder), said)
    assert spec.targets == row.trained
    assert said[-1].startswith(f"LoRA rank 3 on {LAYERS * len(row.trained)} layers ({', '.join(row.trained)})")

    model = adapted(name, spec)
    adapter = save_adapter(model, "sales", tmp_path, version=0, parent=None, base_digest=weights_digest(folder), dtype="float32")
    assert read_spec(adapter.path) == spec
    again = lora.attach(build(name), ["sales"], spec, seed=1)
    load_adapter(again, "sales", adapter, base_digest=weights_digest(folder))
    want = logprobs(model, IDS)
    assert torch.equal(logprobs(again, IDS), want)

    check_learner(model)
    check_sampling(Sampler(build(name), ChatEncoder(tiny_tokenizer())), adapter, model)
    chat = ChatEncoder(family_tokenizer(FAMILIES[family]), arguments=FAMILIES[family].arguments)
    assert len(chat.tokenizer) <= len(tiny_tokenizer()), "every token of the template needs an embedding"
    check_conversation(Sampler(build(name), chat), adapter, model, FAMILIES[family])

    done = merge_adapter(folder, adapter, tmp_path / "merged")
    assert done.mean_difference < 1e-4
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    assert (logprobs(merged, IDS) - want).abs().max() < 1e-3
    assert (logprobs(build(name), IDS) - want).abs().max() > 0.1, "the adapter changes too little to show anything"


def prepare(model: str, said: list[str] | None = None) -> LoraSpec:
    """What `train` does before it loads the model."""
    check_sampler(model)
    return plan_lora(model, SPEC, progress=None if said is None else said.append)


def adapted(name: str, spec: LoraSpec) -> PeftModel:
    model = lora.attach(build(name), ["sales"], spec, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, parameter in lora.parameters(model, "sales").items():
            if ".lora_B." in key:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def logprobs(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)


def check_learner(model: PeftModel) -> None:
    """Scores of two branches of one context equal plain forwards, and every matrix of the adapter is trained."""
    paths = [TokenPath(ids=tuple(IDS[:40]), context=25), TokenPath(ids=(*IDS[:25], *IDS[40:]), context=25)]
    layout = choose_layout(model)
    (row,) = pack(paths, max_tokens=200, share=layout is Layout.TREE)
    scores = score(model, row, layout=layout)
    scores.logprobs.sum().backward()
    without = [name for name, p in lora.parameters(model, "sales").items() if p.grad is None or not p.grad.any()]
    assert not without
    model.zero_grad(set_to_none=True)
    want = [logprobs(model, list(path.ids))[path.context - 1 : -1] for path in paths]
    want = [
        found.gather(1, torch.tensor(path.ids[path.context :])[:, None])[:, 0] for found, path in zip(want, paths, strict=True)
    ]
    for index, expected in enumerate(want):
        got = scores.logprobs.detach()[torch.from_numpy(row.term_source) == index]
        assert (got - expected).abs().max() < 1e-4


def check_sampling(sampler: Sampler, adapter: Any, model: PeftModel) -> None:
    """What is sampled, in a batch of prompts of other lengths, has the log-probabilities of a plain forward."""
    sampler.publish(adapter)
    prompts = [tuple(IDS[:30]), tuple(IDS[:45]), tuple(IDS[20:30])]
    done = sampler.generate(prompts, adapter=adapter.name, sampling=REPLIES, seeds=range(3))
    for prompt, completion in zip(prompts, done, strict=True):
        check_reply(model, prompt, completion)


def check_conversation(sampler: Sampler, adapter: Any, model: PeftModel, family: Family) -> None:
    """Turns in the words of a chat template: its own first prompt, then every earlier id as it was."""
    sampler.publish(adapter)
    chat, told = sampler.chat, [Message("system", "You sell."), Message("user", "Day 1 é🙂")]
    prompt = chat.encode(told)
    assert prompt == own_ids(chat, family, told)
    for day in (2, 3):
        (completion,) = sampler.generate([prompt], adapter=adapter.name, sampling=REPLIES, seeds=[day])
        check_reply(model, prompt, completion)
        following = chat.extend(prompt, completion.token_ids, [Message("user", f"Day {day}")])
        assert following[: len(prompt) + len(completion.token_ids)] == (*prompt, *completion.token_ids)
        prompt = following
    learned = TokenPath(ids=prompt, context=len(prompt) - 12)
    layout = choose_layout(model)
    (row,) = pack([learned], max_tokens=len(prompt), share=layout is Layout.TREE)
    with torch.no_grad():
        got = score(model, row, layout=layout).logprobs
    want = logprobs(model, list(prompt))[learned.context - 1 : -1].gather(1, torch.tensor(prompt[learned.context :])[:, None])
    assert (got - want[:, 0]).abs().max() < 1e-4


def check_reply(model: PeftModel, prompt: tuple[int, ...], completion: Completion) -> None:
    reply = torch.tensor(completion.token_ids)[:, None]
    want = logprobs(model, [*prompt, *completion.token_ids])[len(prompt) - 1 : -1].gather(1, reply)[:, 0]
    assert completion.logprobs == pytest.approx(want.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    ("name", "targets", "problem"),
    [
        ("llama", ("q_proj", "v_prj"), r"'v_prj' matches no layer of LlamaForCausalLM. Did you mean v_proj\? Choose among"),
        ("phi3", ("q_proj", "o_proj"), "'q_proj' matches no layer of Phi3ForCausalLM.*qkv_proj"),
        ("mixtral", ("q_proj", "w1"), "'w1' names experts of MixtralForCausalLM"),
        ("mixtral", ("gate_proj",), "'gate_proj' matches no layer"),
        ("qwen3-moe", ("q_proj", "gate_proj", "up_proj", "down_proj"), "'gate_proj' names experts of Qwen3MoeForCausalLM"),
        ("qwen3-moe", ("gate_up_proj",), "'gate_up_proj' is a tensor and no layer"),
        ("qwen3-moe-dense-layer", ("down_proj",), "'down_proj' names experts"),
        ("llama", ("lm_head",), "'lm_head' is the output head"),
        ("llama-tied", ("q_proj", "lm_head"), "'lm_head' is the output head"),
        ("llama", ("embed_tokens",), r"'embed_tokens' means model.embed_tokens, a Embedding: only torch's linear layers"),
        ("llama", ("mlp",), "'mlp' means model.layers.0.mlp, a LlamaMLP"),
        ("llama", ("all-linear", "q_proj"), "means every layer; remove q_proj"),
        ("gpt2", ("c_attn",), "has no layer that takes an adapter.*Conv1D"),
    ],
)
def test_every_target_must_be_a_layer_and_weights_are_not_needed_to_say_so(name, targets, problem, tmp_path: Path):
    folder = write(name, tmp_path / "base")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=problem):
        plan_lora(str(folder), LoraSpec(targets=targets))
    with pytest.raises(ConfigError, match=problem):
        lora.attach(build(name), ["sales"], LoraSpec(targets=targets), seed=0)


def test_targets_may_be_longer_than_a_name():
    model = lora.attach(build("llama"), ["sales"], LoraSpec(targets=("layers.1.mlp.up_proj", "q_proj")), seed=0)
    found = {name.removeprefix("base_model.model.").rpartition(".lora_")[0] for name in lora.parameters(model, "sales")}
    assert found == {"model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.up_proj"}


def test_the_embedded_model_is_adapted_as_ever(smollm2_path: Path):
    targets = lora.plan(skeleton(smollm2_path), LoraSpec())
    assert targets.names == SEVEN
    assert len(targets.modules) == 7 * 30
    assert targets.without == ()


def test_commands_refuse_before_weights_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("demos").mkdir()
    shown = {"messages": [{"role": "user", "content": "Sell?"}], "reply": "SELL"}
    Path("demos/sales.jsonl").write_text(json.dumps(shown) + "\n")
    llama, mamba = (str(write(name, tmp_path / name)) for name in ("llama", "mamba"))
    for folder in map(Path, (llama, mamba)):
        (folder / "model.safetensors").unlink()
        config = json.loads((folder / "config.json").read_text())
        # So that prompts fit, which is looked at first.
        (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8_192}))
    cache = "needs a plain key-value cache, 'mamba' uses"
    for words, model, problem, code in (
        (("sft", "demos", "--lora.targets", "q_proj", "v_prj"), llama, "'v_prj' matches no layer", 2),
        (("train", "--roles", "sales", "--lora.targets", "lm_head"), llama, "'lm_head' is the output head", 2),
        (("train", "--smoke", "--roles", "sales", "--lora.targets", "mlp"), llama, "a LlamaMLP", 2),
        (("play", "office", "--team", "base", "--env.days", "1"), mamba, cache, 1),
    ):
        assert main([*words, "--model.name", model, "--quiet"]) == code
        assert problem in capsys.readouterr().err
    assert not Path("runs").exists()
    assert not Path("adapters").exists()


def test_experts_that_take_no_adapter_are_named(tmp_path: Path):
    said: list[str] = []
    plan_lora(str(write("mixtral", tmp_path)), SPEC, progress=said.append)
    assert said[-1].endswith("without adapter: mlp.experts.down_proj, mlp.experts.gate_up_proj")
