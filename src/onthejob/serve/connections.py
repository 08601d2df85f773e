"""Connections of a server: bounded in number, each with a deadline for a complete request.

uvicorn limits the idle time between two requests, but waits forever for the rest of one, and accepts connections until the
process has no file descriptor left. Here the listening socket counts what it accepts, TLS handshakes included, and a sweep cuts
off the connections that owe a request for too long. Where there is no room for a newcomer, the connection that has owed its
request longest makes way; where none owes one, the newest WebSocket, as long as there are more of them than may stay. An answer
under way and an established session never do.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import uvicorn

from onthejob.serve.unattended import REPORT_S, Seldom, unattended

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol as HTTPProtocol
else:  # whichever parser is installed
    from uvicorn.protocols.http.auto import AutoHTTPProtocol as HTTPProtocol

log = logging.getLogger(__name__)

REQUEST_S = 20.0
"""Seconds in which a request must have arrived, plus one second for every `BODY_RATE` bytes of it."""
BODY_RATE = 16_384
"""Bytes per second that a client must send on average."""
STALLED_S = 60.0
"""Seconds after which a client that takes nothing of its answer is cut off."""
SWEEP_S = 0.5
"""Seconds between two looks at all connections."""
MOST = 1024
"""Connections at the same time, where the limit of open files allows as many."""
UNREAD = 32 << 20
"""Bytes of unfinished requests that are held at the same time."""
COLLECT = 32
"""TLS connections after which garbage is collected: each holds a buffer of 256 KiB, in a cycle."""
NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(slots=True, eq=False)
class Connection:
    """One accepted connection."""

    conn: socket.socket
    since: float
    """When it began to owe a request, or was cut off."""
    owes: bool = True
    """No complete request has arrived since the last answer, and it is no WebSocket."""
    is_session: bool = False
    """It became a WebSocket."""
    received: int = 0
    """Bytes of the request that it owes."""
    transport: asyncio.Transport | None = None
    """None until TLS is established."""
    stalled: tuple[float, int] | None = None
    """Since when the client takes nothing, and how many bytes wait for it; None while it takes them."""
    leaving: bool = False

    @property
    def is_open(self) -> bool:
        """True while it takes a file descriptor."""
        return self.conn.fileno() >= 0

    def cut(self, now: float) -> None:
        """Close it at once, whatever is under way; its descriptor is free after the event loop's next turns."""
        self.leaving, self.owes, self.since = True, False, now
        if self.transport is not None:
            self.transport.abort()
        else:
            with suppress(OSError):  # the client left first
                self.conn.shutdown(socket.SHUT_RDWR)


