"""A learner whose updates are made by a training worker on another machine: it takes the place of `Learner` in the loop.

The state of every role stays here as well: a worker may be replaced at any moment, a run resumes from its own checkpoints, and
adapters are saved and published where they always are. Only what the worker does not hold yet is sent.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import ssl
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
from safetensors.torch import load, save
from torch import Tensor

from onthejob.errors import ConfigError, ServeError, TrainingError
from onthejob.learn.learner import Learner, UpdateMetrics
from onthejob.learn.lora import Snapshot, alpha_of
from onthejob.serve.messages import GROUPS, LEARNER_CONFIG, TrainRequest
from onthejob.types import Group

log = logging.getLogger(__name__)

TOKEN_ENV = "ONTHEJOB_TRAINER_TOKEN"
"""Environment variable with the worker's token, at least 16 characters, on both sides."""
CA_ENV = "ONTHEJOB_TRAINER_CA"
"""Environment variable with a file of certificates to trust, for a worker whose own is signed by nobody else."""


class RemoteLearner(Learner):
    """Updates are made by a worker; everything else is local."""

    def __init__(
        self,
        local: Learner,
        url: str,
        *,
        base_digest: str,
        token: str,
        timeout_s: float = 3600.0,
        attempts: int = 8,
        wait_s: float = 5.0,
    ) -> None:
        """Connect.

        Args:
            local: holds the adapters here.
            url: of the worker, without a path.
            base_digest: of the base's weights; the worker must have the same.
            token: of the worker.
            timeout_s: seconds without a line from the worker after which it counts as gone.
            attempts: times an update is asked for again when the worker is busy or gone; it is made once all the same.
            wait_s: seconds between them.

        Raises:
            ConfigError: the URL cannot be used, or the worker has another base, other roles, or another alpha.
            ServeError: the worker does not answer.
        """
        # Not Learner.__init__: the model, its roles and its layout are those of `local`.
        self.__dict__.update(local.__dict__)
        self._http = connect(url, token=token, timeout_s=timeout_s)
        self._base_digest, self._attempts, self._wait_s, self._timeout_s = base_digest, attempts, wait_s, timeout_s
        try:
            self._greet(url, base_digest)
        except BaseException:
            self._http.close()
            raise

    def _greet(self, url: str, base_digest: str) -> None:
        health = _health(self._http, url)
        if health.get("base") != base_digest:
            raise ConfigError(f"the worker at {url} has the base {str(health.get('base'))[:12]}, here it is {base_digest[:12]}.")
        missing = sorted(set(self.roles) - set(health.get("roles", ())))
        if missing:
            raise ConfigError(
                f"the worker at {url} has no adapter for {', '.join(missing)}. Start it with --roles {' '.join(self.roles)}."
            )
        # Tensors of another rank are refused when they arrive; alpha is in none of them.
        for role in self.roles:
            here, there = alpha_of(self.model, role), health.get("alpha", {}).get(role)
            if there is not None and there != here:
                raise ConfigError(
                    f"the worker at {url} has alpha {there:g} for {role}, here it is {here:g}. "
                    f"Start it with --lora.alpha {here:g}."
                )

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def update(self, role: str, groups: Sequence[Group], *, reference: Snapshot | None = None) -> UpdateMetrics:
        """As `Learner.update`; the worker's new state becomes ours.

        Raises:
            ServeError: the worker is gone, also after all attempts.
            TrainingError: the worker could not make the update.
        """
        state = packed(self.export_state(role))
        known = {digest_of(state): state}
        request: dict[str, Any] = {
            "role": role,
            "base": self._base_digest,
            "state": digest_of(state),
            "config": LEARNER_CONFIG.dump_python(self.config, mode="json"),
            "groups": GROUPS.dump_python(list(groups), mode="json"),
        }
        if reference is not None:
            start = packed({f"lora/{name}": tensor for name, tensor in reference.tensors.items()})
            known[digest_of(start)] = start
            request["reference"] = digest_of(start)
        body = TrainRequest.model_validate(request).model_dump_json().encode()
        answer = self._asked(body, known)
        self.import_state(role, load(self._fetch(answer["state"])))
        return UpdateMetrics(**answer["metrics"])

    def _asked(self, body: bytes, known: Mapping[str, bytes]) -> dict[str, Any]:
        problem, number, until = "", 0, time.monotonic() + self._timeout_s
        while number < self._attempts:
            if problem:
                time.sleep(self._wait_s)
            try:
                event = self._once(body, known)
            except httpx.HTTPError as error:
                problem, number = type(error).__name__, number + 1
                log.warning("the training worker is gone (%s); attempt %d of %d", problem, number, self._attempts)
                continue
            if event.get("event") == "done":
                return event
            if event.get("event") == "failed":
                raise TrainingError(f"the training worker could not make the update: {event.get('error')}.")
            problem = str(event.get("event", "cut off"))
            # `busy`: what was asked for before the connection broke is being made, which may take as long as any update.
            number += problem != "busy" or time.monotonic() > until
        raise ServeError(f"the training worker gave no update in {self._attempts} attempts, the last time: {problem}.")

    def _once(self, body: bytes, known: Mapping[str, bytes]) -> dict[str, Any]:
        """The last line of one request; what the worker does not know is sent and the request repeated once."""
        for _ in range(2):
            with self._http.stream("POST", "/train", content=body, headers={"content-type": "application/json"}) as response:
                if response.status_code == 200:
                    last: dict[str, Any] = {}
                    for line in response.iter_lines():
                        last = json.loads(line)
                    return last
                content = response.read()
            try:
                refusal = json.loads(content)
            except ValueError:
                refusal = {}
            if response.status_code == 409 and refusal.get("unknown"):
                for digest in refusal["unknown"]:
                    self._put(digest, known)
                continue
            if response.status_code >= 500:
                response.raise_for_status()
            what = refusal.get("error") or refusal.get("detail") or content[:200].decode("utf-8", "replace")
            raise ConfigError(f"the training worker refuses the update ({response.status_code}): {what}")
        raise ServeError("the training worker does not keep the states that it is sent. Look at its log and its disk.")

    def _put(self, digest: str, known: Mapping[str, bytes]) -> None:
        if digest not in known:
            raise ServeError(f"the training worker asks for the state {digest[:12]}, which is not ours.")
        self._http.put(f"/states/{digest}", content=known[digest]).raise_for_status()

    def _fetch(self, digest: str) -> bytes:
        try:
            content = self._http.get(f"/states/{digest}").raise_for_status().content
        except httpx.HTTPError as error:
            raise ServeError(f"the new state could not be fetched from the training worker ({type(error).__name__}).") from error
        if digest_of(content) != digest:
            raise ServeError("the training worker's state has another sha256 than its name. Nothing was changed here.")
        return content


