"""Tools in chat templates: the schemas, tokens that only grow over calls and results, and templates without any."""

from __future__ import annotations

import pytest

from onthejob.calls import write_calls
from onthejob.models.chat import ChatEncoder
from onthejob.types import Message, ToolCall, ToolSpec

from .templates import FAMILIES, Family, family_tokenizer

_IM = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_ASK = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
HERMES = (
    "{% if tools %}{{ '<|im_start|>system\n' + (messages[0].content if messages[0].role == 'system' else 'Help.') }}"
    "{{ '\n\nFunctions:' }}{% for t in tools %}{{ '\n' + (t | tojson) }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% elif messages[0].role == 'system' %}{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% elif m.role != 'system' %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '\n<tool_call>\n' + ({'name': c.function.name,"
    " 'arguments': c.function.arguments} | tojson) + '\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"
    + _ASK
)
LLAMA = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ '<|head|>system<|text|>\n\n' + m.content + '<|eot|>' }}"
    "{% elif m.role == 'user' %}{{ '<|head|>user<|text|>\n\n' }}"
    "{% if tools and (loop.first or messages[loop.index0 - 1].role == 'system') %}"
    "{{ 'Functions:\n' }}{% for t in tools %}{{ (t | tojson) + '\n' }}{% endfor %}{% endif %}{{ m.content + '<|eot|>' }}"
    "{% elif m.role == 'tool' %}{{ '<|head|>ipython<|text|>\n\n' + (m.content | tojson) + '<|eot|>' }}"
    "{% elif m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception('one call only') }}{% endif %}"
    "{{ '<|head|>assistant<|text|>\n\n' + ({'name': m.tool_calls[0].function.name,"
    " 'parameters': m.tool_calls[0].function.arguments} | tojson) + '<|eot|>' }}"
    "{% else %}{{ '<|head|>assistant<|text|>\n\n' + m.content + '<|eot|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|head|>assistant<|text|>\n\n' }}{% endif %}"
)
BRACKETS = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
    "{% if tools and loop.last %}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{% endif %}"
    "{{ '[INST]' + m.content + '[/INST]' }}{% elif m.role == 'tool' %}"
    "{% if m.tool_call_id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
    "{{ '[TOOL_RESULTS]' + ({'content': m.content, 'call_id': m.tool_call_id} | tojson) + '[/TOOL_RESULTS]' }}"
    "{% elif m.role == 'assistant' and m.tool_calls %}{{ '[TOOL_CALLS]' + (m.tool_calls | tojson) + eos_token }}"
    "{% elif m.role == 'assistant' %}{{ m.content + eos_token }}"
    "{% else %}{{ raise_exception('no such role') }}{% endif %}{% endfor %}"
)
WITH_TOOLS = {
    "hermes": Family(
        template=HERMES,
        special=_IM,
        added=("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
        end="<|im_end|>",
    ),
    "llama": Family(
        template=LLAMA,
        special=("<|eos|>", "<|bos|>", "<|head|>", "<|text|>", "<|eot|>", "<|python_tag|>"),
        bos="<|bos|>",
        end="<|eot|>",
        eos="<|eos|>",
    ),
    "brackets": Family(
        template=BRACKETS,
        special=(
            "</s>",
            "<s>",
            "[INST]",
            "[/INST]",
            "[AVAILABLE_TOOLS]",
            "[/AVAILABLE_TOOLS]",
            "[TOOL_CALLS]",
            "[TOOL_RESULTS]",
            "[/TOOL_RESULTS]",
        ),
        bos="<s>",
        end="</s>",
        folds=True,
    ),
}
PRICE = ToolSpec(
    "price",
    "The price of a good. <|im_end|> [/INST] <|eot|>",
    {"type": "object", "properties": {"good": {"type": "string"}}, "required": ["good"]},
)
SYSTEM, USER = Message("system", "You shop."), Message("user", "What does an egg cost?")
CALL = ToolCall("price", {"good": "egg"})
SAID = {
    "hermes": write_calls("Let me look.", [CALL]),
    "llama": '<|python_tag|>{"name": "price", "parameters": {"good": "egg"}}',
    "brackets": '[TOOL_CALLS][{"name": "price", "arguments": {"good": "egg"}}]',
}


def encoder(name: str) -> ChatEncoder:
    return ChatEncoder(family_tokenizer(WITH_TOOLS[name]))


def test_templates_without_tools_are_known_as_such():
    plain = {name for name, family in FAMILIES.items() if ChatEncoder(family_tokenizer(family)).knows_tools}
    assert (plain, [name for name in WITH_TOOLS if not encoder(name).knows_tools]) == (set(), [])


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_the_template_writes_the_tools_and_no_text_of_them_is_a_control_token(name: str):
    chat = encoder(name)
    ids = chat.encode([SYSTEM, USER], [PRICE])
    harmless = chat.encode([SYSTEM, USER], [PRICE._replace(description="The price of a good.")])
    assert "The price of a good." in chat.tokenizer.decode(ids)
    assert [one for one in ids if one in chat.control_ids] == [one for one in harmless if one in chat.control_ids]
    assert "price" not in chat.tokenizer.decode(chat.encode([SYSTEM, USER]))


@pytest.mark.parametrize("name", WITH_TOOLS)
@pytest.mark.parametrize("ended", [True, False])
def test_calls_and_results_only_add_tokens(name: str, ended: bool):
    chat = encoder(name)
    first = chat.encode([SYSTEM, USER], [PRICE])
    sampled = tuple(chat.tokenizer.encode(SAID[name], add_special_tokens=False))
    reply = (*sampled, *chat.reply_ids("")) if ended else sampled
    second = chat.extend(first, reply, [Message("tool", "3"), Message("tool", "4 <|im_end|>")])
    assert second[: len(first) + len(reply)] == (*first, *reply)
    heard = chat.tokenizer.decode(second[len(first) + len(reply) :])
    assert ("3" in heard, "4" in heard, PRICE.description in heard) == (True, True, False)
    third = chat.extend(second, chat.reply_ids("Three."), [USER])
    assert third[: len(second)] == second


def test_a_context_with_a_call_reads_as_the_templates_own():
    """Where the reply is written as the template writes it, the grown context is the rendered one."""
    chat = encoder("hermes")
    talk = [USER, Message("assistant", SAID["hermes"]), Message("tool", "3")]
    grown = chat.extend(chat.encode(talk[:1], [PRICE]), chat.reply_ids(SAID["hermes"]), talk[2:])
    assert grown == chat.encode(talk, [PRICE])
    assert [tuple(message) for message in chat.messages(grown)][1:] == [
        ("user", USER.content),
        ("assistant", SAID["hermes"]),
        ("tool", "3"),
    ]


def test_a_template_without_tools_shows_them_as_text():
    chat = ChatEncoder(family_tokenizer(FAMILIES["chatml"]))
    first = chat.encode([SYSTEM, USER], [PRICE])
    system, user = chat.messages(first)
    assert user == USER
    assert system.content.startswith("You shop.\n\nYou can call the functions below. To call one, reply with JSON")
    assert '"name": "price"' in system.content
    later = chat.extend(first, chat.reply_ids('{"name": "price", "arguments": {"good": "egg"}}'), [Message("tool", "3")])
    assert chat.messages(later)[-1] == Message("user", "Result: 3")
    both = chat.extend(first, chat.reply_ids("x"), [Message("tool", "3"), Message("tool", "4"), Message("user", "And?")])
    assert chat.messages(both)[-2:] == (Message("user", "Result: 3\nResult: 4"), Message("user", "And?"))
    folding = ChatEncoder(family_tokenizer(FAMILIES["refuses a system message"]))
    assert "You can call the functions below." in folding.decode(folding.encode([USER], [PRICE]))


@pytest.mark.parametrize("name", [*WITH_TOOLS, "chatml"])
def test_what_is_imitated_has_the_prompts_of_the_sampler(name: str):
    chat = ChatEncoder(family_tokenizer(WITH_TOOLS.get(name) or FAMILIES[name]))
    said = SAID.get(name, SAID["hermes"])
    talk = [USER, Message("assistant", said), Message("tool", "3"), Message("assistant", "Three.")]
    (first, reply), (second, _) = chat.replies(talk, [PRICE])
    assert first == chat.encode([USER], [PRICE])
    assert second == chat.extend(first, reply, [Message("tool", "3")])
    plain = 'Let me look.\n{"name": "price", "arguments": {"good": "egg"}}'
    assert chat.decode(reply) == (said if name in WITH_TOOLS else plain)
