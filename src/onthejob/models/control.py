"""Control tokens of a tokenizer, and text of messages that spells one.

What an environment, a colleague, a command or a demonstration writes must not be able to close a turn or to open another, so
such text is broken by a space before it is encoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_MARKUP = re.compile(r"<[^\s<>]+>|\[[^\s\[\]]+\]")
"""Words that look like control tokens in what a template writes around messages, where they may be ordinary text: `[INST]`."""


class Control:
    """The control tokens of one tokenizer with its template."""

    def __init__(self, tokenizer: Any, template_text: Iterable[str] = ()) -> None:
        """Collect them.

        Args:
            tokenizer: a transformers tokenizer. Its special tokens are control tokens, and so are added tokens that begin and end
                with a sign (`<think>`, `[TOOL_CALLS]`), whether they are marked as special or not. Added words and runs of
                spaces are ordinary text.
            template_text: what the template writes around messages; words like `[INST]` in it count too.
        """
        added = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special or _is_sign(token.content)}
        tokens = sorted({*added, *tokenizer.all_special_tokens}, key=len, reverse=True)
        self.ids: frozenset[int] = frozenset(tokenizer.convert_tokens_to_ids(tokens))
        written = {word for text in template_text for word in _MARKUP.findall(text)}
        texts = sorted({*tokens, *written}, key=len, reverse=True)
        self._pattern = re.compile("|".join(re.escape(text) for text in texts)) if texts else None
        self._normalizer = tokenizer.backend_tokenizer.normalizer if tokenizer.is_fast else None

    def broken(self, text: str) -> str:
        """`text` with a space inside everything that spells a control token, also after the tokenizer's normalisation."""
        if self._pattern is None:
            return text
        while self._pattern.search(text):
            text = self._pattern.sub(lambda found: f"{found[0][:1]} {found[0][1:]}", text)
        if self._normalizer is not None and self._pattern.search(normal := self._normalizer.normalize_str(text)):
            return self.broken(normal)
        return text


def _is_sign(token: str) -> bool:
    """True for an added token that is no word and no run of spaces."""
    ends = token[:1] + token[-1:]
    return len(token) > 2 and not any(letter.isalnum() or letter.isspace() for letter in ends)
