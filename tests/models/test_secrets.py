"""What a provider says of the key, and the addresses to which no request goes."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from onthejob.errors import ConfigError, ProviderError
from onthejob.models.addresses import is_internal
from onthejob.models.catalogue import load_catalogue, make_client
from onthejob.models.providers import Question
from onthejob.models.transport import HttpRequest, Outcome, Transport, refuse_links
from onthejob.types import Message

from .test_providers import LIMITS, SECRET, Provider, client_of, good, provider, send  # noqa: F401  # a fixture

QUESTION = Question(messages=[Message("user", "?")], max_tokens=8)
SAID = {
    "whole": SECRET,
    "bearer": f"Bearer {SECRET}",
    "another bearer": "Bearer another-0123456789abcdef",
    "upper case": SECRET.upper(),
    "base64": base64.b64encode(SECRET.encode()).decode(),
    "at the cut": "x" * 290 + SECRET,
    "at the other cut": " " * 1_990 + SECRET,
    "with an escape": f"\x1b]0;{SECRET}\x07",
}


def forms() -> list[str]:
    return [SECRET, SECRET[: len(SECRET) // 2], base64.b64encode(SECRET.encode()).decode(), "another-0123456789abcdef"]


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
@pytest.mark.parametrize("status", [401, 400, 429, 500])
@pytest.mark.parametrize("said", SAID)
def test_a_provider_that_repeats_the_key_is_not_quoted(
    kind: str,
    status: int,
    said: str,
    provider: Provider,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    provider.behave = lambda handler, _: send(handler, json.dumps({"error": SAID[said]}).encode(), status=status)
    with client_of(kind, provider.url, monkeypatch) as (client, transport), pytest.raises(ProviderError) as raised:
        transport.run(client.ask(QUESTION))
    for form in forms():
        assert form.lower() not in str(raised.value).lower()
        assert form.lower() not in caplog.text.lower()
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
@pytest.mark.parametrize("spelling", ["plain", "escaped"])
def test_a_reply_does_not_hold_the_key(
    kind: str,
    spelling: str,
    provider: Provider,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
):
    def behave(handler: Any, number: int) -> None:
        body = good(handler, f"The key is {SECRET}.")
        if spelling == "escaped":
            body = body.replace(SECRET.encode(), b"".join(b"\\u%04x" % byte for byte in SECRET.encode()))
        send(handler, body)

    provider.behave = behave
    with client_of(kind, provider.url, monkeypatch) as (client, transport):
        answer = transport.run(client.ask(QUESTION))
    assert answer.text == "The key is [redacted]."


def test_the_names_of_served_models_hold_no_key(provider: Provider):  # noqa: F811
    listed = {"data": [{"id": f"a{SECRET}"}, {"id": "\x1b[31mb"}]}
    provider.behave = lambda handler, _: send(handler, json.dumps(listed).encode())
    transport = Transport(LIMITS)
    try:
        with pytest.raises(ConfigError) as raised:
            make_client(
                f"openai:{provider.url}/v1",
                transport,
                catalogue=load_catalogue({}),
                environ={"ONTHEJOB_ENDPOINT_KEY": SECRET},
            )
    finally:
        transport.close()
    assert SECRET not in str(raised.value)
    assert "\x1b" not in str(raised.value)


INTERNAL = [
    "169.254.169.254", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "[::ffff:169.254.169.254]",
    "[fe80::1]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::1]", "[fd00:ec2::254]", "metadata.google.internal",
    "METADATA.google.internal.", "100.100.100.200", "168.63.129.16", "224.0.0.1",
]  # fmt: skip


@pytest.mark.parametrize("host", INTERNAL)
def test_no_seat_is_at_a_link_local_or_metadata_address(host: str):
    assert is_internal(host)
    transport = Transport(LIMITS)
    try:
        with pytest.raises(ConfigError, match=r"no provider|is not a URL"):
            make_client(f"openai:http://{host}/v1#m", transport, catalogue=load_catalogue({}), environ={})
    finally:
        transport.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "10.0.0.7", "192.168.1.2", "0.0.0.0", "gpu", "api.openai.com"])
def test_model_servers_of_this_machine_and_network_are_allowed(host: str):
    assert not is_internal(host)


class Stream:
    """A connection as httpcore gives it to a trace."""

    def __init__(self, address: str) -> None:
        self.address, self.closed = address, False

    def get_extra_info(self, name: str) -> Any:
        return (self.address, 80) if name == "server_addr" else None

    async def aclose(self) -> None:
        self.closed = True


@pytest.mark.parametrize("address", ["169.254.169.254", "fe80::1", "::ffff:169.254.1.1", "100.100.100.200", "fd00:ec2::254"])
def test_a_name_that_resolves_to_such_an_address_is_sent_nothing(address: str):
    transport, stream = Transport(LIMITS), Stream(address)
    try:
        with pytest.raises(ProviderError, match="link-local") as raised:
            transport.run(refuse_links("connection.connect_tcp.complete", {"return_value": stream}))
    finally:
        transport.close()
    assert stream.closed
    assert raised.value.outcome == Outcome.BAD_REQUEST


def test_every_connection_is_looked_at(provider: Provider, monkeypatch: pytest.MonkeyPatch):  # noqa: F811
    from onthejob.models import transport as module

    monkeypatch.setattr(module, "is_internal", lambda address: address == "127.0.0.1")
    transport = Transport(LIMITS)
    try:
        with pytest.raises(ProviderError, match="link-local"):
            transport.run(transport.send(HttpRequest(url=f"{provider.url}/v1/models", body=b"{}", headers={"a": "b"})))
    finally:
        transport.close()
    assert provider.requests == []
