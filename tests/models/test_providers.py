"""Hosted models against a loopback server that speaks their protocols, and misbehaves in every way on demand."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from onthejob.envs.office.reply_schema import action_schema
from onthejob.errors import ConfigError, ProviderError
from onthejob.models.breaker import BreakerConfig
from onthejob.models.catalogue import behaviour_of, find, load_catalogue, make_client, window_of
from onthejob.models.hosted import Accounts, HostedPolicy, Price
from onthejob.models.providers import AnthropicClient, ChatClient, OpenAIClient, Question, plain_schema
from onthejob.models.transport import Limits, Outcome, Transport, retry_after
from onthejob.rollout.play import act_each
from onthejob.types import Completion, Context, Message, Sampling, TextObservation

REPLY = '{"action_type":"TEAM_SYNC","target":""}'
SECRET = "sk-never-to-be-seen-0123456789"
# A deadline far beyond what a loaded machine needs for two answers, and one for the faults that only a deadline ends.
LIMITS = Limits(deadline_s=20, retry_after_s=1, body_bytes=100_000)
HURRIED = replace(LIMITS, deadline_s=0.7)
CLIENTS = ("openai", "anthropic", "bedrock")


class Provider:
    """A server on loopback; `behave` answers one request by hand, whatever the protocol allows or not."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.behave: Callable[[BaseHTTPRequestHandler, int], None] = lambda handler, _: send(handler, good(handler))
        provider = self
        self.over = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                provider.requests.append({"path": self.path, "headers": dict(self.headers), "body": json.loads(body or b"{}")})
                try:
                    provider.behave(self, len(provider.requests))
                except OSError:
                    self.close_connection = True  # The client went away, as it should.

            do_GET = do_POST

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self.over.set()
        self.server.shutdown()
        self.server.server_close()


def send(handler: BaseHTTPRequestHandler, body: bytes, *, status: int = 200, headers: dict[str, str] | None = None) -> None:
    handler.send_response(status)
    for name, value in {"content-type": "application/json", **(headers or {})}.items():
        handler.send_header(name, value)
    handler.send_header("content-length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def good(handler: BaseHTTPRequestHandler, text: str | None = REPLY, **changes: Any) -> bytes:
    """A correct answer in the protocol of the requested path."""
    if handler.path.endswith("/chat/completions"):
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": changes.get("stop", "stop"),
            "logprobs": changes.get("logprobs"),
        }
        usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        return json.dumps({"id": "1", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}).encode()
    if handler.path.endswith("/converse"):
        answer = {
            "output": {"message": {"role": "assistant", "content": [{"text": text}] if text is not None else []}},
            "stopReason": changes.get("stop", "end_turn"),
            "usage": {"inputTokens": 100, "outputTokens": 20, "totalTokens": 120},
            "metrics": {"latencyMs": 5},
        }
        return json.dumps(answer).encode()
    blocks = [{"type": "text", "text": text}] if text is not None else []
    usage = {"input_tokens": 100, "output_tokens": 20}
    stop = changes.get("stop", "end_turn")
    return json.dumps(
        {"id": "1", "type": "message", "model": "m", "content": blocks, "stop_reason": stop, "usage": usage}
    ).encode()


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    yield made
    made.close()


@contextmanager
def client_of(
    kind: str, url: str, monkeypatch: pytest.MonkeyPatch, limits: Limits = LIMITS
) -> Iterator[tuple[ChatClient, Transport]]:
    transport = Transport(limits)
    try:
        if kind == "openai":
            yield OpenAIClient(transport, base_url=f"{url}/v1", model="m", name="openai:m", key=SECRET), transport
        elif kind == "anthropic":
            yield AnthropicClient(transport, base_url=url, model="m", name="anthropic:m", key=SECRET), transport
        else:
            pytest.importorskip("botocore", reason="the bedrock extra is not installed")
            from onthejob.models.bedrock import BedrockClient

            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
            monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
            yield BedrockClient(transport, model="m", name="bedrock:m", region="us-east-1", endpoint_url=url), transport
    finally:
        transport.close()


