"""A session of an OpenEnv server: its schemas, and one connection that is one episode.

The client of the package `openenv` connects again without a word when its connection is lost, and the next step would be one of a
fresh, foreign episode. Here a lost connection, a server that does not answer in time, and an error of the server end the episode.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from onthejob.errors import ConfigError, MissingDependency, ServeError

try:
    from openenv.core.generic_client import GenericEnvClient
    from websockets.exceptions import WebSocketException
    from websockets.protocol import State
except ImportError as error:
    raise MissingDependency(f"openenv is not installed ({error}). Run: pip install 'onthejob[openenv]'") from error

SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
"""Scheme of a URL -> that of its pages."""
SCHEMA_TIMEOUT_S = 10.0
MOST_BYTES = 4 * 2**20
"""Of a server's schemas."""
CODE = re.compile(r"\(code: ([A-Z_]+)\)$")
CLOSING_S = 2.0
"""Seconds that a server has to answer the end of a session."""


class Answer(NamedTuple):
    """A server's answer to a reset or a step."""

    observation: Mapping[str, Any]
    reward: float
    done: bool


class Rejected(Exception):
    """The server did not accept an action, and its session continues."""

    def __init__(self, message: str, code: str) -> None:
        """message: the server's. code: VALIDATION_ERROR where the action does not fit the schema, else EXECUTION_ERROR."""
        super().__init__(message)
        self.code = code


