"""Hosted models behind one small protocol: `ChatClient.ask(question) -> Answer`.

A client knows one wire format and nothing else: how a question is written, how an answer is read, and by which means the
provider holds a model to a JSON schema. Deadlines, attempts and limits are the transport's; keys, prices and names are the
catalogue's; turning answers into a policy is `onthejob.models.hosted`'s.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from onthejob.models import hosted_tools as native
from onthejob.models.transport import HttpRequest, Outcome, Transport, failure
from onthejob.types import Message, ToolSpec

Schema = Mapping[str, Any]
"""A JSON schema of an object: all properties required, `additionalProperties` false."""


class Usage(NamedTuple):
    """Tokens as the provider counts them."""

    prompt: int = 0
    completion: int = 0

    def __add__(self, other: object) -> Usage:  # type: ignore[override]
        if not isinstance(other, Usage):
            return NotImplemented
        return Usage(self.prompt + other.prompt, self.completion + other.completion)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a hosted model is asked."""

    messages: Sequence[Message]
    max_tokens: int
    temperature: float | None = None
    """None leaves it to the provider: some models refuse the field."""
    schema: Schema | None = None
    tools: Sequence[ToolSpec] = ()
    """Offered in the provider's own form; calls of the answer become text, in the first form of `onthejob.calls`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back; `outcome.answered` is always true."""

    text: str
    outcome: Outcome
    usage: Usage | None = None
    model: str = ""
    """As the provider names what answered."""


class ChatClient(Protocol):
    """One wire format at one address."""

    @property
    def name(self) -> str:
        """For the record, e.g. `anthropic:claude-haiku`; never holds a key."""
        ...

    async def ask(self, question: Question) -> Answer:
        """One request, not repeated.

        Raises:
            ProviderError: the provider gave no answer.
        """
        ...


