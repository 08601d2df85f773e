"""A decoding step with the weights on the left of each product, against torch's own order of the factors, in one process.

The embedded model with a LoRA adapter on all linear layers: one prompt, some replies side by side, and so many steps with the
rule of `models.llama.linear` and without it. The rule is for float32 and at least two rows: of one row both sides are the same.
Rounds alternate, so that other load hits both; times are of the clock.

    python benchmarks/few_rows.py [--rows 1 2 4 8 16 32 64] [--prompt 300] [--steps 8] [--rounds 5] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from onthejob.learn import adapter_files, lora
from onthejob.models.adapter_weights import read_adapter_weights
from onthejob.models.base_model import load_base
from onthejob.models.fetch import fetch
from onthejob.models.llama import LlamaEngine
from onthejob.models.sampler import without_adapters


@torch.inference_mode()
def seconds(engine: LlamaEngine, adapter: Any, *, rows: int, prompt: int, steps: int, few: range) -> float:
    """Of one decoding step, on average."""
    with patch("onthejob.models.llama._FEW", few):
        batch = engine.batch([prompt], rows=rows, new_tokens=steps + 1, lora=adapter)
        batch.prefill([(0, list(range(100, 100 + prompt)), 0)])
        batch.select([0] * rows)
        batch.step(list(range(rows)))
        started = time.perf_counter()
        for _ in range(steps):
            batch.step(list(range(rows)))
        return (time.perf_counter() - started) / steps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--prompt", type=int, default=300)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    if min(*options.rows, options.prompt, options.steps, options.rounds, options.rank) < 1:
        parser.error("--rows, --prompt, --steps, --rounds and --rank must be >= 1")
    base = load_base(fetch("smollm2-135m"), dtype="float32")
    model = lora.attach(base.model, ["agent"], lora.LoraSpec(rank=options.rank, alpha=2 * options.rank), seed=0)
    own = without_adapters(model)
    engine = LlamaEngine(own)
    with tempfile.TemporaryDirectory() as folder:
        adapter = adapter_files.save_adapter(model, "agent", Path(folder), version=0, parent=None, base_digest=base.digest)
        shapes = {
            name: (part.out_features, part.in_features) for name, part in own.named_modules() if isinstance(part, nn.Linear)
        }
        adapted = engine.adapt(read_adapter_weights(adapter, shapes, device=torch.device("cpu")))
    results = []
    for rows in options.rows:
        ours, theirs, ratios = [], [], []
        for _ in range(options.rounds):
            left, right = (
                seconds(engine, adapted, rows=rows, prompt=options.prompt, steps=options.steps, few=few)
                for few in (range(2, 10**6), range(0))
            )
            ours.append(left)
            theirs.append(right)
            ratios.append(right / left)
        results.append(
            {
                "rows": rows,
                "left_ms": 1e3 * statistics.median(ours),
                "torch_ms": 1e3 * statistics.median(theirs),
                "ratio": statistics.median(ratios),
                "ratio_min": min(ratios),
                "ratio_max": max(ratios),
            }
        )
        if not options.json:
            text = "{rows:4d} rows: {left_ms:7.1f} ms, torch's order {torch_ms:7.1f}; ratio {ratio:.2f} "
            text += "({ratio_min:.2f} to {ratio_max:.2f})"
            print(text.format(**results[-1]), flush=True)
    if options.json:
        print(json.dumps({"threads": torch.get_num_threads(), "results": results}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
