"""One operation for a linear layer with its adapter: what PEFT computes, and nothing where it is not plain."""

from __future__ import annotations

import contextlib
import warnings

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.layer import Linear

from onthejob.learn import lora, lora_linear
from onthejob.learn.lora_linear import folded

from .conftest import tiny_base, tiny_peft

IDS = torch.arange(5, 25).view(2, 10)


def run(model, *, within, half: bool = False):
    """Logits and the gradients of everything that is trained."""
    model.zero_grad(set_to_none=True)
    with within(model), torch.autocast("cpu", torch.bfloat16) if half else contextlib.nullcontext():
        logits = model(input_ids=IDS).logits.float()
        logits.square().mean().backward()
    return logits.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.fixture
def counted(monkeypatch):
    """How many layers went through the one operation."""
    calls = []
    plain = lora_linear._Folded.apply

    def apply(*args):
        calls.append(args[0].shape)
        return plain(*args)

    monkeypatch.setattr(lora_linear._Folded, "apply", staticmethod(apply))
    return calls


def test_outputs_and_gradients_are_peft_s(counted):
    model = tiny_peft(("sales", "ceo"))
    lora.activate(model, "ceo")
    logits, grads = run(model, within=folded)
    assert len(counted) == sum(isinstance(module, Linear) for module in model.modules())
    wanted, wanted_grads = run(model, within=contextlib.nullcontext)
    torch.testing.assert_close(logits, wanted, rtol=1e-5, atol=1e-6)
    assert grads.keys() == wanted_grads.keys()
    assert all(".ceo." in name for name in grads)
    for name, grad in grads.items():
        torch.testing.assert_close(grad, wanted_grads[name], rtol=1e-4, atol=1e-7)


def test_a_half_precision_base_is_no_further_from_the_truth_than_with_peft(counted):
    exact, _ = run(tiny_peft(), within=contextlib.nullcontext)
    model = tiny_peft(dtype=torch.bfloat16)
    ours, grads = run(model, within=folded, half=True)
    assert counted
    assert all(grad.dtype == torch.float32 for grad in grads.values())
    theirs, _ = run(model, within=contextlib.nullcontext, half=True)
    assert (ours - exact).square().mean() < 1.2 * (theirs - exact).square().mean()


def test_gradients_of_every_input():
    generator = torch.Generator().manual_seed(0)
    x, weight, bias, a, b = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((2, 3, 5), (4, 5), (4,), (2, 5), (4, 2))
    )
    leaves = [tensor.requires_grad_() for tensor in (x, a, b)]

    def one(x, a, b):
        return lora_linear._Folded.apply(x, weight, bias, a, b, 0.7)

    torch.testing.assert_close(one(*leaves), x @ weight.T + bias + 0.7 * (x @ a.T) @ b.T)
    assert torch.autograd.gradcheck(one, leaves)


@pytest.mark.parametrize("case", ["disabled", "merged", "dropout", "dora", "two", "trained base"])
def test_what_is_not_plain_runs_as_peft_does_it(case, counted):
    if case in ("dropout", "dora"):
        options = {"lora_dropout": 0.5} if case == "dropout" else {"use_dora": True}
        with warnings.catch_warnings():  # PEFT asks transformers for a flag that was renamed since.
            warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`", category=FutureWarning)
            model = get_peft_model(tiny_base(), LoraConfig(r=4, target_modules=["q_proj"], **options))
    else:
        model = tiny_peft(("sales", "ceo"))
    if case == "merged":
        model.merge_adapter(["sales"])
    if case == "two":
        model.base_model.set_adapter(["sales", "ceo"])
    if case == "trained base":
        for layer in model.modules():
            if isinstance(layer, Linear):
                layer.base_layer.weight.requires_grad_(True)
    with model.disable_adapter() if case == "disabled" else contextlib.nullcontext(), torch.no_grad():
        model.eval()
        wanted = model(input_ids=IDS).logits
        with folded(model):
            found = model(input_ids=IDS).logits
    assert not counted
    assert torch.equal(found, wanted)


def test_everything_is_put_back_after_nested_blocks_and_errors():
    model = tiny_peft()
    layers = [module for module in model.modules() if isinstance(module, Linear)]

    def fail() -> None:
        with folded(model):
            with folded(model):
                assert all("forward" in vars(layer) for layer in layers)
            assert all("forward" in vars(layer) for layer in layers)  # The outer block continues.
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not any("forward" in vars(layer) for layer in layers)
