"""How near prefill, decode and update come to what this machine could do at best, measured in the same run.

    python benchmarks/roofline.py [--dtype float32] [--threads 2] [--engine torch] [--json]

The limit of a pass is the longer of two times: its bytes (weights, and keys and values read and written) at the bandwidth with
which this machine reads memory, and its operations at the rate of torch's product of two 2048 x 2048 matrices of the same dtype.
Operations that the model does not need (padding, masked scores) do not count as work, and what a pass does besides products and
attention has no part in its limit, so 1.0 cannot be reached. Bandwidth and peak are measured before and after each pass, and the
better ones count.

Prefill is of 4 prompts of 512 tokens, decode of 8, 32 and 128 rows (8 to a prompt of 512 tokens) over 16 steps. The update is
that of `grpo_step.py`, 4 replies of 48 tokens to a prompt of 384, rank 16 on all projections, in float32 on one thread.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from onthejob.models.base_model import load_base
from onthejob.models.engines import make_engine
from onthejob.models.fetch import fetch

PROMPT, STEPS, SHARED = 512, 16, 8
UPDATE = (384, 48, 4)
RANK = 16
WANTED = {"prefill, 4 prompts": 0.4, "decode, 32 rows": 0.4, "update, 1 thread": 0.5}
"""Pass -> share of the limit that it has to reach; the command ends with 1 otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a pass cannot do without."""

    bytes: float
    operations: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of a Llama-shaped model."""

    projections: int
    """Weights of all layers' projections."""
    head: int
    layers: int
    queries: int
    """Numbers of a token's queries in one layer."""
    keys_values: int
    """Numbers of a token's keys and values in one layer."""
    width: int
    """Bytes of a number."""

    @classmethod
    def of(cls, model: Any) -> Sizes:
        config = model.config
        dim = model.model.layers[0].self_attn.head_dim
        named = model.model.layers.named_parameters()
        projections = sum(weight.numel() for name, weight in named if weight.dim() == 2 and ".lora_" not in name)
        return cls(
            projections=projections,
            head=model.lm_head.weight.numel(),
            layers=config.num_hidden_layers,
            queries=config.num_attention_heads * dim,
            keys_values=2 * config.num_key_value_heads * dim,
            width=model.lm_head.weight.element_size(),
        )

    def forward(self, tokens: int, *, heads: int, seen: int, cached: int) -> Work:
        """A pass over `tokens`, `heads` of which have logits, with `seen` visible pairs; `cached` tokens' keys are read."""
        moved = self.projections + self.head + self.layers * self.keys_values * (cached + tokens)
        operations = 2 * self.projections * tokens + 2 * self.head * heads + 4 * self.layers * self.queries * seen
        return Work(bytes=float(moved * self.width), operations=float(operations))

    def update(self, prompt: int, reply: int, replies: int, adapter: int) -> Work:
        """Forward and backward: 2 products with frozen weights for 1, 3 with an adapter's for 1, 6 of attention for 2."""
        tokens, heads = prompt + reply * replies, (reply - 1) * replies + 1
        seen = prompt * (prompt + 1) // 2 + replies * (reply * prompt + reply * (reply + 1) // 2)
        once = self.forward(tokens, heads=heads, seen=0, cached=0)
        attention = 4 * self.layers * self.queries * seen * 3
        return Work(bytes=2 * once.bytes, operations=2 * once.operations + 6 * adapter * tokens + attention)


