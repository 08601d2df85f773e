"""Calls of tools in the text of a reply: what models of different families write, read as one thing.

    Hermes, Qwen   <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>, once per call
    Llama 3        {"name": "add", "parameters": {"a": 1}}, also behind <|python_tag|> and separated by semicolons
    Mistral        [TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]
    plain JSON     {"name": "add", "arguments": {"a": 1}}, a list of such objects, or one in a fence, with text around it

A reply is text everywhere in this package, so calls that a hosted model makes in its provider's own form are written in the first
form too. What was sampled is read here and never written again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from onthejob.texts import encodable, encodable_in
from onthejob.types import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
TAGS = ("<|python_tag|>", "[TOOL_CALLS]")
"""Behind one of these stand calls in plain JSON and nothing else."""
MOST_TRIED = 200
"""Brackets of a reply at which plain JSON is looked for in vain."""
_THOUGHT = "</think>"
_FENCE = re.compile(r"```(?:json)?\s*$")
_FENCED = re.compile(r"\s*```")
_OPENING = re.compile(r"[{\[]")
_BEGUN = re.compile(r"""\s*(?:```(?:json)?\s*)?\[?\s*\{\s*["'](?:name|function)["']\s*:""")
"""A reply that begins as a call in plain JSON."""
_KEYS = {"name", "arguments", "parameters", "type", "id"}


class ReplyParts(NamedTuple):
    """A reply, read."""

    text: str
    """What stands around the calls, without white space at its ends; the whole reply where there is no call."""
    calls: tuple[ToolCall, ...] = ()
    """In the order in which they were written; none where there is a problem."""
    problem: str = ""
    """Why what was begun is not a call: one sentence for the model."""


class _Unreadable(Exception):
    """Its message tells the model what is wrong."""


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:20]} is no finite number")
    return number


_DECODER = json.JSONDecoder(strict=False, parse_float=_finite, parse_constant=_finite)


def read_calls(reply: str) -> ReplyParts:
    """The calls in a reply. Never raises: a call that cannot be read is a problem, and a reply without one is text."""
    thought, end, rest = reply.rpartition(_THOUGHT)
    try:
        if OPEN in rest:
            around, calls = _tagged(rest)
        elif tag := next((tag for tag in TAGS if tag in rest), ""):
            before, _, after = rest.partition(tag)
            around, calls = [before], _row(after)
        else:
            around, calls = _plain(rest)
    except _Unreadable as problem:
        return ReplyParts(reply, problem=str(problem))
    if not calls:
        return ReplyParts(reply)
    text = "".join(around).strip()
    return ReplyParts(f"{thought}{end}\n\n{text}".rstrip() if end else text, tuple(calls))


def write_call(name: str, **arguments: Any) -> str:
    """A call as text, e.g. for a scripted player: `write_call("add", a=1, b=2)`."""
    return write_calls("", [ToolCall(name, arguments)])


def write_calls(text: str, calls: Sequence[ToolCall]) -> str:
    """A reply with calls behind `text`, in the form of Hermes and Qwen."""
    return "\n".join([*([text] if text else []), *(f"{OPEN}\n{written(call)}\n{CLOSE}" for call in calls)])


def written(call: ToolCall) -> str:
    """A call in plain JSON."""
    return json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)


def call_of(name: str, arguments: str) -> str:
    """A call as text whose arguments a provider gave as JSON; where that is none, the text is a call that cannot be read."""
    try:
        found = _loads(arguments)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return write_calls("", [ToolCall(name, found)])
    return f'{OPEN}\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments}}}\n{CLOSE}'


def _tagged(text: str) -> tuple[list[str], list[ToolCall]]:
    """Every `<tool_call>`: its end is that of its JSON, so that arguments may hold tags; the last may lack its own."""
    around: list[str] = []
    calls: list[ToolCall] = []
    place = 0
    while (start := text.find(OPEN, place)) >= 0:
        around.append(text[place:start])
        value, place = _value(text, start + len(OPEN))
        calls += _calls(value)
        rest = text[place:].lstrip()
        if rest.startswith(CLOSE):
            place = len(text) - len(rest) + len(CLOSE)
        elif rest and not rest.startswith(OPEN):
            raise _Unreadable(f"The JSON of a tool call is followed by {rest[:30]!r}. Close it with {CLOSE}.")
    return [*around, text[place:]], calls


def _row(text: str) -> list[ToolCall]:
    """Objects that are separated by semicolons, commas or white space."""
    calls: list[ToolCall] = []
    place = 0
    while place < len(text):
        value, place = _value(text, place)
        calls += _calls(value)
        place += len(text[place:]) - len(text[place:].lstrip(" \t\r\n;,"))
    return calls


def _plain(text: str) -> tuple[list[str], list[ToolCall]]:
    """Objects and lists of objects that look like calls, wherever they stand; other JSON is text."""
    around: list[str] = []
    calls: list[ToolCall] = []
    kept = place = tried = 0
    while tried < MOST_TRIED and (found := _OPENING.search(text, place)) is not None:
        try:
            value, end = _DECODER.raw_decode(text, found.start())
        except (ValueError, RecursionError):
            if not tried and not calls and _BEGUN.match(text):
                _value(text, found.start())
            place, tried = found.end(), tried + 1
            continue
        rows = value if isinstance(value, list) else [value]
        if not rows or not all(_is_call(row) for row in rows):
            place = end
            continue
        before = text[kept : found.start()]
        fence, fenced = _FENCE.search(before), _FENCED.match(text, end)
        if fence and fenced:
            before, end = before[: fence.start()], fenced.end()
        around.append(before.rstrip(" \t\r\n;,") if calls else before)
        calls += _calls(value)
        kept = place = end
    return [*around, text[kept:].lstrip(";") if calls else text[kept:]], calls


def _value(text: str, place: int) -> tuple[Any, int]:
    """The JSON at a place, behind white space, and where it ends."""
    start = place + len(text[place:]) - len(text[place:].lstrip())
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        what = error.msg if isinstance(error, json.JSONDecodeError) else "it is nested too deeply"
        if isinstance(error, ValueError) and not isinstance(error, json.JSONDecodeError):
            what = "a number is not finite or too long"
        raise _Unreadable(
            f"The tool call cannot be read as JSON ({what}). "
            'Write {"name": NAME, "arguments": {...}} with double quotation marks, and close every bracket.'
        ) from error


def _is_call(value: Any) -> bool:
    """An object that is a call even where nothing marks it as one."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("name"), str)
        and isinstance(value.get("arguments", value.get("parameters")), (dict, str))
        and not set(value) - _KEYS
    )


def _calls(value: Any) -> list[ToolCall]:
    """The calls of an object, or of a list of objects, that must be calls."""
    return [_call(row) for row in (value if isinstance(value, list) else [value])]


def _call(value: Any) -> ToolCall:
    if isinstance(value, dict) and isinstance(value.get("function"), Mapping):
        value = value["function"]
    name = value.get("name", value.get("function")) if isinstance(value, dict) else None
    if not isinstance(name, str) or not name:
        raise _Unreadable('A tool call needs a name. Write {"name": NAME, "arguments": {...}}.')
    given = value.get("arguments", value.get("parameters"))
    arguments: Any = {} if given is None else given
    if isinstance(given, str):
        # As OpenAI's API writes them.
        try:
            arguments = _loads(given)
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, dict):
        raise _Unreadable(
            f'The arguments of {name[:60]} must be an object. Write {{"name": "{name[:60]}", "arguments": {{...}}}}.'
        )
    return ToolCall(encodable(name), encodable_in(arguments))


def _loads(text: str) -> Any:
    text = text.strip() or "{}"
    value, end = _DECODER.raw_decode(text)
    if text[end:]:
        raise ValueError("there is more than one value")
    return value
