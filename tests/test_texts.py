"""Text from outside is shown without what a terminal obeys, what no encoding can write, and keys."""

from __future__ import annotations

import base64
from urllib.parse import quote

import pytest

from onthejob.texts import (
    encodable,
    encodable_in,
    printable,
    redacted,
    secrets_of_environment,
    secrets_of_headers,
    strict_json,
    without_in,
)

KEY = "sk+never/to=be-seen:0123456789"


@pytest.mark.parametrize(
    "told",
    [
        KEY,
        f"Incorrect API key provided: {KEY}.",
        f"Bearer {KEY}",
        f'{{"error": {{"message": "no access for {KEY}"}}}}',
        KEY.upper(),
        f"https://host/v1?key={quote(KEY, safe='')}",
        f"Basic {base64.b64encode(KEY.encode()).decode()}",
        f"{KEY}{KEY}",
    ],
)
def test_a_known_key_is_nowhere(told: str):
    shown = redacted(told, [KEY]).lower()
    for spelling in (KEY, quote(KEY, safe=""), base64.b64encode(KEY.encode()).decode().rstrip("=")):
        assert spelling.lower() not in shown
    assert "[redacted]" in shown


@pytest.mark.parametrize(
    ("told", "secret"),
    [
        ("Bearer abcdefgh12345678", "abcdefgh12345678"),
        ("bearer\n  eyJhbGciOi.abc", "eyJhbGciOi"),
        ("authorization=Bearer%20abcdefghijkl", "abcdefghijkl"),
        ("Basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA"),
        ('"api_key": "0a1b2c3d4e"', "0a1b2c3d4e"),
        ("x-api-key: zyxwvut", "zyxwvut"),
        ("invalid key sk-proj-Ab12Cd34Ef56", "Ab12Cd34Ef56"),
        ("AKIAABCDEFGHIJKLMNOP is unknown", "AKIAABCDEFGHIJKLMNOP"),
        ("hf_abcdefghijklmnop", "abcdefghijklmnop"),
        ("token eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.c2lnbmF0dXJl", "c2lnbmF0dXJl"),
    ],
)
def test_what_looks_like_a_key_is_nowhere(told: str, secret: str):
    assert secret not in redacted(told)


@pytest.mark.parametrize(
    "told",
    [
        "a valid bearer token is needed",
        "401: Bearer authentication required",
        "max_tokens: 300 is too small for this model",
        "token 7 has the log-probability nan",
        "status 500: (no body)",
        "the key 'loss' is missing",
    ],
)
def test_ordinary_words_are_kept(told: str):
    assert redacted(told, [KEY]) == told


@pytest.mark.parametrize(
    "told", ["\x1b[31mred", "a\x07b", "over\rwritten", "\x9b2J", "\u202etxt.exe", "\x00", "half \ud83d", "line\u2028line"]
)
def test_a_terminal_is_given_nothing_to_obey(told: str):
    shown = printable(told)
    assert shown.isprintable()
    assert shown.encode()
    assert "\ufffd" in shown


def test_lines_tabs_and_other_alphabets_are_printed():
    text = "a\tb\nгрошi 漢字 😀 é"
    assert printable(text) == text
    assert printable("a\r\nb") == "a\nb"


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("\ud800", "\ufffd"),
        ("a\udfffb", "a\ufffdb"),
        ("\ud83d\ude00", "😀"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("é\ud83d", "é\ufffd"),
        ("plain", "plain"),
    ],
)
def test_halves_of_surrogate_pairs_are_replaced(told: str, shown: str):
    assert encodable(told) == shown
    assert encodable_in({"a": [told], told: (told, 1)}) == {"a": [shown], shown: (shown, 1)}


def test_what_needs_no_change_is_not_copied():
    value = {"a": ["b", ("c", 1.5, None)], "é": {"d": True}}
    assert encodable_in(value) is value


@pytest.mark.parametrize(
    "content",
    [
        b'{"a": NaN}', b"[Infinity]", b"[-Infinity]", b"[1e400]", b"[-1e999]", b'["\\ud800"]', b'{"\\uDFFF": 1}', b'["\xff"]',
        b'["\xed\xa0\x80"]', b"[" * 100_000, b"9" * 5_000,
    ],
)  # fmt: skip
def test_only_json_is_json(content: bytes):
    with pytest.raises(ValueError):  # noqa: PT011  # of several kinds
        strict_json(content)


def test_json_is_read():
    assert strict_json(b'{"a": [1e300, "\\ud83d\\ude00", "\\\\ud800"]}') == {"a": [1e300, "😀", "\\ud800"]}


def test_keys_are_found_where_they_are_kept():
    assert secrets_of_headers({"Authorization": f"Bearer {KEY}", "accept": "something-long"}) == (KEY,)
    assert secrets_of_headers({"x-api-key": KEY}) == (KEY,)
    environ = {"MY_API_KEY": KEY, "HF_TOKEN": "hf_0123456789", "PATH": "/usr/bin:/bin", "SHORT_KEY": "abc"}
    assert set(secrets_of_environment(environ)) == {KEY, "hf_0123456789"}
    assert without_in({"a": [f"is {KEY}"], KEY: 1, "b": 2.5}, [KEY]) == {"a": ["is [redacted]"], "[redacted]": 1, "b": 2.5}
