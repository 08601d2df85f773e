"""Tokens per second of the in-process sampler against transformers' generate: same model, dtype, prompts and number of tokens.

    python benchmarks/sampler.py [--cases random] [--json] [--dtype bfloat16] [--groups 1 4] [--threads 2]

Each group is one random prompt of P tokens with K replies of exactly C tokens at temperature 1. transformers decodes all groups
in one generate call (`num_return_sequences=K`, its default attention and cache, end of turn suppressed). The headline row `ours`
switches the sharing of equal beginnings off, so that it shows the engine alone (replies to random prompts part at once anyway).
`mixed` are conversations of different length, which transformers pads on the left. The last rows show what sharing adds:
`handbook` are shell episodes whose long system message is the same, the chat prompt at a low temperature has predictable replies.
`shell` are whole conversations of four turns, eight to each of six requests: what is asked in a turn is what was said so far.
All sides run in this process, alternating, and the best of the repeats counts; CPU seconds are of the whole process. A case is
printed when it was measured. `ours, torch` runs without the compiled code that `ours` uses where the machine can run it.
`random` are the cases with a target: three minutes on two cores, all of them more than seven.

    python benchmarks/sampler.py --peers vllm=PYTHON openvino=PYTHON,FOLDER commit=CHECKOUT [--groups 1 4 16] [--repeats 5]

compares with other engines and commits instead, in processes that take turns: see `sampler_peers.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig

from onthejob.envs.claw.agent_messages import system_text
from onthejob.envs.claw.protocol import ProtocolConfig
from onthejob.models.base_model import load_base
from onthejob.models.chat import ChatEncoder
from onthejob.models.fetch import fetch
from onthejob.models.sampler import Sampler
from onthejob.types import Message, Sampling

TARGETS = {"random, 1 x 8": 2.0, "random, 4 x 8": 3.0}
"""Case -> how many times as fast as transformers `ours` has to be; the command ends with 1 otherwise."""


def random_prompts(groups: int, length: int, vocab: int) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(7)
    return [tuple(torch.randint(100, vocab, (length,), generator=generator).tolist()) for _ in range(groups)]


def mixed_prompts(longest: int, vocab: int) -> list[tuple[int, ...]]:
    """Conversations as they stand in the middle of shell episodes: most are short, a few are long."""
    lengths = [longest] * 2 + [longest * 3 // 8] * 4 + [longest // 5] * 10
    generator = torch.Generator().manual_seed(8)
    return [tuple(torch.randint(100, vocab, (length,), generator=generator).tolist()) for length in lengths]


def handbook_prompts(chat: ChatEncoder, count: int, vocab: int) -> list[tuple[int, ...]]:
    """Shell episodes that went apart behind the same system message, 400 tokens ago."""
    system = Message("system", system_text(ProtocolConfig(handbook=True)))
    generator = torch.Generator().manual_seed(9)
    tails = torch.randint(100, vocab, (count, 400), generator=generator).tolist()
    return [(*chat.encode([system, Message("user", "Files:")]), *tail) for tail in tails]


def transformers_generate(model: Any, prompts: list[tuple[int, ...]], replies: int, tokens: int) -> None:
    longest = max(map(len, prompts))
    ids = torch.tensor([(0,) * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    out = model.generate(
        ids,
        attention_mask=mask,
        num_return_sequences=replies,
        min_new_tokens=tokens,
        max_new_tokens=tokens,
        pad_token_id=0,
        **options,
    )
    assert out.shape == (len(prompts) * replies, ids.shape[1] + tokens)


def ours(sampler: Sampler, prompts: list[tuple[int, ...]], replies: int, tokens: int, temperature: float = 1.0) -> None:
    rows = [prompt for prompt in prompts for _ in range(replies)]
    sampling = Sampling(temperature=temperature, max_new_tokens=tokens)
    done = sampler.generate(rows, adapter=None, sampling=sampling, seeds=range(len(rows)))
    assert all(len(completion.token_ids) == tokens for completion in done)


def requests(chat: ChatEncoder, count: int, vocab: int) -> list[tuple[int, ...]]:
    """First contexts of shell episodes, some 300 tokens each."""
    system = Message("system", system_text(ProtocolConfig()))
    generator = torch.Generator().manual_seed(10)
    tails = torch.randint(100, vocab, (count, 200), generator=generator).tolist()
    return [chat.encode([system, Message("user", chat.decode(tail))]) for tail in tails]


def converse(sampler: Sampler, first: list[tuple[int, ...]], replies: int, tokens: int, turns: int = 4) -> None:
    """Every conversation hears the same short message after each of its replies."""
    contexts = [prompt for prompt in first for _ in range(replies)]
    heard = [Message("user", "exit code: 0\nstdout:\n" + "total 4 files " * 5)]
    for turn in range(turns):
        sampling = Sampling(temperature=1.0, max_new_tokens=tokens)
        done = sampler.generate(contexts, adapter=None, sampling=sampling, seeds=range(1000 * turn, 1000 * turn + len(contexts)))
        contexts = [sampler.chat.extend(ids, reply.token_ids, heard) for ids, reply in zip(contexts, done, strict=True)]


def measure(runs: dict[str, Callable[[], None]], repeats: int) -> dict[str, tuple[float, float]]:
    """Name -> (wall seconds, CPU seconds), the smallest of the repeats each."""
    best = dict.fromkeys(runs, (float("inf"), float("inf")))
    for _ in range(repeats):
        for name, run in runs.items():
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            best[name] = (min(best[name][0], time.perf_counter() - wall), min(best[name][1], time.process_time() - cpu))
    return best


Case = tuple[str, int, dict[str, Callable[[], None]]]
"""What it is called, new tokens of one run, and a run of each sampler; the first one is the reference of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samplers:
    """The same weights behind each engine."""

    model: Any
    chat: ChatEncoder
    vocab: int
    torch: Sampler
    alone: Sampler
    shared: Sampler
    going: Sampler

    @classmethod
    def load(cls, name: str, dtype: str) -> Samplers:
        base = load_base(fetch(name), dtype=dtype)
        chat = ChatEncoder(base.tokenizer)
        chat.end_ids = frozenset()  # every reply gets its full number of tokens, like min_new_tokens on the other side
        return cls(
            model=base.model,
            chat=chat,
            vocab=len(base.tokenizer),
            torch=Sampler(base.model, chat, share_beginnings=False, engine="torch"),
            alone=Sampler(base.model, chat, share_beginnings=False),
            shared=Sampler(base.model, chat),
            going=Sampler(base.model, chat, goes_on=True),
        )


