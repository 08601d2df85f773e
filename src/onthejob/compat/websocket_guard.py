"""Keeps malformed frames away from a WebSocket session, so that they cost an error message and never the episode.

OpenEnv 0.10 ends the session, and with it the episode, on frames that are not JSON objects, are binary, nest deeply, hold
integers of thousands of digits, or cannot be echoed as UTF-8. `FrameGuard` answers those itself, in OpenEnv's own error
format, and passes the others on. `BodyGuard` bounds what a request over HTTP makes the server hold.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple

from onthejob.texts import strict_json

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Event, Receive, Send], Awaitable[None]]

MAX_FRAME = 1 << 20
"""Characters of one frame."""
MAX_BODY = 4 * MAX_FRAME
"""Bytes of one request's body: a frame of the longest characters."""
MAX_DEPTH = 64
"""Nesting of objects and lists in one frame."""


class Problem(NamedTuple):
    """Why a frame is not passed on."""

    code: str
    """INVALID_JSON or VALIDATION_ERROR."""
    message: str


class FrameGuard:
    """ASGI middleware for the paths on which a session lives."""

    def __init__(self, app: App, *, paths: tuple[str, ...] = ("/ws",)) -> None:
        self._app = app
        self._paths = paths

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Serve one connection; others than WebSockets on `paths` are left alone."""
        if scope["type"] != "websocket" or scope["path"] not in self._paths:
            await self._app(scope, receive, send)
            return

        async def checked() -> Event:
            while True:
                event = await receive()
                if event["type"] != "websocket.receive":
                    return event
                frame = check(event.get("text"))
                if isinstance(frame, str):
                    return {"type": "websocket.receive", "text": frame}
                # The application waits for a frame, so nothing else is being sent.
                error = {"type": "error", "data": {"message": frame.message, "code": frame.code}}
                await send({"type": "websocket.send", "text": json.dumps(error)})

        await self._app(scope, checked, send)


class BodyGuard:
    """ASGI middleware: the application gets a request's body whole, of a bounded size, and as JSON that it can answer in JSON."""

    def __init__(self, app: App, *, limit: int = MAX_BODY) -> None:
        """limit: bytes of a body."""
        self._app, self._limit = app, limit

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Serve one request; other connections are left alone."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        lengths = [value for name, value in scope["headers"] if name == b"content-length"]
        # More digits than Python converts are too many bytes as well.
        if max([int(value[:20]) for value in lengths if value.isdigit()], default=0) > self._limit:
            await self._refuse_length(send)
            return
        body = bytearray()
        more = True
        while more:
            event = await receive()
            if event["type"] != "http.request":
                return  # The client left.
            body += event.get("body", b"")
            more = event.get("more_body", False)
            if len(body) > self._limit:
                await self._refuse_length(send)
                return
        why = unreadable(bytes(body)) if body else None
        if why is not None:
            await _answer(send, 422, f"The body is not JSON in UTF-8: {why}.")
            return
        events = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replayed() -> Event:
            return events.pop() if events else await receive()

        await self._app(scope, replayed, send)

    async def _refuse_length(self, send: Send) -> None:
        await _answer(send, 413, f"A request has at most {self._limit} bytes.")


async def _answer(send: Send, status: int, detail: str) -> None:
    """A refusal, after which the connection is closed: the rest of the request is not read."""
    body = json.dumps({"detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def unreadable(body: bytes) -> str | None:
    """Why a body is not valid JSON, also where Python would read it (NaN, 1e400, lone surrogates); None when it is."""
    try:
        text = body.decode()
        if text.count("{") + text.count("[") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
            return f"it nests more than {MAX_DEPTH} levels deep"
        strict_json(text)
    except UnicodeDecodeError as error:
        return f"byte {error.start} is no character"
    except json.JSONDecodeError:
        return None  # The application says where.
    except ValueError as error:  # also integers with more digits than Python converts
        return str(error)
    return None


def check(text: str | None) -> str | Problem:
    """The frame that may be passed on, or what is wrong with it. Halves of surrogate pairs in it become `?`."""
    if text is None:
        return Problem("INVALID_JSON", "Frames are JSON text, got a binary frame.")
    if len(text) > MAX_FRAME:
        return Problem("VALIDATION_ERROR", f"A frame has at most {MAX_FRAME} characters, got {len(text)}.")
    if text.count("{") + text.count("[") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        return Problem("VALIDATION_ERROR", f"A frame nests at most {MAX_DEPTH} levels deep.")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # also integers with more digits than Python converts
        return Problem("INVALID_JSON", f"Invalid JSON: {error}")
    if not isinstance(data, dict):
        kind = "null" if data is None else type(data).__name__
        return Problem("VALIDATION_ERROR", f'A frame is an object like {{"type": "state"}}, got {kind}.')
    if "\\ud" in text or "\\uD" in text:
        clean = json.dumps(data, ensure_ascii=False).encode("utf-8", "replace").decode()
        return clean
    return text


def _depth(text: str) -> int:
    """How deep the brackets outside strings nest."""
    depth = deepest = 0
    quoted = escaped = False
    for mark in text:
        if quoted:
            if escaped:
                escaped = False
            elif mark == "\\":
                escaped = True
            elif mark == '"':
                quoted = False
        elif mark == '"':
            quoted = True
        elif mark in "{[":
            depth += 1
            deepest = max(deepest, depth)
        elif mark in "}]":
            depth -= 1
    return deepest
