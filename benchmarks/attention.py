"""The learner's attention on CPUs against PyTorch's own, forward and backward, in one process.

`learn.forward` attends to a packed row in blocks of queries with a bias for the tree. In bfloat16 on CPUs it does so with plain
matrix products and computes the weights again in the backward pass; everywhere else it calls
`torch.nn.functional.scaled_dot_product_attention`. Here both get the same tensors, shaped as SmolLM2-135M's (9 heads on 3 key
heads of 64 numbers, queries of one key head side by side), and rounds alternate, so that other load hits both. The errors are
those of outputs and gradients against PyTorch's in float64, relative to their largest number.

    python benchmarks/attention.py [--threads 1] [--rounds 15] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from onthejob.learn.tree_attention import ProductAttention, TreeBlock

HEADS, KEY_HEADS, SIZE = 9, 3, 64
SHAPES = ((128, 128), (128, 512), (128, 2048), (512, 512))
"""Queries and keys of a block."""
Attend = Callable[[Tensor, Tensor, Tensor, TreeBlock], Tensor]


class Row(NamedTuple):
    """One block in one dtype."""

    dtype: str
    queries: int
    keys: int
    products_ms: float
    torch_ms: float
    ratio: float
    """PyTorch's time by that of plain products; the median of the rounds' ratios."""
    products_error: float
    torch_error: float


def products(query: Tensor, key: Tensor, value: Tensor, block: TreeBlock) -> Tensor:
    return ProductAttention.apply(query, key, value, [block], SIZE**-0.5)


def pytorch(query: Tensor, key: Tensor, value: Tensor, block: TreeBlock) -> Tensor:
    folded, bias = query.reshape(1, KEY_HEADS, -1, SIZE), block.repeated(HEADS // KEY_HEADS)
    output = F.scaled_dot_product_attention(folded, block.seen(key), block.seen(value), attn_mask=bias)
    return output.reshape(1, HEADS, -1, SIZE).transpose(1, 2)


def tensors(queries: int, keys: int) -> tuple[Tensor, ...]:
    """Query, key, value, the bias of a causal block at the end of `keys`, and the gradient of the output, all in float64."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, HEADS, queries, SIZE), (1, KEY_HEADS, keys, SIZE), (1, KEY_HEADS, keys, SIZE))
    query, key, value = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    hidden = torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1)
    bias = torch.zeros(1, 1, queries, keys, dtype=torch.float64).masked_fill(hidden, -1e30)
    return query, key, value, bias, torch.randn((1, queries, HEADS, SIZE), generator=generator, dtype=torch.float64)


def run(attend: Attend, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Output and the three gradients."""
    query, key, value = (leaf.detach().requires_grad_() for leaf in given[:3])
    bias, grad = given[3:]
    block = TreeBlock(start=0, stop=query.shape[2], keys=torch.arange(key.shape[2]), bias=bias, depth=torch.arange(key.shape[2]))
    output = attend(query, key, value, block)
    return output.detach(), *torch.autograd.grad(output, (query, key, value), grad)


def error(found: tuple[Tensor, ...], exact: tuple[Tensor, ...]) -> float:
    return max(float((a.double() - b).abs().max() / b.abs().max()) for a, b in zip(found, exact, strict=True))


def measure(dtype: torch.dtype, queries: int, keys: int, rounds: int) -> Row:
    exact = tensors(queries, keys)
    given = tuple(tensor.to(dtype) for tensor in exact)
    wanted = run(pytorch, exact)
    errors = [error(run(attend, given), wanted) for attend in (products, pytorch)]
    calls = max(1, 2_000_000 // (queries * keys))
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for attend, found in zip((products, pytorch), seconds, strict=True):
            start = time.perf_counter()
            for _ in range(calls):
                run(attend, given)
            found.append((time.perf_counter() - start) / calls)
    ours, theirs = (1000 * statistics.median(found) for found in seconds)
    ratio = statistics.median(b / a for a, b in zip(*seconds, strict=True))
    return Row(str(dtype).removeprefix("torch."), queries, keys, ours, theirs, ratio, *errors)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch")
    parser.add_argument("--rounds", type=int, default=15, help="alternations between the two")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    if min(options.threads, options.rounds) < 1:
        parser.error("--threads and --rounds must be >= 1")
    torch.set_num_threads(options.threads)
    rows = [measure(dtype, *shape, options.rounds) for dtype in (torch.bfloat16, torch.float32) for shape in SHAPES]
    if options.json:
        print(json.dumps([row._asdict() for row in rows], indent=2))
        return 0
    print(f"{'dtype':10}{'queries':>8}{'keys':>6}{'products ms':>13}{'PyTorch ms':>12}{'ratio':>7}{'errors':>18}")
    for row in rows:
        errors = f"{row.products_error:.1e} {row.torch_error:.1e}"
        print(f"{row.dtype:10}{row.queries:8}{row.keys:6}{row.products_ms:13.2f}{row.torch_ms:12.2f}{row.ratio:7.2f}{errors:>18}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
