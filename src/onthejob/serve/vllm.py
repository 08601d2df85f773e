"""vLLM's HTTP protocol: prompt ids in, sampled ids and log-probabilities out, adapters loaded by name.

Every reply is checked before it becomes data: as many finite log-probabilities as ids, the prompt as we sent it, the adapter we
asked for. Written against vLLM 0.32 (`/v1/completions` with `return_token_ids`, `/v1/load_lora_adapter`, `/v1/models`). The
server must be started with `--logprobs-mode processed_logprobs --generation-config vllm` (`serve.server` does), so that the
log-probabilities are those of the distribution that was sampled from.

Sampling is not reproducible: vLLM's draws depend on what else is in the batch, and a per-request `seed` ends its CPU engine,
so none is sent.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from onthejob.errors import ConfigError, ContractError, ModelError, ProviderError, ServeError
from onthejob.models.adapter_weights import read_logit_scale
from onthejob.models.chat import ChatEncoder
from onthejob.models.transport import Limits, Request, Response, Transport, status_error
from onthejob.models.window import refuse_longer
from onthejob.serve.publish import Publisher
from onthejob.types import Adapter, Completion, Sampling

log = logging.getLogger(__name__)
T = TypeVar("T")
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
WITHOUT_LOADING = (
    "the server has no /v1/load_lora_adapter. It must be started with --enable-lora and with the environment variable "
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1; without it the route does not exist"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """How a server is asked."""

    request_s: float = 600.0
    """Seconds for one request; a batch under load takes long, and a dead server is noticed by its closed socket."""
    parallel: int = 64
    """Requests under way at the same time; vLLM batches them."""
    control_s: float = 120.0
    """Seconds for loading, listing, scoring and asking for health."""
    structured: bool = False
    """Hold replies to a JSON schema by masking tokens. This changes the distribution that is sampled from: recorded with the
    run, and meant for seats that are not trained."""


class VllmClient:
    """One server: what it lists, loads, scores and samples. Implements `AdapterServer`."""

    def __init__(self, url: str, *, base: str = "base", options: VllmOptions | None = None) -> None:
        """url: without a path, on this machine. base: the name under which the base model is served."""
        self.url, self.base = url.rstrip("/"), base
        options = options or VllmOptions()
        self.transport = Transport(_limits(options.request_s, options.parallel))
        # Its own connections: a publish must not queue behind replies, nor a question about health behind either for long.
        self.control = Transport(_limits(min(options.request_s, options.control_s), 4))

    def close(self) -> None:
        """Close connections."""
        self.transport.close()
        self.control.close()

    def healthy(self) -> bool:
        """True when the engine answers."""
        try:
            return self._call("GET", "/health").status == 200
        except (ServeError, ProviderError):
            return False

    def can_load(self) -> bool:
        """True when adapters can be loaded at run time: the route is listed in the server's own description."""
        response = self._call("GET", "/openapi.json")
        paths = self._object(response).get("paths") if response.status == 200 else None
        return isinstance(paths, dict) and LOAD in paths

    def names(self) -> tuple[str, ...]:
        response = self._expect(self._call("GET", "/v1/models"), "list its models")
        data = self._object(response).get("data")
        names = [item.get("id") for item in data if isinstance(item, dict)] if isinstance(data, list) else []
        return tuple(name for name in names if isinstance(name, str) and name != self.base)

    def load(self, adapter: Adapter) -> None:
        body = {"lora_name": adapter.name, "lora_path": str(adapter.path.resolve())}
        response = self._call("POST", LOAD, body)
        if response.status == 404 and "cannot be found" not in response.body.decode("utf-8", "replace"):
            raise ServeError(f"{adapter.name} cannot be loaded: {WITHOUT_LOADING}.")
        self._expect(response, f"load {adapter.name}")

    def unload(self, name: str) -> None:
        response = self._call("POST", UNLOAD, {"lora_name": name})
        if response.status != 404:  # Not loaded is what was wanted.
            self._expect(response, f"unload {name}")

    def score(self, ids: Sequence[int], name: str | None) -> list[float]:
        body = {
            "model": name or self.base,
            "prompt": list(ids),
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": 0,
            "add_special_tokens": False,
        }
        response = self._expect(self._call("POST", "/v1/completions", body), f"score a text with {name or self.base}")
        choice = self._choices(response, 1)[0]
        scores = choice.get("prompt_logprobs")
        if not isinstance(scores, list) or len(scores) != len(ids):
            raise ServeError(f"the server scored {len(scores) if isinstance(scores, list) else 0} of {len(ids)} tokens.")
        found: list[float] = []
        for token, entry in zip(ids[1:], scores[1:], strict=True):
            value = entry.get(str(token), {}).get("logprob") if isinstance(entry, dict) else None
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise ServeError(
                    f"the server gives token {token} the log-probability {value!r}. Its cache or adapter is poisoned."
                )
            found.append(float(value))
        return found

    async def sample(
        self, ids: Sequence[int], *, name: str | None, count: int, fields: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """`count` replies to one prompt: vLLM's choices, in order."""
        body = {"model": name or self.base, "prompt": list(ids), "n": count, **fields}
        request = self._request("POST", "/v1/completions", body)
        response = self._expect(
            await self.transport.turn(lambda _: self.transport.send(request)), f"sample from {name or self.base}"
        )
        served = self._object(response).get("model")
        if served != (name or self.base):
            raise ServeError(f"{name or self.base} was asked for, and {served!r} answered.")
        return self._choices(response, count)

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Request:
        content = b"" if body is None else json.dumps(body).encode()
        return Request(url=self.url + path, body=content, headers={"content-type": "application/json"}, method=method)

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Response:
        request = self._request(method, path, body)
        try:
            return self.control.run(self.control.turn(lambda _: self.control.send(request)))
        except ProviderError as error:
            raise ServeError(f"the model server at {self.url} does not answer ({error}).") from error

    def _expect(self, response: Response, what: str) -> Response:
        if response.status != 200:
            error = status_error(response)
            kind = ModelError if "not JSON compliant" in str(error) else ServeError
            raise kind(f"the model server did not {what}: {error}")
        return response

    def _object(self, response: Response) -> dict[str, Any]:
        try:
            return response.json()
        except ProviderError as error:
            raise ServeError(f"the model server at {self.url} answered with something else than its protocol: {error}") from error

    def _choices(self, response: Response, count: int) -> list[dict[str, Any]]:
        choices = self._object(response).get("choices")
        if not isinstance(choices, list) or len(choices) != count or not all(isinstance(choice, dict) for choice in choices):
            got = len(choices) if isinstance(choices, list) else 0
            raise ServeError(f"{count} replies were asked for, {got} came back.")
        return sorted(choices, key=lambda choice: choice.get("index", 0))


def _limits(deadline_s: float, parallel: int) -> Limits:
    return Limits(deadline_s=deadline_s, attempts=1, body_bytes=256 << 20, parallel=parallel)


class VllmSampler:
    """The part of `models.sampler.Sampler` that the loop uses, on a server: adapters are published, prompts become replies."""

    def __init__(
        self,
        client: VllmClient,
        chat: ChatEncoder,
        publisher: Publisher,
        *,
        options: VllmOptions | None = None,
        schema: Mapping[str, Any] | None = None,
        expected: Callable[[Adapter], Sequence[float] | None] | None = None,
        recover: Callable[[], None] | None = None,
    ) -> None:
        """Sample through a server.

        Args:
            client: the server.
            chat: of the same model.
            publisher: of the same server.
            options: as for the client.
            schema: with `options.structured`, what replies are held to.
            expected: the trainer's log-probabilities of the publisher's probe, for an adapter that was just saved; None for one
                that it does not train.
            recover: called when the server is gone; returns when it serves again with all live adapters.
        """
        options = options or VllmOptions()
        if (schema is not None) != options.structured:
            raise ConfigError("structured decoding needs a schema, and a schema has no effect without it. Give both or neither.")
        self.chat = chat
        self._client, self._publisher = client, publisher
        self._schema, self._expected, self._recover = schema, expected, recover
        self._recovering = threading.Lock()

    @property
    def published(self) -> tuple[str, ...]:
        """Names of the adapters that are live."""
        return tuple(adapter.name for adapter in self._publisher.live.values())

    def publish(self, adapter: Adapter) -> None:
        """Let an adapter go live; raises as `Publisher.publish`."""
        expected = self._expected(adapter) if self._expected is not None else None
        self._surviving(lambda: self._publisher.publish(adapter.path, expected=expected))

    def generate(
        self, prompts: Sequence[tuple[int, ...]], *, adapter: str | None, sampling: Sampling, seeds: Sequence[int]
    ) -> list[Completion]:
        """One completion per prompt, in order; equal prompts are one request with `n` replies, so their prefix is computed once.

        Args:
            prompts: token ids.
            adapter: a live adapter, or None for the base.
            sampling: temperature and token limit.
            seeds: one per prompt; not used, see above.

        Raises:
            ConfigError: a prompt and its reply at the limit exceed the context.
            ContractError: empty prompts, or a different number of seeds.
            ServeError: the server failed, also after it was recovered once.
            ModelError: it computes garbage.
        """
        if len(seeds) != len(prompts) or not all(prompts):
            raise ContractError(
                f"generate needs non-empty prompts and one seed for each, got {len(prompts)} and {len(seeds)} seeds."
            )
        refuse_longer(self.chat.window, prompts, new_tokens=sampling.max_new_tokens)
        by_prompt: dict[tuple[int, ...], list[int]] = {}
        for index, prompt in enumerate(prompts):
            by_prompt.setdefault(tuple(prompt), []).append(index)
        replies: dict[tuple[int, ...], list[Completion]] = {}

        def ask() -> None:
            with ExitStack() as held:
                if adapter is not None:
                    held.enter_context(self._publisher.hold(adapter))
                # What was answered before a crash is kept: no reply is lost, and none is sampled twice.
                missing = {prompt: len(members) for prompt, members in by_prompt.items() if prompt not in replies}
                self._client.transport.run(self._ask(missing, adapter, sampling, replies))

        self._surviving(ask)
        completions: list[Completion | None] = [None] * len(prompts)
        for prompt, members in by_prompt.items():
            for index, completion in zip(members, replies[prompt], strict=True):
                completions[index] = completion
        return [completion for completion in completions if completion is not None]

    async def _ask(
        self,
        missing: Mapping[tuple[int, ...], int],
        adapter: str | None,
        sampling: Sampling,
        replies: dict[tuple[int, ...], list[Completion]],
    ) -> None:
        # The server knows nothing of an adapter's logit scale: dividing the temperature is the same, and its log-probabilities
        # are of what it sampled.
        scale = next((read_logit_scale(live.path) for live in self._publisher.live.values() if live.name == adapter), 1.0)
        fields = self._fields(replace(sampling, temperature=sampling.temperature / scale))

        async def one(prompt: tuple[int, ...], count: int) -> None:
            choices = await self._client.sample(prompt, name=adapter, count=count, fields=fields)
            replies[prompt] = [self._completion(choice, prompt) for choice in choices]

        results = await asyncio.gather(*(one(prompt, count) for prompt, count in missing.items()), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _fields(self, sampling: Sampling) -> dict[str, Any]:
        if not (0.0 <= sampling.temperature < math.inf) or sampling.max_new_tokens < 1:
            raise ConfigError(
                "temperature must be finite and >= 0 and max_new_tokens >= 1, "
                f"got {sampling.temperature} and {sampling.max_new_tokens}."
            )
        fields: dict[str, Any] = {
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            # The whole distribution: what is cut off would be missing from the recorded log-probabilities.
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "logprobs": 0,
            "return_token_ids": True,
            "stop_token_ids": sorted(self.chat.end_ids),
            "add_special_tokens": False,
            "skip_special_tokens": False,
        }
        if self._schema is not None:
            fields["response_format"] = {"type": "json_schema", "json_schema": {"name": "reply", "schema": self._schema}}
        return fields

    def _completion(self, choice: Mapping[str, Any], prompt: tuple[int, ...]) -> Completion:
        ids, logprobs = choice.get("token_ids"), (choice.get("logprobs") or {}).get("token_logprobs")
        if not isinstance(ids, list) or not isinstance(logprobs, list) or not ids or len(ids) != len(logprobs):
            raise ServeError(
                "a reply lacks its token ids or log-probabilities, so it cannot be trained on. The server must be vLLM >= 0.10.2."
            )
        if choice.get("prompt_token_ids") not in (None, list(prompt)):
            raise ServeError("the server changed the prompt (truncated it, or added a token). Raise --server.max-model-len.")
        if not all(isinstance(value, int | float) and math.isfinite(value) for value in logprobs):
            raise ModelError("the server sampled with non-finite numbers: an adapter or its cache is poisoned. Restart it.")
        finish = choice.get("finish_reason")
        stopped = ids[-1] in self.chat.end_ids
        if finish not in ("stop", "length") or (finish == "stop") is not stopped:
            raise ServeError(f"a reply ended with {finish!r} after token {ids[-1]}; expected an end-of-turn token or the limit.")
        return Completion(
            text=self.chat.decode(ids),
            token_ids=tuple(ids),
            logprobs=tuple(min(float(value), 0.0) for value in logprobs),
            finish_reason=finish,
        )

    def _surviving(self, work: Callable[[], T]) -> T:
        """Do `work`; when the server is gone, recover it and do what is missing once more."""
        try:
            return work()
        except (ServeError, ProviderError) as error:
            if self._recover is None or self._client.healthy():
                raise error if isinstance(error, ServeError) else ServeError(f"the model server failed: {error}") from error
            log.warning("the model server is gone (%s); it is started again", error)
        with self._recovering:
            if not self._client.healthy():
                self._recover()
        try:
            return work()
        except ProviderError as error:
            raise ServeError(f"the model server failed again after a restart: {error}") from error
