"""A row scored by compiled code: the same whatever the number of threads, and refused where it cannot run."""

from __future__ import annotations

import gc
import warnings
import weakref

import pytest
import torch
from peft import LoraConfig, get_peft_model

from onthejob.errors import ContractError
from onthejob.learn import forward, native
from onthejob.learn.batch import Path, pack
from onthejob.learn.forward import score
from onthejob.learn.interrupt import Interrupt, Interrupted
from onthejob.models.native.huge_pages import Memory
from onthejob.models.native.shared_library import load_library

from .conftest import VOCAB, gradients, tiny_base, tiny_peft

compiled = pytest.mark.skipif(load_library(bf16=False) is None, reason="there is no compiled code here; see `onthejob doctor`")


def paths(count: int = 5, length: int = 90) -> list[Path]:
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(VOCAB, (length,), generator=generator).tolist()
    replies = torch.randint(VOCAB, (count, 20), generator=generator).tolist()
    return [Path(ids=(*prompt, *reply), context=length, owner=owner) for owner, reply in enumerate(replies)]


@compiled
def test_gradients_do_not_depend_on_the_number_of_threads():
    (row,) = pack(paths(), max_tokens=1000)
    found = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            model = tiny_peft()
            scores = score(model, row)
            (scores.logprobs.square().sum() + scores.entropy.sum()).backward()
            found.append([scores.logprobs.detach(), *gradients(model).values()])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@compiled
def test_it_runs_the_model_that_it_suits(monkeypatch):
    used = []

    def watched(*args, **kwargs):
        found = native.native_scores(*args, **kwargs)
        used.append(found is not None)
        return found

    monkeypatch.setattr(forward, "native_scores", watched)
    (row,) = pack(paths(), max_tokens=1000)
    score(tiny_peft(), row)
    trained = tiny_base()
    score(trained, row)  # all of its weights would have gradients
    with torch.no_grad():
        score(trained, row)
    others = [tiny_peft() for _ in range(4)]
    others[0].disable_adapter_layers()
    others[1].half()
    others[2].get_submodule("base_model.model.model.norm").double()
    with warnings.catch_warnings():  # PEFT asks transformers for a flag that was renamed
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`", category=FutureWarning)
        others[3] = get_peft_model(tiny_base(), LoraConfig(target_modules=["q_proj", "lm_head"]))
    for other in (others[0], others[1], others[3]):
        score(other, row)
    with pytest.raises(RuntimeError):
        score(others[2], row)  # torch has no such product either
    assert used == [True, False, True, *[False] * 4]


@compiled
def test_tokens_that_the_model_does_not_have_are_refused():
    for ids in ((1, VOCAB, 2), (1, 2, VOCAB), (-1, 2, 3)):
        (row,) = pack([Path(ids=ids, context=2)], max_tokens=10)
        with pytest.raises(ContractError, match=rf"token ids must be in 0\.\.{VOCAB - 1}"):
            score(tiny_peft(), row)


@compiled
def test_a_second_backward_pass_is_refused():
    (row,) = pack(paths(), max_tokens=1000)
    logprobs = score(tiny_peft(), row).logprobs
    logprobs.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="score the row again"):
        logprobs.sum().backward()


@compiled
def test_factors_that_changed_before_the_backward_pass_are_noticed():
    (row,) = pack(paths(), max_tokens=1000)
    model = tiny_peft()
    logprobs = score(model, row).logprobs
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        logprobs.sum().backward()


@compiled
def test_an_interrupted_backward_pass_cannot_be_run_again():
    (row,) = pack(paths(), max_tokens=1000)
    model, interrupt = tiny_peft(), Interrupt()
    with interrupt.watched(model):
        loss = score(model, row).logprobs.sum()
        interrupt.ask()
        with pytest.raises(Interrupted):
            loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="score the row again"):
        loss.backward()


@compiled
def test_a_row_without_a_backward_pass_is_freed(monkeypatch):
    taken = []

    class Watched(Memory):
        def take(self, rooms):
            whole, found = super().take(rooms)
            taken.append(weakref.ref(whole))
            return whole, found

    monkeypatch.setattr(native, "MEMORY", Watched())
    (row,) = pack(paths(), max_tokens=1000)
    scores = score(tiny_peft(), row)
    assert taken[0]() is not None
    del scores
    gc.collect()
    assert taken[0]() is None


@compiled
def test_the_default_dtype_of_torch_does_not_matter():
    (row,) = pack(paths(), max_tokens=1000)
    model = tiny_peft()
    with torch.no_grad():
        expected = score(model, row).logprobs
        torch.set_default_dtype(torch.float64)
        try:
            found = score(model, row).logprobs
        finally:
            torch.set_default_dtype(torch.float32)
    assert found.dtype is torch.float32
    assert torch.equal(found, expected)
