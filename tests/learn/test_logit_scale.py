"""One number per role that multiplies its logits: trained like a weight, kept next to the tensors, sampled as it is scored."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

from onthejob.errors import ConfigError, ModelError
from onthejob.learn import adapter_files, lora
from onthejob.learn.batch import Path as TokenPath
from onthejob.learn.batch import collate, pack
from onthejob.learn.forward import Layout, score
from onthejob.learn.learner import Learner, LearnerConfig
from onthejob.learn.lora import LoraSpec, Snapshot
from onthejob.learn.loss import LossConfig
from onthejob.learn.merge import merge_adapter
from onthejob.learn.sft import Example, SftConfig, sft
from onthejob.models.adapter_weights import LOG_LOGIT_SCALE, read_logit_scale
from onthejob.models.base_model import weights_digest
from onthejob.models.chat import ChatEncoder
from onthejob.models.sampler import Sampler
from onthejob.stack import shape_of
from onthejob.testing.tiny import tiny_model
from onthejob.types import Adapter, Message, Sampling

from .conftest import make_group, make_turn, random_groups, tiny_base, update

SPEC = LoraSpec(rank=4, alpha=8, logit_scale=True)
SEVEN = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")


def scaled_peft(log_scale: float = 0.0, *, spec: LoraSpec = SPEC) -> PeftModel:
    """Sales and Dev, adapters that differ from the base; Sales with the given scale."""
    model = lora.attach(tiny_base(), ("sales", "dev"), spec, seed=0)
    with torch.no_grad():
        for name, parameter in lora.parameters(model, "sales").items():
            if ".lora_B." in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
            elif name == LOG_LOGIT_SCALE:
                parameter.fill_(log_scale)
    return model


def save(model: PeftModel, folder: Path, **fields) -> Adapter:
    options = {"version": 1, "parent": None, "base_digest": "b" * 64} | fields
    return adapter_files.save_adapter(model, "sales", folder, **options)


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("head_rows", [1024, 3])
def test_logprobs_and_gradients_equal_autograd_of_scaled_logits(layout, temperature, head_rows):
    model = scaled_peft(0.4)
    prompt, reply = (5, 6, 7, 8), (9, 10, 11)
    (row,) = pack([TokenPath(ids=prompt + reply, context=len(prompt), temperature=temperature)], max_tokens=64)
    found = score(model, row, layout=layout, head_rows=head_rows)
    (found.logprobs.sum() + 0.3 * found.entropy.sum()).backward()
    parameters = lora.parameters(model, "sales")
    ours = {name: parameter.grad.clone() for name, parameter in parameters.items()}
    model.zero_grad(set_to_none=True)

    logits = model(input_ids=torch.tensor([prompt + reply])).logits[0, len(prompt) - 1 : -1]
    every = (logits * parameters[LOG_LOGIT_SCALE].exp() / temperature).log_softmax(-1)
    logprobs = every.gather(1, torch.tensor(reply)[:, None])[:, 0]
    torch.testing.assert_close(found.logprobs, logprobs, rtol=1e-5, atol=1e-5)
    (logprobs.sum() - 0.3 * (every.exp() * every).sum()).backward()
    assert ours[LOG_LOGIT_SCALE].abs() > 1e-2
    for name, parameter in parameters.items():
        torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("paid", ["likely", "unlikely"])
def test_what_pays_decides_whether_a_role_becomes_surer(paid):
    learner = Learner(scaled_peft(), ("sales", "dev"), config=LearnerConfig(lr=0.0, logit_scale_lr=0.1, warmup=2))
    before = {role: lora.state(learner.model, role) for role in learner.roles}
    prompt = (1, 2, 3)
    with torch.no_grad():
        order = learner.model(input_ids=torch.tensor([prompt])).logits[0, -1].argsort().tolist()
    likely, unlikely = make_turn(prompt, [order[-1]]), make_turn(prompt, [order[0]])
    group = make_group((1.0 if paid == "likely" else 0.0, likely), (0.0 if paid == "likely" else 1.0, unlikely))
    metrics = [update(learner, "sales", [group]) for _ in range(3)]
    # Half of the rate in the first of two updates of warm-up; Adam moves by the rate as long as the sign stays.
    moved = math.log(metrics[-1].values["logit_scale"])
    assert moved == pytest.approx(0.25 if paid == "likely" else -0.25, rel=0.05)
    assert metrics[-1].as_dict()["logit_scale"] == math.exp(lora.state(learner.model, "sales")[LOG_LOGIT_SCALE].item())
    after = {role: lora.state(learner.model, role) for role in learner.roles}
    changed = [
        (role, name) for role in after for name, tensor in after[role].items() if not torch.equal(tensor, before[role][name])
    ]
    assert changed == [("sales", LOG_LOGIT_SCALE)], "lr is 0, and Dev has a number of its own"


def test_only_the_active_role_s_number_has_a_gradient_and_a_reference_keeps_its_own():
    model = scaled_peft(0.5)
    lora.activate(model, "dev")
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert all(".dev." in name or name.endswith(".dev") for name in trained)
    assert any("log_logit_scales" in name for name in trained)
    lora.activate(model, "sales")
    (row,) = pack([TokenPath(ids=(1, 2, 3, 4), context=2)], max_tokens=16)
    surer, snapshot = score(model, row).logprobs.detach(), Snapshot.take(model, "sales")
    with torch.no_grad():
        lora.parameters(model, "sales")[LOG_LOGIT_SCALE].zero_()
    plain = score(model, row).logprobs.detach()
    assert not torch.allclose(surer, plain)
    with snapshot.applied(model, "sales"):
        assert torch.equal(score(model, row).logprobs.detach(), surer)


def test_resumed_updates_equal_uninterrupted_ones_bit_for_bit():
    config = LearnerConfig(lr=1e-2, logit_scale_lr=0.05, warmup=2, epochs=2, loss=LossConfig(beta=0.1))
    groups = [random_groups(seed) for seed in range(4)]
    through = Learner(scaled_peft(), ("sales",), config=config)
    reference = Snapshot.take(through.model, "sales")
    for some in groups[:2]:
        update(through, "sales", some, reference=reference)
    second = Learner(scaled_peft(0.3), ("sales",), config=config)
    second.import_state("sales", through.export_state("sales"))
    for some in groups[2:]:
        update(through, "sales", some, reference=reference)
        update(second, "sales", some, reference=reference)
    expected, found = through.export_state("sales"), second.export_state("sales")
    assert found.keys() == expected.keys()
    assert f"adam/exp_avg/{LOG_LOGIT_SCALE}" in found
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_it_is_saved_exactly_beside_tensors_that_peft_knows(tmp_path: Path, dtype):
    log_scale = torch.tensor(0.123456789).item()  # as float32
    adapter = save(scaled_peft(log_scale), tmp_path, dtype=dtype)
    assert all(".lora_" in name for name in load_file(adapter.path / adapter_files.WEIGHTS))
    assert read_logit_scale(adapter.path) == math.exp(log_scale)
    fresh = scaled_peft(1.0)
    adapter_files.load_adapter(fresh, "sales", adapter)
    assert lora.state(fresh, "sales")[LOG_LOGIT_SCALE].item() == log_scale
    with warnings.catch_warnings():  # PEFT asks transformers for a flag that was renamed in 5.23.
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`", category=FutureWarning)
        PeftModel.from_pretrained(tiny_base(), adapter.path)
    assert adapter_files.read_spec(adapter.path) == LoraSpec(rank=4, alpha=8, targets=SEVEN, logit_scale=True)
    again = [save(scaled_peft(log_scale), tmp_path / str(number), dtype=dtype) for number in range(12)]
    assert {copy.digest for copy in again} == {adapter.digest}, "the same weights are the same file"
    assert save(scaled_peft(log_scale), tmp_path, dtype=dtype) == adapter
    with pytest.raises(ModelError, match="exists with other weights"):
        save(scaled_peft(0.5), tmp_path, dtype=dtype)
    with pytest.raises(ModelError, match="not finite"):
        save(scaled_peft(math.inf), tmp_path, dtype=dtype, version=2)


def test_adapters_with_and_without_it_meet(tmp_path: Path):
    plain = lora.attach(tiny_base(), ("sales",), LoraSpec(rank=4, alpha=8), seed=0)
    without = save(plain, tmp_path / "without")
    model = scaled_peft(0.7)
    adapter_files.load_adapter(model, "sales", without)
    assert lora.state(model, "sales")[LOG_LOGIT_SCALE] == 0
    surer = save(scaled_peft(0.7), tmp_path / "surer")
    with pytest.raises(ModelError, match=r"Attach with --lora\.logit-scale"):
        adapter_files.load_adapter(plain, "sales", surer)
    asked = LoraSpec(rank=4, alpha=8)
    assert not shape_of({"sales": without}, asked, where="here").logit_scale
    assert shape_of({"sales": without, "dev": surer}, asked, where="here").logit_scale
    assert shape_of({"sales": without}, SPEC, where="here").logit_scale


def test_what_is_sampled_has_the_logprobs_that_are_trained_on(tmp_path: Path):
    tiny = tiny_model()
    model = lora.attach(tiny.model, ("sales",), SPEC, seed=0)
    with torch.no_grad():
        for name, parameter in lora.parameters(model, "sales").items():
            if ".lora_A." not in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)).abs())
    chat = ChatEncoder(tiny.tokenizer)
    learner, sampler = Learner(model, ("sales",), config=LearnerConfig()), Sampler(model, chat)
    adapter = save(model, tmp_path, dtype="float32")
    sampler.publish(adapter)
    prompt = chat.encode([Message("system", "You sell."), Message("user", "What now?")])
    sampling = Sampling(temperature=1.3, max_new_tokens=8)
    done = sampler.generate([prompt] * 6, adapter=adapter.name, sampling=sampling, seeds=range(6))
    turns = [make_turn(prompt, reply.token_ids, logprobs=reply.logprobs, temperature=sampling.temperature) for reply in done]
    group = make_group(*((float(index), turn) for index, turn in enumerate(turns)))
    batches = collate([group], [torch.arange(6.0).numpy()], max_tokens=512)
    for batch, logprobs in zip(batches, learner.logprobs("sales", batches), strict=True):
        torch.testing.assert_close(logprobs, torch.from_numpy(batch.sampled).to(logprobs), rtol=1e-4, atol=1e-4)
    # Surer is the same as colder.
    scale = read_logit_scale(adapter.path)
    assert scale > 1.01
    colder = lora.attach(tiny_model().model, ("sales",), LoraSpec(rank=4, alpha=8), seed=0)
    lora.load_state(colder, "sales", {n: t for n, t in lora.state(model, "sales").items() if n != LOG_LOGIT_SCALE})
    plain = Sampler(colder, chat)
    other = save(colder, tmp_path / "colder", dtype="float32")
    plain.publish(other)
    cold = Sampling(temperature=sampling.temperature / scale, max_new_tokens=8)
    assert plain.generate([prompt] * 6, adapter=other.name, sampling=cold, seeds=range(6)) == done


def test_imitation_leaves_it_as_it_is():
    learner = Learner(scaled_peft(0.2), ("sales",), config=LearnerConfig())
    example = Example(prompt_ids=(1, 2, 3), completion_ids=(4, 5), marked="expert")
    before = lora.state(learner.model, "sales")
    sft(learner, "sales", [example], SftConfig(lr=1e-2))
    after = lora.state(learner.model, "sales")
    assert torch.equal(after[LOG_LOGIT_SCALE], before[LOG_LOGIT_SCALE])
    assert any(not torch.equal(after[name], before[name]) for name in before)


def test_a_merged_model_says_at_which_temperature_it_is_the_same(tmp_path: Path):
    tiny = tiny_model()
    tiny.model.save_pretrained(tmp_path / "base")
    tiny.tokenizer.save_pretrained(tmp_path / "base")
    model = lora.attach(tiny.model, ("sales",), SPEC, seed=0)
    with torch.no_grad():
        lora.parameters(model, "sales")[LOG_LOGIT_SCALE].fill_(math.log(2.0))
    adapter = save(model, tmp_path / "adapters", base_digest=weights_digest(tmp_path / "base"), dtype="float32")
    done = merge_adapter(tmp_path / "base", adapter, tmp_path / "out")
    assert done.temperature == pytest.approx(0.5)
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text(encoding="utf-8"))
    assert (written["do_sample"], written["temperature"]) == (True, pytest.approx(0.5))


def test_a_rate_that_is_no_rate_is_refused():
    for rate in (-0.1, math.inf, math.nan):
        with pytest.raises(ConfigError, match="logit_scale_lr must be finite and >= 0"):
            LearnerConfig(logit_scale_lr=rate)