def random_cases(by: Samplers, args: argparse.Namespace) -> Iterator[Case]:
    for groups in args.groups:
        shape = (random_prompts(groups, args.prompt, by.vocab), args.replies, args.tokens)
        yield (
            f"random, {groups} x {args.replies}",
            groups * args.replies * args.tokens,
            {
                "transformers": lambda shape=shape: transformers_generate(by.model, *shape),
                "ours, torch": lambda shape=shape: ours(by.torch, *shape),
                "ours": lambda shape=shape: ours(by.alone, *shape),
                "ours, shared beginnings": lambda shape=shape: ours(by.shared, *shape),
            },
        )


def mixed_cases(by: Samplers, args: argparse.Namespace) -> Iterator[Case]:
    prompts = mixed_prompts(args.longest, by.vocab)
    yield (
        f"mixed, {len(prompts)} x 1",
        len(prompts) * args.tokens,
        {
            "transformers": lambda: transformers_generate(by.model, prompts, 1, args.tokens),
            "ours": lambda: ours(by.alone, prompts, 1, args.tokens),
        },
    )


def handbook_cases(by: Samplers, args: argparse.Namespace) -> Iterator[Case]:
    prompts = handbook_prompts(by.chat, 48, by.vocab)
    yield (
        f"handbook, {len(prompts)} x 1",
        len(prompts) * args.tokens,
        {
            "ours": lambda: ours(by.alone, prompts, 1, args.tokens),
            "ours, shared beginnings": lambda: ours(by.shared, prompts, 1, args.tokens),
        },
    )


