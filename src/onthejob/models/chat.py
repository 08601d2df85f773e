"""From messages to token ids and back, so that a context only ever grows at its end.

What was sampled is never tokenised again: a reply that decodes and encodes to other ids would make training compute the
log-probabilities of tokens that were never sampled.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

from jinja2 import TemplateError

from onthejob.calls import read_calls
from onthejob.errors import ConfigError, ContractError
from onthejob.models.context_messages import Reader
from onthejob.models.control import Control
from onthejob.models.template import check_arguments
from onthejob.models.template_tools import as_rows, as_text, safe
from onthejob.types import Message, ToolCall, ToolSpec

PROBE, RESULT = "onthejobprobe", "onthejobresult"


class ChatEncoder:
    """Encodes conversations with the tokenizer's own chat template.

    Text inside a message that spells a control token (`<|im_end|>`, `</think>`) is broken by a space, because a colleague's
    message must not be able to close a turn; every other text is encoded exactly as `tokenizer.apply_chat_template` does. Where a
    template has no system role, a first system message stands at the beginning of the first user message, above an empty line.
    Where it knows no tools, their schemas stand in the system message, calls are plain JSON, and results are a user's messages.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        window: int | None = None,
        end_ids: Collection[int] = (),
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Examine the template; `models.encoder.load_encoder` reads the other arguments from a model's folder.

        Args:
            tokenizer: a transformers tokenizer with a chat template.
            window: tokens that prompt and reply may have together; None sets no limit.
            end_ids: ids that end a reply, in addition to the tokenizer's own and the one that the template writes.
            arguments: passed to the template, e.g. `{"enable_thinking": False}`.

        Raises:
            ConfigError: there is no template, it cannot be rendered, does not write what a user says, does not close an
                assistant's turn with one control token, or does not read one of `arguments`.
        """
        if not tokenizer.chat_template:
            raise ConfigError("the model's tokenizer has no chat template. Choose an instruction-tuned model.")
        check_arguments(tokenizer, arguments or {})
        self.tokenizer = tokenizer
        self.window = window
        self.arguments = dict(arguments or {})
        self._control = Control(tokenizer)
        self._folds = False
        user, assistant = Message("user", PROBE), Message("assistant", PROBE)
        try:
            asked, answered = self.render([user], generation=True), self.render([user, assistant], generation=False)
        except ContractError as error:
            raise ConfigError(f"{error} Choose a model whose template takes a user's and an assistant's message.") from error
        if PROBE not in asked:
            raise ConfigError(
                "the chat template does not write the text of a user's message, e.g. because it expects a list of parts. "
                "Choose a model whose template takes text."
            )
        self._folds = not self._keeps_system()
        self._control = Control(tokenizer, (*asked.split(PROBE), *answered.split(PROBE)))
        closing = self.tokenize(self.after_reply(()))
        if not closing or closing[0] not in self._control.ids:
            raise ConfigError(
                "the chat template does not end an assistant's turn with a control token, so a reply's end cannot be sampled. "
                "Choose a model whose template does, such as ChatML's or Llama 3's."
            )
        self._end = closing[0]
        eos = tokenizer.eos_token_id
        self.end_ids: frozenset[int] = frozenset({self._end, *end_ids} | ({eos} if eos is not None else set()))
        """Ids whose sampling ends a reply."""

    def limit(self, tokens: int) -> None:
        """Let prompt and reply have at most `tokens` together, e.g. because a server serves no more."""
        self.window = tokens if self.window is None else min(self.window, tokens)

    @property
    def control_ids(self) -> frozenset[int]:
        """Ids of control tokens, which the text of a message never becomes."""
        return self._control.ids

    def encode(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> tuple[int, ...]:
        """A fresh context: the messages and the header of the assistant's reply, which may call `tools`.

        Raises:
            ContractError: the template refuses these messages, or one has no text.
        """
        return tuple(self.tokenize(self.render(messages, generation=True, tools=tools)))

    @cached_property
    def knows_tools(self) -> bool:
        """Whether the template writes the schemas of tools and the results of calls."""
        probe = ToolSpec(PROBE, "-", {"type": "object", "properties": {}})
        messages = [Message("user", "-"), Message("assistant", "-"), Message("tool", RESULT)]
        try:
            shown, answered = self._applied(messages[:1], tools=[probe]), self._applied(messages, tools=[probe])
            return PROBE in shown and RESULT in answered and RESULT in self._applied(messages)
        except ContractError:
            return False

    def shown_ids(self, reply: str, tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """As `reply_ids`, with calls in plain JSON where the template knows no tools, as the system message asks for."""
        if tools and not self.knows_tools:
            (message,) = as_text([Message("assistant", reply)], ())
            reply = message.content
        return self.reply_ids(reply)

    def reply_ids(self, text: str) -> tuple[int, ...]:
        """A reply that was not sampled, with the token that ends a turn.

        A special token's text is encoded as ordinary text. Tokens that are merely added (`<think>`, `<tool_call>`) keep their
        ids: here they are what the model shall learn to say.
        """
        return (*self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True), self._end)

    def extend(self, context_ids: Sequence[int], completion_ids: Sequence[int], messages: Sequence[Message]) -> tuple[int, ...]:
        """A context that continues: begins with context_ids + completion_ids bit for bit, then messages and a header.

        A reply that was cut at the token limit is closed first.

        Raises:
            ContractError: there is no message to append, or the template refuses one.
        """
        if not messages:
            raise ContractError("extend needs at least one new message, got none. Encode a fresh context instead.")
        answers = any(message.role == "tool" for message in messages)
        calls = read_calls(self.decode(completion_ids)).calls if answers else ()
        suffix = self.tokenize(self.after_reply(messages, calls))
        if completion_ids and completion_ids[-1] in self.end_ids:
            suffix = suffix[1:]
        return (*context_ids, *completion_ids, *suffix)

    def replies(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
    ) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """(prompt ids, reply ids) of every assistant message of a conversation, each prompt grown from the one before it.

        The prompts are those that a sampler is given when it plays the same conversation, token for token.

        Raises:
            ConfigError: no assistant message, or nothing before the first one.
        """
        found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        prompt: tuple[int, ...] = ()
        heard: list[Message] = []
        for message in messages:
            if message.role != "assistant":
                heard.append(message)
                continue
            if not heard:
                raise ConfigError("a conversation must not begin with a reply, nor hold two in a row. Collect it again.")
            prompt = self.extend(*found[-1], heard) if found else self.encode(heard, tools)
            found.append((prompt, self.shown_ids(message.content, tools)))
            heard = []
        if not found:
            raise ConfigError(f"a conversation needs a reply to learn from, got {len(messages)} messages without one.")
        return found

    def count(self, text: str) -> int:
        """Tokens that `text` takes in a message."""
        return len(self.tokenize(self.broken(text)))

    def broken(self, text: str) -> str:
        """`text` as a message holds it: with a space inside everything that spells a control token."""
        return self._control.broken(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a reply, without the end-of-turn token."""
        kept = ids[:-1] if ids and ids[-1] in self.end_ids else ids
        return self.tokenizer.decode(list(kept), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def messages(self, ids: Sequence[int]) -> tuple[Message, ...]:
        """The conversation that a context holds, e.g. `turn.prompt_ids` of a record: what `encode` and `extend` were given.

        A control token's text stays broken by its space, what a template trims or adds is as the model read it, and a system
        message that the template joins to the user's stays a part of it.

        Raises:
            ContractError: these are not the ids of a context of this chat template, up to the header of the next reply.
        """
        return self._reader.messages(ids)

    @cached_property
    def _reader(self) -> Reader:
        return Reader(self)

    def prefix_length(self, ids: Sequence[int]) -> int:
        """How many ids the first turn of a context has (a role's constant system message); a function of the context alone."""
        return next((index + 1 for index, token in enumerate(ids) if token == self._end), 0)

    def turns(self, ids: Sequence[int]) -> int:
        """How many turns of a context are closed: 2 for system and user, at least 3 when it holds a reply."""
        return sum(token == self._end for token in ids)

    def render(
        self,
        messages: Sequence[Message],
        *,
        generation: bool,
        template: str | None = None,
        tools: Sequence[ToolSpec] = (),
        calls: Sequence[ToolCall] = (),
    ) -> str:
        """The template's text of a conversation.

        Args:
            messages: of any roles that the template knows.
            generation: with the header of the assistant's reply.
            template: another one than the tokenizer's.
            tools: those that may be called.
            calls: those that the first results among `messages` answer.

        Raises:
            ContractError: the template refuses the messages, or one has no text.
        """
        for number, message in enumerate(messages, 1):
            if not isinstance(message.content, str):
                kind = type(message.content).__name__
                raise ContractError(f"message {number} ({message.role}) must be text, got {kind}. Give every message a str.")
        if (tools or any(message.role == "tool" for message in messages)) and not self.knows_tools:
            messages, tools = as_text(messages, tools), ()
        messages = self._folded(messages) if self._folds else messages
        return self._applied(messages, generation=generation, template=template, tools=tools, calls=calls)

    def _applied(
        self,
        messages: Sequence[Message],
        *,
        generation: bool = False,
        template: str | None = None,
        tools: Sequence[ToolSpec] = (),
        calls: Sequence[ToolCall] = (),
    ) -> str:
        """What the template makes of messages; without tools it is not told of any."""
        if tools or any(message.role == "tool" for message in messages):
            conversation = as_rows(messages, self.broken, calls)
        else:
            conversation = [{"role": message.role, "content": self.broken(message.content)} for message in messages]
        shown = {"tools": [safe(tool.function(), self.broken) for tool in tools]} if tools else {}
        try:
            return self.tokenizer.apply_chat_template(
                conversation,
                tokenize=False,
                add_generation_prompt=generation,
                chat_template=template,
                **shown,
                **self.arguments,
            )
        except (TemplateError, TypeError, ValueError) as error:
            roles = ", ".join(message.role for message in messages)
            raise ContractError(f"the model's chat template refuses these roles in this order: {roles} ({error}).") from error

    def after_reply(self, messages: Sequence[Message], calls: Sequence[ToolCall] = ()) -> str:
        """What the template writes after an assistant's reply: its closing, then the messages and a header when there are any.

        Args:
            messages: those behind the reply.
            calls: of the reply, which results among the messages answer.
        """
        probe = (Message("user", "-"), Message("assistant", PROBE), *messages)
        return self.render(probe, generation=bool(messages), calls=calls).partition(PROBE)[2]

    def tokenize(self, text: str) -> list[int]:
        """Ids of a rendered text, control tokens included."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _keeps_system(self) -> bool:
        """True when the template writes what a system message says."""
        try:
            return PROBE in self.render([Message("system", PROBE), Message("user", "-")], generation=False)
        except ContractError:
            return False

    @staticmethod
    def _folded(messages: Sequence[Message]) -> Sequence[Message]:
        if not messages or messages[0].role != "system":
            return messages
        system, *rest = messages
        if rest and rest[0].role == "user":
            return [Message("user", f"{system.content}\n\n{rest[0].content}"), *rest[1:]]
        return [Message("user", system.content), *rest]
