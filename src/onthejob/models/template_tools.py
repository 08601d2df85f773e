"""Tools, calls and results as a chat template takes them, or as text where it knows no tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from onthejob.calls import read_calls, written
from onthejob.types import Message, ToolCall, ToolSpec

USE = (
    "You can call the functions below. To call one, reply with JSON and nothing else: "
    '{"name": NAME, "arguments": {...}}. The result is the next message. To call several, write one JSON object per line.'
)
"""Before the schemas, in the system message of a template that knows no tools."""


def as_text(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[Message]:
    """A conversation for a template without tools: schemas in the system message, calls in plain JSON, results of a user."""
    found: list[Message] = []
    for message in messages:
        if message.role == "tool" and found and found[-1].role == "tool":
            found[-1] = Message("tool", f"{found[-1].content}\nResult: {message.content}")
        elif message.role == "tool":
            found.append(Message("tool", f"Result: {message.content}"))
        elif message.role == "assistant" and (said := read_calls(message.content)).calls:
            found.append(Message("assistant", "\n".join([*filter(None, [said.text]), *map(written, said.calls)])))
        else:
            found.append(message)
    found = [Message("user", message.content) if message.role == "tool" else message for message in found]
    if not tools:
        return found
    shown = "\n".join([USE, *(json.dumps(tool.function()["function"], ensure_ascii=False) for tool in tools)])
    if found and found[0].role == "system":
        return [Message("system", f"{found[0].content}\n\n{shown}"), *found[1:]]
    return [Message("system", shown), *found]


def as_rows(messages: Sequence[Message], text: Callable[[str], str], calls: Sequence[ToolCall] = ()) -> list[dict[str, Any]]:
    """A conversation for a template that knows tools.

    Args:
        messages: the results of calls stand behind the reply that made them, in the order of the calls.
        text: makes any text safe to stand in a message.
        calls: those of a reply before `messages`.
    """
    rows: list[dict[str, Any]] = []
    waiting = _numbered(calls, 0)
    number = len(calls)
    for message in messages:
        if message.role == "tool":
            # Nine characters, as some templates want it.
            place, name = waiting.pop(0) if waiting else (f"call{number:05d}", "")
            row = {"role": "tool", "content": text(message.content), "tool_call_id": place}
            rows.append(row | ({"name": text(name)} if name else {}))
            continue
        said = read_calls(message.content) if message.role == "assistant" else None
        if said is None or not said.calls:
            rows.append({"role": message.role, "content": text(message.content)})
            continue
        waiting = _numbered(said.calls, number)
        number += len(said.calls)
        functions = [{"name": text(call.name), "arguments": safe(dict(call.arguments), text)} for call in said.calls]
        made = [
            {"id": place, "type": "function", "function": function}
            for (place, _), function in zip(waiting, functions, strict=True)
        ]
        rows.append({"role": "assistant", "content": text(said.text), "tool_calls": made})
    return rows


def safe(value: Any, text: Callable[[str], str]) -> Any:
    """JSON with every text in it made safe."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        return {text(key): safe(item, text) for key, item in value.items()}
    return [safe(item, text) for item in value] if isinstance(value, (list, tuple)) else value


def _numbered(calls: Sequence[ToolCall], first: int) -> list[tuple[str, str]]:
    """(Id, name) of calls."""
    return [(f"call{number:05d}", call.name) for number, call in enumerate(calls, first)]
