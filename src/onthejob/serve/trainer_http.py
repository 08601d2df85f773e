"""The training worker over HTTP.

GET  /health            {"status": "ok", "base": ..., "roles": ..., "alpha": ..., "busy": ..., "samples": ...} (no token needed)
PUT  /states/DIGEST     a learner's state of one role (safetensors), named by its sha256
GET  /states/DIGEST     one that was put or made here
POST /train             TrainRequest -> lines of JSON: claimed, running ..., and last done, failed or busy
GET  /jobs              {"jobs": [{"key": ..., "role": ..., "seconds": ...}]}: the updates under way
DELETE /jobs/KEY        ends one: {"ended": true}, or false while it is still ending; its POST /train ends with failed
POST /hotload           a state becomes the adapter `role@version` and goes live on this machine's model server
POST /sample            SampleRequest -> replies of a live adapter, or of the base, with their ids and log-probabilities
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from pydantic import ValidationError

from onthejob.errors import ConfigError, OnTheJobError, ServeError
from onthejob.serve.bounds import check_state
from onthejob.serve.messages import HotloadRequest, NotLive, SampleRequest, TrainRequest, UnknownStates
from onthejob.serve.trainer import TrainingService
from onthejob.texts import printable


def make_app(service: TrainingService, *, token: str, max_request_bytes: int = 512 << 20) -> FastAPI:
    """The worker's HTTP interface."""
    if len(token) < 16:
        raise ConfigError(f"a token needs at least 16 characters, got {len(token)}.")
    app = FastAPI(title="onthejob trainer", docs_url=None, redoc_url=None, openapi_url=None)

    @app.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Any]) -> Any:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if request.url.path != "/health" and not hmac.compare_digest(given.encode(), token.encode()):
            return JSONResponse({"error": "a valid bearer token is needed"}, status_code=401)
        return await call_next(request)

    @app.exception_handler(OnTheJobError)
    async def refused(_: Request, error: OnTheJobError) -> JSONResponse:
        missing: dict[str, Any] = {}
        if isinstance(error, UnknownStates):
            missing = {"unknown": error.digests}
        elif isinstance(error, NotLive):
            missing = {"not_live": error.name}
        # A model server that failed may serve again; everything else would be refused again.
        status = 409 if missing else 503 if isinstance(error, ServeError) else 400
        return JSONResponse({"error": printable(str(error)), **missing}, status_code=status)

    @app.get("/health")
    def health() -> dict[str, Any]:
        from onthejob.learn.lora import alpha_of

        roles = sorted(service.model.peft_config)
        return {
            "status": "ok",
            "base": service.base_digest,
            "roles": roles,
            "alpha": {role: alpha_of(service.model, role) for role in roles},
            "busy": service.busy,
            "samples": service.samples,
        }

    @app.put("/states/{digest}")
    async def put_state(digest: str, request: Request) -> dict[str, str]:
        content = await _body(request, service.max_state_bytes)
        if hashlib.sha256(content).hexdigest() != digest:
            raise HTTPException(400, "the content has another sha256 than its name")
        await run_in_threadpool(check_state, content, digest)
        return {"state": await run_in_threadpool(service.store, content)}

    @app.get("/states/{digest}")
    def get_state(digest: str) -> FileResponse:
        path = service.state_path(digest)
        if path is None:
            raise HTTPException(404, "no such state")
        return FileResponse(path, media_type="application/octet-stream")

    @app.post("/train")
    async def train(request: Request) -> StreamingResponse:
        asked = _parsed(TrainRequest, await _body(request, max_request_bytes))
        events = service.train(asked)
        first = await run_in_threadpool(next, events)  # Refusals become a status before anything is streamed.

        def lines() -> Iterator[str]:
            yield json.dumps(first) + "\n"
            for event in events:
                yield json.dumps(event) + "\n"

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    @app.get("/jobs")
    def jobs() -> dict[str, Any]:
        return {"jobs": service.under_way()}

    @app.delete("/jobs/{key}")
    def cancel(key: str) -> dict[str, bool]:
        return {"ended": service.cancel(key)}

    @app.post("/hotload")
    async def hotload(request: Request) -> dict[str, Any]:
        return await run_in_threadpool(service.hotload, _parsed(HotloadRequest, await _body(request, 65_536)))

    @app.post("/sample")
    async def sample(request: Request) -> JSONResponse:
        asked = _parsed(SampleRequest, await _body(request, max_request_bytes))
        return JSONResponse({"completions": await run_in_threadpool(service.sample, asked)})

    return app


async def _body(request: Request, limit: int) -> bytes:
    parts, size = [], 0
    stream: AsyncIterator[bytes] = request.stream()
    async for part in stream:
        size += len(part)
        if size > limit:
            raise HTTPException(413, f"a body of at most {limit} bytes is taken")
        parts.append(part)
    return b"".join(parts)


def _parsed(kind: type[Any], content: bytes) -> Any:
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        problem = error.errors()[0]
        raise HTTPException(422, printable(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}")) from error
