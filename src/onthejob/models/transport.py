"""One bounded HTTP exchange: whatever the other side does, it ends before the deadline with a named outcome.

The SDKs' own clients read a body of any size, give every read a timeout of its own (so that a slow drip never ends) and repeat a
request up to three times with ten minutes each. Here one deadline covers everything, from the name's resolution to the last
byte of the last attempt; a body is read up to a limit; and at most two requests are sent, so at most two are billed.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import httpx
from annotated_types import Ge, Gt, Interval

from onthejob.errors import ProviderError
from onthejob.models.addresses import is_internal
from onthejob.models.breaker import Admission, Breaker, BreakerConfig
from onthejob.setting_ranges import Reason, check_ranges
from onthejob.texts import printable, redacted, secrets_of_headers, without, without_in

log = logging.getLogger(__name__)
T = TypeVar("T")


class Outcome(StrEnum):
    """How asking a hosted model ended."""

    OK = "ok"
    """A complete answer."""
    LENGTH = "length"
    """An answer that was cut at the token limit."""
    EMPTY = "empty"
    """An answer without text: the model's own mistake."""
    REFUSED = "refused"
    """The model, or a filter before it, declined: the model's own mistake."""
    TIMEOUT = "timeout"
    """The deadline passed."""
    CONNECTION = "connection"
    """No server listens, or the connection broke before a whole answer came."""
    RATE_LIMITED = "rate_limited"
    """429, also after the wait it asked for."""
    OVERLOADED = "overloaded"
    """5xx, 408 or 409."""
    AUTHENTICATION = "authentication"
    """401 or 403: no key, a wrong one, or no access to the model."""
    QUOTA = "quota"
    """Credit is used up (402, or a 429 that says so)."""
    BAD_REQUEST = "bad_request"
    """Any other 4xx."""
    TOO_LARGE = "too_large"
    """The body exceeded the limit; the rest was not read."""
    MALFORMED = "malformed"
    """The body is not the JSON that the protocol promises."""
    UNAVAILABLE = "unavailable"
    """Earlier attempts at this endpoint failed one after another, and until the deadline none succeeded; nothing was sent."""
    BUDGET = "budget"
    """The run's own limit of money or tokens is used up; nothing was sent."""

    @property
    def answered(self) -> bool:
        """True when the model wrote (or declined to write) something: its mistakes are data, the others are ours."""
        return self in (Outcome.OK, Outcome.LENGTH, Outcome.EMPTY, Outcome.REFUSED)

    @property
    def retryable(self) -> bool:
        """True when the same request may succeed a moment later."""
        return self in (Outcome.CONNECTION, Outcome.RATE_LIMITED, Outcome.OVERLOADED, Outcome.MALFORMED)

    @property
    def is_down(self) -> bool:
        """True when no server seems to be there: such failures in a row open the endpoint's breaker."""
        return self in (Outcome.CONNECTION, Outcome.TIMEOUT, Outcome.OVERLOADED, Outcome.MALFORMED)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLimits:
    """Bounds of one turn."""

    deadline_s: Annotated[float, Gt(0)] = 60.0
    """Seconds for everything: all attempts and the waits between them."""
    connect_s: Annotated[float, Gt(0)] = 5.0
    """Seconds to reach the server."""
    attempts: Annotated[int, Interval(ge=1, le=2), Reason("as every attempt may be billed")] = 2
    """Requests sent at most, 1 or 2."""
    body_bytes: Annotated[int, Ge(1024)] = 4 * 1024 * 1024
    """Largest answer that is read."""
    retry_after_s: Annotated[float, Gt(0)] = 20.0
    """Longest wait that a Retry-After is followed for; a longer one ends the turn."""
    parallel: Annotated[int, Ge(1)] = 8
    """Requests under way at the same time."""
    breaker: BreakerConfig = field(default_factory=BreakerConfig)
    """When an endpoint counts as down."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """What is sent."""

    url: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Not shown: they hold the key."""
    method: str = "POST"


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What came back, completely."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Keys of the request, which are nowhere in what the methods return."""

    def json(self) -> dict[str, Any]:
        """The body as a JSON object.

        Raises:
            ProviderError: it is none (`malformed`).
        """
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise failure(Outcome.MALFORMED, f"the body of {len(self.body)} bytes is not JSON ({str(error)[:100]})") from error
        if not isinstance(value, dict):
            raise failure(Outcome.MALFORMED, f"the body is a JSON {type(value).__name__}, not an object")
        return without_in(value, self.secrets) if self.secrets else value

    def text(self, limit: int) -> str:
        """The body's first `limit` characters in one line, as a message may show them."""
        return " ".join(redacted(self.body.decode("utf-8", "replace"), self.secrets).split())[:limit]


