"""Calls of an agent program as conversations, and replies as the answers that its client reads.

Two protocols of OpenAI: chat completions and responses, each whole or as a stream of events. What the program does wrong is a
`RequestRefused`, which its client reads as an error of the API. Nothing here knows sockets, processes or episodes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from onthejob.calls import ReplyParts
from onthejob.interop import program_tools
from onthejob.interop.program_refusal import RequestRefused
from onthejob.interop.program_tools import Part, settled
from onthejob.texts import encodable
from onthejob.types import Message, ToolSpec

__all__ = [
    "EarlierResponse",
    "ReplyCall",
    "RequestRefused",
    "answer",
    "earlier",
    "events",
    "model",
    "models",
    "name_of",
    "read_chat",
    "read_response",
]

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "user", "function": "user"}
"""Role of a message of the protocol -> role of our message."""
TEXTS = ("text", "input_text", "output_text")
"""Types of the parts of a message that are text."""
READ = {
    "chat": ("model", "messages", "stream", "stream_options", "stop", "n", "tools", "tool_choice", "functions"),
    "responses": ("model", "input", "instructions", "previous_response_id", "stream", "tools", "tool_choice", "background"),
}
"""Parameters that are read; the values of all others are ignored."""
WITHOUT_EFFECT = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls")
"""Parameters that change no reply, so that ignoring them is not worth a line in the log."""
Protocol = Literal["chat", "responses"]
Row = Mapping[str, Any]


class EarlierResponse(NamedTuple):
    """An answered response, which a later call may name."""

    messages: tuple[Message, ...]
    """Its conversation with the reply, without the instructions."""
    waiting: tuple[str, ...]
    """Ids of the reply's calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyCall:
    """One call for a reply."""

    protocol: Protocol
    role: str
    model: str
    """As it was asked for."""
    messages: tuple[Message, ...]
    kept: tuple[Message, ...]
    """What a later call continues that names this response: the messages without the instructions."""
    stop: tuple[str, ...] = ()
    """The reply is cut before the first of these."""
    stream: bool = False
    counted: bool = False
    """The stream shall end with the usage."""
    ignored: tuple[str, ...] = ()
    """Parameters that have no effect here."""
    tools: tuple[ToolSpec, ...] = ()
    """Functions that the reply may call."""

    def cut(self, reply: str) -> str:
        """The reply up to the first text of `stop`."""
        return reply[: min((place for text in self.stop if (place := reply.find(text)) >= 0), default=len(reply))]


def role_of(model: object, roles: Sequence[str]) -> str:
    """The role that a model's name means: the only one, or the one of this name.

    Raises:
        RequestRefused: there are several, and none has the name.
    """
    if not isinstance(model, str):
        raise RequestRefused(400, f"model must be a text, got {model!r:.60}.")
    if len(roles) > 1 and model not in roles:
        raise RequestRefused(404, f"model {model[:60]!r} is no role; the roles are {', '.join(roles)}.", "model_not_found")
    return model if model in roles else roles[0]


def read_chat(body: Row, roles: Sequence[str]) -> ReplyCall:
    """A call of `POST /v1/chat/completions`.

    Raises:
        RequestRefused: it asks for what is not offered.
    """
    if body.get("functions"):
        raise RequestRefused(400, "functions are not offered. Pass them as tools, which took their place.")
    if body.get("n") not in (None, 1):
        raise RequestRefused(400, f"n must be 1, got {body['n']!r:.20}: each call is one reply that is trained on. Call again.")
    given = body.get("messages")
    if not isinstance(given, list):
        raise RequestRefused(400, f"messages must be a list, got {type(given).__name__}.")
    messages = _closed(settled([_message(one, f"messages[{place}]") for place, one in enumerate(given)]))
    options = body.get("stream_options")
    return ReplyCall(
        protocol="chat",
        role=role_of(body.get("model"), roles),
        model=body["model"],
        messages=messages,
        kept=messages,
        stop=_stops(body.get("stop")),
        stream=bool(body.get("stream")),
        counted=isinstance(options, Mapping) and bool(options.get("include_usage")),
        ignored=_ignored(body, "chat"),
        tools=program_tools.read_tools(body),
    )


