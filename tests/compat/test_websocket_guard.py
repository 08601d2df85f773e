"""Which frames reach a session."""

from __future__ import annotations

import json

import pytest

from onthejob.compat.websocket_guard import MAX_DEPTH, MAX_FRAME, Problem, check

STEP = json.dumps({"type": "step", "data": {"reply": 'she said "[[[{{{" and left\\'}})


@pytest.mark.parametrize(
    "frame", ['{"type":"state"}', STEP, "{}", '{"type":["x"]}', '{"a":' * (MAX_DEPTH - 1) + "1" + "}" * (MAX_DEPTH - 1)]
)
def test_objects_pass_unchanged(frame: str):
    assert check(frame) == frame


def test_brackets_inside_strings_are_no_nesting():
    frame = json.dumps({"type": "step", "data": {"reply": "[" * 500 + '"{' * 500}})
    assert check(frame) == frame


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (None, "INVALID_JSON"),
        ("", "INVALID_JSON"),
        ("hello", "INVALID_JSON"),
        ('{"type":"step"', "INVALID_JSON"),
        ("9" * 5_000, "INVALID_JSON"),
        ('{"type":"step","data":{"reply":' + "9" * 5_000 + "}}", "INVALID_JSON"),
        ("[1]", "VALIDATION_ERROR"),
        ("null", "VALIDATION_ERROR"),
        ("3", "VALIDATION_ERROR"),
        ('"reset"', "VALIDATION_ERROR"),
        ("[" * 100_000, "VALIDATION_ERROR"),
        ('{"a":' * 100 + "1" + "}" * 100, "VALIDATION_ERROR"),
        ('{"a":"' + "x" * MAX_FRAME + '"}', "VALIDATION_ERROR"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_everything_else_is_answered(frame: str | None, code: str):
    found = check(frame)
    assert isinstance(found, Problem)
    assert found.code == code
    assert found.message


def test_half_surrogates_are_replaced():
    passed = check('{"type":"step","data":{"reply":"a \\ud800 b \\ud83d\\ude00"}}')
    assert isinstance(passed, str)
    assert json.loads(passed)["data"]["reply"] == "a ? b \U0001f600"
    passed.encode("utf-8")