class OpenAIClient:
    """`POST {base}/chat/completions`: OpenAI, OpenRouter, vLLM and whatever else speaks it."""

    def __init__(
        self,
        transport: Transport,
        *,
        base_url: str,
        model: str,
        name: str,
        key: str | None = None,
        extra: Mapping[str, Any] | None = None,
        tokens_field: str = "max_tokens",
    ) -> None:
        """Describe the address.

        Args:
            transport: sends.
            base_url: up to and including `/v1`.
            model: as the server lists it.
            name: for the record.
            key: sent as a bearer token.
            extra: further fields of every request, e.g. OpenRouter's `provider`.
            tokens_field: `max_completion_tokens` at OpenAI, `max_tokens` elsewhere.
        """
        self._transport, self._model, self.name = transport, model, name
        self._url = base_url.rstrip("/") + "/chat/completions"
        self._key, self._extra, self._tokens_field = key, dict(extra or {}), tokens_field

    async def ask(self, question: Question) -> Answer:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": native.openai_messages(question.messages, question.tools),
            self._tokens_field: question.max_tokens,
            **self._extra,
        }
        if question.temperature is not None:
            body["temperature"] = question.temperature
        if question.schema is not None:
            shape = {"name": "reply", "strict": True, "schema": question.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": shape}
        if question.tools:
            body["tools"] = [tool.function() for tool in question.tools]
        headers = {"content-type": "application/json"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        data = await self._transport.exchange(HttpRequest(url=self._url, body=_json(body), headers=headers))
        choice = first_object(data.get("choices"), "choices")
        message = the_object(choice.get("message"), "choices[0].message")
        check_logprobs(choice.get("logprobs"))
        refused = bool(message.get("refusal")) or choice.get("finish_reason") == "content_filter"
        usage = counts(data.get("usage"), "prompt_tokens", "completion_tokens")
        content = message.get("content")
        # Some servers write parts, and thoughts among them, as Anthropic does.
        text = written_parts(content) if isinstance(content, list) else content
        calls = native.openai_calls(message.get("tool_calls")) if question.tools else ""
        return answer(
            native.with_calls(text, calls),
            refused=refused,
            cut=choice.get("finish_reason") == "length",
            usage=usage,
            model=data.get("model"),
            name="content",
        )


class AnthropicClient:
    """`POST {base}/v1/messages`: Anthropic's Messages API, which vLLM serves too."""

    VERSION = "2026-10-21"
    """Of the API, as the SDK 2.11 sends it, with whose types the reading below agrees."""

    def __init__(
        self, transport: Transport, *, model: str, name: str, key: str | None, base_url: str = "https://api.anthropic.com"
    ) -> None:
        """Arguments as for `OpenAIClient`, but `base_url` is without /v1."""
        self._transport, self._model, self.name, self._key = transport, model, name, key
        self._url = base_url.rstrip("/") + "/v1/messages"

    async def ask(self, question: Question) -> Answer:
        system, turns = split_system(question.messages)
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": question.max_tokens,
            "messages": [{"role": message.role, "content": message.content} for message in turns],
        }
        if question.tools:
            body["messages"] = native.anthropic_turns(question.messages, question.tools)
            body["tools"] = native.anthropic_tools(question.tools)
        if system:
            body["system"] = system
        if question.temperature is not None:
            body["temperature"] = min(question.temperature, 1.0)
        if question.schema is not None:
            body["output_config"] = {"format": {"type": "json_schema", "schema": plain_schema(question.schema)}}
        headers = {"content-type": "application/json", "anthropic-version": self.VERSION}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"  # As the SDK does since 2.x; x-api-key is the older way.
        data = await self._transport.exchange(HttpRequest(url=self._url, body=_json(body), headers=headers))
        blocks = data.get("content")
        if not isinstance(blocks, list):
            raise failure(Outcome.MALFORMED, "the answer's content is not a list of blocks")
        stop = data.get("stop_reason")
        text = written_parts(blocks)
        used = [block for block in blocks if block.get("type") == "tool_use"] if question.tools else []
        calls = "\n".join(native.block_call(block.get("name"), block.get("input")) for block in used)
        return answer(
            native.with_calls(text, calls),
            refused=stop == "refusal",
            cut=stop in ("max_tokens", "model_context_window_exceeded"),
            usage=counts(data.get("usage"), "input_tokens", "output_tokens"),
            model=data.get("model"),
            name="content",
        )


def written_parts(blocks: list[Any]) -> str:
    """The text of an answer in parts; thoughts and the like are omitted.

    Raises:
        ProviderError: these are no parts (`malformed`).
    """
    if not all(isinstance(block, dict) for block in blocks):
        raise failure(Outcome.MALFORMED, "the answer's content is not a list of blocks")
    texts = [block.get("text") for block in blocks if block.get("type") == "text"]
    if not all(isinstance(text, str) for text in texts):
        raise failure(Outcome.MALFORMED, "a text block of the answer holds no text")
    return "".join(texts)


def answer(text: object, *, refused: bool, cut: bool, usage: Usage | None, model: object, name: str) -> Answer:
    """An answer with the outcome that fits.

    Raises:
        ProviderError: the text is neither a string nor absent (`malformed`).
    """
    if text is not None and not isinstance(text, str):
        raise failure(Outcome.MALFORMED, f"{name} is {type(text).__name__}, not text")
    written = text or ""
    empty = Outcome.EMPTY if not written.strip() else Outcome.OK
    outcome = Outcome.REFUSED if refused else Outcome.LENGTH if cut else empty
    return Answer(text=written, outcome=outcome, usage=usage, model=model if isinstance(model, str) else "")


def counts(usage: object, prompt: str, completion: str) -> Usage | None:
    """Token counts of an answer; None when it does not say (the provider's bill is the truth, ours an account)."""
    values = [usage.get(name) for name in (prompt, completion)] if isinstance(usage, dict) else []
    known = [value for value in values if isinstance(value, int) and not isinstance(value, bool) and value >= 0]
    return Usage(*known) if len(known) == 2 else None


def check_logprobs(logprobs: object) -> None:
    """Refuse an answer with a log-probability that is not finite: such a server computes garbage.

    Raises:
        ProviderError: there is one (`malformed`).
    """
    if not isinstance(logprobs, dict):
        return
    listed = logprobs.get("content") or logprobs.get("token_logprobs") or []
    for entry in listed if isinstance(listed, list) else []:
        value = entry.get("logprob") if isinstance(entry, dict) else entry
        if isinstance(value, float) and not math.isfinite(value):
            raise failure(Outcome.MALFORMED, f"the answer holds the log-probability {value}")


def split_system(messages: Sequence[Message]) -> tuple[str, list[Message]]:
    """The system messages' text, and the turns with neighbours of one role joined: these APIs want them to alternate."""
    system = "\n\n".join(message.content for message in messages if message.role == "system")
    turns: list[Message] = []
    for message in native.without_results(messages):
        if message.role == "system":
            continue
        if turns and turns[-1].role == message.role:
            turns[-1] = Message(message.role, f"{turns[-1].content}\n\n{message.content}")
        else:
            turns.append(message)
    # An empty text is refused by both APIs; an empty reply is still part of the conversation.
    return system, [Message(turn.role, turn.content or "(nothing)") for turn in turns]


def plain_schema(schema: Schema) -> dict[str, Any]:
    """`schema` without the bounds that hosted grammars refuse (they compile types, enums and required keys)."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: plain(item) for key, item in value.items() if key not in _UNSUPPORTED}
        return [plain(item) for item in value] if isinstance(value, list) else value

    return plain(schema)


_UNSUPPORTED = frozenset({"maxLength", "minLength", "pattern", "minimum", "maximum", "multipleOf", "maxItems", "uniqueItems"})


def first_object(value: object, name: str) -> dict[str, Any]:
    """The first entry of a list of objects.

    Raises:
        ProviderError: it is none (`malformed`).
    """
    if not isinstance(value, list) or not value:
        raise failure(Outcome.MALFORMED, f"the answer has no {name}")
    return the_object(value[0], f"{name}[0]")


def the_object(value: object, name: str) -> dict[str, Any]:
    """`value` as an object.

    Raises:
        ProviderError: it is none (`malformed`).
    """
    if not isinstance(value, dict):
        raise failure(Outcome.MALFORMED, f"the answer's {name} is {type(value).__name__}, not an object")
    return value


def _json(body: Mapping[str, Any]) -> bytes:
    # ASCII: a lone surrogate in a prompt stays representable.
    return json.dumps(body, ensure_ascii=True, allow_nan=False).encode()