def context(actor: str = "hr") -> Context:
    messages = (Message("system", "You are HR."), Message("user", "Act."))
    return Context(observation=TextObservation(actor=actor, messages=messages), messages=messages)


def hang(handler: BaseHTTPRequestHandler, provider: Provider) -> None:
    provider.over.wait(10)
    handler.close_connection = True


def drip(handler: BaseHTTPRequestHandler, provider: Provider) -> None:
    body = good(handler)
    handler.send_response(200)
    handler.send_header("content-length", str(len(body)))
    handler.end_headers()
    for byte in body:
        handler.wfile.write(bytes([byte]))
        handler.wfile.flush()
        if provider.over.wait(0.05):
            break
    handler.close_connection = True


def reset(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()
    handler.close_connection = True


def huge(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("content-length", str(400_000_000))
    handler.end_headers()
    for _ in range(400):
        handler.wfile.write(b" " * 1_000_000)
    handler.close_connection = True


def midway(handler: BaseHTTPRequestHandler) -> None:
    body = good(handler)
    handler.send_response(200)
    handler.send_header("content-length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body[: len(body) // 2])
    handler.wfile.flush()
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


def nan(handler: BaseHTTPRequestHandler) -> bytes:
    if handler.path.endswith("/chat/completions"):
        return good(handler, logprobs={"content": [{"token": "x", "logprob": float("nan")}]})
    # Where the protocol has no log-probabilities, a number that JSON does not have.
    return good(handler).replace(b'"usage": {', b'"usage": NaN, "rest": {')


def refusal(handler: BaseHTTPRequestHandler) -> bytes:
    return good(
        handler,
        "I cannot.",
        stop={"/v1/chat/completions": "content_filter", "/v1/messages": "refusal"}.get(handler.path, "content_filtered"),
    )


FAULTS: dict[str, tuple[Callable[[BaseHTTPRequestHandler, Provider], None], set[Outcome], int]] = {
    # fault -> behaviour, possible outcomes, requests sent
    "hang": (hang, {Outcome.TIMEOUT}, 1),
    "slow drip": (drip, {Outcome.TIMEOUT}, 1),
    "429": (lambda h, p: send(h, b"{}", status=429, headers={"retry-after": "0.1"}), {Outcome.RATE_LIMITED}, 2),
    "500": (lambda h, p: send(h, b"oops", status=500), {Outcome.OVERLOADED}, 2),
    "truncated JSON": (lambda h, p: send(h, good(h)[:-20]), {Outcome.MALFORMED}, 2),
    "400 MB body": (lambda h, p: huge(h), {Outcome.TOO_LARGE}, 1),
    "reset": (lambda h, p: reset(h), {Outcome.CONNECTION}, 2),
    "wrong schema": (lambda h, p: send(h, b'{"choices": [], "content": {"a": 1}, "output": []}'), {Outcome.MALFORMED}, 2),
    "refusal": (lambda h, p: send(h, refusal(h)), {Outcome.REFUSED}, 1),
    "empty": (lambda h, p: send(h, good(h, None)), {Outcome.EMPTY}, 1),
    "NaN": (lambda h, p: send(h, nan(h)), {Outcome.MALFORMED, Outcome.OK}, 0),
    "packed": (
        lambda h, p: send(h, gzip.compress(good(h)), headers={"content-encoding": "gzip"}),
        {Outcome.MALFORMED, Outcome.OK},
        0,
    ),
    "closed mid-stream": (lambda h, p: midway(h), {Outcome.CONNECTION}, 2),
}


# A botocore client takes half a second to make: only some of its faults are met in the fast tests.
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        pytest.param(kind, fault, marks=[pytest.mark.slow] if kind == "bedrock" and fault != "429" else [])
        for kind in CLIENTS
        for fault in FAULTS
    ],
)
def test_every_turn_ends_with_a_named_outcome(kind: str, fault: str, provider: Provider, monkeypatch: pytest.MonkeyPatch):
    behave, expected, requests = FAULTS[fault]
    provider.behave = lambda handler, _: behave(handler, provider)
    limits = HURRIED if fault in ("hang", "slow drip") else LIMITS
    with client_of(kind, provider.url, monkeypatch, limits) as (client, transport):
        accounts = Accounts()
        policy = HostedPolicy(client, transport, accounts=accounts)
        started = time.monotonic()
        (answer,) = act_each(policy, [context()], Sampling())
        elapsed = time.monotonic() - started
    account = accounts.roles["hr"]
    (outcome,) = account.outcomes
    assert Outcome(outcome) in expected
    assert isinstance(answer, ProviderError) is not Outcome(outcome).answered
    # The server would continue for 10 s or forever: an end before that is the deadline's doing, not the machine's pace.
    assert elapsed < 8
    if fault == "NaN":
        # Garbage is only a failure where a number that matters was garbage: token counts that are none count as 0.
        assert Outcome(outcome) is (Outcome.MALFORMED if kind == "openai" else Outcome(outcome))
        return
    if fault == "packed":
        # Botocore reads the body itself; ours unpacks nothing.
        assert kind == "bedrock" or (Outcome(outcome), account.requests) == (Outcome.MALFORMED, 2)
        return
    assert account.requests == requests
    assert SECRET not in repr(answer) + str(answer)


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_good_answer_and_what_was_asked(kind: str, provider: Provider, monkeypatch: pytest.MonkeyPatch):
    schema = action_schema("hr")
    with client_of(kind, provider.url, monkeypatch, Limits(deadline_s=20)) as (client, transport):
        accounts = Accounts()
        policy = HostedPolicy(
            client, transport, accounts=accounts, price=Price(prompt=1.0, completion=5.0), schema=lambda _: schema, min_tokens=64
        )
        completions = policy.act([context(), context("dev")], Sampling(temperature=0.5, max_new_tokens=32))
    assert [completion.text for completion in completions] == [REPLY, REPLY]
    assert not completions[0].token_ids
    account = accounts.roles["dev"]
    assert (account.requests, account.prompt_tokens, account.completion_tokens, account.unanswered) == (1, 100, 20, 0)
    assert account.usd == pytest.approx((100 * 1.0 + 20 * 5.0) / 1e6)
    body = provider.requests[0]["body"]
    held = {
        "openai": lambda: body["response_format"]["json_schema"]["schema"] == schema and body["max_tokens"] == 64,
        "anthropic": lambda: (
            body["output_config"]["format"]["schema"] == plain_schema(schema) and body["system"] == "You are HR."
        ),
        "bedrock": lambda: (
            json.loads(body["outputConfig"]["textFormat"]["structure"]["jsonSchema"]["schema"]) == plain_schema(schema)
        ),
    }
    assert held[kind]()


@pytest.mark.parametrize("kind", ["openai", "anthropic", pytest.param("bedrock", marks=pytest.mark.slow)])
def test_keys_are_in_no_log_and_no_account(kind: str, provider: Provider, monkeypatch, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    for status in (200, 500, 401):
        provider.behave = lambda handler, _, status=status: send(handler, good(handler), status=status)
        with client_of(kind, provider.url, monkeypatch) as (client, transport):
            accounts = Accounts()
            answers = act_each(HostedPolicy(client, transport, accounts=accounts), [context()], Sampling())
            assert SECRET not in repr(answers) + repr(accounts.roles) + repr(client) + repr(
                vars(answers[0]) if status == 500 else ""
            )
    sent = json.dumps([request["headers"] for request in provider.requests])
    assert SECRET in sent or kind == "bedrock"  # AWS signs and never sends it.
    assert SECRET not in caplog.text


def test_a_wait_that_was_asked_for_is_kept_and_the_second_answer_counts(provider: Provider, monkeypatch):
    def behave(handler: BaseHTTPRequestHandler, number: int) -> None:
        if number == 1:
            send(handler, b"{}", status=429, headers={"retry-after": "0.25"})
        else:
            send(handler, good(handler))

    provider.behave = behave
    limits = Limits(deadline_s=20, retry_after_s=1)
    with client_of("openai", provider.url, monkeypatch, limits) as (client, transport):
        started = time.monotonic()
        (completion,) = HostedPolicy(client, transport, accounts=Accounts()).act([context()], Sampling())
        assert time.monotonic() - started >= 0.25
    assert completion.text == REPLY
    assert len(provider.requests) == 2


def test_a_wait_beyond_the_limit_ends_the_turn(provider: Provider, monkeypatch):
    provider.behave = lambda handler, _: send(handler, b"{}", status=429, headers={"retry-after": "3600"})
    with client_of("openai", provider.url, monkeypatch) as (client, transport), pytest.raises(ProviderError) as raised:
        HostedPolicy(client, transport, accounts=Accounts()).act([context()], Sampling())
    assert raised.value.outcome == Outcome.RATE_LIMITED
    assert len(provider.requests) == 1


def test_a_reply_that_was_cut_gets_one_request_with_twice_the_room(provider: Provider, monkeypatch):
    provider.behave = lambda handler, number: send(handler, good(handler, stop="length" if number == 1 else "stop"))
    with client_of("openai", provider.url, monkeypatch, Limits(deadline_s=20)) as (client, transport):
        accounts = Accounts()
        (completion,) = HostedPolicy(client, transport, accounts=accounts, min_tokens=50).act([context()], Sampling())
    assert [request["body"]["max_tokens"] for request in provider.requests] == [50, 100]
    assert completion.finish_reason == "stop"
    assert accounts.roles["hr"].completion_tokens == 40


@pytest.mark.parametrize("status", [400, 500])
def test_what_was_cut_is_the_answer_when_the_longer_one_fails(status: int, provider: Provider, monkeypatch):
    provider.behave = lambda handler, number: (
        send(handler, good(handler, stop="length")) if number == 1 else send(handler, b"{}", status=status)
    )
    with client_of("openai", provider.url, monkeypatch, Limits(deadline_s=20)) as (client, transport):
        (completion,) = HostedPolicy(client, transport, accounts=Accounts()).act([context()], Sampling())
    assert (completion.text, completion.finish_reason) == (REPLY, "length")
    assert len(provider.requests) == 2


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_answers_without_a_count_are_unknown_and_end_a_limited_run(kind: str, provider: Provider, monkeypatch):
    def behave(handler: BaseHTTPRequestHandler, _: int) -> None:
        said = json.loads(good(handler))
        del said["usage"]
        send(handler, json.dumps(said).encode())

    provider.behave = behave
    with client_of(kind, provider.url, monkeypatch, Limits(deadline_s=20)) as (client, transport):
        free, limited = Accounts(), Accounts(max_tokens=1_000_000)
        for _ in range(2):
            HostedPolicy(client, transport, accounts=free).act([context()], Sampling())
        assert (free.roles["hr"].requests, free.roles["hr"].unanswered, free.roles["hr"].untold) == (2, 2, 2)
        policy = HostedPolicy(client, transport, accounts=limited)
        policy.act([context()], Sampling())
        with pytest.raises(ProviderError, match="do not say what they took") as raised:
            policy.act([context()], Sampling())
    assert raised.value.outcome == Outcome.BUDGET


def test_a_budget_stops_sending(provider: Provider, monkeypatch):
    with client_of("openai", provider.url, monkeypatch, Limits(deadline_s=20, parallel=1)) as (client, transport):
        accounts = Accounts(max_tokens=100)
        policy = HostedPolicy(client, transport, accounts=accounts)
        policy.act([context()], Sampling())
        with pytest.raises(ProviderError) as raised:
            policy.act([context()], Sampling())
    assert raised.value.outcome == Outcome.BUDGET
    assert len(provider.requests) == 1


def test_one_failure_of_a_batch_costs_one_answer_and_nothing_is_asked_again(provider: Provider, monkeypatch):
    def behave(handler: BaseHTTPRequestHandler, number: int) -> None:
        bad = provider.requests[number - 1]["body"]["messages"][0]["content"] == "You are HR."
        send(handler, b"{}" if bad else good(handler), status=403 if bad else 200)

    provider.behave = behave
    other = Message("system", "You are Dev.")
    messages = (other, Message("user", "Act."))
    asked = [context(), Context(observation=TextObservation(actor="dev", messages=messages), messages=messages)]
    with client_of("openai", provider.url, monkeypatch, Limits(deadline_s=20, parallel=1)) as (client, transport):
        first, second = act_each(HostedPolicy(client, transport, accounts=Accounts()), asked, Sampling())
    assert isinstance(first, ProviderError)
    assert first.outcome == Outcome.AUTHENTICATION
    assert getattr(second, "text", None) == REPLY
    assert len(provider.requests) == 2


def outcome_of(answer: Completion | Exception) -> str | None:
    return answer.outcome if isinstance(answer, ProviderError) else None


QUICK = BreakerConfig(failures=3, pause_s=0.2, longest_pause_s=0.3)


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_dead_endpoint_is_asked_by_one_at_a_time_until_it_answers(kind: str, provider: Provider, monkeypatch):
    """Twelve turns at once: three failures open the breaker, one trial at a time follows, and no turn is lost."""
    down = threading.Event()
    down.set()

    def behave(handler: BaseHTTPRequestHandler, _: int) -> None:
        send(handler, b"{}" if down.is_set() else good(handler), status=500 if down.is_set() else 200)

    provider.behave = behave
    limits = Limits(deadline_s=20, parallel=12, attempts=1, breaker=QUICK)
    with client_of(kind, provider.url, monkeypatch, limits) as (client, transport):
        policy = HostedPolicy(client, transport, accounts=Accounts())
        failed = act_each(policy, [context()] * 3, Sampling())
        assert [outcome_of(answer) for answer in failed] == [Outcome.OVERLOADED] * 3
        sent = len(provider.requests)
        threading.Timer(0.8, down.clear).start()
        started = time.monotonic()
        answers = act_each(policy, [context()] * 12, Sampling())
        assert time.monotonic() - started < 10
    # Trials at 0.2, 0.5 and so on until the endpoint is back: far fewer than twelve turns' requests.
    trials = [answer for answer in answers if isinstance(answer, ProviderError)]
    assert 1 <= len(trials) <= 4
    assert {answer.outcome for answer in trials} == {Outcome.OVERLOADED}
    assert [answer.text for answer in answers if isinstance(answer, Completion)] == [REPLY] * (12 - len(trials))
    assert len(provider.requests) == sent + 12


def test_turns_at_a_dead_endpoint_end_at_their_deadline_and_send_nothing(provider: Provider, monkeypatch):
    provider.behave = lambda handler, _: send(handler, b"{}", status=500)
    limits = Limits(deadline_s=0.5, parallel=12, attempts=1, breaker=BreakerConfig(failures=3, pause_s=60, longest_pause_s=60))
    accounts = Accounts()
    with client_of("openai", provider.url, monkeypatch, limits) as (client, transport):
        policy = HostedPolicy(client, transport, accounts=accounts)
        act_each(policy, [context()] * 3, Sampling())
        started = time.monotonic()
        answers = act_each(policy, [context()] * 12, Sampling())
        assert time.monotonic() - started < 5
        assert {outcome_of(answer) for answer in answers} == {Outcome.UNAVAILABLE}
        # Another endpoint is not affected, on the same transport.
        provider.behave = lambda handler, _: send(handler, good(handler))
        other = OpenAIClient(transport, base_url=f"{provider.url}/v1", model="m", name="openai:other")
        assert act_each(HostedPolicy(other, transport, accounts=Accounts()), [context()], Sampling()) == [Completion(text=REPLY)]
    assert len(provider.requests) == 4
    assert accounts.roles["hr"].requests == 3


def test_refusals_do_not_open_the_breaker(provider: Provider, monkeypatch):
    """401 and 429 come from a server that is there."""
    provider.behave = lambda handler, number: send(handler, b"{}", status=401 if number % 2 else 429)
    with client_of("openai", provider.url, monkeypatch, Limits(deadline_s=20, attempts=1, breaker=QUICK)) as (client, transport):
        answers = act_each(HostedPolicy(client, transport, accounts=Accounts()), [context()] * 12, Sampling())
    assert {outcome_of(answer) for answer in answers} == {Outcome.AUTHENTICATION, Outcome.RATE_LIMITED}
    assert len(provider.requests) == 12


def test_a_breaker_that_cannot_work_is_refused():
    with pytest.raises(ConfigError, match="failures"):
        BreakerConfig(failures=0)


@pytest.mark.slow
def test_our_request_is_the_sdks(provider: Provider, monkeypatch):
    """The official SDK, asked for the same, sends the same body to the same path."""
    openai = pytest.importorskip("openai")
    schema = action_schema("sales")
    with client_of("openai", provider.url, monkeypatch, Limits(deadline_s=20)) as (client, transport):
        question = Question(messages=[Message("user", "Act.")], max_tokens=64, temperature=0.0, schema=schema)
        ours = transport.run(client.ask(question))
    with openai.OpenAI(base_url=f"{provider.url}/v1", api_key=SECRET, max_retries=0) as sdk:
        theirs = sdk.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "Act."}],
            max_tokens=64,
            temperature=0.0,
            response_format={"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": schema}},
        )
    assert ours.text == theirs.choices[0].message.content
    assert provider.requests[0]["path"] == provider.requests[1]["path"]
    assert provider.requests[0]["body"] == provider.requests[1]["body"]
    sent = [request["headers"].get("authorization") or request["headers"].get("Authorization") for request in provider.requests]
    assert sent == [f"Bearer {SECRET}"] * 2


