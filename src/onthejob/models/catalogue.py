"""Which hosted models there are, what they are called, what they cost, and in which environment variable their key is.

`openai:NAME`, `anthropic:NAME` and `bedrock:NAME` name an entry of the catalogue or the provider's own id; `openai:URL` is any
server that speaks the protocol, `openai:URL#MODEL` one model of it. Keys are read from the environment when a client is made,
go into a header, and nowhere else.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import tomllib
from collections.abc import Mapping
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from onthejob.errors import ConfigError, ProviderError
from onthejob.models.addresses import is_internal
from onthejob.models.providers import AnthropicClient, ChatClient, OpenAIClient
from onthejob.models.transport import HttpRequest, Transport
from onthejob.texts import printable

log = logging.getLogger(__name__)

PROVIDERS = ("openai", "anthropic", "bedrock")
CATALOGUE_ENV = "ONTHEJOB_CATALOGUE"
ENDPOINT_KEY_ENV = "ONTHEJOB_ENDPOINT_KEY"
"""Key of a server that is named by its URL. No other key is ever sent to such a server."""
ANTHROPIC_KEY_ENV = "ANTHROPIC_API_KEY"
_ADDRESS = re.compile(r"(localhost|[\w.-]+:\d+)(/|$)|[^:]+/v\d+/?$")
"""What stands where a model's id is expected and is an address: to send prompts to the usual server instead would be wrong."""


class Endpoint(BaseModel):
    """An OpenAI-compatible server."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    url: str
    key_env: str | None = None
    tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    extra: dict[str, Any] = Field(default_factory=dict)


class CatalogueModel(BaseModel):
    """A hosted model."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    provider: Literal["openai", "anthropic", "bedrock"]
    id: str = Field(min_length=1)
    endpoint: str | None = None
    region: str | None = None
    temperature: bool = True
    schema_: bool = Field(default=True, alias="schema")
    max_tokens: int = Field(default=256, ge=1)
    window: int | None = Field(default=None, ge=1)
    input_usd: float | None = Field(default=None, ge=0)
    output_usd: float | None = Field(default=None, ge=0)


def behaviour_of(entry: CatalogueModel, endpoint: Endpoint | None) -> str:
    """What decides how a hosted model replies to a prompt, in 12 hex digits: not its price or context, nor which key it takes."""
    said = [
        entry.model_dump(exclude={"input_usd", "output_usd", "window"}),
        None if endpoint is None else endpoint.model_dump(exclude={"key_env"}),
    ]
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:12]


