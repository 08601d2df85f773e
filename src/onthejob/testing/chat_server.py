"""A server on loopback that speaks the OpenAI protocol; what it replies is up to the test."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

IDLE = '{"action_type":"IDLE","target":""}'


class Chat:
    """Serves one model under the OpenAI protocol; `reply` is a function of the request, and None answers 500."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.reply: Callable[[dict[str, Any]], str | None] = lambda body: IDLE
        self.status = 200
        chat = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._send({"object": "list", "data": [{"id": "small"}]}, chat.status)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                chat.seen.append(body)
                text = chat.reply(body)
                message = {"role": "assistant", "content": text}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                usage = {"prompt_tokens": 10, "completion_tokens": 5}
                self._send({"model": "small", "choices": [choice], "usage": usage}, chat.status if text is not None else 500)

            def _send(self, answer: Any, status: int) -> None:
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        self.name = f"openai:{self.url}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