@pytest.mark.slow
def test_our_messages_request_is_the_sdks(provider: Provider, monkeypatch):
    anthropic = pytest.importorskip("anthropic")
    schema = plain_schema(action_schema("sales"))
    with client_of("anthropic", provider.url, monkeypatch, Limits(deadline_s=20)) as (client, transport):
        messages = [Message("system", "You sell."), Message("user", "Act.")]
        ours = transport.run(client.ask(Question(messages=messages, max_tokens=64, schema=schema)))
    with anthropic.Anthropic(base_url=provider.url, api_key=SECRET, max_retries=0) as sdk:
        theirs = sdk.messages.create(
            model="m",
            system="You sell.",
            messages=[{"role": "user", "content": "Act."}],
            max_tokens=64,
            output_config={"format": {"type": "json_schema", "schema": schema}},
        )
    assert ours.text == theirs.content[0].text
    for part in ("path", "body"):
        assert provider.requests[0][part] == provider.requests[1][part]
    versions = [{k.lower(): v for k, v in request["headers"].items()} for request in provider.requests]
    assert [(v["anthropic-version"], v["authorization"]) for v in versions] == [("2026-10-21", f"Bearer {SECRET}")] * 2


def test_bedrock_names_the_variable_of_its_region(monkeypatch, tmp_path):
    pytest.importorskip("botocore", reason="the bedrock extra is not installed")
    from onthejob.models.bedrock import BedrockClient

    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    transport = Transport(LIMITS)
    try:
        with pytest.raises(ConfigError) as caught:
            BedrockClient(transport, model="m", name="bedrock:m")
        named = re.search(r"Set (\w+)", str(caught.value))
        assert named is not None
        monkeypatch.setenv(named[1], "eu-west-1")
        assert BedrockClient(transport, model="m", name="bedrock:m").client.meta.region_name == "eu-west-1"
    finally:
        transport.close()