class Catalogue(BaseModel):
    """All of them, and local ones."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    endpoints: dict[str, Endpoint] = Field(default_factory=dict)
    models: dict[str, CatalogueModel] = Field(default_factory=dict)
    local: tuple[str, ...] = ()
    """Base models of this machine that are worth offering, as for `onthejob model fetch`."""


class Need(NamedTuple):
    """Something without which a hosted model does not answer."""

    what: str
    """Name of the environment variable of a key, a package as pip knows it, or words."""
    there: bool | None
    """None where only a request tells."""


def needs_of(entry: CatalogueModel, endpoint: Endpoint | None, environ: Mapping[str, str] | None = None) -> tuple[Need, ...]:
    """What a hosted model needs, and whether it is there; says nothing of a key but that it is set, and sends no request."""
    environ = os.environ if environ is None else environ
    if entry.provider == "bedrock":
        return Need("onthejob[bedrock]", find_spec("botocore") is not None), Need("AWS credentials", None)
    key = ANTHROPIC_KEY_ENV if entry.provider == "anthropic" else endpoint.key_env if endpoint is not None else None
    # A server that is named by its URL may want none.
    return () if key in (None, ENDPOINT_KEY_ENV) else (Need(key, bool(environ.get(key, "").strip())),)


def load_catalogue(environ: Mapping[str, str] | None = None) -> Catalogue:
    """The shipped catalogue with the user's entries over it.

    Raises:
        ConfigError: the user's file cannot be read or has a wrong entry.
    """
    shipped = _read((resources.files("onthejob.models") / "catalogue.toml").read_text(encoding="utf-8"), "the shipped catalogue")
    own = (os.environ if environ is None else environ).get(CATALOGUE_ENV)
    if not own:
        return shipped
    try:
        text = Path(own).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{CATALOGUE_ENV}={own} cannot be read: {error}.") from error
    added = _read(text, own)
    merged = Catalogue(
        endpoints={**shipped.endpoints, **added.endpoints},
        models={**shipped.models, **added.models},
        local=tuple(dict.fromkeys((*shipped.local, *added.local))),
    )
    for name, entry in merged.models.items():
        if entry.provider == "openai" and entry.endpoint not in merged.endpoints:
            known = ", ".join(merged.endpoints)
            raise ConfigError(f"{own}: models.{name} needs an endpoint of {known}, got {entry.endpoint!r}.")
    return merged


def is_hosted(spec: str) -> bool:
    """True for `openai:...`, `anthropic:...` and `bedrock:...`."""
    return spec.partition(":")[0] in PROVIDERS and ":" in spec


def find(spec: str, catalogue: Catalogue) -> tuple[CatalogueModel, Endpoint | None]:
    """What `spec` names; a model that is not in the catalogue has no price.

    Raises:
        ConfigError: nothing is named, or the address cannot be used.
    """
    provider, _, name = spec.partition(":")
    if provider not in PROVIDERS or not name:
        raise ConfigError(f"{spec!r} names no hosted model. Write openai:URL, openai:MODEL, anthropic:MODEL or bedrock:MODEL.")
    entry = catalogue.models.get(name)
    if entry is not None and entry.provider == provider:
        return entry, catalogue.endpoints.get(entry.endpoint or "")
    if provider == "openai" and "://" in name:
        url, _, model = name.partition("#")
        return CatalogueModel(provider="openai", id=model or "-"), Endpoint(url=_address(url), key_env=ENDPOINT_KEY_ENV)
    if provider == "openai" and _ADDRESS.match(name):
        raise ConfigError(f"{spec!r} looks like an address without its scheme. Write openai:http://{name}, or https.")
    if provider == "openai":
        return CatalogueModel(provider="openai", id=name, temperature=False), catalogue.endpoints["openai"]
    return CatalogueModel(provider=provider, id=name, temperature=False), None  # type: ignore[arg-type]  # one of PROVIDERS


def make_client(
    spec: str, transport: Transport, *, catalogue: Catalogue | None = None, environ: Mapping[str, str] | None = None
) -> tuple[ChatClient, CatalogueModel]:
    """The client that `spec` names.

    A server named by its URL alone is asked which model it serves.

    Raises:
        ConfigError: a wrong name, a missing key, or several models behind the URL.
        MissingDependency: the provider's extra is not installed.
        ProviderError: the server does not say what it serves.
    """
    environ = os.environ if environ is None else environ
    entry, endpoint = find(spec, load_catalogue(environ) if catalogue is None else catalogue)
    if entry.provider == "anthropic":
        key = _key(environ, ANTHROPIC_KEY_ENV, spec)
        return AnthropicClient(transport, model=entry.id, name=spec, key=key), entry
    if entry.provider == "bedrock":
        from onthejob.models.bedrock import BedrockClient

        return BedrockClient(transport, model=entry.id, name=spec, region=entry.region), entry
    assert endpoint is not None  # `find` gives every openai entry one.
    by_url = endpoint.key_env == ENDPOINT_KEY_ENV
    if by_url:
        key = environ.get(ENDPOINT_KEY_ENV, "").strip() or None
    else:
        key = None if endpoint.key_env is None else _key(environ, endpoint.key_env, spec)
    if key and not _is_private(endpoint.url):
        raise ConfigError(f"a key is only sent over https or to this machine, not to {endpoint.url}. Use https.")
    if entry.id == "-":
        served = _served(transport, endpoint.url, key)
        model, entry = served["id"], entry.model_copy(update={"window": _length(served)})
    else:
        model = entry.id
    client = OpenAIClient(
        transport,
        base_url=endpoint.url,
        model=model,
        name=spec if model == entry.id else printable(f"{spec}#{model}"),
        key=key,
        extra=endpoint.extra,
        tokens_field=endpoint.tokens_field,
    )
    return client, entry


def window_of(
    spec: str,
    entry: CatalogueModel,
    transport: Transport,
    *,
    catalogue: Catalogue | None = None,
    environ: Mapping[str, str] | None = None,
) -> int | None:
    """Tokens of a hosted model's context: as the catalogue states it, or a server that is named by its URL reports it.

    Args:
        spec: the model.
        entry: what `make_client` returned for it.
        transport: of the same client.
        catalogue: as for `make_client`.
        environ: as for `make_client`.

    Returns:
        None where neither says, or the server does not answer.
    """
    environ = os.environ if environ is None else environ
    _, endpoint = find(spec, load_catalogue(environ) if catalogue is None else catalogue)
    by_url = endpoint is not None and endpoint.key_env == ENDPOINT_KEY_ENV
    if endpoint is None or not by_url or entry.window is not None or entry.id == "-":
        return entry.window
    log.info("asking %s how long the context of %s is", endpoint.url, printable(entry.id))
    try:
        models = _listed(transport, endpoint.url, environ.get(ENDPOINT_KEY_ENV, "").strip() or None)
    except ProviderError as error:
        log.info("%s does not say: %s", endpoint.url, error)
        return None
    listed = {item["id"]: item for item in models}
    served = listed.get(entry.id, {})
    # vLLM states it of the base to which an adapter belongs.
    return _length(served) or _length(listed.get(str(served.get("parent")), {}))


def _served(transport: Transport, url: str, key: str | None) -> Mapping[str, Any]:
    """The one model that a server lists."""
    log.info("asking %s which model it serves", url)
    models = _listed(transport, url, key)
    if len(models) != 1:
        shown = printable(", ".join(item["id"] for item in models[:8])) or "none"
        raise ConfigError(f"{url} serves {len(models)} models ({shown}). Name one: openai:{url}#MODEL.")
    return models[0]


def _listed(transport: Transport, url: str, key: str | None) -> list[Mapping[str, Any]]:
    """What a server says of each model that it serves."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    request = HttpRequest(url=url.rstrip("/") + "/models", body=b"", headers=headers, method="GET")
    listed = transport.run(transport.turn(lambda _: transport.exchange(request))).get("data")
    return [item for item in listed if isinstance(item, dict) and isinstance(item.get("id"), str)] if listed else []