class Connections:
    """All connections of one server."""

    def __init__(
        self,
        most: int,
        *,
        sessions: int | None = None,
        unread: int | None = UNREAD,
        request_s: float = REQUEST_S,
        stalled_s: float = STALLED_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is accepted yet.

        Args:
            most: connections at the same time, >= 1.
            sessions: WebSockets that never make way; None takes half of `most`.
            unread: bytes of unfinished requests that are held at the same time; None where large uploads need a token.
            request_s: see `REQUEST_S`.
            stalled_s: see `STALLED_S`.
            clock: monotonic seconds.
        """
        self._most, self._unread, self._clock = most, unread, clock
        self._sessions = most // 2 if sessions is None else sessions
        self._request_s, self._stalled_s = request_s, stalled_s
        self._open: dict[int, Connection] = {}
        self._swept = clock()
        self._reported = -REPORT_S
        self._causes: Counter[str] = Counter()
        self.is_tls = False
        """Each has a large buffer, and what is left of closed ones is collected soon."""
        self._uncollected = 0

    @property
    def overfull(self) -> bool:
        """True while one more than the limit are open: the one that made way is about to be gone."""
        if len(self._open) <= self._most:
            return False
        self._forget_closed()
        now = self._clock()
        return len(self._open) > self._most and any(one.leaving and now - one.since < 1.0 for one in self._open.values())

    def accepted(self, conn: socket.socket) -> bool:
        """Count a new connection, which owes its first request from now on; False where there is no room and none makes way."""
        if len(self._open) >= self._most:
            self._forget_closed()
        if len(self._open) >= self._most and not self._make_room():
            self.refused("were refused: all others have a request or session under way")
            return False
        self._open[conn.fileno()] = Connection(conn, self._clock())
        if self.is_tls:
            self._collect()
        return True

    def _make_room(self) -> bool:
        owing = [one for one in self._open.values() if one.owes]
        sessions = [one for one in self._open.values() if one.is_session and not one.leaving]
        if owing:
            self._cut(min(owing, key=lambda one: one.since), "made way for newer ones before their request was complete")
        elif len(sessions) > self._sessions:
            self._cut(max(sessions, key=lambda one: one.since), "were WebSockets beyond the number that may stay, and made way")
        else:
            return False
        return True

    def _collect(self) -> None:
        self._uncollected += 1
        if self._uncollected >= COLLECT:
            self._uncollected = 0
            gc.collect()

    def found(self, transport: asyncio.Transport) -> Connection:
        """The connection that `transport` carries, from now on with this transport."""
        one = self._open[transport.get_extra_info("socket").fileno()]
        one.transport = transport
        return one

    def began_session(self, one: Connection) -> None:
        """Note that `one` is a WebSocket from now on."""
        if not one.leaving:
            one.owes, one.is_session, one.since = False, True, self._clock()

    def note(self, one: Connection, *, owes: bool) -> None:
        """Note whether `one` owes a request now."""
        if owes and not one.owes and not one.leaving:
            one.since, one.received = self._clock(), 0
        one.owes = owes and not one.leaving
        if one.owes and self._unread is not None and one.received > BODY_RATE:
            owing = [other for other in self._open.values() if other.owes]
            if sum(other.received for other in owing) > self._unread:
                self._cut(max(owing, key=lambda other: other.received), "held too much of unfinished requests")

    def sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cut off connections that are late, and look again every `SWEEP_S` seconds."""
        self._forget_closed()
        now = self._clock()
        # Time in which this process could not read is no delay of the clients.
        lost = now - self._swept - SWEEP_S
        self._swept = now
        for one in self._open.values():
            if lost > SWEEP_S:
                one.since += lost
            if one.owes and now - one.since > self._request_s + one.received / BODY_RATE:
                self._cut(one, f"sent no complete request in time ({self._request_s:g} s and more for a long one)")
            elif one.stalled is not None and one.transport is not None:
                began, unsent = one.stalled
                left = one.transport.get_write_buffer_size()
                if left < unsent:
                    one.stalled = now, left
                elif now - began > self._stalled_s:
                    self._cut(one, f"took nothing of their answer for {self._stalled_s:g} s")
        self._report()
        loop.call_later(SWEEP_S, self.sweep, loop)

    def stalls(self, one: Connection, *, stalled: bool) -> None:
        """Note whether the client of `one` leaves its answer waiting."""
        waiting = 0 if one.transport is None else one.transport.get_write_buffer_size()
        one.stalled = (self._clock(), waiting) if stalled else None

    def refused(self, why: str) -> None:
        """Note a connection that was closed as soon as it was accepted."""
        self._causes[why] += 1
        self._report()

    def _cut(self, one: Connection, why: str) -> None:
        one.cut(self._clock())
        self._causes[why] += 1
        self._report()

    def _report(self) -> None:
        """Write one line for all that were cut off since the last, at most once in `REPORT_S` seconds."""
        now = self._clock()
        if self._causes and now - self._reported >= REPORT_S:
            log.warning("connections that were closed: %s", "; ".join(f"{count} {why}" for why, count in self._causes.items()))
            self._causes.clear()
            self._reported = now

    def _forget_closed(self) -> None:
        for descriptor in [descriptor for descriptor, one in self._open.items() if not one.is_open]:
            del self._open[descriptor]


class Listener(socket.socket):
    """A listening socket whose accepted connections are counted."""

    def __init__(self, held: socket.socket, connections: Connections) -> None:
        """Take over the descriptor of `held`, which is closed."""
        super().__init__(held.family, held.type, held.proto, fileno=held.detach())
        self._connections = connections
        self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def accept(self) -> tuple[socket.socket, Any]:
        """As `socket.accept`.

        Raises:
            BlockingIOError: no client waits, or there is no room for one now; the event loop asks again.
        """
        try:
            if self._connections.overfull:
                return _not_now()
            conn, address = super().accept()
        except OSError as error:
            if error.errno not in NO_FILES:
                raise
            self._turn_away()
        else:
            if self._connections.accepted(conn):
                return conn, address
            conn.close()
        return _not_now()

    def _turn_away(self) -> None:
        """Refuse the first that waits: the event loop would write a traceback for each, and serve no client for a second."""
        os.close(self._reserve)
        try:
            super().accept()[0].close()
        finally:
            self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._connections.refused("were refused: this process may open no more files (`ulimit -n`)")

    def close(self) -> None:
        """As `socket.close`."""
        super().close()
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1


def _not_now() -> NoReturn:
    raise BlockingIOError(errno.EAGAIN, "there is no room for a connection")


class RequestProtocol(HTTPProtocol):
    """uvicorn's protocol, which says when a request is owed and when an answer is not taken."""

    _one: Connection

    def __init__(self, *args: Any, connections: Connections, **kwargs: Any) -> None:
        """connections: of this server. Other arguments are uvicorn's."""
        super().__init__(*args, **kwargs)
        self._all = connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._one = self._all.found(transport)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._one.received += len(data)
        super().data_received(data)
        self._note()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._all.stalls(self._one, stalled=True)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._all.stalls(self._one, stalled=False)

    def shutdown(self) -> None:
        """End with the server; a request that is not complete is not waited for."""
        if self._one.owes:
            self.transport.abort()
        else:
            super().shutdown()

    def _note(self) -> None:
        if self.transport.get_protocol() is not self:
            self._all.began_session(self._one)
            return
        cycle = self.cycle
        self._all.note(self._one, owes=cycle is None or cycle.response_complete or cycle.more_body)


class BoundedServer(uvicorn.Server):
    """uvicorn's server on one `Listener`."""

    def __init__(self, app: Any, connections: Connections, *, ending: Callable[[], None] = lambda: None, **options: Any) -> None:
        """ending: called once the server is to end. Other arguments are of `uvicorn.Config`."""
        # Another event loop than asyncio's would not accept through the socket object.
        protocol: Any = partial(RequestProtocol, connections=connections)
        super().__init__(uvicorn.Config(unattended(app), http=protocol, loop="asyncio", **options))
        self._all, self._ending, self._seldom = connections, ending, Seldom()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve and to sweep."""
        logging.getLogger("uvicorn.error").addFilter(self._seldom)
        if self.config.is_ssl:
            gc.collect()
            gc.freeze()  # What exists by now stays, and looking at it again would take long.
            self._all.is_tls = True
        await super().startup(sockets=sockets)
        self._all.sweep(asyncio.get_running_loop())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what the application has under way, then the connections."""
        await asyncio.to_thread(self._ending)
        await super().shutdown(sockets=sockets)
        logging.getLogger("uvicorn.error").removeFilter(self._seldom)
        if self.config.is_ssl:
            gc.unfreeze()


def most_connections() -> int:
    """Connections that this process can hold and still open as many files for its own work."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else max(1, min(MOST, soft // 2))
