"""The live feed: a world's frames to every client, each from where it is."""

from __future__ import annotations

import asyncio
import json

from fastapi import WebSocket, WebSocketDisconnect
from fastapi.concurrency import run_in_threadpool

from onthejob.api.schema_office import Seats
from onthejob.api.worlds import Worlds
from onthejob.errors import ConfigError

POLL_S = 0.05
SEND_LIMIT_S = 20.0
"""A client that takes longer to receive one message is cut off."""
MOST_WATCHERS = 64
CHUNK = 60
"""Frames per message, so that a late viewer sees something at once."""


class Live:
    """`/ws/live`: sends a world's frames from where the client is. The feed is the world's own list, so nothing queues up."""

    def __init__(self, worlds: Worlds) -> None:
        self._worlds = worlds
        self._watchers = 0

    async def __call__(self, socket: WebSocket) -> None:
        """One client. It may send `{"from_seq": n}` at any time to have frames again; what else it sends is ignored."""
        asked = socket.query_params
        name, start = asked.get("world", "live"), asked.get("from_seq", "0")
        if self._watchers >= MOST_WATCHERS or not start.isdecimal() or len(start) > 6:
            await socket.close(1013 if self._watchers >= MOST_WATCHERS else 1008)
            return
        await socket.accept()
        self._watchers += 1
        cursor = _Cursor(int(start))
        listening = asyncio.create_task(_listen(socket, cursor))
        try:
            await self._send(socket, name, cursor, listening)
        except (WebSocketDisconnect, RuntimeError, TimeoutError):
            pass
        finally:
            self._watchers -= 1
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _send(self, socket: WebSocket, name: str, cursor: _Cursor, listening: asyncio.Task[None]) -> None:
        told: Seats | None = None
        while not listening.done():
            try:
                world = self._worlds.get(name)
            except ConfigError:
                await asyncio.sleep(10 * POLL_S)
                continue
            status = world.status()
            if told is not None and status.epoch != told.epoch:
                cursor.seq = min(cursor.seq, world.kept) if status.epoch == told.epoch + 1 else 0
            cursor.seq = min(cursor.seq, status.length)
            if status.length > cursor.seq or status != told:
                part = await run_in_threadpool(world.frames, cursor.seq, cursor.seq + CHUNK)
                if part.seats.epoch != status.epoch:
                    continue  # Taken back meanwhile: what is to be sent begins earlier.
                async with asyncio.timeout(SEND_LIMIT_S):
                    await socket.send_text(part.model_dump_json())
                told = part.seats
                cursor.seq += len(part.frames)
                continue
            await asyncio.sleep(POLL_S)


class _Cursor:
    """Where a client is in the feed."""

    def __init__(self, seq: int) -> None:
        self.seq = seq


async def _listen(socket: WebSocket, cursor: _Cursor) -> None:
    """Read what the client sends until it leaves."""
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return
        try:
            asked = json.loads(message.get("text") or "null")
        except (ValueError, RecursionError):
            continue
        seq = asked.get("from_seq") if isinstance(asked, dict) else None
        if type(seq) is int and 0 <= seq <= cursor.seq:
            cursor.seq = seq
