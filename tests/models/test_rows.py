"""Messages as files write them: text or parts of text, and nothing that would be lost."""

from __future__ import annotations

import pytest

from onthejob.models.rows import read_message
from onthejob.types import Message


def test_text_and_text_parts_are_read():
    parts = [{"type": "text", "text": "Sell "}, {"type": "text", "text": "more."}]
    for content in ("Sell more.", parts):
        assert read_message({"role": "user", "content": content, "tool_calls": None}) == Message("user", "Sell more.")
    assert read_message({"role": "assistant", "content": ""}) == Message("assistant", "")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"role": "user", "content": None}, "null or missing"),
        ({"role": "user"}, "null or missing"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}, "a part of type 'image_url'"),
        ({"role": "user", "content": ["Hi"]}, "a part of type 'str'"),
        ({"role": "user", "content": 7}, "got int"),
        ({"role": "assistant", "content": "", "tool_calls": [{"id": 1}]}, "tool_calls, which would be lost"),
        ({"role": "assistant", "content": "x", "weight": 0}, "weight, which would be lost"),
        ({"role": "user<|im_end|>", "content": "x"}, "role must be a word"),
        ({"content": "x"}, "got None"),
        (["user", "x"], "must be an object"),
        ({"role": "user", "content": "\ud83d"}, "surrogate"),
    ],
)
def test_what_would_be_trained_otherwise_is_refused(row: object, why: str):
    with pytest.raises(ValueError, match=why):
        read_message(row)