def shell_cases(by: Samplers, args: argparse.Namespace) -> Iterator[Case]:
    prompts = requests(by.chat, 6, by.vocab)
    yield (
        f"shell, {len(prompts)} x 8 x 4 turns",
        len(prompts) * 8 * 4 * args.tokens,
        {
            "ours": lambda: converse(by.shared, prompts, 8, args.tokens),
            "ours, goes_on": lambda: converse(by.going, prompts, 8, args.tokens),
        },
    )


def chat_cases(by: Samplers, args: argparse.Namespace) -> Iterator[Case]:
    system = "You write one JSON object and nothing else."
    question = 'Write exactly this: {"action_type":"RUN_DEMO","target":"Acme","message":"We would love to show you the product"}'
    prompts = [by.chat.encode([Message("system", system), Message("user", question)])]
    yield (
        f"chat at T=0.3, 1 x {args.replies}",
        args.replies * 32,
        {
            "ours": lambda: ours(by.alone, prompts, args.replies, 32, 0.3),
            "ours, shared beginnings": lambda: ours(by.shared, prompts, args.replies, 32, 0.3),
        },
    )


CASES = {"random": random_cases, "mixed": mixed_cases, "handbook": handbook_cases, "shell": shell_cases, "chat": chat_cases}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES), help="what to measure; all by default")
    parser.add_argument("--peers", nargs="+", default=[], metavar="NAME=VALUE", help="other engines; see above")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--prompt", type=int, default=512, help="tokens per prompt")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens per reply")
    parser.add_argument("--longest", type=int, default=2048, help="tokens of the longest of 16 conversations of mixed lengths")
    parser.add_argument("--replies", type=int, default=8, help="replies per prompt")
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.peers:
        from sampler_peers import compare

        return compare(args, fetch(args.model), AutoConfig.from_pretrained(fetch(args.model)).vocab_size)
    samplers = Samplers.load(args.model, args.dtype)
    rows = []
    if not args.json:
        print(f"{args.model}, {args.dtype}, P={args.prompt}, C={args.tokens}, {args.threads} thread(s)")
        print(f"{'case':22}{'sampler':26}{'tokens/s':>10}{'wall s':>9}{'CPU s':>9}{'speedup':>9}", flush=True)
    for cases in args.cases:
        for name, tokens, runs in CASES[cases](samplers, args):
            measured = table_rows(name, tokens, measure(runs, args.repeats))
            rows += measured
            if not args.json:
                print_rows(measured)
    return report(rows, args)


def table_rows(case: str, tokens: int, times: dict[str, tuple[float, float]]) -> list[dict[str, Any]]:
    reference = next(iter(times.values()))[0]
    return [
        {
            "case": case,
            "sampler": name,
            "tokens_per_s": round(tokens / wall, 1),
            "wall_s": round(wall, 2),
            "cpu_s": round(cpu, 2),
            "speedup": round(reference / wall, 2),
        }
        for name, (wall, cpu) in times.items()
    ]


def print_rows(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        cells = f"{row['tokens_per_s']:>10}{row['wall_s']:>9}{row['cpu_s']:>9}{row['speedup']:>8}x"
        print(f"{row['case']:22}{row['sampler']:26}{cells}", flush=True)


def report(rows: list[dict[str, Any]], args: argparse.Namespace) -> int:
    """Say which targets were missed; 1 when one was."""
    missed = [row for row in rows if row["sampler"] == "ours" and row["speedup"] < TARGETS.get(row["case"], 0.0)]
    if args.json:
        json.dump({"settings": vars(args), "rows": rows, "missed": missed}, sys.stdout, indent=2)
        print()
        return int(bool(missed))
    if not any(row["case"] in TARGETS for row in rows):
        print(f"no case with a target was measured; these have one: {'; '.join(TARGETS)}")
    for row in missed:
        print(f"missed: {row['case']} is {row['speedup']} times as fast as transformers, {TARGETS[row['case']]} wanted")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
