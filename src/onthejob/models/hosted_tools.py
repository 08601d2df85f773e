"""Tools, calls and results in the native forms of hosted APIs, and calls of their answers as text.

Our messages have no ids, and a reply holds its calls as text. Where a reply is followed by one result per call, as after
`Env.tools`, both are written natively, with ids that number the calls of the conversation. Everything else is written as text:
these APIs refuse a call without a result, a result without a call, and either of them where no tools are offered.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onthejob.calls import call_of, read_calls, write_calls
from onthejob.models.template_tools import as_text
from onthejob.models.transport import Outcome, failure
from onthejob.texts import encodable, encodable_in
from onthejob.types import Message, ToolCall, ToolSpec

NOTHING = "(nothing)"
"""In the place of an empty text, which some APIs refuse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A message, and what belongs to it where it is a reply with calls."""

    message: Message
    """The text around the calls, where there are some."""
    calls: tuple[tuple[str, ToolCall], ...] = ()
    """(Id, call) in order."""
    results: tuple[str, ...] = ()
    """One per call."""


def exchanges(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[Exchange]:
    """A conversation in which calls stand with their results; what cannot be written natively is text."""
    found: list[Exchange] = []
    place = number = 0
    while place < len(messages):
        message, place = messages[place], place + 1
        end = place
        while end < len(messages) and messages[end].role == "tool":
            end += 1
        said = read_calls(message.content) if tools and message.role == "assistant" and end > place else None
        if said is not None and len(said.calls) == end - place:
            ids = [f"call{one:05d}" for one in range(number, number + len(said.calls))]
            found.append(
                Exchange(
                    message=Message("assistant", said.text),
                    calls=tuple(zip(ids, said.calls, strict=True)),
                    results=tuple(result.content for result in messages[place:end]),
                )
            )
            number += len(said.calls)
        else:
            found += [Exchange(message=one) for one in without_results(messages[place - 1 : end])]
        place = end
    return found


def without_results(messages: Sequence[Message]) -> Sequence[Message]:
    """A conversation for a request that offers no tools; the very same object where it has no results."""
    return as_text(messages, ()) if any(message.role == "tool" for message in messages) else messages


def openai_messages(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Messages of chat completions."""
    rows: list[dict[str, Any]] = []
    for one in exchanges(messages, tools):
        if not one.calls:
            rows.append(one.message._asdict())
            continue
        calls = [
            {"id": place, "type": "function", "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))}}
            for place, call in one.calls
        ]
        rows.append({"role": "assistant", "content": one.message.content or None, "tool_calls": calls})
        for (place, _), result in zip(one.calls, one.results, strict=True):
            rows.append({"role": "tool", "tool_call_id": place, "content": result})
    return rows


def openai_calls(given: object) -> str:
    """The `tool_calls` of an answer as text; empty where it has none.

    Raises:
        ProviderError: they are of another shape (`malformed`).
    """
    found: list[str] = []
    if given is not None and not isinstance(given, list):
        raise failure(Outcome.MALFORMED, "the answer's tool_calls are not a list")
    for call in given or ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise failure(Outcome.MALFORMED, "a call of the answer has no function")
        name, arguments = function.get("name"), function.get("arguments")
        if not isinstance(name, str) or not isinstance(arguments, (str, type(None))):
            raise failure(Outcome.MALFORMED, "a call of the answer has no name, or arguments that are not text")
        found.append(call_of(encodable(name), encodable(arguments or "{}")))
    return "\n".join(found)


def anthropic_tools(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Tools of the Messages API."""
    return [{"name": tool.name, "input_schema": dict(tool.parameters), **_about(tool)} for tool in tools]


def anthropic_turns(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Turns of the Messages API with blocks, where the conversation has calls; user and assistant alternate."""
    return _alternating(
        messages,
        tools,
        text=lambda text: {"type": "text", "text": text},
        call=lambda place, call: {"type": "tool_use", "id": place, "name": call.name, "input": dict(call.arguments)},
        result=lambda place, text: {"type": "tool_result", "tool_use_id": place, "content": text},
    )


def bedrock_tools(tools: Sequence[ToolSpec]) -> dict[str, Any]:
    """`toolConfig` of Converse."""
    specs = [{"name": tool.name, "inputSchema": {"json": dict(tool.parameters)}, **_about(tool)} for tool in tools]
    return {"tools": [{"toolSpec": spec} for spec in specs]}


def bedrock_turns(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Turns of Converse with blocks; user and assistant alternate."""
    return _alternating(
        messages,
        tools,
        text=lambda text: {"text": text},
        call=lambda place, call: {"toolUse": {"toolUseId": place, "name": call.name, "input": dict(call.arguments)}},
        result=lambda place, text: {"toolResult": {"toolUseId": place, "content": [{"text": text}]}},
    )


def block_call(name: object, given: object) -> str:
    """A call of an answer in blocks as text.

    Raises:
        ProviderError: it has no name, or its input is not an object (`malformed`).
    """
    if not isinstance(name, str) or not isinstance(given, Mapping):
        raise failure(Outcome.MALFORMED, "a call of the answer has no name, or an input that is not an object")
    return write_calls("", [ToolCall(encodable(name), encodable_in(dict(given)))])


def with_calls(text: object, calls: str) -> object:
    """The content of an answer with its calls; content of another type is left as it is."""
    if not calls or (text is not None and not isinstance(text, str)):
        return text
    return "\n".join(filter(None, (text, calls)))


def _about(tool: ToolSpec) -> dict[str, str]:
    return {"description": tool.description} if tool.description else {}


def _alternating(
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    *,
    text: Callable[[str], dict[str, Any]],
    call: Callable[[str, ToolCall], dict[str, Any]],
    result: Callable[[str, str], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Turns of blocks, without the system messages; neighbours of one role are one turn."""
    turns: list[dict[str, Any]] = []

    def add(role: str, blocks: list[dict[str, Any]]) -> None:
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})

    for one in exchanges([message for message in messages if message.role != "system"], tools):
        said = one.message.content
        if not one.calls:
            add(one.message.role, [text(said if said.strip() else NOTHING)])
            continue
        around = [text(said)] if said else []
        add("assistant", [*around, *(call(place, made) for place, made in one.calls)])
        results = zip(one.calls, one.results, strict=True)
        add("user", [result(place, found if found.strip() else NOTHING) for (place, _), found in results])
    return turns
