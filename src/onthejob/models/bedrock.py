"""AWS Bedrock's Converse API. botocore signs the request and reads the answer; our transport carries it.

botocore's own sending is replaced through its `before-send` event, because it has no deadline for a whole exchange and no limit
of an answer's size. Credentials come from AWS's own chain (environment, shared files, instance role).
"""

from __future__ import annotations

import asyncio
import contextvars
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

from onthejob.errors import ConfigError, MissingDependency, ProviderError
from onthejob.models import hosted_tools as native
from onthejob.models.providers import Answer, Question, answer, counts, plain_schema, split_system, the_object
from onthejob.models.transport import HttpRequest, Outcome, Response, Transport, failure, retry_after
from onthejob.texts import without

_OUTCOMES = {
    "AccessDeniedException": Outcome.AUTHENTICATION,
    "UnrecognizedClientException": Outcome.AUTHENTICATION,
    "ExpiredTokenException": Outcome.AUTHENTICATION,
    "InvalidSignatureException": Outcome.AUTHENTICATION,
    "ThrottlingException": Outcome.RATE_LIMITED,
    "ServiceQuotaExceededException": Outcome.QUOTA,
    "ResourceNotFoundException": Outcome.BAD_REQUEST,
    "ValidationException": Outcome.BAD_REQUEST,
    "ModelTimeoutException": Outcome.OVERLOADED,
    "ModelNotReadyException": Outcome.OVERLOADED,
    "ModelErrorException": Outcome.OVERLOADED,
    "InternalServerException": Outcome.OVERLOADED,
    "ServiceUnavailableException": Outcome.OVERLOADED,
}
"""Error code -> outcome; what is missing here goes by its status."""


# Which turn the present thread's botocore call belongs to; `asyncio.to_thread` gives every call a context of its own.
_PENDING: contextvars.ContextVar[_Pending] = contextvars.ContextVar("pending")


