"""Tokens per second of a model server with replies of 1, 3 and 6 adapters in the same batch, against the sampler of this process.

    python benchmarks/serving.py                       # vLLM (see docs/serving.md), SmolLM2-135M
    python benchmarks/serving.py --replies 48 --tokens 64 --repeats 5 --json
    python benchmarks/serving.py --tests-server        # the tests' own server: measures onthejob's part only

The same number of replies with the same seeds in every row, spread over 0 (the base), 1, 3 or 6 adapters; a row is the median of
the repeats. The server gets the adapters' requests at once, the sampler of this process one adapter after another.
`shared` and `own` compare replies to one prompt, computed once, with as many replies to prompts of their own: what prefix caching
is worth.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from publish import TEXT, Bench, arguments, show

from onthejob.models.sampler import LocalSampler
from onthejob.types import Sampling

ADAPTERS = (0, 1, 3, 6)
Generate = Callable[[Sequence[tuple[int, ...]], str | None], int]
"""Prompts and an adapter (None: the base) to the number of tokens that were sampled."""


def spread(replies: int, roles: Sequence[str]) -> list[tuple[str | None, int]]:
    """How many of `replies` each role gives; all of them the base's without roles."""
    if not roles:
        return [(None, replies)]
    return [(role, replies // len(roles) + (index < replies % len(roles))) for index, role in enumerate(roles)]


def tokens_per_second(
    generate: Generate, shares: Sequence[tuple[str | None, int]], prompt: tuple[int, ...], *, at_once: bool
) -> float:
    """Of one round of replies; the adapters' requests at once, or one after another."""
    counts: list[int] = []

    def ask(adapter: str | None, replies: int) -> None:
        counts.append(generate([prompt] * replies, adapter))

    threads = [threading.Thread(target=ask, args=share) for share in shares]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
        if not at_once:
            thread.join()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - started)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--replies", type=int, default=24, help="in all, in every row")
    parser.add_argument("--tokens", type=int, default=32, help="limit of a reply")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if options.replies < options.roles or options.tokens < 1 or options.repeats < 1:
        parser.error(f"--replies must be >= --roles ({options.roles}), --tokens and --repeats >= 1")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
        try:
            show(measure(bench, options.replies, options.tokens, options.repeats), as_json=options.json)
        finally:
            bench.server.stop()


def measure(bench: Bench, replies: int, tokens: int, repeats: int) -> dict[str, float]:
    """All rows."""
    sampling = Sampling(max_new_tokens=tokens)
    for role in bench.roles:
        bench.publish(role)
    live = bench.publisher.live
    local = LocalSampler(bench.model, bench.chat, base_digest=bench.digest)
    for adapter in live.values():
        local.publish(adapter)

    def served(prompts: Sequence[tuple[int, ...]], role: str | None) -> int:
        name = live[role].name if role else None
        done = bench.sampler.generate(prompts, adapter=name, sampling=sampling, seeds=range(len(prompts)))
        return sum(len(reply.token_ids) for reply in done)

    def here(prompts: Sequence[tuple[int, ...]], role: str | None) -> int:
        name = live[role].name if role else None
        done = local.generate(prompts, adapter=name, sampling=sampling, seeds=range(len(prompts)))
        return sum(len(reply.token_ids) for reply in done)

    result: dict[str, float] = {"start_s": bench.start_s}
    for count in (count for count in ADAPTERS if count <= len(bench.roles)):
        shares = spread(replies, bench.roles[:count])
        served([bench.ids], shares[0][0])  # Kernels and caches are warm.
        for name, generate, at_once in (("server", served, True), ("in_process", here, False)):
            speeds = [tokens_per_second(generate, shares, bench.ids, at_once=at_once) for _ in range(repeats)]
            result[f"{name}_{count}_adapters_tok_s"] = statistics.median(speeds)
    long = tuple(bench.chat.tokenizer.encode(TEXT * 8, add_special_tokens=False))
    first = next(iter(live))
    for name, prompts in (
        ("shared", [long] * 8),
        # Not `long` itself, which the row before left in the cache.
        ("own", [(*long[index:], *long[:index]) for index in range(1, 9)]),
    ):
        started = time.perf_counter()
        served(prompts, first)
        result[f"{name}_prompt_s"] = time.perf_counter() - started
    return result


if __name__ == "__main__":
    main()
