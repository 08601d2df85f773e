"""A tiny random Llama with a byte-level tokenizer and a ChatML template: the whole loop in seconds, with real torch and peft.

The tokenizer is lossless for any text (256 bytes) and merges the toys' words into single tokens, so a prompt is about 40
tokens long. `teach` trains the base on given replies, which gives a model that knows a format and nothing more: the state in
which reinforcement learning starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onthejob.keys import keyed_sample
from onthejob.types import Message

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|pad|>", "<|im_start|>", "<|im_end|>")
TOY_TEXT = (
    "system user assistant You make sell items Answer with one word Day of Material cheap dear Demand high low Stock Choose "
    "MAKE WAIT SCRAP SELL HOLD GIFT Not possible work in shell Commands write WORD ls done Write red blue ok empty"
)
TOY_WORDS = tuple(TOY_TEXT.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiny:
    """A model and its tokenizer."""

    model: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerFast


def tiny_tokenizer(words: Sequence[str] = TOY_WORDS) -> PreTrainedTokenizerFast:
    """A byte-level BPE whose merges spell `words` (also after a space); end-of-turn is `<|im_end|>`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges: list[tuple[str, str]] = []
    for word in words:
        left = word[0]
        for letter in word[1:]:
            if left + letter not in tokens:
                merges.append((left, letter))
                tokens.append(left + letter)
            left += letter
        space = "\u0120"  # how a byte-level vocabulary spells the space before a word
        if space + word not in tokens:
            merges.append((space, word))
            tokens.append(space + word)
    backend = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<|pad|>", eos_token="<|im_end|>")
    tokenizer.chat_template = CHATML
    return tokenizer


def tiny_model(
    *, seed: int = 0, hidden: int = 64, layers: int = 2, heads: int = 4, kv_heads: int = 2, words: Sequence[str] = TOY_WORDS
) -> Tiny:
    """A randomly initialised Llama in fp32; equal arguments give equal weights. The global torch generator is not moved."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tiny_tokenizer(words)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=8192,
        # Unit-scale activations: at the usual 0.02 so small a residual stream is swamped by one step of a LoRA adapter.
        initializer_range=hidden**-0.5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=SPECIAL.index("<|im_end|>"),
        pad_token_id=SPECIAL.index("<|pad|>"),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return Tiny(model=model.eval(), tokenizer=tokenizer)


def teach(
    tiny: Tiny,
    examples: Sequence[tuple[Sequence[Message], str]],
    *,
    steps: int = 120,
    batch: int = 32,
    lr: float = 3e-3,
    seed: int = 0,
) -> float:
    """Train all weights of `tiny.model` on (prompt, reply) pairs with cross-entropy on the reply and its end-of-turn.

    Returns:
        The loss of the last step, in nats per reply token.
    """
    import torch

    rows = [_row(tiny.tokenizer, messages, reply) for messages, reply in examples]
    optimizer = torch.optim.AdamW(tiny.model.parameters(), lr=lr, weight_decay=0.0)
    tiny.model.train()
    loss = torch.zeros(())
    for step in range(steps):
        ids, labels = _pad(keyed_sample(rows, batch, seed, "teach", step), SPECIAL.index("<|pad|>"))
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / 10) * max(0.05, 1 - step / steps)
        loss = tiny.model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tiny.model.eval()
    tiny.model.zero_grad(set_to_none=True)
    return float(loss.detach())


def _row(tokenizer: Any, messages: Sequence[Message], reply: str) -> tuple[list[int], list[int]]:
    chat = [{"role": message.role, "content": message.content} for message in messages]
    prompt = tokenizer.encode(
        tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False), add_special_tokens=False
    )
    completion = [*tokenizer.encode(reply, add_special_tokens=False), tokenizer.eos_token_id]
    return prompt + completion, [-100] * len(prompt) + completion


def _pad(rows: Sequence[tuple[list[int], list[int]]], pad_id: int) -> tuple[Any, Any]:
    import torch

    width = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([row + [pad_id] * (width - len(row)) for row, _ in rows])  # (B, T)
    labels = torch.tensor([row + [-100] * (width - len(row)) for _, row in rows])  # (B, T)
    return ids, labels
