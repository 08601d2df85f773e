"""Tools in the calls of an agent program: what it offers, calls that were made before, and their results.

Both protocols give calls ids, and our messages have none: a result stands behind the reply that made its call, in the order of
the calls. The ids that are given here number the calls of the episode, so equal episodes have equal ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onthejob.calls import ReplyParts, read_calls, write_calls
from onthejob.interop.program_refusal import RequestRefused
from onthejob.texts import encodable, encodable_in
from onthejob.types import Message, ToolCall, ToolSpec

Row = Mapping[str, Any]
NO_ARGUMENTS = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A message of the program, or an item of its input, as it was read."""

    message: Message
    calls: Mapping[str, ToolCall] = field(default_factory=dict)
    """Id -> call that the assistant made."""
    answers: str = ""
    """Id of the call whose result this is."""
    where: str = ""
    """For a refusal."""


def read_tools(body: Row) -> tuple[ToolSpec, ...]:
    """The functions that a call of either protocol offers.

    Raises:
        RequestRefused: one is no function, or has no name and schema.
    """
    given = body.get("tools") or []
    if body.get("tool_choice") == "none":
        return ()
    if not isinstance(given, list):
        raise RequestRefused(400, f"tools must be a list, got {type(given).__name__}.")
    found = tuple(_tool(one, f"tools[{place}]") for place, one in enumerate(given))
    if len({tool.name for tool in found}) < len(found):
        raise RequestRefused(400, "tools holds two functions of one name. Give each a name of its own.")
    return found


def _tool(given: object, where: str) -> ToolSpec:
    if not isinstance(given, Mapping) or given.get("type") != "function":
        kind = given.get("type") if isinstance(given, Mapping) else type(given).__name__
        raise RequestRefused(
            400, f"{where} is of type {kind!r:.40}, and only functions are offered: nothing here runs tools itself."
        )
    function = given.get("function", given)
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name:
        raise RequestRefused(400, f"{where} needs a name.")
    parameters, about = function.get("parameters") or NO_ARGUMENTS, function.get("description") or ""
    if not isinstance(parameters, Mapping) or not isinstance(about, str):
        raise RequestRefused(400, f"{where}: parameters must be a JSON schema, and description a text.")
    return ToolSpec(encodable(name), encodable(about), encodable_in(dict(parameters)))


def made_call(name: object, arguments: object, where: str) -> ToolCall:
    """A call that the program repeats.

    Raises:
        RequestRefused: it is none.
    """
    try:
        found = json.loads(arguments or "{}") if isinstance(arguments, str) else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(name, str) or not isinstance(found, dict):
        raise RequestRefused(400, f"{where} must be a call with a name, and arguments that are an object as JSON text.")
    return ToolCall(encodable(name), encodable_in(found))


def made_calls(given: object, where: str) -> dict[str, ToolCall]:
    """Id -> call of an assistant's `tool_calls`.

    Raises:
        RequestRefused: these are none.
    """
    if not isinstance(given, list):
        raise RequestRefused(400, f"{where}.tool_calls must be a list, got {type(given).__name__}.")
    found: dict[str, ToolCall] = {}
    for place, one in enumerate(given):
        which = f"{where}.tool_calls[{place}]"
        function = one.get("function") if isinstance(one, Mapping) else None
        if not isinstance(one, Mapping) or not isinstance(one.get("id"), str) or not isinstance(function, Mapping):
            raise RequestRefused(400, f"{which} must be an object with id and function.")
        found[one["id"]] = made_call(function.get("name"), function.get("arguments"), which)
    return found


def settled(parts: Sequence[Part], before: Sequence[Message] = (), waiting: Sequence[str] = ()) -> tuple[Message, ...]:
    """Messages in which results stand in the order of their calls.

    Args:
        parts: of the program's call.
        before: messages before them, which are settled.
        waiting: ids of the calls of the last of these, which have no result yet.

    Raises:
        RequestRefused: a call has no result, or a result no call.
    """
    talk = _Talk(before, waiting)
    for part in parts:
        talk.hear(part)
    return talk.ended()


