"""A learner whose updates are made by a training worker on another machine: it takes the place of `LocalLearner` in the loop.

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
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import httpx
from peft import PeftModel
from safetensors.torch import load, save
from torch import Tensor

from onthejob.errors import ConfigError, ServeError, TrainingError
from onthejob.learn.batch import Advantages
from onthejob.learn.learner import LearnerConfig, LocalLearner, UpdateMetrics
from onthejob.learn.lora import Snapshot, alpha_of
from onthejob.serve.bounds import check_state
from onthejob.serve.messages import GROUPS, LEARNER_CONFIG, TrainRequest
from onthejob.texts import printable, redacted, secrets_of_headers
from onthejob.types import Group

log = logging.getLogger(__name__)

TOKEN_ENV = "ONTHEJOB_TRAINER_TOKEN"
"""Environment variable with the worker's token, at least 16 characters, on both sides."""
CA_ENV = "ONTHEJOB_TRAINER_CA"
"""Environment variable with a file of certificates to trust, for a worker with a self-signed one."""

CONNECT_S = 10.0
"""Seconds to reach the worker."""
HEALTH_S = 30.0
"""Seconds for its answer to the first question."""
GONE_S = 600.0
"""Seconds without a worker that a run waits: starting one takes minutes where its model is large."""


class Patience:
    """Attempts at a worker that may be away: how long they continue after its last sign of life."""

    def __init__(self, gone_s: float, wait_s: float) -> None:
        """Arguments: `gone_s` seconds without a sign of life until the attempts end; `wait_s` seconds between two of them."""
        self._gone_s, self._wait_s = gone_s, wait_s
        self._since: float | None = None

    def seen(self) -> None:
        """The worker lives: the time begins anew with the next failure."""
        self._since = None

    def pause(self) -> bool:
        """Wait for the next attempt, the last of which is after `gone_s`; False when that has failed too."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        left = self._since + self._gone_s - now
        if left <= 0:
            return False
        time.sleep(min(left, self._wait_s))
        return True


class Taught(NamedTuple):
    """A group as it is sent to a worker."""

    group: Group
    advantages: tuple[float, ...]
    """One per trajectory."""


class RemoteLearner:
    """Updates are made by a worker; everything else is local."""

    at_once = 1

    def __init__(
        self,
        local: LocalLearner,
        url: str,
        *,
        base_digest: str,
        token: str,
        timeout_s: float = 3600.0,
        gone_s: float = GONE_S,
        wait_s: float = 5.0,
    ) -> None:
        """Connect.

        Args:
            local: holds the adapters here.
            url: of the worker, without a path.
            base_digest: of the base's weights; the worker must have the same.
            token: of the worker.
            timeout_s: seconds without a line from the worker after which it counts as gone.
            gone_s: seconds without a sign of life of the worker for which an update is asked for again; it is made once all
                the same.
            wait_s: seconds between two attempts.

        Raises:
            ConfigError: the URL cannot be used, or the worker has another base, other roles, or another alpha.
            ServeError: the worker does not answer.
        """
        self._local = local
        health = reach(url, token=token, roles=local.roles)
        self._http = connect(url, token=token, timeout_s=timeout_s)
        self._base_digest, self._gone_s, self._wait_s, self._timeout_s = base_digest, gone_s, wait_s, timeout_s
        try:
            self._greet(url, health, base_digest)
        except BaseException:
            self._http.close()
            raise

    def _greet(self, url: str, health: Mapping[str, Any], base_digest: str) -> None:
        if health.get("base") != base_digest:
            raise ConfigError(f"the worker at {url} has the base {str(health.get('base'))[:12]}, here it is {base_digest[:12]}.")
        # Tensors of another rank are refused when they arrive; alpha is in none of them.
        for role in self._local.roles:
            here, there = alpha_of(self.model, role), health.get("alpha", {}).get(role)
            if there is not None and there != here:
                raise ConfigError(
                    f"the worker at {url} has alpha {there:g} for {role}, here it is {here:g}. "
                    f"Start it with --lora.alpha {here:g}."
                )

    @property
    def model(self) -> PeftModel:
        """Holds the adapters here."""
        return self._local.model

    @property
    def config(self) -> LearnerConfig:
        """For all roles."""
        return self._local.config

    def export_state(self, role: str) -> dict[str, Tensor]:
        """As `LocalLearner.export_state`."""
        return self._local.export_state(role)

    def import_state(self, role: str, tensors: Mapping[str, Tensor]) -> None:
        """As `LocalLearner.import_state`."""
        self._local.import_state(role, tensors)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def collate(self, groups: Sequence[Group], advantages_G: Sequence[Advantages | None], /) -> list[Taught]:
        """The groups that teach something; the worker packs them into rows, which depend on its model's layout."""
        pairs = zip(groups, advantages_G, strict=True)
        return [Taught(group, tuple(values.tolist())) for group, values in pairs if values is not None]

    def revert(self, role: str, before: Mapping[str, Tensor]) -> None:
        """As `LocalLearner.revert`."""
        self._local.revert(role, before)

    def update(self, role: str, batches: Sequence[Taught], *, reference: Snapshot | None = None) -> UpdateMetrics:
        """As `LocalLearner.update`; the worker's new state becomes ours.

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
            "groups": GROUPS.dump_python([taught.group for taught in batches], mode="json"),
            "advantages": [taught.advantages for taught in batches],
        }
        if reference is not None:
            start = packed({f"lora/{name}": tensor for name, tensor in reference.tensors.items()})
            known[digest_of(start)] = start
            request["reference"] = digest_of(start)
        body = TrainRequest.model_validate(request).model_dump_json().encode()
        answer = self._asked(body, known)
        try:
            digest, metrics = str(answer["state"]), UpdateMetrics(**answer["metrics"])
        except (KeyError, TypeError) as error:
            raise ServeError(f"the training worker's answer lacks something or has too much: {self._told(error)}.") from error
        self.import_state(role, load(self._fetch(digest)))
        return metrics

    def _asked(self, body: bytes, known: Mapping[str, bytes]) -> dict[str, Any]:
        patience, until = Patience(self._gone_s, self._wait_s), time.monotonic() + self._timeout_s
        while True:
            try:
                event = self._once(body, known)
            except httpx.HTTPError as error:
                problem = type(error).__name__
                log.warning("the training worker is gone (%s); it is waited for", problem)
            else:
                if event.get("event") == "done":
                    return event
                if event.get("event") == "failed":
                    raise TrainingError(f"the training worker could not make the update: {self._told(event.get('error'))}.")
                problem = self._told(event.get("event", "cut off"))
                # `busy`: what was asked for before the connection broke is being made, which may take as long as any update.
                if time.monotonic() < until:
                    patience.seen()
            if not patience.pause():
                break
        raise ServeError(
            f"the training worker gave no update within {self._gone_s:g} s, the last time: {problem}. Start one, and then "
            "`onthejob train --resume`; --trainer-wait-s sets the time."
        )

    def _once(self, body: bytes, known: Mapping[str, bytes]) -> dict[str, Any]:
        """The last line of one request; what the worker does not know is sent and the request repeated once."""
        for _ in range(2):
            with self._http.stream("POST", "/train", content=body, headers={"content-type": "application/json"}) as response:
                if response.status_code == 200:
                    last: dict[str, Any] = {}
                    for line in response.iter_lines():
                        last = self._event(line)
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
            what = refusal.get("error") or refusal.get("detail") or content[:2000].decode("utf-8", "replace")
            raise ConfigError(f"the training worker refuses the update ({response.status_code}): {self._told(what)}")
        raise ServeError("the training worker does not keep the states that it is sent. Look at its log and its disk.")

    def _event(self, line: str) -> dict[str, Any]:
        """One line of an answer."""
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            raise ServeError(f"the training worker answered with something else than its protocol: {self._told(line)!r}.")
        return event

    def _told(self, text: object) -> str:
        """The worker's words as a message may show them."""
        return told_by(self._http, text)

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
        check_state(content, digest)
        return content


