"""From messages to token ids and back, so that a context only ever grows at its end.

What was sampled is never tokenised again: a reply that decodes and encodes to other ids would make training compute the
log-probabilities of tokens that nobody sampled.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from jinja2 import TemplateError

from onthejob.errors import ConfigError, ContractError
from onthejob.types import Message

_PROBE = "onthejobprobe"


class ChatEncoder:
    """Encodes conversations with the tokenizer's own chat template.

    A control token's text inside a message (`<|im_end|>`) is broken by a space, because a colleague's message must not be able to
    close a turn; every other text is encoded exactly as `tokenizer.apply_chat_template` does.
    """

    def __init__(self, tokenizer: Any) -> None:
        """tokenizer: a transformers tokenizer with a chat template.

        Raises:
            ConfigError: it has none, or the template does not close an assistant's turn with one control token.
        """
        if not tokenizer.chat_template:
            raise ConfigError("the model's tokenizer has no chat template. Choose an instruction-tuned model.")
        self.tokenizer = tokenizer
        added = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
        control = sorted(added | set(tokenizer.all_special_tokens), key=len, reverse=True)
        self._control = re.compile("|".join(re.escape(text) for text in control)) if control else None
        special_ids = set(tokenizer.convert_tokens_to_ids(control))
        closing = self._tokenize(self._after_probe(()))
        if not closing or closing[0] not in special_ids:
            raise ConfigError(
                "the chat template does not end an assistant's turn with a control token, so a reply's end cannot be sampled. "
                "Choose a model whose template does (ChatML, Llama 3, Gemma, ...)."
            )
        self._end = closing[0]
        eos = tokenizer.eos_token_id
        self.end_ids: frozenset[int] = frozenset({self._end} | ({eos} if eos is not None else set()))
        """Ids whose sampling ends a reply."""

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """A fresh context: the messages and the header of the assistant's reply."""
        return tuple(self._tokenize(self._render(messages, generation=True)))

    def reply_ids(self, text: str) -> tuple[int, ...]:
        """A reply that was not sampled, with the token that ends a turn."""
        return (*self._tokenize(text), self._end)

    def extend(self, context_ids: Sequence[int], completion_ids: Sequence[int], messages: Sequence[Message]) -> tuple[int, ...]:
        """A context that goes on: begins with context_ids + completion_ids bit for bit, then messages and a header.

        A reply that was cut at the token limit is closed first.

        Raises:
            ContractError: there is no message to append.
        """
        if not messages:
            raise ContractError("extend needs at least one new message, got none. Encode a fresh context instead.")
        suffix = self._tokenize(self._after_probe(messages))
        if completion_ids and completion_ids[-1] in self.end_ids:
            suffix = suffix[1:]
        return (*context_ids, *completion_ids, *suffix)

    def count(self, text: str) -> int:
        """Tokens that `text` takes in a message."""
        return len(self._tokenize(self._defuse(text)))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a reply, without the end-of-turn token."""
        kept = ids[:-1] if ids and ids[-1] in self.end_ids else ids
        return self.tokenizer.decode(list(kept), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def messages(self, ids: Sequence[int]) -> tuple[Message, ...]:
        """The conversation that a context holds, e.g. `turn.prompt_ids` of a record: what `encode` and `extend` were given.

        A control token's text stays broken by its space, and what a template trims or adds of itself is as the model read it.

        Raises:
            ContractError: these are not the ids of a context of this chat template, up to the header of the next reply.
        """
        headers = self._headers()
        *closed, last = self._between_ends(ids)
        found = []
        for text in closed:
            header = next((header for header in headers if text.startswith(header)), None)
            if header is None:
                raise self._not_a_context(text)
            found.append(Message(headers[header], text[len(header) :]))
        if headers.get(last) != "assistant":
            raise self._not_a_context(last)
        return tuple(found)

    def prefix_length(self, ids: Sequence[int]) -> int:
        """How many ids the first turn of a context has (a role's constant system message); a function of the context alone."""
        return next((index + 1 for index, token in enumerate(ids) if token == self._end), 0)

    def turns(self, ids: Sequence[int]) -> int:
        """How many turns of a context are closed: 2 for system and user, at least 3 when it holds a reply."""
        return sum(token == self._end for token in ids)

    def _render(self, messages: Sequence[Message], *, generation: bool) -> str:
        conversation = [{"role": message.role, "content": self._defuse(message.content)} for message in messages]
        try:
            return self.tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=generation)
        except TemplateError as error:
            roles = ", ".join(message.role for message in messages)
            raise ContractError(f"the model's chat template refuses these roles in this order: {roles} ({error}).") from error

    def _between_ends(self, ids: Sequence[int]) -> list[str]:
        """Texts between the tokens that end a turn, without what the template writes right after such a token."""
        pieces: list[list[int]] = [[]]
        for token in ids:
            if token == self._end:
                pieces.append([])
            else:
                pieces[-1].append(token)
        after = self.tokenizer.decode(self._tokenize(self._after_probe(()))[1:])
        texts = [self.tokenizer.decode(piece, skip_special_tokens=False, clean_up_tokenization_spaces=False) for piece in pieces]
        return texts[:1] + [text.removeprefix(after) for text in texts[1:]]

    def _headers(self) -> dict[str, str]:
        """What the template writes before a message -> its role; longer ones first."""
        closing, probe = self._after_probe(()), Message("user", _PROBE)
        before, _, behind = self._after_probe((probe,)).removeprefix(closing).partition(_PROBE)
        headers = {before: "user", behind.removeprefix(closing): "assistant"}
        headers.setdefault(self._render((probe,), generation=False).partition(_PROBE)[0], "user")
        with suppress(ContractError):  # Some templates know no system message.
            headers.setdefault(self._render((Message("system", _PROBE), probe), generation=False).partition(_PROBE)[0], "system")
        return dict(sorted(headers.items(), key=lambda pair: -len(pair[0])))

    @staticmethod
    def _not_a_context(text: str) -> ContractError:
        return ContractError(
            f"not a context of this model's chat template: {text[:40]!r} begins no message and no reply at the end. "
            "Use the tokenizer with which the record was made."
        )

    def _after_probe(self, messages: Sequence[Message]) -> str:
        """What the template writes after an assistant's reply: its closing, then the messages and a header when there are any."""
        probe = (Message("user", "-"), Message("assistant", _PROBE), *messages)
        return self._render(probe, generation=bool(messages)).partition(_PROBE)[2]

    def _tokenize(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _defuse(self, content: str) -> str:
        if self._control is None:
            return content
        return self._control.sub(lambda found: f"{found[0][:1]} {found[0][1:]}", content)
