"""Chat templates of the usual families, in short equivalents of our own, each with a byte-level tokenizer that has its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from onthejob.models.chat import ChatEncoder
from onthejob.types import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A chat template and the tokens it is made of."""

    template: str
    special: tuple[str, ...]
    """The first is the end of a text; with `bos`, also its beginning."""
    added: tuple[str, ...] = ()
    """Added tokens that are not marked as special."""
    end: str
    """Token that ends a reply."""
    eos: str | None = None
    """The tokenizer's own, where it is another one than `end`."""
    bos: str | None = None
    folds: bool = False
    """There is no system role."""
    joins: bool = False
    """The template itself joins a system message to the user's."""
    strip_after: bool = False
    """Special tokens swallow the white space behind them."""
    arguments: dict[str, object] = field(default_factory=dict)


def _each(body: str, ask: str) -> str:
    return "{% for m in messages %}" + body + "{% endfor %}{% if add_generation_prompt %}{{ '" + ask + "' }}{% endif %}"


_CHATML = _each("{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}", "<|im_start|>assistant\n")
_IM = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('there is no system role') }}{% endif %}"
_TURNS = _each(
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim + '<end_of_turn>\n' }}",
    "<start_of_turn>model\n",
)
_INST = (
    "{{ bos_token }}{% set ns = namespace(said='') %}{% for m in messages %}"
    "{% if m.role == 'system' %}{% set ns.said = m.content + '\n\n' %}"
    "{% elif m.role == 'user' %}{{ '[INST] ' + ns.said + m.content + '[/INST]' }}{% set ns.said = '' %}"
    "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}"
)
_THINKS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' and not loop.last and '</think>' in m.content %}{{ m.content.split('</think>')[-1] | trim }}"
    "{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
_REASONS = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'user' %}"
    "{{ '<|User|>' + m.content }}{% else %}{{ '<|Assistant|>' + m.content.split('</think>')[-1] + eos_token }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}"
)

FAMILIES: dict[str, Family] = {
    "chatml": Family(template=_CHATML, special=_IM, end="<|im_end|>"),
    "chatml, other eos": Family(template=_CHATML, special=_IM, end="<|im_end|>", eos="<|endoftext|>"),
    "default system": Family(
        template="{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nHelp.<|im_end|>\n' }}{% endif %}" + _CHATML,
        special=_IM,
        end="<|im_end|>",
    ),
    "header": Family(
        template="{{ bos_token }}"
        + _each("{{ '<|head|>' + m.role + '<|text|>\n\n' + m.content | trim + '<|eot|>' }}", "<|head|>assistant<|text|>\n\n"),
        special=("<|eos|>", "<|bos|>", "<|head|>", "<|text|>", "<|eot|>"),
        bos="<|bos|>",
        end="<|eot|>",
        eos="<|eos|>",
    ),
    "writes the date": Family(
        template="{{ '<|im_start|>system\nToday: ' + strftime_now('%d %b %Y') }}{% if messages[0].role == 'system' %}"
        "{{ '\n' + messages[0].content }}{% set messages = messages[1:] %}{% endif %}{{ '<|im_end|>\n' }}" + _CHATML,
        special=_IM,
        end="<|im_end|>",
    ),
    "thinks": Family(template=_THINKS, special=_IM, added=("<think>", "</think>", "<tool_call>"), end="<|im_end|>"),
    "does not think": Family(
        template=_THINKS,
        special=_IM,
        added=("<think>", "</think>", "<tool_call>"),
        end="<|im_end|>",
        arguments={"enable_thinking": False},
    ),
    "reasons": Family(
        template=_REASONS,
        special=("<|eos|>", "<|bos|>"),
        added=("<|User|>", "<|Assistant|>", "<think>", "</think>"),
        bos="<|bos|>",
        end="<|eos|>",
    ),
    "refuses a system message": Family(
        template="{{ bos_token }}" + _NO_SYSTEM + _TURNS,
        special=("<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
        bos="<bos>",
        end="<end_of_turn>",
        eos="<eos>",
        folds=True,
    ),
    "drops a system message": Family(
        template="{% for m in messages if m.role != 'system' %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        special=_IM,
        end="<|im_end|>",
        folds=True,
    ),
    "brackets": Family(template=_INST, special=("</s>", "<s>", "[INST]", "[/INST]"), bos="<s>", end="</s>", joins=True),
    "brackets in plain text": Family(template=_INST, special=("</s>", "<s>"), bos="<s>", end="</s>", joins=True),
    "swallows spaces": Family(
        template=_each("{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}", "<|assistant|>\n"),
        special=("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        end="<|end|>",
        eos="<|endoftext|>",
        strip_after=True,
    ),
    "begins and ends alike": Family(
        template="{{ bos_token }}{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}"
        "{{ eos_token if m.role == 'assistant' else '' }}{{ '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
        special=("<|endoftext|>",),
        bos="<|endoftext|>",
        end="<|endoftext|>",
    ),
}
"""Name -> family."""


def family_tokenizer(family: Family) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer without merges, with the family's tokens and template."""
    vocab = {char: index for index, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken(text, special=True, normalized=False, rstrip=family.strip_after) for text in family.special]
    )
    backend.add_tokens([AddedToken(text, special=False, normalized=True) for text in family.added])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=family.bos, eos_token=family.eos or family.end, pad_token=family.special[0]
    )
    tokenizer.chat_template = family.template
    return tokenizer


def own_ids(chat: ChatEncoder, family: Family, messages: Sequence[Message]) -> tuple[int, ...]:
    """The ids that the template itself writes for a first prompt; without a system role it opens the user's message."""
    if family.folds:
        messages = [Message("user", "\n\n".join(message.content for message in messages))]
    conversation = [message._asdict() for message in messages]
    return tuple(
        chat.tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False, **family.arguments)
    )
