"""An application that gives no account of clients who leave, and warnings that are not repeated."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.websockets import WebSocketDisconnect

log = logging.getLogger(__name__)

REPORT_S = 60.0
"""Seconds between two lines of the log about connections that were cut off."""
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Event, Receive, Send], Awaitable[None]]


class Seldom(logging.Filter):
    """Lets a warning pass once in `REPORT_S` seconds: clients cause uvicorn's own, e.g. by a request that is not HTTP."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it passes."""
        if record.levelno != logging.WARNING:
            return True
        now, text = self._clock(), str(record.msg)  # without what the client sent
        if now - self._last.get(text, -REPORT_S) < REPORT_S:
            return False
        self._last[text] = now
        return True


def unattended(app: App) -> App:
    """An application whose clients may leave at any moment: that is not an error, and no traceback in the log."""

    async def served(scope: Event, receive: Receive, send: Send) -> None:
        async def sent(event: Event) -> None:
            with suppress(OSError):  # uvicorn's name for a WebSocket that is gone; the application reads of it next
                await send(event)

        try:
            await app(scope, receive, sent)
        except (ClientDisconnect, WebSocketDisconnect):
            log.debug("a client left before it had its answer")
        except asyncio.CancelledError:
            log.debug("the server ends, and with it a request")

    return served