def test_converse_agrees_with_botocores_own_model(monkeypatch):
    """botocore validates our arguments and its stubber the answer's shape."""
    pytest.importorskip("botocore", reason="the bedrock extra is not installed")
    from botocore.stub import Stubber

    from onthejob.models.bedrock import BedrockClient

    with client_of("bedrock", "http://127.0.0.1:9", monkeypatch, Limits(deadline_s=20)) as (client, transport):
        assert isinstance(client, BedrockClient)
        schema = plain_schema(action_schema("hr"))
        expected = {
            "modelId": "m",
            "messages": [{"role": "user", "content": [{"text": "Act."}]}],
            "system": [{"text": "You are HR."}],
            "inferenceConfig": {"maxTokens": 9, "temperature": 0.0},
            "outputConfig": {
                "textFormat": {
                    "type": "json_schema",
                    "structure": {"jsonSchema": {"name": "reply", "schema": json.dumps(schema)}},
                }
            },
        }
        reply = {
            "output": {"message": {"role": "assistant", "content": [{"text": REPLY}]}},
            "stopReason": "end_turn",
            "usage": {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3},
            "metrics": {"latencyMs": 1},
        }
        messages = [Message("system", "You are HR."), Message("user", "Act.")]
        with Stubber(client.client) as stubber:
            stubber.add_response("converse", reply, expected)
            answer = transport.run(client.ask(Question(messages=messages, max_tokens=9, temperature=0.0, schema=schema)))
            assert (answer.text, answer.usage) == (REPLY, (1, 2))
            for code, outcome in {
                "ThrottlingException": Outcome.RATE_LIMITED,
                "AccessDeniedException": Outcome.AUTHENTICATION,
            }.items():
                stubber.add_client_error("converse", service_error_code=code, http_status_code=400)
                with pytest.raises(ProviderError) as raised:
                    transport.run(client.ask(Question(messages=messages, max_tokens=9)))
                assert raised.value.outcome == outcome


