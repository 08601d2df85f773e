"""Calls of an agent program as conversations, and replies as the answers that its client reads.

Two protocols of OpenAI: chat completions and responses, each whole or as a stream of events. What the program does wrong is a
`Refusal`, which its client reads as an error of the API. Nothing here knows sockets, processes or episodes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from onthejob.texts import encodable
from onthejob.types import Message

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


class Refusal(Exception):
    """A request that is not answered with a reply."""

    def __init__(self, status: int, message: str, code: str = "invalid_request") -> None:
        """status: of HTTP. message: one sentence for who wrote the program. code: for its client."""
        super().__init__(message)
        self.status, self.message, self.code = status, message, code

    def body(self) -> dict[str, Any]:
        """The error as OpenAI's clients read it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": None, "code": self.code}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
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

    def cut(self, reply: str) -> str:
        """The reply up to the first text of `stop`."""
        return reply[: min((place for text in self.stop if (place := reply.find(text)) >= 0), default=len(reply))]


def role_of(model: object, roles: Sequence[str]) -> str:
    """The role that a model's name means: the only one, or the one of this name.

    Raises:
        Refusal: there are several, and none has the name.
    """
    if not isinstance(model, str):
        raise Refusal(400, f"model must be a text, got {model!r:.60}.")
    if len(roles) > 1 and model not in roles:
        raise Refusal(404, f"model {model[:60]!r} is no role; the roles are {', '.join(roles)}.", "model_not_found")
    return model if model in roles else roles[0]


def read_chat(body: Row, roles: Sequence[str]) -> Asked:
    """A call of `POST /v1/chat/completions`.

    Raises:
        Refusal: it asks for what is not offered.
    """
    _check(body)
    if body.get("functions"):
        raise Refusal(400, "functions are not offered. Describe them in a message, and read the call from the text of the reply.")
    if body.get("n") not in (None, 1):
        raise Refusal(400, f"n must be 1, got {body['n']!r:.20}: each call is one reply that is trained on. Call again.")
    given = body.get("messages")
    if not isinstance(given, list):
        raise Refusal(400, f"messages must be a list, got {type(given).__name__}.")
    messages = _closed(tuple(_message(one, f"messages[{place}]") for place, one in enumerate(given)))
    options = body.get("stream_options")
    return Asked(
        protocol="chat",
        role=role_of(body.get("model"), roles),
        model=body["model"],
        messages=messages,
        kept=messages,
        stop=_stops(body.get("stop")),
        stream=bool(body.get("stream")),
        counted=isinstance(options, Mapping) and bool(options.get("include_usage")),
        ignored=_ignored(body, "chat"),
    )


def read_response(body: Row, roles: Sequence[str], earlier: Mapping[str, tuple[Message, ...]]) -> Asked:
    """A call of `POST /v1/responses`.

    Args:
        body: of the request.
        roles: of the environment.
        earlier: id of a response of this episode -> its conversation.

    Raises:
        Refusal: it asks for what is not offered.
    """
    _check(body)
    for name in ("background", "conversation", "prompt"):
        if body.get(name):
            raise Refusal(400, f"{name} is not offered. Send the whole conversation, or previous_response_id.")
    before: tuple[Message, ...] = ()
    if (known := body.get("previous_response_id")) is not None:
        if known not in earlier:
            raise Refusal(404, f"there is no response {known!r:.60} in this episode.", "previous_response_not_found")
        before = earlier[known]
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list):
        raise Refusal(400, f"input must be a text or a list, got {type(given).__name__}.")
    kept = _closed((*before, *(_item(one, f"input[{place}]") for place, one in enumerate(items))))
    told = body.get("instructions")
    if told is not None and not isinstance(told, str):
        raise Refusal(400, f"instructions must be a text, got {type(told).__name__}.")
    return Asked(
        protocol="responses",
        role=role_of(body.get("model"), roles),
        model=body["model"],
        messages=(Message("system", encodable(told)), *kept) if told else kept,
        kept=kept,
        stream=bool(body.get("stream")),
        ignored=_ignored(body, "responses"),
    )


def _check(body: Row) -> None:
    if body.get("tools") and body.get("tool_choice") != "none":
        raise Refusal(
            400, "tools are not offered yet: a reply is text. Describe the tools in a message, and read the call from the reply."
        )


def _ignored(body: Row, protocol: Protocol) -> tuple[str, ...]:
    return tuple(
        name
        for name, value in body.items()
        if value not in (None, [], {}) and name not in READ[protocol] and name not in WITHOUT_EFFECT
    )


