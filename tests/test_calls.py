"""Calls of tools in replies, in the forms that the families' documentation shows, and what is broken about them."""

from __future__ import annotations

import pytest

from onthejob.calls import ReplyParts, read_calls, write_call, write_calls
from onthejob.types import ToolCall

STOCK, NOW = ToolCall("get_stock", {"symbol": "TSLA"}), ToolCall("now", {})
JSON = '{"name": "get_stock", "arguments": {"symbol": "TSLA"}}'
LLAMA = '{"name": "get_stock", "parameters": {"symbol": "TSLA"}}'
DEEP = {"text": 'a </tool_call> {b} "c" 日本 😀\nd', "deep": {"e": [{}]}}


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (f"<tool_call>\n{JSON}\n</tool_call>", ReplyParts("", (STOCK,))),
        (
            f'Look.\n<tool_call>\n{JSON}\n</tool_call>\n<tool_call>{{"name": "now"}}</tool_call>',
            ReplyParts("Look.", (STOCK, NOW)),
        ),
        (f"<think>{JSON}</think>\n<tool_call>{JSON}", ReplyParts(f"<think>{JSON}</think>", (STOCK,))),
        (LLAMA, ReplyParts("", (STOCK,))),
        (f'<|python_tag|>{LLAMA}; {{"name": "now", "parameters": {{}}}}', ReplyParts("", (STOCK, NOW))),
        (f"{LLAMA}; {LLAMA}", ReplyParts("", (STOCK, STOCK))),
        (f"[TOOL_CALLS] [{JSON}]", ReplyParts("", (STOCK,))),
        (f"Sure:\n```json\n{JSON}\n```", ReplyParts("Sure:", (STOCK,))),
        ('[{"name": "get_stock", "arguments": "{\\"symbol\\": \\"TSLA\\"}"}]', ReplyParts("", (STOCK,))),
        (write_call("write", **DEEP), ReplyParts("", (ToolCall("write", DEEP),))),
    ],
)
def test_a_call_is_read_in_every_form_and_written_back(reply: str, said: ReplyParts):
    assert read_calls(reply) == said
    assert read_calls(write_calls(said.text, said.calls)).calls == said.calls


@pytest.mark.parametrize("reply", ["", "42", "{braces}", '{"price": 3}', '{"name": "Ada", "age": 36}', "[" * 5000])
def test_other_text_and_json_are_no_calls(reply: str):
    assert read_calls(reply) == ReplyParts(reply)


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("<tool_call>get_stock(TSLA)</tool_call>", "cannot be read as JSON"),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "must be an object"),
        ('<tool_call>{"arguments": {}}</tool_call>', "needs a name"),
        ('<tool_call>{"name": "f"} and so on', "followed by"),
        ('<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>', "not finite"),
        ("<|python_tag|>print(1)", "cannot be read as JSON"),
        (LLAMA[:-4], "cannot be read as JSON"),
    ],
)
def test_a_call_that_cannot_be_read_is_a_problem(reply: str, problem: str):
    said = read_calls(reply)
    assert problem in said.problem
    assert said.calls == ()