def test_names_find_models_and_keys(provider: Provider):
    catalogue = load_catalogue({})
    entry, _ = find("anthropic:claude-haiku-4-5", catalogue)
    assert (entry.provider, entry.input_usd) == ("anthropic", 1.0)
    assert find("openai:something-new", catalogue)[0].id == "something-new"
    provider.behave = lambda handler, _: send(handler, b'{"object": "list", "data": [{"id": "base"}]}')
    transport = Transport(Limits(deadline_s=20))
    try:
        client, _ = make_client(f"openai:{provider.url}/v1", transport, catalogue=catalogue, environ={"OPENAI_API_KEY": SECRET})
        assert client.name == f"openai:{provider.url}/v1#base"
        assert SECRET not in json.dumps(provider.requests)  # A key goes to whom it belongs, not to any URL.
        for spec, said in {
            "anthropic:claude-haiku-4-5": "ANTHROPIC_API_KEY",
            "openai:gpt-5-mini": "OPENAI_API_KEY",
            "openai:https://user:pw@host/v1": "no user",
            "openai:ftp://host": "http or https",
            "openai:127.0.0.1:8001/v1": "Write openai:http://127.0.0.1:8001/v1",
            "openai:localhost": "without its scheme",
            "openai:": "names no hosted model",
        }.items():
            with pytest.raises(ConfigError, match=said):
                make_client(spec, transport, catalogue=catalogue, environ={})
        with pytest.raises(ConfigError, match="over https"):
            make_client(
                "openai:http://example.com/v1#m", transport, catalogue=catalogue, environ={"ONTHEJOB_ENDPOINT_KEY": SECRET}
            )
    finally:
        transport.close()