def _closed(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Messages after which a reply can follow."""
    if not messages:
        raise Refusal(400, "there is no message to reply to.")
    if messages[-1].role == "assistant":
        raise Refusal(
            400, "the last message is the assistant's: a reply that is begun is not continued. End with a user's message."
        )
    return messages


def _message(given: object, where: str) -> Message:
    if not isinstance(given, Mapping):
        raise Refusal(400, f"{where} must be an object with role and content, got {type(given).__name__}.")
    role = given.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise Refusal(400, f"{where}: role must be one of {', '.join(ROLES)}, got {role!r:.40}.")
    if given.get("tool_calls") or given.get("function_call"):
        raise Refusal(400, f"{where} holds calls of tools, which are not offered yet. Write them into the content.")
    return Message(ROLES[role], _text(given.get("content"), where))


def _item(given: object, where: str) -> Message:
    if isinstance(given, Mapping) and given.get("type", "message") != "message":
        raise Refusal(400, f"{where}: items of type {given['type']!r:.40} are not offered. Send messages.")
    return _message(given, where)


def _text(content: object, where: str) -> str:
    if isinstance(content, str):
        return encodable(content)
    if not isinstance(content, list):
        raise Refusal(400, f"{where}: content must be a text or a list of parts, got {type(content).__name__}.")
    found: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if not isinstance(part, Mapping) or kind not in TEXTS or not isinstance(part.get("text"), str):
            raise Refusal(400, f"{where}: a part of type {kind!r:.40} is not offered, only text. Omit images, audio and files.")
        found.append(encodable(part["text"]))
    return "".join(found)


def _stops(given: object) -> tuple[str, ...]:
    texts = [given] if isinstance(given, str) else given or []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise Refusal(400, f"stop must be a text or a list of texts, got {given!r:.60}.")
    return tuple(text for text in texts if text)


def name_of(protocol: Protocol, number: int) -> str:
    """Id of the answer to an episode's call of this number."""
    return f"chatcmpl-{number}" if protocol == "chat" else f"resp_{number}"


def answer(asked: Asked, reply: str, number: int) -> dict[str, Any]:
    """The whole answer to a call."""
    return _completion(asked, reply, number) if asked.protocol == "chat" else _response(asked, reply, number)


def events(asked: Asked, reply: str, number: int) -> Iterator[str]:
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


def _completion(asked: Asked, reply: str, number: int) -> dict[str, Any]:
    message = {"role": "assistant", "content": reply, "refusal": None}
    return {
        "id": name_of("chat", number),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": asked.model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": _usage("prompt_tokens", "completion_tokens"),
    }


def _chunks(asked: Asked, reply: str, number: int) -> Iterator[dict[str, Any]]:
    head = {
        "id": name_of("chat", number),
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": asked.model,
    }
    for delta, finish in (({"role": "assistant", "content": ""}, None), ({"content": reply}, None), ({}, "stop")):
        yield {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]}
    if asked.counted:
        yield {**head, "choices": [], "usage": _usage("prompt_tokens", "completion_tokens")}


def _response(asked: Asked, reply: str, number: int, *, status: str = "completed") -> dict[str, Any]:
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
        "output": [_said(reply, number)] if done else [],
        "parallel_tool_calls": False,
        "temperature": None,
        "tool_choice": "none",
        "tools": [],
        "top_p": None,
        "usage": _usage("input_tokens", "output_tokens") if done else None,
    }


def _happened(asked: Asked, reply: str, number: int) -> Iterator[dict[str, Any]]:
    begun = _response(asked, reply, number, status="in_progress")
    item = {"item_id": f"msg_{number}", "output_index": 0}
    part = {**item, "content_index": 0}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    opening = {**_said("", number), "status": "in_progress", "content": []}
    yield {"type": "response.output_item.added", "output_index": 0, "item": opening}
    yield {"type": "response.content_part.added", **part, "part": _part("")}
    yield {"type": "response.output_text.delta", **part, "delta": reply, "logprobs": []}
    yield {"type": "response.output_text.done", **part, "text": reply, "logprobs": []}
    yield {"type": "response.content_part.done", **part, "part": _part(reply)}
    yield {"type": "response.output_item.done", "output_index": 0, "item": _said(reply, number)}
    yield {"type": "response.completed", "response": _response(asked, reply, number)}


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