def connect(url: str, *, token: str, timeout_s: float) -> httpx.Client:
    """A client of the worker, which trusts the certificates in the file that `CA_ENV` names, else the usual authorities.

    Raises:
        ConfigError: the token would be sent in the clear, or the file holds no certificate.
    """
    address = httpx.URL(url)
    if address.scheme != "https" and address.host not in ("127.0.0.1", "localhost", "::1"):
        raise ConfigError(f"the token is only sent over https or to this machine, not to {url}. Use https, or a tunnel.")
    trusted = os.environ.get(CA_ENV, "")
    try:
        verify = ssl.create_default_context(cafile=trusted) if trusted else True
    except OSError as error:
        raise ConfigError(f"{CA_ENV}={trusted} holds no certificate in PEM form ({error}). Name the worker's own.") from error
    timeout = httpx.Timeout(timeout_s, connect=10.0)
    headers = {"authorization": f"Bearer {token}"}
    return httpx.Client(base_url=url, timeout=timeout, headers=headers, verify=verify, trust_env=False)


def base_of(url: str, *, token: str) -> str:
    """Digest of the weights that the worker computes with.

    Raises:
        ConfigError: as `connect`.
        ServeError: it does not answer.
    """
    with connect(url, token=token, timeout_s=60.0) as http:
        return str(_health(http, url).get("base"))


def _health(http: httpx.Client, url: str) -> dict[str, Any]:
    try:
        health = http.get("/health").raise_for_status().json()
    except (httpx.HTTPError, ValueError) as error:
        raise ServeError(f"the training worker at {url} does not answer ({type(error).__name__}).") from error
    if not isinstance(health, dict):
        raise ServeError(f"what answers at {url} is no training worker.")
    return health


def token_from(environ: Mapping[str, str] | None = None) -> str:
    """The worker's token.

    Raises:
        ConfigError: it is not set or too short.
    """
    token = (os.environ if environ is None else environ).get(TOKEN_ENV, "").strip()
    if len(token) < 16:
        raise ConfigError(f"set {TOKEN_ENV} to the worker's token of at least 16 characters, e.g. from `openssl rand -hex 16`.")
    return token


def packed(tensors: Mapping[str, Tensor]) -> bytes:
    """A state as the worker keeps it: equal tensors, equal bytes."""
    return save({name: tensor.contiguous() for name, tensor in sorted(tensors.items())})


def digest_of(content: bytes) -> str:
    """The name of a state."""
    return hashlib.sha256(content).hexdigest()