def test_the_catalogue_can_be_extended(tmp_path):
    own = tmp_path / "mine.toml"
    own.write_text('[models.mine]\nprovider = "anthropic"\nid = "x"\n', encoding="utf-8")
    catalogue = load_catalogue({"ONTHEJOB_CATALOGUE": str(own)})
    assert find("anthropic:mine", catalogue)[0].id == "x"
    assert "claude-haiku-4-5" in catalogue.models
    for text, said in {
        '[models.mine]\nprovider = "other"\nid = "x"\n': "provider",
        '[models.mine]\nprovider = "openai"\nid = "x"\n': "endpoint",
        '[models.mine]\nprovider = "anthropic"\nid = "x"\nkey = "sk"\n': "key",
        "[": "TOML",
    }.items():
        own.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=said):
            load_catalogue({"ONTHEJOB_CATALOGUE": str(own)})


def test_a_context_is_stated_or_reported(provider: Provider):
    catalogue = load_catalogue({})
    stated = {"claude-haiku-4-5": 200_000, "claude-opus-5-5": 1_000_000, "gpt-4.1-mini": 1_047_576, "llama-3.3-70b": 131_072,
              "qwen3-next-80b": 262_144}  # fmt: skip
    assert {name: catalogue.models[name].window for name in stated} == stated
    served: list[dict[str, Any]] = [{"id": "base", "max_model_len": 4096}]
    provider.behave = lambda handler, _: send(handler, json.dumps({"data": served}).encode())
    transport = Transport(Limits(deadline_s=20))

    def window(spec: str) -> int | None:
        _, entry = make_client(spec, transport, catalogue=catalogue, environ={"ANTHROPIC_API_KEY": SECRET})
        return window_of(spec, entry, transport, catalogue=catalogue, environ={})

    try:
        assert window(f"openai:{provider.url}/v1") == 4096
        assert len(provider.requests) == 1, "asked once which model it serves and how long its context is"
        served += [{"id": "sales", "parent": "base"}, {"id": "odd", "max_model_len": "8k", "parent": ["base"]}, {"id": "other"}]
        assert [window(f"openai:{provider.url}/v1#{name}") for name in ("base", "sales", "odd", "other", "none")] == [
            4096, 4096, None, None, None,
        ]  # fmt: skip
        provider.behave = lambda handler, _: send(handler, b"{}", status=404)
        assert window(f"openai:{provider.url}/v1#base") is None
        asked = len(provider.requests)
        assert (window("anthropic:claude-haiku-4-5"), window("anthropic:new")) == (200_000, None)
        assert len(provider.requests) == asked
    finally:
        transport.close()