class _Talk:
    """A conversation that is put in order."""

    def __init__(self, before: Sequence[Message], waiting: Sequence[str]) -> None:
        self._found, self._first = list(before), len(before)
        self._waiting = list(waiting)
        """Ids of the calls whose results are due."""
        self._results: dict[str, str] = {}
        self._text = ""
        self._calls: dict[str, ToolCall] = {}
        """Calls of a reply whose items are not all heard yet."""

    def hear(self, part: Part) -> None:
        """Take the next part."""
        if part.answers:
            self._say()
            if part.answers not in self._waiting:
                raise RequestRefused(400, f"{part.where}: {part.answers[:60]!r} is no call of the reply before it.")
            self._results[part.answers] = part.message.content
        elif part.calls:
            self._answer(part.where)
            last = self._found[-1] if len(self._found) > self._first else None
            if not self._calls and not part.message.content and last is not None and last.role == "assistant":
                # Items of one reply: its text, then a call each.
                self._text = self._found.pop().content
            self._text, self._calls = self._text or part.message.content, {**self._calls, **part.calls}
        else:
            self._say()
            self._answer(part.where)
            self._found.append(part.message)

    def ended(self) -> tuple[Message, ...]:
        """All of it."""
        self._say()
        self._answer("the end of the conversation")
        return tuple(self._found)

    def _say(self) -> None:
        if self._calls:
            self._found.append(Message("assistant", write_calls(self._text, list(self._calls.values()))))
            self._waiting = list(self._calls)
        self._text, self._calls = "", {}

    def _answer(self, where: str) -> None:
        if lacking := [one for one in self._waiting if one not in self._results]:
            raise RequestRefused(400, f"{where}: the call {lacking[0][:60]!r} has no result. Send a result for every call.")
        self._found += [Message("tool", self._results[one]) for one in self._waiting]
        self._waiting, self._results = [], {}


def call_id(number: int, place: int) -> str:
    """Id of a call in the reply to an episode's call of this number; nine letters and digits, as some clients want them."""
    return f"c{number:04d}{place:04d}"


def said_in(reply: str, tools: Sequence[ToolSpec]) -> ReplyParts:
    """A reply as the program is given it: its calls where all are of `tools`, else text."""
    said, names = read_calls(reply) if tools else ReplyParts(reply), {tool.name for tool in tools}
    return said if said.calls and all(call.name in names for call in said.calls) else ReplyParts(reply)


def repeated(reply: str, tools: Sequence[ToolSpec]) -> Message:
    """A reply as it reads when the program sends it back."""
    said = said_in(reply, tools)
    return Message("assistant", write_calls(said.text, said.calls) if said.calls else reply)


def chat_calls(said: ReplyParts, number: int) -> list[dict[str, Any]]:
    """The calls of a reply, of chat completions."""
    return [
        {"id": call_id(number, place), "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
        for place, call in enumerate(said.calls)
    ]


def response_calls(said: ReplyParts, number: int) -> list[dict[str, Any]]:
    """The calls of a reply, as items of a response."""
    return [
        {
            "id": f"fc_{call_id(number, place)}",
            "type": "function_call",
            "status": "completed",
            "call_id": call_id(number, place),
            "name": call.name,
            "arguments": _arguments(call),
        }
        for place, call in enumerate(said.calls)
    ]


def response_events(items: Sequence[Row], first: int) -> Iterator[dict[str, Any]]:
    """The events of calls in a stream of a response; `first` numbers their items."""
    for place, item in enumerate(items, first):
        which = {"item_id": item["id"], "output_index": place}
        begun = {**item, "status": "in_progress", "arguments": ""}
        yield {"type": "response.output_item.added", "output_index": place, "item": begun}
        yield {"type": "response.function_call_arguments.delta", **which, "delta": item["arguments"]}
        yield {"type": "response.function_call_arguments.done", **which, "name": item["name"], "arguments": item["arguments"]}
        yield {"type": "response.output_item.done", "output_index": place, "item": item}


def _arguments(call: ToolCall) -> str:
    return json.dumps(dict(call.arguments), ensure_ascii=False)
