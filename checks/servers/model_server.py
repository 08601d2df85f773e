"""A small server that speaks the part of vLLM's protocol that we use, with a real model: for tests where vLLM is not installed.

    python -m checks.servers.model_server --model FOLDER --port 8001 --enable-lora [any other of vLLM's arguments]

Routes, fields, statuses and the environment variable for loading adapters follow vLLM 0.32. Sampling is the in-process sampler's.
It serves one request after another and is no server for use.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


class ModelState:
    """The model and what is loaded."""

    def __init__(self, folder: Path, modules: list[str]) -> None:
        from onthejob.models.base_model import load_base
        from onthejob.models.chat import ChatEncoder
        from onthejob.models.sampler import Sampler

        base = load_base(folder, dtype="float32")
        self.chat = ChatEncoder(base.tokenizer)
        self.sampler = Sampler(base.model, self.chat, base_digest=base.digest)
        self.lock = threading.Lock()
        self.draws = 0
        # The sampler applies an adapter's logit scale, of which vLLM knows nothing.
        self.undo: dict[str, float] = {}
        for module in modules:
            name, _, path = module.partition("=")
            status, answer = self.load({"lora_name": name, "lora_path": path})
            if status != 200:
                raise SystemExit(str(answer))

    def load(self, body: dict[str, Any]) -> tuple[int, Any]:
        """As vLLM: 400 when the name is loaded, 404 without the files, 500 when the engine refuses."""
        from onthejob.errors import OnTheJobError
        from onthejob.models.adapter_weights import read_logit_scale
        from onthejob.types import Adapter

        name, path = str(body["lora_name"]), Path(str(body["lora_path"]))
        if name in self.sampler.published:
            return 400, problem(f"The lora adapter '{name}' has already been loaded.", 400)
        if not (path / "adapter_config.json").is_file():
            return 404, problem(f"Loading lora {name} failed: No adapter found for {path}", 404)
        role, _, version = name.partition("@")
        try:
            self.sampler.publish(Adapter(role=role, version=int(version), path=path), keep=True)
            self.undo[name] = read_logit_scale(path)
        except OnTheJobError as error:
            return 500, problem(str(error), 500)
        return 200, f"Success: LoRA adapter '{name}' added successfully."

    def unload(self, body: dict[str, Any]) -> tuple[int, Any]:
        """As vLLM: 404 when it is not loaded."""
        name = str(body["lora_name"])
        if name not in self.sampler.published:
            return 404, problem(f"The lora adapter '{name}' cannot be found.", 404)
        self.sampler.withdraw(name)
        return 200, f"Success: LoRA adapter '{name}' removed successfully."

    def complete(self, body: dict[str, Any]) -> tuple[int, Any]:
        """`n` replies to one prompt of token ids, or the log-probabilities of the prompt."""
        from onthejob.types import Sampling

        model, prompt = body["model"], tuple(body["prompt"])
        if model != "base" and model not in self.sampler.published:
            return 404, problem(f"The model `{model}` does not exist.", 404)
        adapter = None if model == "base" else model
        count = body.get("n", 1)
        self.draws += count
        temperature = body.get("temperature", 1.0) * self.undo.get(model, 1.0)
        sampling = Sampling(temperature=temperature, max_new_tokens=body.get("max_tokens", 16))
        seeds = range(self.draws, self.draws + count)
        replies = self.sampler.generate([prompt] * count, adapter=adapter, sampling=sampling, seeds=list(seeds))
        choices: list[dict[str, Any]] = []
        for index, reply in enumerate(replies):
            choice: dict[str, Any] = {"index": index, "text": reply.text, "finish_reason": reply.finish_reason, "logprobs": None}
            if body.get("logprobs") is not None:
                choice["logprobs"] = {"token_logprobs": list(reply.logprobs), "tokens": [], "top_logprobs": [], "text_offset": []}
            if body.get("return_token_ids"):
                choice |= {"token_ids": list(reply.token_ids), "prompt_token_ids": list(prompt)}
            if body.get("prompt_logprobs") is not None:
                scores = self.sampler.score(prompt, adapter=adapter)
                shown = zip(prompt[1:], scores, strict=True)
                choice["prompt_logprobs"] = [None, *({str(token): {"logprob": score}} for token, score in shown)]
            choices.append(choice)
        return 200, {"id": "cmpl-1", "object": "text_completion", "created": 0, "model": model, "choices": choices, "usage": {}}

    def models(self) -> dict[str, Any]:
        """The base and what is loaded."""
        return {"object": "list", "data": [{"id": name, "object": "model"} for name in ("base", *self.sampler.published)]}


def problem(message: str, code: int) -> dict[str, Any]:
    """VLLM's error body."""
    return {"error": {"message": message, "type": "error", "param": None, "code": code}}


def make_handler(state: ModelState, *, can_load: bool) -> type[BaseHTTPRequestHandler]:
    """The handler of one server."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            paths = ["/health", "/v1/models", "/v1/completions", *([LOAD, UNLOAD] if can_load else [])]
            known: dict[str, Any] = {
                "/health": "",
                "/v1/models": state.models(),
                "/openapi.json": {"openapi": "3.1.0", "paths": {path: {} for path in paths}},
            }
            self._send(200, known[self.path]) if self.path in known else self._send(404, {"detail": "Not Found"})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            routes = {"/v1/completions": state.complete}
            if can_load:
                routes |= {LOAD: state.load, UNLOAD: state.unload}
            if self.path not in routes:
                self._send(404, {"detail": "Not Found"})
                return
            with state.lock:
                status, answer = routes[self.path](body)
            self._send(status, answer)

        def _send(self, status: int, answer: Any) -> None:
            content = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    return Handler


def main(argv: list[str] | None = None) -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--enable-lora", action="store_true")
    parser.add_argument("--lora-modules", nargs="*", default=[])
    options, _ = parser.parse_known_args(argv)
    state = ModelState(options.model, options.lora_modules)
    can_load = options.enable_lora and os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING") == "1"
    with ThreadingHTTPServer(("127.0.0.1", options.port), make_handler(state, can_load=can_load)) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