class Machine:
    """What it reads and multiplies at best, as far as seen."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.bandwidth = self.peak = 0.0
        self._large = torch.ones(1 << 27)
        self._square = torch.ones(2048, 2048, dtype=dtype)

    def look(self) -> None:
        """Measure both once more and keep the better ones."""
        for _ in range(2):
            self.bandwidth = max(self.bandwidth, self._large.numel() * 4 / seconds(self._large.sum))
            self.peak = max(self.peak, 2 * 2048**3 / seconds(lambda: self._square @ self._square))

    def limit(self, work: Work) -> float:
        """Seconds."""
        return max(work.bytes / self.bandwidth, work.operations / self.peak)


def seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def prompts(count: int, vocab: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    return torch.randint(100, vocab, (count, PROMPT), generator=generator).tolist()


def prefill(engine: Any, count: int, vocab: int) -> float:
    given = prompts(count, vocab)
    batch = engine.batch([PROMPT] * count, rows=0, new_tokens=0, lora=None)
    return seconds(lambda: batch.prefill([(slot, ids, 0) for slot, ids in enumerate(given)]))


def decode(engine: Any, rows: int, vocab: int) -> float:
    """Seconds of a step."""
    count = rows // SHARED
    batch = engine.batch([PROMPT] * count, rows=rows, new_tokens=STEPS + 2, lora=None)
    batch.prefill([(slot, ids, 0) for slot, ids in enumerate(prompts(count, vocab))])
    batch.select([row if row < count else row % count for row in range(rows)])
    for _ in range(2):
        batch.step([200] * rows)
    return seconds(lambda: [batch.step([200] * rows) for _ in range(STEPS)]) / STEPS


def measure(run: Callable[[], float], work: Work, machine: Machine, repeats: int) -> dict[str, float]:
    machine.look()
    taken = min(run() for _ in range(repeats))
    machine.look()
    limit = machine.limit(work)
    return {"seconds": taken, "limit": limit, "share": limit / taken, "bandwidth": machine.bandwidth, "peak": machine.peak}


def inference(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    model = load_base(fetch(args.model), dtype=args.dtype).model
    machine, sizes, vocab = Machine(model.dtype), Sizes.of(model), model.config.vocab_size
    engine = make_engine(model, args.engine)
    print(f"{args.model}, {model.dtype}, {args.threads} threads, engine: {engine.describe()}", file=sys.stderr)
    triangle = PROMPT * (PROMPT + 1) // 2
    found = {}
    with torch.inference_mode():
        work = sizes.forward(4 * PROMPT, heads=4, seen=4 * triangle, cached=0)
        found["prefill, 4 prompts"] = measure(lambda: prefill(engine, 4, vocab), work, machine, args.repeats)
        for rows in (8, 32, 128):
            own = 2 + STEPS // 2
            work = sizes.forward(rows, heads=rows, seen=rows * (PROMPT + own), cached=rows // SHARED * PROMPT + rows * own)
            found[f"decode, {rows} rows"] = measure(lambda rows=rows: decode(engine, rows, vocab), work, machine, args.repeats)
    return found


def update(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    from grpo_step import our_step

    torch.set_num_threads(1)
    step, model = our_step(argparse.Namespace(model=fetch(args.model), rank=RANK), *UPDATE)
    adapter = sum(p.numel() for p in model.parameters() if p.requires_grad)

    def run() -> float:
        model.zero_grad(set_to_none=True)
        return seconds(step)

    run()
    sizes = Sizes.of(model.get_base_model())
    return {"update, 1 thread": measure(run, sizes.update(*UPDATE, adapter), Machine(torch.float32), args.repeats)}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="auto", choices=["auto", "bfloat16", "float32"], help="of prefill and decode")
    parser.add_argument("--engine", default="auto", choices=["auto", "native", "torch"])
    parser.add_argument("--repeats", type=int, default=3, help="the fastest counts")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of prefill and decode")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    found = inference(args) | update(args)
    missed = [name for name, wanted in WANTED.items() if found[name]["share"] < wanted]
    if args.json:
        json.dump({"settings": vars(args), "passes": found, "missed": missed}, sys.stdout, indent=2)
        print()
        return int(bool(missed))
    print(f"{'pass':20}{'ms':>9}{'limit ms':>10}{'share':>7}{'GB/s':>7}{'GFLOP/s':>9}")
    for name, row in found.items():
        cells = f"{1e3 * row['seconds']:9.1f}{1e3 * row['limit']:10.1f}{row['share']:7.2f}"
        print(f"{name:20}{cells}{row['bandwidth'] / 1e9:7.1f}{row['peak'] / 1e9:9.0f}")
    for name in missed:
        print(f"missed: {name} is at {found[name]['share']:.2f} of its limit, {WANTED[name]} wanted")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
