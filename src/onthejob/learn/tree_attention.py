"""Attention over a packed row: every token sees its ancestors in the prefix tree, computed block by block of queries."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onthejob.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeBlock:
    """A `learn.tree.Block` on the model's device."""

    start: int
    stop: int
    keys: Tensor | None
    """None when the keys are all nodes up to `stop`, which needs no gather."""
    bias: Tensor
    """0 where visible, a very negative number elsewhere.  # (1, 1, stop - start, S)"""
    depth: Tensor
    """Position of every node of the tree on its path.  # (T,)"""
    _repeated: dict[int, Tensor] = field(default_factory=dict)
    _windows: dict[int, TreeBlock] = field(default_factory=dict)

    def within(self, window: int) -> TreeBlock:
        """The same block where a query sees only keys less than `window` tokens before it, one for all layers."""
        if window not in self._windows:
            seen = self.depth[: self.stop] if self.keys is None else self.depth[self.keys]
            far = self.depth[self.start : self.stop, None] - seen >= window
            bias = self.bias.masked_fill(far, torch.finfo(self.bias.dtype).min / 2)
            self._windows[window] = replace(self, bias=bias, _repeated={}, _windows={})
        return self._windows[window]

    def repeated(self, times: int) -> Tensor:
        """The bias for so many queries side by side, one tensor for all layers."""
        if times not in self._repeated:
            self._repeated[times] = self.bias.repeat(1, 1, times, 1)
        return self._repeated[times]

    def seen(self, key: Tensor) -> Tensor:
        """Of all nodes' keys (or values) those of this block's queries, (1, K, T, D) to (1, K, S, D)."""
        return key[:, :, : self.stop] if self.keys is None else key.index_select(2, self.keys)

    def add(self, total: Tensor, part: Tensor) -> None:
        """Add `part`, shaped as `seen` returns it, to where that was taken from."""
        if self.keys is None:
            total[:, :, : self.stop] += part
        else:
            total.index_add_(2, self.keys, part)


def attend_tree(
    module: nn.Module,
    query: Tensor,  # (1, heads, T, D)
    key: Tensor,  # (1, key heads, T, D)
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tree_blocks: list[TreeBlock],
    tree_depth: int,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend by blocks of the tree: an attention function for transformers; `attention_mask` is a placeholder."""
    if softcap is not None or s_aux is not None or dropout:
        raise ModelError(f"{type(module).__name__} uses attention dropout, soft-capping or sinks, which the tree layout lacks.")
    if sliding_window is not None and tree_depth > sliding_window:
        tree_blocks = [block.within(sliding_window) for block in tree_blocks]
    heads, size = query.shape[1], query.shape[3]
    scale = scaling or size**-0.5
    if query.dtype is torch.bfloat16 and query.device.type == "cpu":
        return ProductAttention.apply(query, key, value, tree_blocks, scale), None
    outputs = []
    for block in tree_blocks:
        folded, bias = _fold(query, key, block)
        keys, values = block.seen(key), block.seen(value)
        output = F.scaled_dot_product_attention(folded[None], keys, values, attn_mask=bias[None], scale=scale)
        outputs.append(output.reshape(1, heads, -1, size).transpose(1, 2))
    return torch.cat(outputs, dim=1), None


class ProductAttention(torch.autograd.Function):
    """Attention by blocks of the tree as plain matrix products, computed again in the backward pass.

    PyTorch's own for CPUs takes up to 2.5 times as long in bfloat16 on short blocks, or without AMX, as it does not use the
    processor's bfloat16 products as well (`benchmarks/attention.py`); in float32 it is the faster one. Scores are rounded to
    bfloat16 and the softmax is taken in float32, as when sampling. All blocks in one operation: autograd would write a gradient
    of the full length for each of them.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, blocks: list[TreeBlock], scale: float) -> Tensor:
        # (1, H, T, D), (1, K, T, D), (1, K, T, D) -> (1, T, H, D)
        ctx.save_for_backward(query, key, value)
        ctx.blocks, ctx.scale = blocks, scale
        output = query.new_empty(1, query.shape[2], query.shape[1], query.shape[3])
        for block in blocks:
            folded, bias = _fold(query, key, block)
            attended = _weights(folded, block.seen(key)[0], bias, scale) @ block.seen(value)[0]
            output[0, block.start : block.stop] = attended.view(query.shape[1], -1, query.shape[3]).transpose(0, 1)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value = ctx.saved_tensors
        grad: Tensor = grads[0].transpose(1, 2)  # (1, H, T, D)
        of_query, of_key, of_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for block in ctx.blocks:
            folded, bias = _fold(query, key, block)
            folded_grad, _ = _fold(grad, key, block)
            keys = block.seen(key)[0]
            weights = _weights(folded, keys, bias, ctx.scale)
            of_weights = folded_grad @ block.seen(value)[0].transpose(1, 2)
            of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)  # pyright: ignore[reportPrivateUsage]
            here = (of_scores @ keys).mul_(ctx.scale)
            of_query[0, :, block.start : block.stop] = here.view(query.shape[1], -1, query.shape[3])
            block.add(of_key, (of_scores.transpose(1, 2) @ folded).mul_(ctx.scale)[None])
            block.add(of_value, (weights.transpose(1, 2) @ folded_grad)[None])
        return of_query, of_key, of_value, None, None


def _fold(query: Tensor, key: Tensor, block: TreeBlock) -> tuple[Tensor, Tensor]:
    """Queries (K, M, D) and bias (1, M, S) of a block; queries that share a key head become more queries of it."""
    folded = query[0, :, block.start : block.stop].reshape(key.shape[1], -1, query.shape[3])
    return folded, block.repeated(query.shape[1] // key.shape[1])[0]


def _weights(query: Tensor, key: Tensor, bias: Tensor, scale: float) -> Tensor:
    return torch.baddbmm(bias.expand(len(query), -1, -1), query, key.transpose(1, 2), alpha=scale).softmax(-1)
