"""The training worker: groups and a learner's state in, the next state out, over HTTP.

    GET  /health            {"status": "ok", "base": ..., "roles": ..., "alpha": ..., "busy": ...}    (no token needed)
    PUT  /states/DIGEST     a learner's state of one role (safetensors), named by its sha256
    GET  /states/DIGEST     one that was put or made here
    POST /train             TrainRequest -> lines of JSON: claimed, running ..., and last done, failed or busy
    POST /hotload           a state becomes the adapter `role@version` and goes live on this machine's model server
    POST /sample            SampleRequest -> replies of a live adapter, or of the base, with their ids and log-probabilities

A worker keeps nothing that a request depends on but states by their content's name, so the same request gives the same answer
from any worker, and a path never travels. Roles are trained one after another; memory is freed in between.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import hmac
import json
import logging
import os
import queue
import re
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from onthejob.errors import ConfigError, OnTheJobError, ServeError
from onthejob.files import published_file, remove_abandoned
from onthejob.learn.learner import Learner, LearnerConfig
from onthejob.serve.jobs import Jobs
from onthejob.types import Adapter, Completion, Group

if TYPE_CHECKING:
    from peft import PeftModel

log = logging.getLogger(__name__)

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Role = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
GROUPS = TypeAdapter(list[Group])
COMPLETIONS = TypeAdapter(list[Completion])
LEARNER_CONFIG = TypeAdapter(LearnerConfig)
KEPT_STATES = 8
"""States per role that stay on the worker's disk: what an update starts from, its reference, its result, what goes live, and as
many again for whoever comes back for an answer. Who needs an older one sends it again."""
HEARTBEAT_S = 5.0
"""Seconds between two lines of an update under way."""


class TrainRequest(BaseModel):
    """One update of one role."""

    model_config = ConfigDict(extra="forbid")
    role: Role
    base: Digest
    """Digest of the base's weights; a worker on another base refuses."""
    state: Digest
    """What the update starts from, as `Learner.export_state` gives it."""
    reference: Digest | None = None
    """State whose adapter is the KL term's reference."""
    config: dict[str, Any]
    """LearnerConfig."""
    groups: list[dict[str, Any]]

    def key(self) -> str:
        """Names everything that the answer depends on."""
        text = json.dumps(self.model_dump(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


class HotloadRequest(BaseModel):
    """A state that goes live as an adapter."""

    model_config = ConfigDict(extra="forbid")
    role: Role
    version: int = Field(ge=0, lt=10**9)
    parent: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}@[0-9]{4,9}$")] | None = None
    state: Digest


class SampleRequest(BaseModel):
    """Replies of one adapter."""

    model_config = ConfigDict(extra="forbid")
    base: Digest
    adapter: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}@[0-9]{4,9}$")] | None = None
    """None samples from the base."""
    digest: Digest | None = None
    """Of the adapter's weights, as /hotload answered it: runs share names."""
    prompts: Annotated[list[Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]], Field(max_length=4096)]
    temperature: Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
    max_new_tokens: Annotated[int, Field(ge=1)]


class ModelServing(Protocol):
    """This machine's model server, as the worker needs it."""

    def publish(self, adapter: Adapter, model: PeftModel) -> Mapping[str, Any]:
        """Let `adapter`, whose weights `model` holds now, go live; what to answer."""
        ...

    def generate(self, request: SampleRequest) -> list[Completion]:
        """One reply for each prompt, in order."""
        ...


