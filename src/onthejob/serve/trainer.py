"""The training worker: groups and a learner's state in, the next state out.

A worker keeps nothing that a request depends on but states by their content's name, so the same request gives the same answer
from any worker, and a path never travels. Roles are trained one after another; memory is freed in between.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Generator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from pydantic import ValidationError

from onthejob.errors import ConfigError, OnTheJobError, ServeError
from onthejob.files import published_file, remove_abandoned
from onthejob.learn.interrupt import Interrupt, Interrupted
from onthejob.learn.learner import Learner
from onthejob.models.window import context_window, refuse_longer
from onthejob.serve.bounds import check_advantages, check_tokens, checked_config, checked_groups
from onthejob.serve.jobs import Jobs
from onthejob.serve.messages import (
    COMPLETIONS,
    GROUPS,
    LEARNER_CONFIG,
    HotloadRequest,
    SampleRequest,
    TrainRequest,
    UnknownStates,
)
from onthejob.serve.updates import Update, Updates
from onthejob.types import Adapter, Completion

if TYPE_CHECKING:
    from peft import PeftModel

log = logging.getLogger(__name__)

KEPT_STATES = 8
"""States per role that stay on the worker's disk: what an update starts from, its reference, its result, what goes live, and as
many again for clients that come back for an answer. A client that needs an older one sends it again."""
HEARTBEAT_S = 5.0
"""Seconds between two lines of an update under way."""
CANCEL_S = 30.0
"""Seconds in which an update that is cancelled ends: it is noticed after each of the model's layers."""
END_S = 1.0
"""Seconds that the end of the worker waits for its updates."""
CANCELLED = "it was cancelled there. Once the worker was started again, `onthejob train --resume` has the update tried anew"


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
            serving: the model server on this machine; None refuses /hotload and /sample.
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
        self._under_way = Updates()
        self._layout = None
        self.updates = 0
        """Made by this process."""

    @property
    def busy(self) -> bool:
        """True while an update runs."""
        return self._under_way.busy

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
        if self.state_path(digest) is None:
            with published_file(self._states / f"{digest}.safetensors") as temporary:
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
        """Claim and do one update, with its progress. A client that comes while it runs receives `busy` and may ask again."""
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
        # Begun before anything is said: a client that goes away, now or later, does not stop an update that was claimed.
        try:
            update = self._under_way.begin(key, request.role, lambda update: self._work(update, request))
        except ServeError:
            self.jobs.release(key)
            raise
        yield {"event": "claimed", "key": key, "attempt": job.attempt}
        yield from update.events(HEARTBEAT_S)

    def under_way(self) -> list[dict[str, Any]]:
        """Key, role and age in seconds of every update that was claimed and has no outcome yet, the oldest first."""
        return self._under_way.listed()

    def cancel(self, key: str) -> bool:
        """End an update; sent again to this worker, it fails. True when it ended within `CANCEL_S` seconds."""
        ended = self._under_way.cancel(key, CANCEL_S)
        if ended is None:
            raise ConfigError(f"no update {key[:12]!r} is under way on this worker. `GET /jobs` lists those that are.")
        return ended

    def close(self) -> None:
        """End every update, undone: another worker, or this one when it is started again, makes it when it is asked."""
        # Counted out first: the process may be killed before the updates have ended.
        self.jobs.stopping()
        for key in self._under_way.end(END_S):
            self.jobs.hand_over(key)

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
        with self._under_way.turn():
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
        check_tokens(request.prompts, self.model)
        refuse_longer(context_window(self.model.config), request.prompts, new_tokens=0)
        return COMPLETIONS.dump_python(serving.generate(request), mode="json")

    @property
    def samples(self) -> bool:
        """Whether it has a model server, which /hotload and /sample need."""
        return self._serving is not None

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
        # Before it is claimed: a job that cannot be done, or would end this process, is not tried again.
        groups = checked_groups(request.groups, checked_config(request.config), self.model)
        check_advantages(request.advantages, groups)

    def _check_role(self, role: str) -> None:
        if role not in self.model.peft_config:
            raise ConfigError(f"this worker has no adapter for {role!r}; it has {sorted(self.model.peft_config)}.")

    def _work(self, update: Update, request: TrainRequest) -> dict[str, Any]:
        key = update.key
        try:
            with self._under_way.turn(update.interrupt):
                result = self._update(request, update.interrupt)
            self.jobs.finish(key, result)
            return {"event": "done", "key": key, **result}
        except Interrupted:
            if self._under_way.ending:
                self.jobs.hand_over(key)
                return {"event": "stopped", "key": key}
            with contextlib.suppress(OnTheJobError):
                self.jobs.fail(key, CANCELLED, cancelled=True)
            return {"event": "failed", "key": key, "error": CANCELLED}
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

    def _update(self, request: TrainRequest, interrupt: Interrupt) -> dict[str, Any]:
        from safetensors.torch import load, save

        from onthejob.learn.lora import Snapshot

        groups = GROUPS.validate_python(request.groups)
        config = LEARNER_CONFIG.validate_python(request.config)
        learner = Learner(self.model, [request.role], config=config, seed=self._seed, layout=self._layout)
        self._layout = learner.layout
        try:
            reference = None
            if request.reference is not None:
                self._load_weights(request.role, self._known(request.reference))
                reference = Snapshot.take(self.model, request.role)
            learner.import_state(request.role, load(self._known(request.state).read_bytes()))
            with interrupt.watched(self.model):
                batches = learner.collate(groups, [np.array(values, dtype=np.float64) for values in request.advantages])
                metrics = learner.update(request.role, batches, reference=reference)
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