def _length(served: Mapping[str, Any]) -> int | None:
    """The context that a server reports of a model, as vLLM does."""
    length = served.get("max_model_len")
    return length if isinstance(length, int) and not isinstance(length, bool) and length > 0 else None


def _key(environ: Mapping[str, str], name: str, spec: str) -> str:
    key = environ.get(name, "").strip()
    if not key:
        raise ConfigError(f"{spec} needs a key. Set the environment variable {name}.")
    return key


def _address(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise ConfigError(f"{url!r} is not a URL: {error}. Write e.g. openai:http://127.0.0.1:8000/v1.") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"a provider's URL must be http or https with a host, got {url!r}.")
    if is_internal(parsed.host):
        raise ConfigError(f"{url!r} is a link-local address or a cloud's metadata service, which is no provider. Name its host.")
    if parsed.userinfo or parsed.query:
        raise ConfigError(f"a provider's URL is recorded, so it may hold no user, password or query. Set {ENDPOINT_KEY_ENV}.")
    return url


def _is_private(url: str) -> bool:
    parsed = httpx.URL(url)
    return parsed.scheme == "https" or parsed.host in ("127.0.0.1", "localhost", "::1")


def _read(text: str, where: str) -> Catalogue:
    try:
        return Catalogue.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not TOML: {error}.") from error
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise ConfigError(f"{where}: {place}: {problem['msg']}, got {problem.get('input')!r}.") from error