class BedrockClient:
    """Converse with one model."""

    def __init__(
        self, transport: Transport, *, model: str, name: str, region: str | None = None, endpoint_url: str | None = None
    ) -> None:
        """Prepare botocore's client.

        Args:
            transport: sends.
            model: Bedrock's model id or inference profile.
            name: for the record.
            region: AWS region; None takes the one of AWS's configuration.
            endpoint_url: another address, for tests and private endpoints.

        Raises:
            MissingDependency: botocore is not installed.
            ConfigError: no region, or no credentials.
        """
        try:
            import botocore.session
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
        except ImportError as error:
            raise MissingDependency("bedrock needs botocore. pip install 'onthejob[bedrock]'.") from error
        self._transport, self._model, self.name = transport, model, name
        session = botocore.session.get_session()
        region = region or session.get_config_variable("region")
        if region is None:
            raise ConfigError("bedrock needs a region. Set AWS_DEFAULT_REGION, or `region` in the catalogue.")
        try:
            if session.get_credentials() is None:
                raise ConfigError("bedrock needs AWS credentials, found none. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.")
            config = Config(retries={"total_max_attempts": 1}, parameter_validation=True)
            self.client = session.create_client("bedrock-runtime", region_name=region, endpoint_url=endpoint_url, config=config)
        except BotoCoreError as error:
            raise ConfigError(f"bedrock cannot be used: {error}.") from error
        self.client.meta.events.register("before-send.bedrock-runtime.Converse", self._carry)

    async def ask(self, question: Question) -> Answer:
        arguments = self._arguments(question)
        # botocore is synchronous; the exchange itself comes back to this loop, so cancelling it there ends the thread's wait.
        loop = asyncio.get_running_loop()
        pending = _Pending(loop)
        try:
            return self._read(await asyncio.to_thread(self._call, arguments, pending), tools=bool(question.tools))
        finally:
            pending.cancel()

    def _call(self, arguments: Mapping[str, Any], pending: _Pending) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError

        _PENDING.set(pending)
        try:
            return self.client.converse(**arguments)
        except ClientError as error:
            raise _named(error.response) from error
        except ProviderError:
            raise
        except BotoCoreError as error:
            kind = Outcome.AUTHENTICATION if "redential" in type(error).__name__ else Outcome.MALFORMED
            raise failure(kind, f"{type(error).__name__}: {str(error)[:200]}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # botocore's reader meets a body of another shape than the service's model.
            raise failure(Outcome.MALFORMED, f"the answer cannot be read ({type(error).__name__})") from error

    def _carry(self, request: Any, **_: object) -> Any:
        """Botocore's signed request through our transport, as botocore's response."""
        from botocore.awsrequest import AWSResponse

        pending = _PENDING.get(None)
        if pending is None:
            return None  # Not one of ours (a test drives the client by hand): botocore sends it.
        headers = {name: value.decode() if isinstance(value, bytes) else str(value) for name, value in request.headers.items()}
        body = request.body if isinstance(request.body, bytes) else str(request.body or "").encode()
        response = pending.wait(
            self._transport.send(HttpRequest(url=request.url, body=body, headers=headers, method=request.method))
        )
        if response.status == 200:
            response.json()
        return AWSResponse(request.url, response.status, response.headers, _Raw(response))

    def _arguments(self, question: Question) -> dict[str, Any]:
        system, turns = split_system(question.messages)
        inference: dict[str, Any] = {"maxTokens": question.max_tokens}
        if question.temperature is not None:
            inference["temperature"] = min(question.temperature, 1.0)
        arguments: dict[str, Any] = {
            "modelId": self._model,
            "messages": [{"role": turn.role, "content": [{"text": turn.content}]} for turn in turns],
            "inferenceConfig": inference,
        }
        if question.tools:
            arguments["messages"] = native.bedrock_turns(question.messages, question.tools)
            arguments["toolConfig"] = native.bedrock_tools(question.tools)
        if system:
            arguments["system"] = [{"text": system}]
        if question.schema is not None:
            schema = {"name": "reply", "schema": json.dumps(plain_schema(question.schema))}
            arguments["outputConfig"] = {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": schema}}}
        return arguments

    def _read(self, data: Mapping[str, Any], *, tools: bool) -> Answer:
        message = the_object(the_object(data.get("output"), "output").get("message"), "output.message")
        blocks = message.get("content")
        if not isinstance(blocks, list):
            raise failure(Outcome.MALFORMED, "the answer's content is not a list of blocks")
        stop = data.get("stopReason")
        text = "".join(block["text"] for block in blocks if isinstance(block, dict) and isinstance(block.get("text"), str))
        used = [
            the_object(block["toolUse"], "toolUse")
            for block in blocks
            if tools and isinstance(block, dict) and block.get("toolUse")
        ]
        calls = "\n".join(native.block_call(one.get("name"), one.get("input")) for one in used)
        return answer(
            native.with_calls(text, calls),
            refused=stop in ("guardrail_intervened", "content_filtered"),
            cut=stop in ("max_tokens", "model_context_window_exceeded"),
            usage=counts(data.get("usage"), "inputTokens", "outputTokens"),
            model=self._model,
            name="content",
        )


class _Raw(io.BytesIO):
    """A body as botocore reads it (urllib3's `stream`)."""

    def __init__(self, response: Response) -> None:
        super().__init__(without(response.body.decode("latin-1"), response.secrets).encode("latin-1"))

    def stream(self, *_: object, **__: object) -> Iterator[bytes]:
        yield self.read()


class _Pending:
    """Lets botocore's thread wait for a coroutine on the transport's loop, until the turn is over."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: Any = None
        self._over = False

    def wait(self, work: Any) -> Response:
        if self._over:
            work.close()
            raise failure(Outcome.TIMEOUT, "the turn is over")
        self._future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return self._future.result()
        except BaseException as error:
            if isinstance(error, ProviderError):
                raise
            raise failure(Outcome.TIMEOUT, "the turn is over") from error

    def cancel(self) -> None:
        self._over = True
        if self._future is not None:
            self._future.cancel()


def _named(response: Mapping[str, Any]) -> ProviderError:
    """The error of a service's error answer."""
    error, meta = response.get("Error", {}), response.get("ResponseMetadata", {})
    status, code = int(meta.get("HTTPStatusCode", 0)), str(error.get("Code", ""))
    by_status = Outcome.AUTHENTICATION if status in (401, 403) else Outcome.RATE_LIMITED if status == 429 else None
    by_status = by_status or (Outcome.BAD_REQUEST if 400 <= status < 500 else Outcome.OVERLOADED)
    wait = retry_after(meta.get("HTTPHeaders", {}).get("retry-after"))
    outcome = _OUTCOMES.get(code, by_status)
    return failure(outcome, f"{code or status}: {str(error.get('Message', ''))[:300]}", retry_after_s=wait)