def read_response(body: Row, roles: Sequence[str], earlier: Mapping[str, EarlierResponse]) -> ReplyCall:
    """A call of `POST /v1/responses`.

    Args:
        body: of the request.
        roles: of the environment.
        earlier: id of a response of this episode -> its conversation, and the ids of the calls of its reply.

    Raises:
        RequestRefused: it asks for what is not offered.
    """
    for name in ("background", "conversation", "prompt"):
        if body.get(name):
            raise RequestRefused(400, f"{name} is not offered. Send the whole conversation, or previous_response_id.")
    before: tuple[Message, ...] = ()
    waiting: tuple[str, ...] = ()
    if (known := body.get("previous_response_id")) is not None:
        if known not in earlier:
            raise RequestRefused(404, f"there is no response {known!r:.60} in this episode.", "previous_response_not_found")
        before, waiting = earlier[known]
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list):
        raise RequestRefused(400, f"input must be a text or a list, got {type(given).__name__}.")
    kept = _closed(settled([_item(one, f"input[{place}]") for place, one in enumerate(items)], before, waiting))
    told = body.get("instructions")
    if told is not None and not isinstance(told, str):
        raise RequestRefused(400, f"instructions must be a text, got {type(told).__name__}.")
    return ReplyCall(
        protocol="responses",
        role=role_of(body.get("model"), roles),
        model=body["model"],
        messages=(Message("system", encodable(told)), *kept) if told else kept,
        kept=kept,
        stream=bool(body.get("stream")),
        ignored=_ignored(body, "responses"),
        tools=program_tools.read_tools(body),
    )


def _ignored(body: Row, protocol: Protocol) -> tuple[str, ...]:
    forced = ("tool_choice",) if body.get("tool_choice") not in (None, "auto", "none") else ()
    others = (
        name
        for name, value in body.items()
        if value not in (None, [], {}) and name not in READ[protocol] and name not in WITHOUT_EFFECT
    )
    return (*others, *forced)


def _closed(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Messages after which a reply can follow."""
    if not messages:
        raise RequestRefused(400, "there is no message to reply to.")
    if messages[-1].role == "assistant":
        raise RequestRefused(
            400, "the last message is the assistant's: a reply that is begun is not continued. End with a user's message."
        )
    return messages


def _message(given: object, where: str) -> Part:
    if not isinstance(given, Mapping):
        raise RequestRefused(400, f"{where} must be an object with role and content, got {type(given).__name__}.")
    role = given.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise RequestRefused(400, f"{where}: role must be one of {', '.join(ROLES)}, got {role!r:.40}.")
    if given.get("function_call"):
        raise RequestRefused(400, f"{where}: function_call is not offered. Write tool_calls, which took its place.")
    calls = program_tools.made_calls(given.get("tool_calls") or [], where) if role == "assistant" else {}
    content = given.get("content")
    text = "" if calls and content is None else _text(content, where)
    if role == "tool" and isinstance(answers := given.get("tool_call_id"), str) and answers:
        return Part(message=Message("tool", text), answers=answers, where=where)
    return Part(message=Message(ROLES[role], text), calls=calls, where=where)


def _item(given: object, where: str) -> Part:
    kind = given.get("type", "message") if isinstance(given, Mapping) else "message"
    if not isinstance(given, Mapping) or kind == "message":
        return _message(given, where)
    if kind not in ("function_call", "function_call_output"):
        raise RequestRefused(400, f"{where}: items of type {kind!r:.40} are not offered. Send messages, and calls of functions.")
    name = given.get("call_id")
    if not isinstance(name, str) or not name:
        raise RequestRefused(400, f"{where} needs a call_id.")
    if kind == "function_call_output":
        return Part(message=Message("tool", _text(given.get("output"), where)), answers=name, where=where)
    call = program_tools.made_call(given.get("name"), given.get("arguments"), where)
    return Part(message=Message("assistant", ""), calls={name: call}, where=where)


def _text(content: object, where: str) -> str:
    if isinstance(content, str):
        return encodable(content)
    if not isinstance(content, list):
        raise RequestRefused(400, f"{where}: content must be a text or a list of parts, got {type(content).__name__}.")
    found: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if not isinstance(part, Mapping) or kind not in TEXTS or not isinstance(part.get("text"), str):
            raise RequestRefused(
                400, f"{where}: a part of type {kind!r:.40} is not offered, only text. Omit images, audio and files."
            )
        found.append(encodable(part["text"]))
    return "".join(found)


def _stops(given: object) -> tuple[str, ...]:
    texts = [given] if isinstance(given, str) else given or []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise RequestRefused(400, f"stop must be a text or a list of texts, got {given!r:.60}.")
    return tuple(text for text in texts if text)


def name_of(protocol: Protocol, number: int) -> str:
    """Id of the answer to an episode's call of this number."""
    return f"chatcmpl-{number}" if protocol == "chat" else f"resp_{number}"


def earlier(asked: ReplyCall, reply: str, number: int) -> EarlierResponse:
    """What is kept of an answered response."""
    said = program_tools.said_in(reply, asked.tools)
    ids = tuple(program_tools.call_id(number, place) for place in range(len(said.calls)))
    return EarlierResponse((*asked.kept, program_tools.repeated(reply, asked.tools)), ids)


def answer(asked: ReplyCall, reply: str, number: int) -> dict[str, Any]:
    """The whole answer to a call."""
    return _completion(asked, reply, number) if asked.protocol == "chat" else _response(asked, reply, number)


def events(asked: ReplyCall, reply: str, number: int) -> Iterator[str]:
    """The answer as server-sent events."""
    if asked.protocol == "chat":
        for chunk in _chunks(asked, reply, number):
            yield f"data: {json.dumps(chunk)}\n\n"
        yield "data: [DONE]\n\n"
        return
    for place, event in enumerate(_happened(asked, reply, number)):
        yield f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': place})}\n\n"


def models(roles: Sequence[str]) -> dict[str, Any]:
    """The answer to `GET /v1/models`."""
    return {"object": "list", "data": [model(role) for role in roles]}


def model(role: str) -> dict[str, Any]:
    """The answer to `GET /v1/models/ROLE`."""
    return {"id": role, "object": "model", "created": 0, "owned_by": "onthejob"}


def _completion(asked: ReplyCall, reply: str, number: int) -> dict[str, Any]:
    said = program_tools.said_in(reply, asked.tools)
    message: dict[str, Any] = {"role": "assistant", "content": said.text, "refusal": None}
    if said.calls:
        message |= {"content": said.text or None, "tool_calls": program_tools.chat_calls(said, number)}
    return {
        "id": name_of("chat", number),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": asked.model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(said)}],
        "usage": _usage("prompt_tokens", "completion_tokens"),
    }


def _chunks(asked: ReplyCall, reply: str, number: int) -> Iterator[dict[str, Any]]:
    head = {
        "id": name_of("chat", number),
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": asked.model,
    }
    said = program_tools.said_in(reply, asked.tools)
    parts: list[dict[str, Any]] = [{"content": said.text}] if said.text or not said.calls else []
    if said.calls:
        calls = program_tools.chat_calls(said, number)
        parts.append({"tool_calls": [{"index": place, **call} for place, call in enumerate(calls)]})
    opening: dict[str, Any] = {"role": "assistant", "content": None if said.calls and not said.text else ""}
    for delta, finish in ((opening, None), *((part, None) for part in parts), ({}, _finish(said))):
        yield {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]}
    if asked.counted:
        yield {**head, "choices": [], "usage": _usage("prompt_tokens", "completion_tokens")}


