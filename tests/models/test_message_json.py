"""Messages as files write them: text or parts of text, and nothing that would be lost."""

from __future__ import annotations

import pytest

from onthejob.calls import read_calls, write_call
from onthejob.models.message_json import read_message, read_messages
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
        ({"role": "user", "content": "", "tool_calls": [{"id": 1}]}, "tool_calls, which would be lost"),
        ({"role": "assistant", "content": "", "tool_calls": [{"id": 1}]}, 'a call must be {"type": "function"'),
        ({"role": "assistant", "tool_calls": {"id": 1}}, "tool_calls must be a list, got dict"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}, "arguments of call f are no JSON"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}, "must be an object, got list"),
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


def call(name: str, place: str, arguments: object) -> dict[str, object]:
    return {"id": place, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_calls_and_their_results_are_text_as_a_model_writes_it():
    both = [call("add", "a", '{"x": 1, "y": 2}'), call("add", "b", {"x": 3, "y": 4})]
    rows = [
        {"role": "user", "content": "What is 1 + 2, and 3 + 4?"},
        {"role": "assistant", "content": None, "tool_calls": both},
        {"role": "tool", "tool_call_id": "a", "content": "3"},
        {"role": "tool", "tool_call_id": "b", "name": "add", "content": [{"type": "text", "text": "7"}]},
        {"role": "assistant", "content": "Once more.", "tool_calls": [call("add", "c", "{}")]},
        {"role": "tool", "content": "no numbers"},
        {"role": "assistant", "content": "3 and 7"},
    ]  # fmt: skip
    asked, calls, three, seven, again, wrong, said = read_messages(rows)
    assert calls.content == write_call("add", x=1, y=2) + "\n" + write_call("add", x=3, y=4)
    assert [(found.name, dict(found.arguments)) for found in read_calls(calls.content).calls] == [
        ("add", {"x": 1, "y": 2}), ("add", {"x": 3, "y": 4}),
    ]  # fmt: skip
    assert (three, seven, wrong) == (Message("tool", "3"), Message("tool", "7"), Message("tool", "no numbers"))
    assert again.content == "Once more.\n" + write_call("add")
    assert (asked.role, said) == ("user", Message("assistant", "3 and 7"))


@pytest.mark.parametrize("results", [["b", "a"], ["a", "a"], ["c"]])
def test_results_in_another_order_are_refused(results: list[str]):
    rows = [
        {"role": "assistant", "tool_calls": [call("add", "a", {}), call("add", "b", {})]},
        *({"role": "tool", "tool_call_id": place, "content": "1"} for place in results),
    ]
    with pytest.raises(ValueError, match="results in the order of the calls"):
        read_messages(rows)