class Full(ServeError):
    """The server has no session left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a server is reached."""

    url: str
    token_variable: str = ""
    timeout_s: float = 60.0

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every connection."""
        if not self.token_variable:
            return {}
        token = os.environ.get(self.token_variable, "").strip()
        if not token:
            raise ConfigError(f"--env.token-variable {self.token_variable} is not set. Export the token of {self.url} in it.")
        return {"Authorization": f"Bearer {token}"}

    @property
    def exposed(self) -> bool:
        """True when a token would travel unencrypted to another machine."""
        return bool(self.token_variable) and urlsplit(self.url).scheme == "http" and not is_loopback(self.url)


def normal_url(given: str) -> str:
    """The base URL of a server."""
    text = given if "://" in given else f"http://{given}"
    try:
        parts = urlsplit(text)
        usable = parts.scheme in SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, usable = urlsplit(""), False
    if not usable or parts.username or parts.query or parts.fragment:
        raise ConfigError(
            f"openenv:{given} must name a server by http, https, ws or wss, e.g. openenv:http://127.0.0.1:8000; a token is given "
            "with --env.token-variable."
        )
    path = parts.path.rstrip("/").removesuffix("/ws")
    return urlunsplit((SCHEMES[parts.scheme], parts.netloc, path, "", ""))


def is_loopback(url: str) -> bool:
    """True for this machine's own addresses."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def schemas(access: Access) -> dict[str, Any]:
    """What the server publishes of its actions and observations; empty where it is protected by a token that is not given."""
    request = urllib.request.Request(f"{access.url}/schema", headers={"Accept": "application/json", **access.headers})
    # As the client: a proxy is for other machines.
    proxies = urllib.request.ProxyHandler({} if is_loopback(access.url) else None)
    try:
        with urllib.request.build_opener(proxies).open(request, timeout=min(SCHEMA_TIMEOUT_S, access.timeout_s)) as response:
            found = json.loads(response.read(MOST_BYTES))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (401, 403):
            if access.token_variable:
                raise ConfigError(f"{access.url} refuses the token of --env.token-variable {access.token_variable}.") from error
            return {}
        raise ConfigError(
            f"{access.url}/schema answers {error.code}, so {access.url} is no OpenEnv 0.10 server. Correct the URL."
        ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ConfigError(
            f"the OpenEnv server {access.url} cannot be reached: {reason}. Start it, or correct the URL."
        ) from error
    if not isinstance(found, dict) or not isinstance(found.get("action"), dict):
        raise ConfigError(f"{access.url}/schema describes no action, so {access.url} is no OpenEnv 0.10 server. Correct the URL.")
    return found


class _Once(GenericEnvClient):
    """OpenEnv's client, which connects once."""

    _begun = False

    async def _connect_async(self) -> _Once:
        if self._begun and (self._ws is None or self._ws.state is not State.OPEN):
            raise ConnectionError(f"the connection was lost, and the episode with it{await self._last_words()}")
        await super()._connect_async()
        self._begun = True
        return self

    async def _last_words(self) -> str:
        """The error that the server sent before it closed the connection, as OpenEnv's client writes errors."""
        try:
            frame = {} if self._ws is None else json.loads(await self._ws.recv())
        except (WebSocketException, ValueError):
            return ""
        said = frame.get("data") if isinstance(frame, dict) and frame.get("type") == "error" else None
        return f": {said.get('message')} (code: {said.get('code')})" if isinstance(said, dict) else ""


class Session:
    """One connection, one episode."""

    def __init__(self, access: Access) -> None:
        """Connect.

        Raises:
            ServeError: the server cannot be reached.
        """
        self._url, self._limit = access.url, access.timeout_s
        self._client = _Once(
            base_url=access.url,
            connect_timeout_s=access.timeout_s,
            message_timeout_s=access.timeout_s,
            # A server that computes a step in the thread of its sockets answers no ping meanwhile.
            websocket_ping_timeout_s=access.timeout_s,
            mode="simulation",
            headers=access.headers,
        ).sync()
        self._open = True
        self._called("connect", lambda: self._client.connect())

    def reset(self, **options: Any) -> Answer:
        """Begin the episode.

        Raises:
            ServeError: the server refused, failed, or did not answer in time.
        """
        try:
            return self._answer("reset", self._called("reset", lambda: self._client.reset(**options)))
        except Rejected as error:
            self.abandon()
            raise ServeError(f"the OpenEnv server {self._url} refused reset: {error}. Correct --env.reset-options.") from error

    def step(self, action: Mapping[str, Any]) -> Answer:
        """Step one action.

        Raises:
            Rejected: the server did not accept the action.
            ServeError: the server failed, did not answer in time, or the connection was lost.
        """
        return self._answer("step", self._called("step", lambda: self._client.step(dict(action))))

    def close(self) -> None:
        """End the session; a server that does not answer is left."""
        if self._open:
            self.abandon().join(CLOSING_S)

    def abandon(self) -> threading.Thread:
        """End the session without waiting for the server."""
        self._open = False
        thread = threading.Thread(target=_quietly_close, args=(self._client,), name="openenv-close", daemon=True)
        thread.start()
        return thread

    def _called(self, what: str, call: Any) -> Any:
        if not self._open:
            raise ServeError(f"the session of the OpenEnv server {self._url} is closed. Begin another episode.")
        try:
            return call()
        except TimeoutError as error:
            self.abandon()
            raise ServeError(
                f"the OpenEnv server {self._url} did not answer {what} within {self._limit:g} s. Raise --env.timeout-s, or look "
                "at the server's log."
            ) from error
        except (OSError, RuntimeError, WebSocketException, ValueError, AssertionError) as error:
            found = CODE.search(str(error))
            code, said = found[1] if found else "", str(error).removeprefix("Server error: ")
            if code in ("VALIDATION_ERROR", "EXECUTION_ERROR"):
                raise Rejected(CODE.sub("", said).strip(), code) from error
            self.abandon()
            if code == "CAPACITY_REACHED":
                raise Full(
                    f"the OpenEnv server {self._url} has no session left ({said}). Raise its max_concurrent_envs to the number "
                    "of episodes that are played at once."
                ) from error
            raise ServeError(f"the OpenEnv server {self._url} failed at {what}: {said or type(error).__name__}.") from error

    def _answer(self, what: str, found: Any) -> Answer:
        observation, reward = found.observation, found.reward
        if not isinstance(observation, Mapping):
            self.abandon()
            raise ServeError(
                f"the OpenEnv server {self._url} answered {what} with the observation {observation!r:.60}, no object."
            )
        # A step may pay nothing; NaN and infinities are refused where rewards are added up.
        paid = 0.0 if reward is None else float(reward)
        return Answer(observation, paid, bool(found.done))


def _quietly_close(client: Any) -> None:
    """Close a client; the connection may be lost and the server gone, and nothing is to be done about either."""
    try:
        client.close()
    except (OSError, RuntimeError, WebSocketException):
        return
