"""Keeps malformed frames away from a WebSocket session, so that they cost an error message and never the episode.

OpenEnv 0.10 ends the session, and with it the episode, on frames that are not JSON objects, are binary, nest deeply, hold
integers of thousands of digits, or cannot be echoed as UTF-8. `FrameGuard` answers those itself, in OpenEnv's own error
format, and passes the others on. `BodyGuard` bounds what a request over HTTP makes the server hold.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple

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
    """ASGI middleware: a request whose body is longer than `MAX_BODY` is answered with 413 and not read further."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Serve one request; other connections are left alone."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        lengths = [value for name, value in scope["headers"] if name == b"content-length"]
        # More digits than Python converts are too many bytes as well.
        size, answered = max([int(value[:20]) for value in lengths if value.isdigit()], default=0), False
        received = 0

        async def bounded() -> Event:
            nonlocal size, received
            event = await receive()
            received += len(event.get("body", b""))
            size = max(size, received)
            if size > MAX_BODY:
                raise _TooLarge
            return event

        async def noted(event: Event) -> None:
            nonlocal answered
            if answered or size <= MAX_BODY:  # what the application says of a body that it did not get whole is dropped
                answered = True
                await send(event)

        if size <= MAX_BODY:
            with contextlib.suppress(_TooLarge):  # an answer that has begun is cut, and the server closes the connection
                await self._app(scope, bounded, noted)
        if size > MAX_BODY and not answered:
            body = json.dumps({"detail": f"A request has at most {MAX_BODY} bytes."}).encode()
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
            ]
            await send({"type": "http.response.start", "status": 413, "headers": headers})
            await send({"type": "http.response.body", "body": body})


class _TooLarge(Exception):
    """More was sent than a request may hold."""


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
