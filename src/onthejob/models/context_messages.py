"""The messages in a context's ids: the inverse of what `ChatEncoder` does.

A context is read with what the template writes between two messages of any two roles, found by rendering probes. Ids of control
tokens become private characters first, so that ordinary text which spells one is never taken for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from onthejob.errors import ContractError
from onthejob.types import Message

if TYPE_CHECKING:
    from onthejob.models.chat import ChatEncoder

_ROLES = ("system", "user", "assistant")
_FIRST, _SECOND, _CLOCK = "onthejobfirst", "onthejobsecond", "onthejobclock"
_STILL = "{%- macro strftime_now(format) -%}" + _CLOCK + "{%- endmacro -%}"
"""Before a template: a mark in the place of every time of day that it writes."""
_SIGNS = 0x10F000
"""First of the private characters that stand for control tokens."""


class _Between(NamedTuple):
    """What stands before a message, or at the end of a context."""

    pattern: re.Pattern[str]
    role: str
    """Of the message behind it."""
    signed: bool
    """It holds a control token; other text might as well be a part of a message."""


class Reader:
    """Reads contexts of one chat template."""

    def __init__(self, chat: ChatEncoder) -> None:
        self._chat = chat
        signs = {token: chr(_SIGNS + index) for index, token in enumerate(sorted(chat.control_ids | chat.end_ids))}
        self._signs = signs
        self._words = {sign: chat.tokenizer.convert_ids_to_tokens(token) for token, sign in signs.items()}
        self._any_sign = re.compile(f"[{''.join(signs.values())}]")
        self._ends = "[" + "".join(signs[token] for token in sorted(chat.end_ids)) + "]"
        self._template = _STILL + chat.tokenizer.get_chat_template()
        self._starts = self._opening()
        # Last, so that text of a user which looks alike is the user's.
        self._roles = (*_ROLES, "tool") if chat.knows_tools else _ROLES
        self._between = {role: self._following(role) for role in self._roles}

    def messages(self, ids: Sequence[int]) -> tuple[Message, ...]:
        """As `ChatEncoder.messages`."""
        text = self._marked(ids)
        opening = max(((found.end(), start) for start in self._starts if (found := start.pattern.match(text))), default=None)
        if opening is None:
            raise self._not_a_context(text)
        place, role = opening[0], opening[1].role
        read: list[Message] = []
        while True:
            found = self._next(text, place, role)
            read.append(Message(role, self._plain(text[place : found[0]])))
            place, role = found[1], found[2]
            if place == len(text) and role == "assistant":
                return tuple(read)

    def _next(self, text: str, place: int, role: str) -> tuple[int, int, str]:
        """Where the message of `role` that begins at `place` ends, where the next begins, and whose it is."""
        found = [(match.start(), -match.end(), one) for one in self._between[role] if (match := one.pattern.search(text, place))]
        if not found:
            raise self._not_a_context(text[place:])
        start, end, one = min(found, key=lambda found: found[:2])
        if not one.signed:
            sign = self._any_sign.search(text, place)
            stretch = text[place : sign.start() if sign else len(text)]
            if len(one.pattern.findall(stretch)) > 1:
                raise ContractError(
                    f"the messages of this context cannot be separated: its chat template writes {text[start:-end]!r} between "
                    "two of them, which is ordinary text and occurs inside a message too."
                )
        return start, -end, one.role

    def _opening(self) -> list[_Between]:
        """What contexts begin with."""
        found: dict[str, str] = {}
        for role in ("user", "assistant", "system"):
            with suppress(ContractError):
                probe = [Message(role, _FIRST), *([Message("user", "-")] if role == "system" else [])]
                before, probed, _ = self._rendered(probe, generation=False).partition(_FIRST)
                if probed:
                    # A system message that begins as a user's is a part of it.
                    found.setdefault(before, role)
        return [self._compiled(text, role) for text, role in found.items()]

    def _following(self, role: str) -> list[_Between]:
        """What may follow a message of `role`."""
        lead = [Message("user", "-")] if role in ("assistant", "tool") else []
        found: dict[tuple[str, str], None] = {}
        # Several results of one reply may have ordinary text between them, and are then read as one.
        for after in (None, *(one for one in self._roles if (role, one) != ("tool", "tool"))):
            second = [Message(after, _SECOND)] if after else []
            with suppress(ContractError):
                text = self._rendered([*lead, Message(role, _FIRST), *second], generation=after is None)
                self._add(found, text.partition(_FIRST)[2], after)
            if role == "assistant" and after:
                with suppress(ContractError):
                    text = self._marked(self._chat.tokenize(self._chat.after_reply(second)))
                    # A sampled reply ends with any of the tokens that end one.
                    self._add(found, text, after)
        return [self._compiled(text, role, after_reply=True) for text, role in found]

    @staticmethod
    def _add(found: dict[tuple[str, str], None], text: str, after: str | None) -> None:
        between, probed, _ = text.partition(_SECOND)
        if between and (probed or after is None):
            found[between, after or "assistant"] = None

    def _compiled(self, text: str, role: str, *, after_reply: bool = False) -> _Between:
        pattern = re.escape(text).replace(_CLOCK, r"[^\n]{0,80}?")
        if after_reply and re.match(self._ends, text):
            pattern = self._ends + re.escape(text[1:]).replace(_CLOCK, r"[^\n]{0,80}?")
        return _Between(re.compile(pattern), role, self._any_sign.search(text) is not None)

    def _rendered(self, messages: Sequence[Message], *, generation: bool) -> str:
        return self._marked(self._chat.tokenize(self._chat.render(messages, generation=generation, template=self._template)))

    def _marked(self, ids: Sequence[int]) -> str:
        """The text of ids, with a private character for every control token."""
        pieces: list[str] = []
        run: list[int] = []
        for token in (*ids, None):
            if token is not None and token not in self._signs:
                run.append(token)
                continue
            if run:
                pieces.append(self._any_sign.sub("\ufffd", self._decoded(run)))
                run = []
            if token is not None:
                pieces.append(self._signs[token])
        return "".join(pieces)

    def _decoded(self, ids: list[int]) -> str:
        return self._chat.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _plain(self, text: str) -> str:
        return self._any_sign.sub(lambda found: self._words[found[0]], text)

    def _not_a_context(self, text: str) -> ContractError:
        return ContractError(
            f"not a context of this model's chat template: {self._plain(text)[:40]!r} begins no message and no reply at the end. "
            "Use the tokenizer with which the record was made."
        )