def told_by(http: httpx.Client, text: object, limit: int = 500) -> str:
    """What the server of `http` says, as a message may show it: at most so long, without the token and control characters."""
    return printable(redacted(str(text), secrets_of_headers(http.headers)))[:limit]


def connect(url: str, *, token: str, timeout_s: float) -> httpx.Client:
    """A client of the worker, which trusts the certificates in the file that `CA_ENV` names, else the usual authorities."""
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"{url!r} is not a URL ({error}). Write e.g. https://gpu.example:8100.") from error
    if not address.host:
        raise ConfigError(f"{url!r} names no host. Write e.g. https://gpu.example:8100.")
    if address.scheme != "https" and address.host not in ("127.0.0.1", "localhost", "::1"):
        raise ConfigError(f"the token is only sent over https or to this machine, not to {url}. Use https, or a tunnel.")
    trusted = os.environ.get(CA_ENV, "")
    try:
        verify = ssl.create_default_context(cafile=trusted) if trusted else True
    except OSError as error:
        raise ConfigError(f"{CA_ENV}={trusted} holds no certificate in PEM form ({error}). Name the worker's own.") from error
    timeout = httpx.Timeout(timeout_s, connect=CONNECT_S)
    headers = {"authorization": f"Bearer {token}"}
    return httpx.Client(base_url=url, timeout=timeout, headers=headers, verify=verify, trust_env=False)


def reach(url: str, *, token: str, roles: Collection[str] = (), samples: bool = False) -> dict[str, Any]:
    """What the worker says of itself: `base`, the digest of its weights; `roles`; `alpha` per role; `samples`.

    Args:
        url: of the worker, without a path.
        token: of the worker.
        roles: whose adapters it must have.
        samples: it must have a model server too.

    Raises:
        ConfigError: as `connect`, or the worker has another token or lacks something.
        ServeError: it does not answer within `CONNECT_S` and `HEALTH_S`; the message has the reason.
    """
    with connect(url, token=token, timeout_s=HEALTH_S) as http:
        try:
            health = http.get("/health").raise_for_status().json()
            is_ours = http.get(f"/states/{'0' * 64}").status_code != 401
        except (httpx.HTTPError, ValueError) as error:
            why = told_by(http, str(error) or "no reason given")
            raise ServeError(
                f"the training worker at {url} does not answer ({type(error).__name__}: {why}). "
                "`onthejob serve trainer` listens once its model is loaded: look at its output, and at the address."
            ) from error
    if not isinstance(health, dict) or "roles" not in health:
        raise ServeError(f"the server at {url} is not a training worker. Name the address that `onthejob serve trainer` prints.")
    if not is_ours:
        raise ConfigError(f"the worker at {url} has another token. Set {TOKEN_ENV} to the same on both sides.")
    missing = sorted(set(roles) - set(health["roles"]))
    if missing:
        raise ConfigError(
            f"the worker at {url} has no adapter for {', '.join(missing)}. Start it with --roles {' '.join(roles)}."
        )
    if samples and not health.get("samples"):
        raise ConfigError(f"the worker at {url} has no model server, which --sampler worker needs. Start it with --serve-model.")
    return health


def token_from(environ: Mapping[str, str] | None = None) -> str:
    """The worker's token."""
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
