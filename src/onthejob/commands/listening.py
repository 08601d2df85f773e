"""One listening socket per server command: taken before anything is loaded, named in every refusal, served until interrupted."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onthejob.errors import ConfigError, ServeError

if TYPE_CHECKING:
    from fastapi import FastAPI


def bind(host: str, port: int) -> socket.socket:
    """A socket that holds the address and does not listen yet, so that a client of a server that still loads is refused.

    Args:
        host: address or name of this machine.
        port: 0..65535; 0 takes a free one.
    """
    if not 0 <= port <= 65_535:
        raise ConfigError(f"port must be in 0..65535, got {port}.")
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigError(
            f"{host} is not an address of this machine ({error.strerror or error}). Choose another --host."
        ) from error
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        held.bind(address)
    except OSError as error:
        held.close()
        raise ConfigError(_cannot_listen(host, port, error)) from error
    return held


def listen(held: socket.socket, host: str) -> None:
    """Let clients of `bind`'s socket connect; they wait until the server answers."""
    try:
        held.listen()
    except OSError as error:
        port = held.getsockname()[1]
        held.close()
        raise ConfigError(_cannot_listen(host, port, error)) from error


def serve(
    app: FastAPI,
    held: socket.socket,
    host: str,
    *,
    most: int | None = None,
    sessions: int | None = None,
    large_requests: bool = False,
    ending: Callable[[], None] = lambda: None,
    **options: Any,
) -> None:
    """Serve `app` until Ctrl-C, which is the regular end.

    Connections are bounded as `serve.connections` describes.

    Args:
        app: the application.
        held: socket of `bind`; closed at the end.
        host: its address as given, for messages.
        most: connections at the same time; None takes half of the files that this process may open.
        sessions: WebSockets that never make way for other connections; None takes half of `most`.
        large_requests: unfinished requests may hold any number of bytes, because only known clients may send long ones.
        ending: called once the server is to end, before requests under way are waited for or cut off. What follows `serve`
            may not happen: the signal that ends the server ends the process with it.
        options: of `uvicorn.Config`.

    Raises:
        ConfigError: another program began to listen on the port meanwhile.
        ServeError: the application did not start; the log says why.
    """
    from onthejob.serve.connections import UNREAD, BoundedServer, Connections, Listener, most_connections

    listen(held, host)
    port = held.getsockname()[1]
    most = most_connections() if most is None else most
    connections = Connections(most, sessions=sessions, unread=None if large_requests else UNREAD)
    with Listener(held, connections) as listener:
        try:
            BoundedServer(app, connections, ending=ending, **options).run(sockets=[listener])
        except KeyboardInterrupt:
            return
        except SystemExit as error:
            raise ServeError(f"the server on {host} port {port} did not start. Its log is above.") from error


def shown_host(host: str) -> str:
    """How a client on this machine writes `host` in a URL."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}.get(host, host)


def is_loopback(host: str) -> bool:
    """True when only this machine can connect to `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    other = "--host" if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) else "--port"
    return f"cannot listen on {host} port {port}: {error.strerror or error}. Choose another {other}."
