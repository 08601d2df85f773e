"""Tools of hosted models in each API's own form, against a loopback server, the SDKs' types and botocore's model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from onthejob.calls import read_calls, write_calls
from onthejob.errors import ProviderError
from onthejob.models.hosted import Accounts, HostedPolicy
from onthejob.models.hosted_tools import openai_calls, openai_messages
from onthejob.types import Context, Message, Sampling, TextObservation, ToolCall, ToolSpec

from .test_providers import CLIENTS, Provider, client_of, send

PRICE = ToolSpec(
    "price", "The price of a good.", {"type": "object", "properties": {"good": {"type": "string"}}, "required": ["good"]}
)
EGG, FIG = ToolCall("price", {"good": "egg"}), ToolCall("price", {"good": "f\u00efg"})
TALK = (
    Message("system", "You shop."),
    Message("user", "Egg and fig?"),
    Message("assistant", write_calls("Let me look.", [EGG, FIG])),
    Message("tool", "3"),
    Message("tool", ""),
    Message("user", "Go on."),
)
ANSWERS: dict[str, dict[str, Any]] = {
    "openai": {
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": "So:",
                    "tool_calls": [
                        {
                            "id": "a",
                            "type": "function",
                            "function": {"name": "price", "arguments": json.dumps(dict(one.arguments))},
                        }
                        for one in (EGG, FIG)
                    ],
                },
            }
        ],
    },
    "anthropic": {
        "model": "m",
        "stop_reason": "tool_use",
        "content": [
            {"type": "text", "text": "So:"},
            *({"type": "tool_use", "id": "a", "name": "price", "input": dict(one.arguments)} for one in (EGG, FIG)),
        ],
    },
    "bedrock": {
        "output": {
            "message": {
                "role": "assistant",
                "content": [
                    {"text": "So:"},
                    *({"toolUse": {"toolUseId": "a", "name": "price", "input": dict(one.arguments)}} for one in (EGG, FIG)),
                ],
            }
        },
        "stopReason": "tool_use",
    },
}
MESSAGES: dict[str, list[dict[str, Any]]] = {
    "openai": [
        {"role": "system", "content": "You shop."},
        {"role": "user", "content": "Egg and fig?"},
        {
            "role": "assistant",
            "content": "Let me look.",
            "tool_calls": [
                {"id": "call00000", "type": "function", "function": {"name": "price", "arguments": '{"good": "egg"}'}},
                {"id": "call00001", "type": "function", "function": {"name": "price", "arguments": '{"good": "f\\u00efg"}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "call00000", "content": "3"},
        {"role": "tool", "tool_call_id": "call00001", "content": ""},
        {"role": "user", "content": "Go on."},
    ],
    "anthropic": [
        {"role": "user", "content": [{"type": "text", "text": "Egg and fig?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "call00000", "name": "price", "input": {"good": "egg"}},
                {"type": "tool_use", "id": "call00001", "name": "price", "input": {"good": "f\u00efg"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call00000", "content": "3"},
                {"type": "tool_result", "tool_use_id": "call00001", "content": "(nothing)"},
                {"type": "text", "text": "Go on."},
            ],
        },
    ],
    "bedrock": [
        {"role": "user", "content": [{"text": "Egg and fig?"}]},
        {
            "role": "assistant",
            "content": [
                {"text": "Let me look."},
                {"toolUse": {"toolUseId": "call00000", "name": "price", "input": {"good": "egg"}}},
                {"toolUse": {"toolUseId": "call00001", "name": "price", "input": {"good": "f\u00efg"}}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"toolResult": {"toolUseId": "call00000", "content": [{"text": "3"}]}},
                {"toolResult": {"toolUseId": "call00001", "content": [{"text": "(nothing)"}]}},
                {"text": "Go on."},
            ],
        },
    ],
}


@pytest.fixture
def server() -> Iterator[Provider]:
    made = Provider()
    yield made
    made.close()


def asked(
    kind: str, server: Provider, monkeypatch: pytest.MonkeyPatch, tools: tuple[ToolSpec, ...]
) -> tuple[str, dict[str, Any]]:
    """The reply to TALK, and the body of the request."""
    server.behave = lambda handler, _: send(handler, json.dumps(ANSWERS[kind]).encode())
    with client_of(kind, server.url, monkeypatch) as (client, transport):
        context = Context(observation=TextObservation(actor="clerk", messages=TALK[-1:], tools=tools), messages=TALK)
        (completion,) = HostedPolicy(client, transport, accounts=Accounts()).act([context], Sampling())
    return completion.text, server.requests[0]["body"]


@pytest.mark.parametrize("kind", CLIENTS)
def test_tools_calls_and_results_in_the_native_form(kind: str, server: Provider, monkeypatch: pytest.MonkeyPatch):
    text, body = asked(kind, server, monkeypatch, (PRICE,))
    assert text == write_calls("So:", [EGG, FIG])
    assert (read_calls(text).text, read_calls(text).calls) == ("So:", (EGG, FIG))
    assert body["messages"] == MESSAGES[kind]
    schema = dict(PRICE.parameters)
    named = {"name": "price", "description": PRICE.description}
    tools: dict[str, Any] = {
        "openai": [{"type": "function", "function": {**named, "parameters": schema}}],
        "anthropic": [{**named, "input_schema": schema}],
        "bedrock": {"tools": [{"toolSpec": {**named, "inputSchema": {"json": schema}}}]},
    }
    assert body["toolConfig" if kind == "bedrock" else "tools"] == tools[kind]


@pytest.mark.parametrize("kind", CLIENTS)
def test_without_tools_the_conversation_is_text(kind: str, server: Provider, monkeypatch: pytest.MonkeyPatch):
    text, body = asked(kind, server, monkeypatch, ())
    assert text == "So:"
    assert not {"tools", "toolConfig"} & set(body)
    written = json.dumps(body["messages"])
    assert "Result: 3" in written
    assert not any(word in written for word in ("tool_calls", "tool_use", "toolUse", '"tool"'))


def test_calls_that_do_not_pair_with_results_are_text():
    odd = [*TALK[:4], TALK[5], Message("assistant", TALK[2].content), Message("user", "?")]
    rows = openai_messages(odd, [PRICE])
    assert [row["role"] for row in rows] == ["system", "user", "assistant", "user", "user", "assistant", "user"]
    assert rows[3]["content"] == "Result: 3"
    assert rows[5]["content"] == TALK[2].content


def test_arguments_that_are_no_json_are_a_call_that_cannot_be_read():
    calls = [{"function": {"name": "price", "arguments": '{"good": '}}]
    said = read_calls(openai_calls(calls))
    assert (said.calls, "cannot be read as JSON" in said.problem) == ((), True)
    assert read_calls(openai_calls([{"function": {"name": "price", "arguments": ""}}])).calls == (ToolCall("price", {}),)
    for wrong in ({}, [{}], [{"function": {"arguments": "{}"}}], ["price"]):
        with pytest.raises(ProviderError, match="answer"):
            openai_calls(wrong)


@pytest.mark.slow
def test_the_native_forms_are_those_of_the_sdks():
    openai = pytest.importorskip("openai.types.chat")
    anthropic = pytest.importorskip("anthropic.types")
    from pydantic import TypeAdapter

    for row in MESSAGES["openai"]:
        TypeAdapter(openai.ChatCompletionMessageParam).validate_python(row)
    for turn in MESSAGES["anthropic"]:
        TypeAdapter(anthropic.MessageParam).validate_python(turn)
    message = openai.ChatCompletionMessage.model_validate(ANSWERS["openai"]["choices"][0]["message"])
    assert message.tool_calls is not None
    assert [call.function.name for call in message.tool_calls] == ["price", "price"]
    used = anthropic.ToolUseBlock.model_validate(ANSWERS["anthropic"]["content"][1])
    assert used.input == EGG.arguments