def failure(outcome: Outcome, what: str, *, retry_after_s: float | None = None) -> ProviderError:
    """The error of one outcome; `what` may be of the provider's words."""
    return ProviderError(f"{outcome}: {printable(redacted(what))}", outcome=outcome, retry_after_s=retry_after_s)


class Transport:
    """Sends requests on an event loop of its own thread, so that it can be used from anywhere, also inside another loop."""

    def __init__(self, limits: TurnLimits | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """limits: of every turn. clock: monotonic seconds."""
        self.limits = limits or TurnLimits()
        self._clock = clock
        self._loop = asyncio.new_event_loop()
        # Bedrock's client waits in a thread for every request under way; the default pool is as small as the machine.
        self._threads = ThreadPoolExecutor(self.limits.parallel + 4, thread_name_prefix="provider")
        self._loop.set_default_executor(self._threads)
        self._thread = threading.Thread(target=self._loop.run_forever, name="provider", daemon=True)
        self._thread.start()
        timeout = httpx.Timeout(self.limits.deadline_s, connect=self.limits.connect_s)
        pool = httpx.Limits(max_connections=self.limits.parallel)
        # No proxies or .netrc from the environment: a key goes where the catalogue says, and nowhere else.
        self._client = httpx.AsyncClient(timeout=timeout, limits=pool, trust_env=False, follow_redirects=False)
        self._gate = asyncio.Semaphore(self.limits.parallel)
        self._breakers: dict[str, Breaker] = {}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine that runs on this transport's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Close connections and the loop."""
        if self._loop.is_closed():
            return
        self.run(self._client.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._loop.close()

    async def turn(self, attempt: Callable[[int], Awaitable[T]], *, endpoint: str = "") -> T:
        """Run `attempt(number)` until it succeeds, at most `limits.attempts` times and within the deadline.

        Time spent waiting for a free place does not count: the deadline starts with the first attempt.

        Args:
            attempt: sends one request, or two.
            endpoint: whom it asks; turns with the same name share a breaker. Empty for none.

        Raises:
            ProviderError: the last attempt's, or `timeout`, or `unavailable`.
        """
        breaker = None
        if endpoint:
            breaker = self._breakers.setdefault(endpoint, Breaker(self.limits.breaker, clock=self._clock))
        async with self._gate:
            end = self._clock() + self.limits.deadline_s
            try:
                async with asyncio.timeout(self.limits.deadline_s):
                    return await self._attempts(attempt, end, breaker)
            except TimeoutError as error:
                raise failure(Outcome.TIMEOUT, f"no whole answer within {self.limits.deadline_s:g} s") from error

    async def _attempts(self, attempt: Callable[[int], Awaitable[T]], end: float, breaker: Breaker | None) -> T:
        for number in range(1, self.limits.attempts + 1):
            try:
                return await (attempt(number) if breaker is None else self._guarded(attempt, number, end, breaker))
            except ProviderError as error:
                outcome = Outcome(error.outcome)
                wait = 0.5 * number if error.retry_after_s is None else error.retry_after_s
                if number == self.limits.attempts or not outcome.retryable or wait > self.limits.retry_after_s:
                    raise
                if self._clock() + wait >= end:
                    raise
                log.info("attempt %d of %d: %s; again in %.1f s", number, self.limits.attempts, error, wait)
                await asyncio.sleep(wait)
        raise AssertionError("unreachable: attempts >= 1")

    async def _guarded(self, attempt: Callable[[int], Awaitable[T]], number: int, end: float, breaker: Breaker) -> T:
        entry = await breaker.enter(end=end)
        if entry is Admission.REFUSED:
            raise failure(Outcome.UNAVAILABLE, "earlier attempts failed one after another, and none succeeded meanwhile")
        failed = True  # Also when the deadline cancels it.
        try:
            answer = await attempt(number)
            failed = False
            return answer
        except ProviderError as error:
            failed = Outcome(error.outcome).is_down
            raise
        finally:
            breaker.report(entry, failed=failed)

    async def send(self, request: HttpRequest) -> Response:
        """One exchange, any status.

        Raises:
            ProviderError: `connection` or `too_large`.
        """
        limit = self.limits.body_bytes
        try:
            async with self._client.stream(
                request.method,
                request.url,
                content=request.body,
                headers={**request.headers, "accept-encoding": "identity"},
                extensions={"trace": refuse_links},
            ) as response:
                secrets = secrets_of_headers(request.headers)
                encoding = without(response.headers.get("content-encoding", "identity"), secrets)
                if encoding.lower() != "identity":
                    # Unpacked, a few kilobytes can be gigabytes; the request did not offer to unpack.
                    raise failure(Outcome.MALFORMED, f"the answer is packed ({encoding[:40]}), which was not asked for")
                parts: list[bytes] = []
                size = 0
                async for part in response.aiter_raw(65_536):
                    size += len(part)
                    if size > limit:
                        raise failure(Outcome.TOO_LARGE, f"the answer is longer than {limit} bytes")
                    parts.append(part)
                headers = {name.lower(): value for name, value in response.headers.items()}
                return Response(status=response.status_code, headers=headers, body=b"".join(parts), secrets=secrets)
        except httpx.TimeoutException as error:
            kind = Outcome.CONNECTION if isinstance(error, httpx.ConnectTimeout) else Outcome.TIMEOUT
            raise failure(kind, f"{type(error).__name__} at {_origin(request.url)}") from error
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise failure(Outcome.CONNECTION, f"{type(error).__name__} at {_origin(request.url)}") from error

    async def exchange(self, request: HttpRequest) -> dict[str, Any]:
        """One exchange that must give a JSON object with status 200.

        Raises:
            ProviderError: named as in `Outcome`.
        """
        response = await self.send(request)
        if response.status == 200:
            return response.json()
        raise status_error(response)


def status_error(response: Response) -> ProviderError:
    """The error that a status other than 200 stands for, with the wait that the server named."""
    text = response.text(300)
    outcome = _of_status(response.status, text.lower())
    wait = retry_after(response.headers.get("retry-after"))
    return failure(outcome, f"status {response.status}: {text or '(no body)'}", retry_after_s=wait)


async def refuse_links(event: str, info: Mapping[str, Any]) -> None:
    """Close a connection to an address that no provider has, before anything is sent; httpx calls it at every step.

    Raises:
        ProviderError: the name resolved to a link-local or metadata address (`bad_request`).
    """
    if event != "connection.connect_tcp.complete":
        return
    stream = info["return_value"]
    address = str(stream.get_extra_info("server_addr")[0])
    if is_internal(address):
        await stream.aclose()
        raise failure(
            Outcome.BAD_REQUEST, f"the host has the address {address}, which is link-local or a cloud's metadata service"
        )


def _of_status(status: int, text: str) -> Outcome:
    if status in (401, 403):
        return Outcome.AUTHENTICATION
    if status == 402 or (status in (400, 429) and any(mark in text for mark in ("insufficient_quota", "credit balance"))):
        return Outcome.QUOTA
    if status == 429:
        return Outcome.RATE_LIMITED
    if status in (408, 409) or status >= 500:
        return Outcome.OVERLOADED
    return Outcome.BAD_REQUEST


def retry_after(value: str | None) -> float | None:
    """Seconds that a Retry-After header asks to wait: a number or an HTTP date; None when absent or unreadable."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _origin(url: str) -> str:
    """Scheme and host of `url`; a query or user part may hold a secret."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        return "the endpoint"
    return f"{parsed.scheme}://{parsed.host}:{parsed.port or ''}".rstrip(":")