class TrainingService:
    """What the routes do."""

    def __init__(
        self,
        model: PeftModel,
        *,
        folder: Path,
        base_digest: str,
        seed: int = 0,
        serving: ModelServing | None = None,
        max_state_bytes: int = 8 << 30,
    ) -> None:
        """Serve updates.

        Args:
            model: PEFT model with one adapter per role; its adapters are overwritten by every update.
            folder: of this worker: states, jobs, adapters.
            base_digest: of the base's weights.
            seed: of the learner.
            serving: the model server beside it; None refuses /hotload and /sample.
            max_state_bytes: largest state that is taken.
        """
        self.model, self.base_digest, self.folder = model, base_digest, folder
        self.max_state_bytes = max_state_bytes
        self._seed, self._serving = seed, serving
        self._states = folder / "states"
        self._states.mkdir(parents=True, exist_ok=True)
        remove_abandoned(self._states)
        self._keep_states = KEPT_STATES * len(model.peft_config)
        self.jobs = Jobs(folder / "jobs.sqlite")
        self._one = threading.Lock()
        self._layout = None
        self.updates = 0
        """Made by this process."""

    @property
    def busy(self) -> bool:
        """True while an update runs."""
        return self._one.locked()

    def state_path(self, digest: str) -> Path | None:
        """Where a state is; None when it is unknown."""
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            return None
        path = self._states / f"{digest}.safetensors"
        if not path.is_file():
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # The least recently used go first.
        return path

    def store(self, content: bytes) -> str:
        """Keep a state durably; returns its digest."""
        digest = hashlib.sha256(content).hexdigest()
        path = self._states / f"{digest}.safetensors"
        if not path.exists():
            with published_file(path) as temporary:
                temporary.write_bytes(content)
            self._drop_old_states()
        return digest

    def _drop_old_states(self) -> None:
        used: list[tuple[int, Path]] = []
        for path in self._states.glob("*.safetensors"):
            with contextlib.suppress(FileNotFoundError):
                used.append((path.stat().st_mtime_ns, path))
        for _, path in sorted(used)[: -self._keep_states]:
            path.unlink(missing_ok=True)

    def train(self, request: TrainRequest) -> Generator[dict[str, Any], None, None]:
        """Claim and do one update, telling how it goes. Whoever comes while it runs is told `busy` and may ask again."""
        self._check(request)
        key = request.key()
        job = self.jobs.claim(key)
        if job.state == "done" and self.state_path(str(job.result.get("state"))) is None:
            # Answered long ago, and what it made is gone: made again.
            self.jobs.forget(key)
            job = self.jobs.claim(key)
        if job.state != "claimed":
            names = {"running": "busy", "done": "done", "failed": "failed"}
            yield {"event": names[job.state], "key": key, "attempt": job.attempt, **job.result}
            return
        # In a thread of its own, begun before anything is said: a client that goes away, now or later, does not stop an update
        # that was claimed.
        answers: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=lambda: answers.put(self._work(key, request)), name="update", daemon=True).start()
        yield {"event": "claimed", "key": key, "attempt": job.attempt}
        while True:
            try:
                yield answers.get(timeout=HEARTBEAT_S)
                return
            except queue.Empty:
                yield {"event": "running", "key": key}

    def hotload(self, request: HotloadRequest) -> dict[str, Any]:
        """Save a state as an adapter and let it go live.

        Raises:
            ConfigError: there is no model server, or the state or the role is unknown.
            OnTheJobError: the adapter is refused.
        """
        from onthejob.learn import adapter_files

        serving = self._model_server()
        self._check_role(request.role)
        path = self._known(request.state)
        own = self.folder / "adapters" / request.state[:16]
        with self._one:
            self._load_weights(request.role, path)
            adapter = adapter_files.save_adapter(
                self.model,
                request.role,
                own,
                version=request.version,
                parent=request.parent,
                base_digest=self.base_digest,
                dtype="float32",
            )
            try:
                # The server keeps a checked copy of its own.
                return {"adapter": adapter.name, "digest": adapter.digest, **serving.publish(adapter, self.model)}
            finally:
                shutil.rmtree(own, ignore_errors=True)

    def sample(self, request: SampleRequest) -> list[dict[str, Any]]:
        """Replies of this machine's model server.

        Raises:
            ConfigError: there is none, or it serves another base.
            OnTheJobError: it failed.
        """
        serving = self._model_server()
        self._check_base(request.base)
        return COMPLETIONS.dump_python(serving.generate(request), mode="json")

    def _model_server(self) -> ModelServing:
        if self._serving is None:
            raise ConfigError("this worker has no model server. Start it with --serve-model.")
        return self._serving

    def _check_base(self, base: str) -> None:
        if base != self.base_digest:
            raise ConfigError(f"this worker's base is {self.base_digest[:12]}, asked for is {base[:12]}.")

    def _check(self, request: TrainRequest) -> None:
        self._check_base(request.base)
        self._check_role(request.role)
        missing = [digest for digest in (request.state, request.reference) if digest and self.state_path(digest) is None]
        if missing:
            raise UnknownStates(missing)

    def _check_role(self, role: str) -> None:
        if role not in self.model.peft_config:
            raise ConfigError(f"this worker has no adapter for {role!r}; it has {sorted(self.model.peft_config)}.")

    def _work(self, key: str, request: TrainRequest) -> dict[str, Any]:
        try:
            with self._one:
                result = self._update(request)
            self.jobs.finish(key, result)
            return {"event": "done", "key": key, **result}
        except Exception as error:
            log.exception("update %s failed", key[:12])
            text = f"{type(error).__name__}: {error}"
            if isinstance(error, OnTheJobError | ValidationError):
                # It is the request's fault, and will be again.
                with contextlib.suppress(OnTheJobError):
                    self.jobs.fail(key, text)
            else:
                # Out of memory, a full disk: the same request may succeed later.
                self.jobs.release(key)
            return {"event": "failed", "key": key, "error": text}

    def _update(self, request: TrainRequest) -> dict[str, Any]:
        from safetensors.torch import load, save

        from onthejob.learn.lora import Snapshot

        groups = GROUPS.validate_python(request.groups)
        config = LEARNER_CONFIG.validate_python(request.config)
        learner = Learner(
            self.model, [request.role], config=replace(config, layout=config.layout or self._layout), seed=self._seed
        )
        self._layout = learner.layout
        try:
            reference = None
            if request.reference is not None:
                self._load_weights(request.role, self._known(request.reference))
                reference = Snapshot.take(self.model, request.role)
            learner.import_state(request.role, load(self._known(request.state).read_bytes()))
            metrics = learner.update(request.role, groups, reference=reference)
            made = {name: tensor.contiguous() for name, tensor in learner.export_state(request.role).items()}
            digest = self.store(save(made))
            self.updates += 1
            return {"state": digest, "metrics": asdict(metrics)}
        finally:
            # The optimizer's moments of a role are as large as two adapters: they go before the next role's come.
            del learner
            gc.collect()
            import torch

            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _load_weights(self, role: str, path: Path) -> None:
        from safetensors.torch import load

        from onthejob.learn import lora

        tensors = load(path.read_bytes())
        lora.load_state(self.model, role, {n.removeprefix("lora/"): t for n, t in tensors.items() if n.startswith("lora/")})

    def _known(self, digest: str) -> Path:
        path = self.state_path(digest)
        if path is None:
            raise UnknownStates([digest])
        return path


