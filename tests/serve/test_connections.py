"""Clients that never finish a request cost a server neither its descriptors nor its log nor the service of others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import Response
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from onthejob.serve.connections import BoundedServer, Connections, Listener
from onthejob.serve.unattended import Seldom

from .half_open import UNFINISHED, half_open, is_closed

REQUEST_S = 1.0


def application() -> FastAPI:
    app = FastAPI()

    @app.get("/")
    def said() -> str:
        return "here"

    @app.post("/")
    async def length(request: Request) -> int:
        return len(await request.body())

    @app.get("/large")
    def large() -> Response:
        return Response(b"x" * (32 << 20))

    @app.websocket("/slow")
    async def slow(connection: WebSocket) -> None:
        await connection.accept()
        await connection.receive_text()
        try:
            await asyncio.sleep(600)
        finally:
            await connection.send_text("too late")

    @app.websocket("/ws")
    async def echo(connection: WebSocket) -> None:
        await connection.accept()
        while True:
            await connection.send_text(await connection.receive_text())

    return app


@contextmanager
def serving(connections: Connections, **options: Any) -> Iterator[int]:
    """The port of a server that is bounded by `connections`."""
    held = socket.create_server(("127.0.0.1", 0))
    port = held.getsockname()[1]
    with Listener(held, connections) as listener:
        options = {"ws_ping_interval": None} | options
        server = BoundedServer(application(), connections, log_level="warning", timeout_graceful_shutdown=2, **options)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield port
        finally:
            began = time.monotonic()
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()
            assert time.monotonic() - began < 10, "half-open connections were waited for"


def is_served(port: int) -> bool:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20, trust_env=False) as http:
        return http.get("/").json() == "here" and http.post("/", content=b"abc").json() == 3


@pytest.mark.parametrize("kind", UNFINISHED)
def test_an_unfinished_request_is_closed_in_time_and_others_are_served(kind: str, caplog: pytest.LogCaptureFixture):
    with serving(Connections(64, request_s=REQUEST_S)) as port, half_open(port, 4, [kind]) as sockets:
        assert is_served(port)
        assert all(is_closed(one, REQUEST_S + 9) for one in sockets)
        assert is_served(port)
    assert sum(len(record.getMessage()) for record in caplog.records) < 2_000
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("kind", ["half a head", "half a body"])
def test_a_drip_of_bytes_wins_no_time(kind: str):
    with serving(Connections(64, request_s=REQUEST_S)) as port, half_open(port, 1, [kind]) as (one,):
        began = time.monotonic()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while time.monotonic() - began < 30:
                one.sendall(b"x")
                time.sleep(0.1)
        assert time.monotonic() - began < 20


@pytest.mark.parametrize("second", ["half a head", "half a body"])
def test_a_second_request_has_the_same_deadline(second: str):
    with serving(Connections(64, request_s=REQUEST_S)) as port, socket.create_connection(("127.0.0.1", port), timeout=20) as one:
        one.sendall(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        assert b"200" in one.recv(4_096)
        one.sendall(UNFINISHED[second])
        assert is_closed(one, REQUEST_S + 9)


def test_a_long_request_has_the_time_that_its_bytes_take():
    with serving(Connections(64, request_s=REQUEST_S)) as port, socket.create_connection(("127.0.0.1", port), timeout=20) as one:
        one.sendall(b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 400000\r\n\r\n")
        for _ in range(10):
            one.sendall(b"x" * 40_000)
            time.sleep(0.25)
        assert b"400000" in one.recv(4_096)


def test_a_full_server_lets_the_oldest_unfinished_request_go_and_keeps_sessions():
    connections = Connections(12, request_s=60.0)
    with (
        serving(connections) as port,
        connect(f"ws://127.0.0.1:{port}/ws", proxy=None) as session,
        half_open(port, 40, ["half a head"]) as sockets,
    ):
        assert is_served(port)
        assert is_closed(sockets[0], 10)
        assert not is_closed(sockets[39], 0.2)
        session.send("still here")
        assert session.recv(timeout=20) == "still here"


@pytest.mark.parametrize("sessions", [0, 1, 4])
def test_silent_websockets_do_not_keep_others_out(sessions: int):
    """More of them than may stay: the newest make way for a new one, established ones do not."""
    with serving(Connections(8, sessions=sessions, request_s=60.0)) as port, contextlib.ExitStack() as held:
        open_ = [held.enter_context(connect(f"ws://127.0.0.1:{port}/ws", proxy=None, close_timeout=1)) for _ in range(20)]
        for _ in range(3):
            assert is_served(port)
        for late in open_[8:]:
            with pytest.raises(ConnectionClosed):
                late.recv(timeout=20)
        open_[0].send("still here")
        assert open_[0].recv(timeout=20) == "still here"


def test_a_websocket_that_answers_no_ping_is_closed():
    upgrade = (
        b"GET /ws HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    with (
        serving(Connections(8), ws_ping_interval=0.5, ws_ping_timeout=0.5) as port,
        socket.create_connection(("127.0.0.1", port), timeout=20) as one,
    ):
        one.sendall(upgrade)
        assert is_closed(one, 30)


def test_a_server_full_of_sessions_refuses_and_recovers():
    with serving(Connections(3, sessions=3, request_s=60.0)) as port, contextlib.ExitStack() as sessions:
        for _ in range(3):
            sessions.enter_context(connect(f"ws://127.0.0.1:{port}/ws", proxy=None))
        with socket.create_connection(("127.0.0.1", port), timeout=20) as one:
            assert is_closed(one, 10)
        sessions.close()
        time.sleep(0.5)
        assert is_served(port)


def test_without_descriptors_one_line_is_written_and_the_server_recovers(caplog: pytest.LogCaptureFixture):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with serving(Connections(1_000, request_s=REQUEST_S)) as port:
        assert is_served(port)
        clients = [socket.socket() for _ in range(20)]
        # All that remain are taken, as by an application that opens files.
        resource.setrlimit(resource.RLIMIT_NOFILE, (clients[-1].fileno() + 4, hard))
        taken: list[int] = []
        try:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
            for client in clients:
                client.connect(("127.0.0.1", port))
            assert all(is_closed(client, 10) for client in clients)
        finally:
            for descriptor in taken:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for client in clients:
            client.close()
        assert is_served(port)
    assert len(caplog.records) <= 2
    assert any("may open no more files" in record.getMessage() for record in caplog.records)


def test_the_bytes_of_unfinished_requests_are_bounded():
    half = b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 4000000\r\n\r\n" + b"x" * 900_000
    with serving(Connections(64, unread=4 << 20, request_s=60.0)) as port:
        held = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(8)]
        for one in held:
            with contextlib.suppress(OSError):  # it may have been cut off meanwhile
                one.sendall(half)
        time.sleep(0.5)
        assert sum(is_closed(one, 0.3) for one in held) >= 3
        assert is_served(port)
        for one in held:
            one.close()


def test_who_takes_nothing_of_an_answer_is_cut_off():
    with serving(Connections(64, stalled_s=1.0)) as port, socket.create_connection(("127.0.0.1", port), timeout=20) as one:
        one.sendall(b"GET /large HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        time.sleep(4)
        got = 0
        try:
            while part := one.recv(1 << 20):
                got += len(part)
        except OSError:
            pass
        assert got < 32 << 20


def test_who_takes_an_answer_slowly_gets_all_of_it():
    with serving(Connections(64, stalled_s=1.0)) as port, socket.create_connection(("127.0.0.1", port), timeout=20) as one:
        one.sendall(b"GET /large HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
        got = 0
        while part := one.recv(4 << 20):
            got += len(part)
            time.sleep(0.05)
        assert got > 32 << 20


def test_time_in_which_the_server_could_not_read_is_no_delay_of_the_clients():
    now = [0.0]
    connections = Connections(4, request_s=10.0, clock=lambda: now[0])
    loop = asyncio.new_event_loop()
    ours, theirs = socket.socketpair()
    try:
        connections.accepted(ours)
        for at, open_ in [(0.5, True), (100.0, True), (105.0, True)]:
            now[0] = at
            connections.sweep(loop)
            assert is_closed(theirs, 0.05) is not open_
        for tick in range(40):
            now[0] = 105.5 + tick / 2
            connections.sweep(loop)
        assert is_closed(theirs, 0.05)
    finally:
        ours.close()
        theirs.close()
        loop.close()


def test_nobody_makes_way_whose_answer_is_under_way():
    connections = Connections(1, clock=lambda: 0.0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert connections.accepted(ours)
        assert connections.accepted(theirs), "who owes a request makes way"
        for one in connections._open.values():
            connections.note(one, owes=False)
        more, other = socket.socketpair()
        with more, other:
            assert not connections.accepted(more)


def test_what_is_closed_is_reported_in_one_line_a_minute(caplog: pytest.LogCaptureFixture):
    connections = Connections(1, clock=lambda: 5.0)
    with caplog.at_level(logging.WARNING):
        for _ in range(1_000):
            connections.refused("were refused")
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00",
        b"GET\r\n\r\n",
        b"\x00" * 64,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
    ],
    ids=range(5),
)
def test_what_is_not_http_is_logged_once(sent: bytes, caplog: pytest.LogCaptureFixture):
    with serving(Connections(64)) as port:
        for _ in range(100):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as one, contextlib.suppress(OSError):
                one.sendall(sent)
                one.recv(4_096)
        assert is_served(port)
    assert len(caplog.records) <= 3


def test_a_warning_passes_once_a_minute():
    now = [0.0]
    seldom = Seldom(lambda: now[0])

    def passes(text: str, level: int = logging.WARNING) -> bool:
        return seldom.filter(logging.LogRecord("uvicorn.error", level, "", 0, text, (), None))

    assert [passes("a"), passes("a"), passes("b"), passes("a", logging.ERROR), passes("a", logging.ERROR)] == [1, 0, 1, 1, 1]
    now[0] = 61.0
    assert [passes("a"), passes("a")] == [True, False]


def test_the_end_waits_for_no_session_at_work(caplog: pytest.LogCaptureFixture):
    with serving(Connections(8)) as port, connect(f"ws://127.0.0.1:{port}/slow", proxy=None) as session:
        session.send("begin")
        time.sleep(0.2)
    assert not any(record.exc_info for record in caplog.records)


def test_a_client_that_leaves_while_its_session_works_is_no_traceback(caplog: pytest.LogCaptureFixture):
    with serving(Connections(8)) as port:
        for _ in range(5):
            with connect(f"ws://127.0.0.1:{port}/slow", proxy=None, close_timeout=0.1) as session:
                session.send("begin")
        assert is_served(port)
    assert not any(record.exc_info for record in caplog.records)
