"""Clients that connect and do not finish what they began, for the tests of servers."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

HEAD = b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n"
POST = b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
UNFINISHED: dict[str, bytes] = {
    "silent": b"",
    "a word": b"GE",
    "half a head": HEAD,
    "half a header": HEAD + b"x-long: " + b"a" * 4_000,
    "half an upgrade": HEAD + b"connection: upgrade\r\nupgrade: websocket\r\n",
    "no body": POST + b"content-length: 100\r\n\r\n",
    "half a body": POST + b"content-length: 100000\r\n\r\n" + b'{"a": "' + b"x" * 5_000,
    "half a chunk": POST + b"transfer-encoding: chunked\r\n\r\n40\r\n{",
    "waits to continue": POST + b"content-length: 100\r\nexpect: 100-continue\r\n\r\n",
    "half a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}
"""What a client sends before it falls silent."""


@contextlib.contextmanager
def half_open(port: int, count: int, kinds: list[str] | None = None) -> Iterator[list[socket.socket]]:
    """`count` connections that have sent the beginnings of `kinds` in turn."""
    names = kinds or list(UNFINISHED)
    with contextlib.ExitStack() as held:
        sockets: list[socket.socket] = []
        for number in range(count):
            one = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            with contextlib.suppress(OSError):  # it may have been cut off already
                one.sendall(UNFINISHED[names[number % len(names)]])
            sockets.append(one)
        yield sockets


def is_closed(one: socket.socket, within_s: float) -> bool:
    """Whether the server closes the connection within this time; what it sends before is read."""
    one.settimeout(within_s)
    try:
        while one.recv(65_536):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True
