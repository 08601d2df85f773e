"""Messages as files and servers write them in JSON."""

from __future__ import annotations

import re
from typing import Any

from onthejob.types import Message, ToolSpec

_ROLE = re.compile(r"[a-z]+")
_FIELDS = ("role", "content")


def read_message(row: Any) -> Message:
    """One message of a conversation in OpenAI's form: `{"role": ..., "content": ...}`.

    Content is text, or a list of text parts, which are joined. A field that would be lost, such as `tool_calls`, is refused
    unless it is null or empty.

    Raises:
        ValueError: it is written otherwise; says what is allowed.
    """
    if not isinstance(row, dict):
        raise ValueError(f"a message must be an object with role and content, got {type(row).__name__}")
    role = row.get("role")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise ValueError(f"role must be a word such as system, user or assistant, got {role!r}")
    lost = [name for name, value in row.items() if name not in _FIELDS and value not in (None, "", [], {})]
    if lost:
        raise ValueError(
            f"a message of {role} has {', '.join(map(str, lost))}, which would be lost; only role and content are read"
        )
    if row.get("content") is None:
        raise ValueError(f"the content of a message of {role} is null or missing; give its text")
    return Message(role, text_of(row["content"]))


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