def test_a_server_of_ones_own_may_take_no_key(tmp_path, provider: Provider):
    own = tmp_path / "mine.toml"
    text = f'[endpoints.here]\nurl = "{provider.url}/v1"\n[models.mine]\nprovider = "openai"\nid = "x"\nendpoint = "here"\n'
    own.write_text(text, encoding="utf-8")
    catalogue = load_catalogue({"ONTHEJOB_CATALOGUE": str(own)})
    transport = Transport(Limits(deadline_s=20))
    try:
        client, _ = make_client("openai:mine", transport, catalogue=catalogue, environ={})
        assert client.name == "openai:mine"
    finally:
        transport.close()
    before = behaviour_of(*find("openai:mine", catalogue))
    own.write_text(text + "max_tokens = 512\n", encoding="utf-8")
    longer = behaviour_of(*find("openai:mine", load_catalogue({"ONTHEJOB_CATALOGUE": str(own)})))
    own.write_text(text + "input_usd = 1.0\n", encoding="utf-8")
    dearer = behaviour_of(*find("openai:mine", load_catalogue({"ONTHEJOB_CATALOGUE": str(own)})))
    own.write_text(text + "window = 8192\n", encoding="utf-8")
    roomier = behaviour_of(*find("openai:mine", load_catalogue({"ONTHEJOB_CATALOGUE": str(own)})))
    assert roomier == dearer == before != longer


def test_retry_after_reads_seconds_and_dates():
    assert retry_after("2.5") == 2.5
    assert retry_after("-3") == 0.0
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert retry_after("soon") is None
    assert retry_after("inf") is None
    assert retry_after(None) is None


def test_a_transport_works_inside_a_running_loop(provider: Provider, monkeypatch):
    async def caller() -> str:
        with client_of("openai", provider.url, monkeypatch, Limits(deadline_s=20)) as (client, transport):
            return HostedPolicy(client, transport, accounts=Accounts()).act([context()], Sampling())[0].text

    assert asyncio.run(caller()) == REPLY
