"""The address on loopback that agent programs call.

One server answers the programs of all episodes; a random token, given to the program as its API key, tells them apart and keeps
other processes out. What calls mean is in `program_talk`; they wait for replies in `program_line`.
"""

from __future__ import annotations

import hmac
import json
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from onthejob.interop import program_talk as talk
from onthejob.interop.program_line import CallLine
from onthejob.interop.program_talk import ReplyCall, RequestRefused

log = logging.getLogger(__name__)

MOST_BODY = 16 << 20
"""Bytes of a request."""
MOST_CONNECTIONS = 1024
"""Connections at the same time; more are closed at once."""
IDLE_S = 60.0
"""Seconds after which a connection is closed whose client sends nothing, or takes nothing of its answer."""
POLL_S = 0.1
"""Seconds between two looks of the server at whether it is to stop."""


class Server:
    """Answers the programs of all episodes of this process."""

    def __init__(self) -> None:
        self._lines: dict[CallLine, Callable[[], None]] = {}
        self._lock = threading.RLock()
        self._ignored: set[str] = set()
        self._http = _Listening(self)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(POLL_S,), name="program-server", daemon=True)
        self._thread.start()

    @property
    def origin(self) -> str:
        """Address without a path."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def add(self, line: CallLine, end: Callable[[], None]) -> None:
        """Answer the program of an episode from now on; `end` ends it, and drops its line."""
        with self._lock:
            self._lines[line] = end

    def drop(self, line: CallLine) -> None:
        """Answer it no longer."""
        with self._lock:
            self._lines.pop(line, None)

    def line_of(self, token: str) -> CallLine:
        """The episode of a token; takes as long for any wrong one.

        Raises:
            RequestRefused: there is none.
        """
        with self._lock:
            lines = list(self._lines)
        given = token.encode("utf-8", "replace")
        found = [line for line in lines if hmac.compare_digest(line.token.encode(), given)]
        if not found:
            raise RequestRefused(
                401, "the API key is not that of a running episode. Pass the variable OPENAI_API_KEY.", "invalid_api_key"
            )
        return found[0]

    def note(self, ignored: Collection[str]) -> None:
        """Say once of each parameter that it has no effect."""
        with self._lock:
            new = sorted(set(ignored) - self._ignored)
            self._ignored.update(new)
        if new:
            log.warning("calls of the program set %s without effect: the run's own sampling settings apply", ", ".join(new))

    def close(self) -> None:
        """End all programs, and stop listening."""
        with self._lock:
            ends = list(self._lines.values())
        for end in ends:
            end()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Listening(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, server: Server) -> None:
        self.served = server
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(("127.0.0.1", 0), _Handler)

    def server_bind(self) -> None:
        # Without the name of the host, for which HTTPServer asks the network.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a program's connection failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout: ClassVar[float] = IDLE_S  # type: ignore[misc]
    server: _Listening  # type: ignore[assignment]
    _body_is_read: bool

    def do_GET(self) -> None:
        self._answered(self._get)

    def do_POST(self) -> None:
        self._answered(self._post)

    def _answered(self, answer: Any) -> None:
        self._body_is_read, line = self.command == "GET", None
        try:
            line = self.server.served.line_of(self._token())
            answer(urlsplit(self.path).path.rstrip("/"), line)
        except RequestRefused as refusal:
            if line is not None:
                line.refused = refusal.message
            # What was not read would be taken for the next request.
            self.close_connection = self.close_connection or not self._body_is_read
            self._send(refusal.status, refusal.body())
        except ConnectionError:
            self.close_connection = True

    def _get(self, path: str, line: CallLine) -> None:
        if path == "/v1/models":
            return self._send(200, talk.models(line.roles))
        role = unquote(path.removeprefix("/v1/models/"))
        if role in line.roles:
            return self._send(200, talk.model(role))
        raise self._unknown(path)

    def _post(self, path: str, line: CallLine) -> None:
        if path in ("/reward", "/v1/reward"):
            line.post(self._body())
            return self._send(200, {"taken": True})
        if path not in ("/v1/chat/completions", "/v1/responses"):
            raise self._unknown(path)
        body = self._body()
        if not isinstance(body, dict):
            raise RequestRefused(400, f"the body must be an object, got {type(body).__name__}.")
        asked = line.read(path, body)
        self.server.served.note(asked.ignored)
        call = line.submit(asked, self.connection)
        if call.reply is None:
            raise ConnectionError("the client has left")
        if asked.stream:
            return self._stream(asked, call.reply, call.number)
        return self._send(200, talk.answer(asked, call.reply, call.number))

    def _unknown(self, path: str) -> RequestRefused:
        known = "POST /v1/chat/completions, POST /v1/responses, GET /v1/models and POST /reward"
        return RequestRefused(404, f"there is no {self.command} {path[:80]}; there are {known}.", "not_found")

    def _token(self) -> str:
        kind, _, token = self.headers.get("authorization", "").partition(" ")
        return token.strip() if kind.lower() == "bearer" else self.headers.get("x-api-key", "")

    def _body(self) -> Any:
        length = self.headers.get("content-length", "")
        if not length.isascii() or not length.isdecimal() or len(length) > 18 or "transfer-encoding" in self.headers:
            raise RequestRefused(411, "a request needs a content-length.")
        if int(length) > MOST_BODY:
            raise RequestRefused(413, f"a request may have {MOST_BODY} bytes, got {length}.")
        content = self.rfile.read(int(length))
        self._body_is_read = True
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise RequestRefused(400, f"the body is not JSON: {error}.") from error

    def _send(self, status: int, answer: Mapping[str, Any]) -> None:
        content = json.dumps(answer).encode()
        with suppress(ConnectionError, TimeoutError):  # the client has left
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            if status >= 400:
                self.send_header("x-should-retry", "false")
            if self.close_connection:
                self.send_header("connection", "close")
            self.end_headers()
            self.wfile.write(content)

    def _stream(self, asked: ReplyCall, reply: str, number: int) -> None:
        self.close_connection = True
        with suppress(ConnectionError, TimeoutError):
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("cache-control", "no-cache")
            self.send_header("connection", "close")
            self.end_headers()
            for event in talk.events(asked, reply, number):
                self.wfile.write(event.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""