def _finish(said: ReplyParts) -> str:
    return "tool_calls" if said.calls else "stop"


def _output(asked: ReplyCall, reply: str, number: int) -> list[dict[str, Any]]:
    """The items of a response: the text, where there is some or nothing else, and a call each."""
    said = program_tools.said_in(reply, asked.tools)
    texts = [_said(said.text, number)] if said.text or not said.calls else []
    return [*texts, *program_tools.response_calls(said, number)]


def _response(asked: ReplyCall, reply: str, number: int, *, status: str = "completed") -> dict[str, Any]:
    done = status == "completed"
    return {
        "id": name_of("responses", number),
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": asked.model,
        "output": _output(asked, reply, number) if done else [],
        "parallel_tool_calls": False,
        "temperature": None,
        "tool_choice": "auto" if asked.tools else "none",
        "tools": [
            {"type": "function", "name": name, "description": about, "parameters": dict(parameters), "strict": False}
            for name, about, parameters in asked.tools
        ],
        "top_p": None,
        "usage": _usage("input_tokens", "output_tokens") if done else None,
    }


def _happened(asked: ReplyCall, reply: str, number: int) -> Iterator[dict[str, Any]]:
    begun = _response(asked, reply, number, status="in_progress")
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    output = _output(asked, reply, number)
    texts = [item for item in output if item["type"] == "message"]
    for item in texts:
        yield from _told(item["content"][0]["text"], number)
    yield from program_tools.response_events(output[len(texts) :], len(texts))
    yield {"type": "response.completed", "response": _response(asked, reply, number)}


def _told(text: str, number: int) -> Iterator[dict[str, Any]]:
    """The events of a text."""
    part = {"item_id": f"msg_{number}", "output_index": 0, "content_index": 0}
    opening = {**_said("", number), "status": "in_progress", "content": []}
    yield {"type": "response.output_item.added", "output_index": 0, "item": opening}
    yield {"type": "response.content_part.added", **part, "part": _part("")}
    yield {"type": "response.output_text.delta", **part, "delta": text, "logprobs": []}
    yield {"type": "response.output_text.done", **part, "text": text, "logprobs": []}
    yield {"type": "response.content_part.done", **part, "part": _part(text)}
    yield {"type": "response.output_item.done", "output_index": 0, "item": _said(text, number)}


def _said(reply: str, number: int) -> dict[str, Any]:
    return {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed", "content": [_part(reply)]}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(taken: str, given: str) -> dict[str, Any]:
    """Zeros: the environment sees texts, and the run counts the tokens."""
    found: dict[str, Any] = {taken: 0, given: 0, "total_tokens": 0}
    if taken == "input_tokens":
        found |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return found
