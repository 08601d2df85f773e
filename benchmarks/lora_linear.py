"""A training pass with each linear layer and its adapter as one operation, against PEFT's own layers, in one process.

Forward and backward of the embedded model over one row of tokens, adapters of all linear layers trained, as in an update
(`learn.lora_linear`). Rounds alternate, so that other load hits both; seconds are of the processor, not of the clock.

    python benchmarks/lora_linear.py [--dtype bfloat16] [--tokens 1024] [--rank 8] [--threads 1] [--rounds 5] [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from typing import Any

import torch
from peft import PeftModel
from peft.helpers import disable_input_dtype_casting

from onthejob.learn import lora
from onthejob.learn.lora_linear import folded
from onthejob.models.base_model import load_base
from onthejob.models.fetch import fetch


def seconds(model: PeftModel, ids: torch.Tensor, within: Any) -> float:
    """CPU seconds of one forward and backward pass."""
    base: Any = model.get_base_model()
    kind = base.dtype
    started = time.process_time()
    half = kind == torch.bfloat16
    with (
        within(model),
        disable_input_dtype_casting(model) if half else contextlib.nullcontext(),
        torch.autocast("cpu", kind) if half else contextlib.nullcontext(),
    ):
        base.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state.float().square().mean().backward()
    model.zero_grad(set_to_none=True)
    return time.process_time() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    if min(options.tokens, options.rank, options.threads, options.rounds) < 1:
        parser.error("--tokens, --rank, --threads and --rounds must be >= 1")
    torch.set_num_threads(options.threads)
    base = load_base(fetch("smollm2-135m"), dtype=options.dtype)
    model = lora.attach(base.model, ["sales"], lora.LoraSpec(rank=options.rank, alpha=2 * options.rank), seed=0)
    ids = torch.randint(0, 40_000, (1, options.tokens), generator=torch.Generator().manual_seed(0))
    for within in (folded, contextlib.nullcontext):
        seconds(model, ids, within)
    rounds = [(seconds(model, ids, folded), seconds(model, ids, contextlib.nullcontext)) for _ in range(options.rounds)]
    ours, theirs = (statistics.median(found) for found in zip(*rounds, strict=True))
    ratios = sorted(b / a for a, b in rounds)
    result = {
        "dtype": options.dtype,
        "tokens": options.tokens,
        "rank": options.rank,
        "ours_cpu_s": ours,
        "peft_cpu_s": theirs,
        "ratio": statistics.median(ratios),
        "ratio_min": ratios[0],
        "ratio_max": ratios[-1],
    }
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        print(f"{options.dtype}, {options.tokens} tokens, rank {options.rank}: {ours:.2f} against {theirs:.2f} CPU s, ", end="")
        print(f"PEFT's by ours {result['ratio']:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}, {options.rounds} rounds)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