class NotLive(ConfigError):
    """An adapter that must be hot-loaded first."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is not live here. POST /hotload first.")
        self.name = name


class UnknownStates(ConfigError):
    """States that must be put first."""

    def __init__(self, digests: list[str]) -> None:
        super().__init__(f"unknown states: {', '.join(digest[:12] for digest in digests)}. PUT /states/DIGEST first.")
        self.digests = digests


def make_app(service: TrainingService, *, token: str, max_request_bytes: int = 512 << 20) -> FastAPI:
    """The worker's HTTP interface.

    Raises:
        ConfigError: the token is shorter than 16 characters.
    """
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
        return JSONResponse({"error": str(error), **missing}, status_code=status)

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
        }

    @app.put("/states/{digest}")
    async def put_state(digest: str, request: Request) -> dict[str, str]:
        content = await _body(request, service.max_state_bytes)
        if hashlib.sha256(content).hexdigest() != digest:
            raise HTTPException(400, "the content has another sha256 than its name")
        return {"state": service.store(content)}

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
        first = next(events)  # Refusals become a status before anything is streamed.

        def lines() -> Iterator[str]:
            yield json.dumps(first) + "\n"
            for event in events:
                yield json.dumps(event) + "\n"

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    @app.post("/hotload")
    async def hotload(request: Request) -> dict[str, Any]:
        from fastapi.concurrency import run_in_threadpool

        return await run_in_threadpool(service.hotload, _parsed(HotloadRequest, await _body(request, 65_536)))

    @app.post("/sample")
    async def sample(request: Request) -> JSONResponse:
        from fastapi.concurrency import run_in_threadpool

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
        raise HTTPException(422, f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}") from error
