"""Messages as files and servers write them in JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from onthejob.calls import write_calls
from onthejob.types import Message, ToolCall, ToolSpec

_ROLE = re.compile(r"[a-z]+")
_FIELDS = ("role", "content")
_MORE = {"assistant": ("tool_calls",), "tool": ("tool_call_id", "name")}
"""Role -> what else is read of its messages."""


def read_messages(rows: Sequence[Any]) -> tuple[Message, ...]:
    """A conversation in OpenAI's form; the calls of tools become text of the reply that makes them.

    Raises:
        ValueError: as `read_message`, or the results of calls do not stand behind them in their order.
    """
    found: list[Message] = []
    waiting: list[Any] = []
    for row in rows:
        found.append(read_message(row))
        named = row.get("tool_call_id")
        if found[-1].role != "tool":
            waiting = [call.get("id") for call in row.get("tool_calls") or ()]
        elif named is not None and (not waiting or waiting.pop(0) != named):
            raise ValueError(f"the result of call {named!r} must follow its call, with results in the order of the calls")
    return tuple(found)


def read_message(row: Any) -> Message:
    """One message of a conversation in OpenAI's form: `{"role": ..., "content": ..., "tool_calls": [...]}`.

    Content is text, or a list of text parts, which are joined; it may be null with calls. A field that would be lost is refused
    unless it is null or empty.

    Raises:
        ValueError: it is written otherwise; says what is allowed.
    """
    if not isinstance(row, dict):
        raise ValueError(f"a message must be an object with role and content, got {type(row).__name__}")
    role = row.get("role")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise ValueError(f"role must be a word such as system, user or assistant, got {role!r}")
    known = (*_FIELDS, *_MORE.get(role, ()))
    lost = [name for name, value in row.items() if name not in known and value not in (None, "", [], {})]
    if lost:
        raise ValueError(
            f"a message of {role} has {', '.join(map(str, lost))}, which would be lost; only {', '.join(known)} are read"
        )
    if calls := (row.get("tool_calls") if role == "assistant" else None):
        if not isinstance(calls, list):
            raise ValueError(f"tool_calls must be a list, got {type(calls).__name__}")
        text = "" if row.get("content") is None else text_of(row["content"])
        return Message(role, write_calls(text, [_call(call) for call in calls]))
    if row.get("content") is None:
        raise ValueError(f"the content of a message of {role} is null or missing; give its text")
    return Message(role, text_of(row["content"]))


def _call(row: Any) -> ToolCall:
    """A call in OpenAI's form, whose arguments are an object or its JSON."""
    function = row.get("function") if isinstance(row, dict) and row.get("type", "function") == "function" else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError('a call must be {"type": "function", "function": {"name": ..., "arguments": {...}}}')
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise ValueError(f"the arguments of call {function['name']} are no JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise ValueError(f"the arguments of call {function['name']} must be an object, got {type(arguments).__name__}")
    return ToolCall(function["name"], arguments)


def read_tool(row: Any) -> ToolSpec:
    """A tool in OpenAI's form: `{"type": "function", "function": {"name": ..., "description": ..., "parameters": ...}}`.

    Raises:
        ValueError: it is written otherwise.
    """
    function = row.get("function") if isinstance(row, dict) and row.get("type") == "function" else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError('a tool must be {"type": "function", "function": {"name": ..., "parameters": {...}}}')
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, dict):
        raise ValueError(f"parameters of tool {function['name']} must be a JSON schema, got {type(parameters).__name__}")
    return ToolSpec(function["name"], str(function.get("description") or ""), parameters)


def text_of(content: Any) -> str:
    """The text of a message's content: text itself, or parts of type `text`, which are joined.

    Raises:
        ValueError: it is something else, or has a part of another type.
    """
    if isinstance(content, str):
        text = content
    elif isinstance(content, list):
        text = "".join(map(_part, content))
    else:
        raise ValueError(f"content must be text or a list of text parts, got {type(content).__name__}")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("content holds half of a surrogate pair, which is no character; write the text as UTF-8")
    return text


def _part(part: Any) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return part["text"]
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise ValueError(f"content has a part of type {kind!r}; only text parts can be read")
