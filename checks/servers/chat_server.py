"""A server on loopback that speaks the protocols of OpenAI, Anthropic and Bedrock; what it replies is up to the test."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

IDLE = '{"action_type":"IDLE","target":""}'


class Chat:
    """Serves one model, by its path under one of three protocols; `reply` is a function of the request, and None answers 500."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.reply: Callable[[dict[str, Any]], str | None] = lambda body: IDLE
        self.status = 200
        self.finish = "stop"
        """Why replies of the OpenAI protocol end; `length`: each was cut at its limit."""
        self.window: int | None = None
        """The context that it reports, in tokens."""
        chat = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                model = {"id": "small"} | ({} if chat.window is None else {"max_model_len": chat.window})
                self._send({"object": "list", "data": [model]}, chat.status)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                chat.seen.append(body)
                text = chat.reply(body)
                self._send(answer_of(self.path, text, finish=chat.finish), chat.status if text is not None else 500)

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
        self.origin = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.url = f"{self.origin}/v1"
        self.name = f"openai:{self.url}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def answer_of(path: str, text: str | None, *, finish: str = "stop") -> dict[str, Any]:
    """A whole answer in the protocol of the requested path."""
    blocks = [{"text": text}]
    if path.endswith("/converse"):
        usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
        message = {"role": "assistant", "content": blocks}
        return {"output": {"message": message}, "stopReason": "end_turn", "usage": usage, "metrics": {"latencyMs": 1}}
    if path.endswith("/messages"):
        usage = {"input_tokens": 10, "output_tokens": 5}
        content = [{"type": "text", **block} for block in blocks]
        return {"type": "message", "model": "small", "content": content, "stop_reason": "end_turn", "usage": usage}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
    return {"model": "small", "choices": [choice], "usage": {"prompt_tokens": 10, "completion_tokens": 5}}


def conversation(body: dict[str, Any]) -> list[tuple[str, str]]:
    """Role and text of every message of a request, the system's first, in whichever of the protocols it is written."""
    system = _text(body.get("system", ""))
    turns = [(message["role"], _text(message["content"])) for message in body["messages"]]
    return [("system", system), *turns] if system else turns


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(block["text"] for block in content)
