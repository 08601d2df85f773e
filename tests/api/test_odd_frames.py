"""A client that sends nonsense: the session that it has stays open, and so do the others."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path

import pytest
from websockets.sync.client import ClientConnection, connect

from .serving import served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def odd(luck: random.Random) -> str | bytes:
    """Binary, cut, deep, empty, of the wrong type, out of range, huge numbers, not JSON, another protocol's."""
    whole = json.dumps({"from_seq": luck.randrange(-9, 99), "more": [luck.random()] * luck.randrange(9)})
    return luck.choice(
        (
            luck.randbytes(luck.randrange(64)),
            whole[: luck.randrange(len(whole))],
            "[" * luck.randrange(9_000),
            '{"a":' * luck.randrange(3_000),
            "",
            "\x00",
            "NaN",
            json.dumps(luck.choice((None, True, 7, "x", [1], {"from_seq": None}, {"from_seq": [0]}, {"from_seq": "0"}))),
            json.dumps({"from_seq": luck.choice((-1, 1e9, 10**40, 0.5, True, False))}),
            '{"from_seq": 1e999}',
            "\ud7ff\U0010ffff" * luck.randrange(50),
            "GET / HTTP/1.1\r\n\r\n",
            "x" * luck.randrange(20_000),
        )
    )


def test_no_session_is_lost(runs: Path, counts):
    """5,000 frames, or 100,000 with ONTHEJOB_COUNTS=full."""
    luck = random.Random(1)
    with served(runs) as url:
        address = url.replace("http", "ws") + "/ws/live"
        with connect(address, origin=url) as strange, connect(address, origin=url) as other:  # type: ignore[arg-type]
            # Unread, the answers to the frames that do make sense would fill the socket, which ends a session by design.
            reader = threading.Thread(target=lambda: [None for _ in strange], daemon=True)
            reader.start()
            for _ in range(counts(5_000, 100_000)):
                strange.send(odd(luck))
            assert reader.is_alive(), "the server closed the session of the frames"
            assert begins_again(other)
        with connect(address, origin=url) as again:  # type: ignore[arg-type]
            assert begins_again(again)


def begins_again(session: ClientConnection) -> bool:
    """Whether the feed answers a request for everything."""
    session.send('{"from_seq": 0}')
    while True:
        part = json.loads(session.recv(timeout=30))
        if part["start"] == 0 and part["frames"]:
            return True
