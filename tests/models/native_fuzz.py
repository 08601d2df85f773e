"""Random models, batches and updates through the compiled code, compared with torch; a program, for sanitizers to run it.

python tests/models/native_fuzz.py LIBRARY VARIANT bf16|fp32 ROUNDS SEED
"""

from __future__ import annotations

import math
import random
import sys
import warnings
import weakref
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from onthejob.learn import forward, native
from onthejob.learn.batch import Path as TokenPath
from onthejob.learn.batch import Row, pack
from onthejob.models.adapter_weights import LoraPair
from onthejob.models.draw import draw
from onthejob.models.llama import LlamaEngine
from onthejob.models.native.compiling import VARIANTS
from onthejob.models.native.engine import NativeEngine
from onthejob.models.native.shared_library import Library

PROJECTIONS = (
    *(f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)


def random_model(draw: random.Random, dtype: torch.dtype) -> Any:
    """Odd numbers of heads, dims that are no power of two, any vocabulary."""
    while True:
        dim, kv, per = draw.choice((16, 32, 48, 64, 80, 128)), draw.choice((1, 2, 3, 5)), draw.choice((1, 2, 3, 7))
        if dim * kv * per % 32 == 0 and dim * kv * (per + 2) % 32 == 0:
            break
    config = LlamaConfig(
        vocab_size=draw.choice((17, 300, 511, 1024)),
        hidden_size=math.lcm(32, kv * per) * draw.randint(1, 2),
        intermediate_size=32 * draw.randint(1, 9),
        num_hidden_layers=draw.randint(1, 3),
        num_attention_heads=kv * per,
        num_key_value_heads=kv,
        head_dim=dim,
        max_position_embeddings=1024,
        tie_word_embeddings=draw.random() < 0.5,
    )
    torch.manual_seed(draw.randrange(2**31))
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        parameter.data.normal_(std=parameter.shape[-1] ** -0.5) if parameter.dim() == 2 else parameter.data.uniform_(0.5, 1.5)
    return model.to(dtype).eval().requires_grad_(False)


def random_adapter(draw: random.Random, model: Any) -> dict[str, LoraPair]:
    """Some projections, each with a rank of its own."""
    pairs = {}
    for name, module in model.named_modules():
        if name.endswith(PROJECTIONS) and draw.random() < 0.6:
            rank = draw.randint(1, 40)
            a, b = torch.randn(rank, module.in_features), torch.randn(module.out_features, rank)
            pairs[name] = LoraPair(a=a * module.in_features**-0.5, b=b * 0.1)
    return pairs


@torch.inference_mode()
def one_round(draw_: random.Random, library: Library, dtype: torch.dtype, *, largest: int) -> None:
    """Prompts of unequal lengths with and without a trunk, rows that come, part, move and go, and draws; against float32."""
    model = random_model(draw_, dtype)
    exact = LlamaForCausalLM(model.config).eval().requires_grad_(False)
    exact.load_state_dict({name: tensor.float() for name, tensor in model.state_dict().items()})
    engines = [NativeEngine(model, library), LlamaEngine(model), LlamaEngine(exact)]
    vocab = model.config.vocab_size
    pairs = random_adapter(draw_, model) if draw_.random() < 0.6 else None
    trunk = [draw_.randrange(vocab) for _ in range(draw_.choice((0, 0, 1, 15, 16, 100)))]
    lengths = [draw_.choice((1, 2, 15, 16, 17, 31, 255, 256, 257, draw_.randint(1, largest))) for _ in range(draw_.randint(1, 5))]
    prompts = [[*trunk, *(draw_.randrange(vocab) for _ in range(length))] for length in lengths]
    begun = draw_.randint(0, lengths[0] - 1)
    rows, steps = draw_.choice((len(prompts), draw_.randint(len(prompts), 300))), draw_.choice((1, 2, 17, 20))
    ways, slots = [], list(range(len(prompts)))
    for _ in range(steps):
        # Some rows end, others part; a source below the new count keeps its place.
        count = draw_.randint(max(1, len(slots) // 2), rows)
        sources = [place if place < len(slots) else draw_.randrange(min(len(slots), count)) for place in range(count)]
        ways.append((sources, [draw_.randrange(vocab) for _ in range(count)]))
        slots = [slots[source] for source in sources]
    found: list[list[torch.Tensor]] = []
    for engine in engines:
        lora = None if pairs is None else engine.adapt(pairs)
        shared = None
        if trunk:
            first = engine.batch([len(trunk)], rows=0, new_tokens=0, lora=lora)
            first.prefill([(0, trunk, 0)])
            shared = first.prefix(0)
        batch = engine.batch([len(prompt) for prompt in prompts], rows=rows, new_tokens=steps, lora=lora, trunk=shared)
        starts = [len(trunk)] * len(prompts)
        if begun:
            known = engine.batch([len(trunk) + begun], rows=0, new_tokens=0, lora=lora)
            known.prefill([(0, prompts[0][: len(trunk) + begun], 0)])
            starts[0] = batch.load_prefix(0, known.prefix(0))
        logits = [batch.prefill(list(zip(range(len(prompts)), prompts, starts, strict=True)))]
        for sources, tokens in ways:
            batch.select(sources)
            logits.append(batch.step(tokens))
        kept = batch.conversation(0)
        found.append([*logits, *(part[half].flatten()[None] for part in kept for half in (0, 1))])
    for step, (ours, torchs, right) in enumerate(zip(*found, strict=True)):
        off, usual = ((tensor.float() - right.float()).abs().max().item() for tensor in (ours, torchs))
        allowed = 2e-3 if dtype is torch.float32 else 3 * usual + 0.05
        assert off <= allowed, f"{model.config}: step {step} is off by {off}, torch by {usual}"
    logits = found[0][0]
    for temperature in (0.0, 0.7, 1.0):
        of = sorted(draw_.randrange(len(logits)) for _ in range(draw_.randint(1, 30)))
        uniform = torch.tensor([draw_.choice((0.0, 1 - 1e-12, draw_.random())) for _ in of], dtype=torch.float64)
        ours, theirs = (
            way(logits.contiguous() if way is draw else logits, of, uniform, temperature=temperature)
            for way in (engines[0].draw, draw)
        )
        for token, other, number, row in zip(ours[0], theirs[0], uniform.tolist(), of, strict=True):
            # At the very edge of a token's span two sums may differ in their last bits.
            sums = (logits[row].double() / (temperature or 1.0)).softmax(-1).cumsum(-1)
            assert token == other or min(abs(sums - number)) < 1e-5
        close = [abs(a - b) < 1e-4 for a, b, one, two in zip(ours[1], theirs[1], ours[0], theirs[0], strict=True) if one == two]
        assert all(close)


def random_row(draw: random.Random, vocab: int, *, largest: int) -> Row:
    """Sequences with common beginnings, some of them equal, at one or two temperatures."""
    paths: list[TokenPath] = []
    for unit in range(draw.randint(1, 3)):
        prompt = [draw.randrange(vocab) for _ in range(draw.choice((1, 2, 63, 64, 65, draw.randint(1, largest))))]
        for _ in range(draw.randint(1, 6)):
            reply = [draw.randrange(vocab) for _ in range(draw.choice((1, 2, 15, 16, 17, draw.randint(1, 80))))]
            if paths and draw.random() < 0.3:
                known = draw.choice(paths)
                prompt, reply = list(known.ids[: known.context]), [*known.ids[known.context :][: draw.randint(0, 9)], *reply]
            temperature = draw.choice((1.0, 1.0, 0.5))
            paths.append(
                TokenPath(ids=(*prompt, *reply), context=len(prompt), temperature=temperature, owner=len(paths), unit=unit)
            )
    (row,) = pack(paths, max_tokens=100_000)
    return row


def one_update(draw: random.Random, library: Library, dtype: torch.dtype, *, largest: int) -> None:
    """Log-probabilities, entropies and gradients of a row against torch's, in the same numbers and in float32."""
    base = random_model(draw, dtype)
    if draw.random() < 0.5 and not base.config.tie_word_embeddings:
        base.lm_head.weight.data.mul_(6)  # confident predictions
    row = random_row(draw, base.config.vocab_size, largest=largest)
    names = [name for name, module in base.named_modules() if name.endswith(PROJECTIONS) and draw.random() < 0.7]
    ranks = {name: draw.randint(1, 40) for name in names or ["model.layers.0.self_attn.v_proj"]}
    exact = LlamaForCausalLM(base.config).eval().requires_grad_(False)
    exact.load_state_dict({name: tensor.float() for name, tensor in base.state_dict().items()})
    factors = {name: torch.randn(1 << 16, generator=torch.Generator().manual_seed(number)) for number, name in enumerate(ranks)}
    weights = [torch.randn(len(row.term_pair)) for _ in range(2)]
    sharp, again, at_once = draw.random() < 0.3, draw.random() < 0.3, draw.choice((3, 1024))
    found = []
    warnings.filterwarnings("ignore", "`.*gradient_checkpointing", FutureWarning)  # renamed in transformers 5.23
    for bare, compiled in ((base, True), (base, False), (exact, False)):
        model = get_peft_model(
            bare, LoraConfig(target_modules=list(ranks), rank_pattern=ranks, lora_alpha=16, init_lora_weights=False)
        )
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                key = next(each for each in ranks if each in name)
                values = factors[key][: parameter.numel() % 60_000 + 1].repeat(parameter.numel())[: parameter.numel()]
                parameter.data = values.view(parameter.shape).float() * parameter.shape[1] ** -0.5
        if sharp:
            scales = torch.nn.ParameterDict({"default": torch.nn.Parameter(torch.tensor(0.2))})
            model.log_logit_scales = scales
        if again:
            bare.gradient_checkpointing_enable({"use_reentrant": False})
        model.train(again)
        used = []

        def scored(*args: Any, compiled: bool = compiled, used: list[bool] = used, **kwargs: Any) -> Any:
            result = native.native_scores(*args, **kwargs) if compiled else None
            used.append(result is not None)
            return result

        with (
            patch.object(native, "_find_library", lambda _: library),
            patch.object(native, "_libraries", weakref.WeakKeyDictionary()),
            patch.object(forward, "native_scores", scored),
            forward.scoring(model),
        ):
            scores = forward.score(model, row, head_rows=at_once)
            with torch.no_grad():
                apart = forward.score(model, row, head_rows=at_once)
            ((scores.logprobs * weights[0]).sum() + (scores.entropy * weights[1]).sum()).backward()
        assert used == [compiled] * 2
        assert torch.equal(scores.logprobs, apart.logprobs) or not compiled
        gradients = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
        found.append([scores.logprobs.detach(), scores.entropy.detach(), *gradients])
        bare.gradient_checkpointing_disable()
        model.unload()
    for ours, torchs, right in zip(*found, strict=True):
        size = right.norm().item() + 1e-3
        off, usual = ((tensor - right).norm().item() / size for tensor in (ours, torchs))
        allowed = 2e-3 if dtype is torch.float32 else 2 * usual + 0.05
        assert off <= allowed, f"{base.config}: off by {off}, torch by {usual}"


def main(path: str, variant: str, kind: str, rounds: str, seed: str, largest: str = "700") -> None:
    known = {each.name: each for each in VARIANTS}
    library = Library(Path(path), known[variant], bf16=kind == "bf16")
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[kind]
    for number in range(int(rounds)):
        one_round(random.Random(f"{seed} {number}"), library, dtype, largest=int(largest))
        one_update(random.Random(f"{seed} {number}"), library, dtype, largest=int(largest))
    print(f"{rounds} rounds of {variant} {kind}: equal to torch")


if __name__ == "__main__":
    main(*sys.argv[1:])
