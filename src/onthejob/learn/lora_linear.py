"""The linear layers of a LoRA model in the training pass, with their adapter's two thin products folded into the wide one.

PEFT computes base(x) + B(A(x)) * scale as separate operations, each a pass over an activation, and autograd keeps and adds as
many in the backward pass. In a small model on a CPU that is a tenth of a training pass (`benchmarks/lora_linear.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from peft.tuners.lora.layer import Linear
from torch import Tensor, nn


@contextmanager
def folded(model: nn.Module) -> Iterator[None]:
    """Inside, `model`'s plain LoRA layers run forward and backward as one operation; blocks may be nested.

    The same function with the same gradients up to rounding. Whatever is not plain (several adapters at once, merged or switched
    off ones, dropout, DoRA and the like, quantised or trained base weights) runs as PEFT does it.
    """
    layers = [module for module in model.modules() if type(module) is Linear and "forward" not in vars(module)]
    for layer in layers:
        layer.forward = partial(_forward, layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _forward(layer: Linear, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    plain = None if args or kwargs else plain_adapter(layer)
    if plain is None or not _same_dtype(plain, x):
        return Linear.forward(layer, x, *args, **kwargs)
    return _Folded.apply(x.to(plain.weight.dtype), *plain)


class PlainAdapter(NamedTuple):
    """What a layer with one ordinary adapter computes with."""

    weight: Tensor  # (O, I)
    bias: Tensor | None  # (O,)
    a: Tensor  # (R, I)
    b: Tensor  # (O, R)
    scale: float


def plain_adapter(layer: Linear) -> PlainAdapter | None:
    """What `layer` computes with; None when it is not plain."""
    active = [name for name in layer.active_adapters if name in layer.lora_A]
    if layer.disable_adapters or layer.merged or len(active) != 1:
        return None
    (name,) = active
    a: Any = layer.lora_A[name]
    b: Any = layer.lora_B[name]
    base = layer.base_layer
    if type(base) is not nn.Linear or base.weight.requires_grad or (base.bias is not None and base.bias.requires_grad):
        return None
    if (
        name in layer.lora_variant
        or not isinstance(layer.lora_dropout[name], nn.Identity)
        or a.bias is not None
        or b.bias is not None
    ):
        return None
    return PlainAdapter(base.weight, base.bias, a.weight, b.weight, float(layer.scaling[name]))


def _same_dtype(plain: PlainAdapter, x: Tensor) -> bool:
    """Does everything run in one dtype? Without autocast PEFT would cast here and there; with it everything runs in its dtype."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        return plain.weight.dtype == torch.get_autocast_dtype(kind)
    return plain.weight.dtype == x.dtype == plain.a.dtype


class _Folded(torch.autograd.Function):
    """x W' + bias + scale (x A') B', and its gradients for x, A and B."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])  # (T, I)
        ctx.masters = a.dtype, b.dtype
        a, b = a.to(x.dtype), b.to(x.dtype)
        inner = (rows @ a.T).mul_(scale)  # (T, R)
        out = rows @ weight.T if bias is None else torch.addmm(bias, rows, weight.T)
        out.addmm_(inner, b.T)
        ctx.save_for_backward(rows, weight, a, b, inner)
        ctx.scale = scale
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, None, None, Tensor, Tensor, None]:
        rows, weight, a, b, inner = ctx.saved_tensors
        grad: Tensor = grads[0]
        shape, grad = grad.shape, grad.reshape(-1, grad.shape[-1])  # (T, O)
        of_inner = (grad @ b).mul_(ctx.scale)  # (T, R)
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = (grad @ weight).addmm_(of_inner, a).view(*shape[:-1], -1)
        of_a, of_b = of_inner.T @ rows, grad.T @ inner
        return of_x, None, None, of_a.to(ctx.masters[0]), of_b.to(ctx.masters[1]), None
