"""What a path, a text and a pattern of a task may be, so that every workspace can hold it and the grader reads it as meant."""

from __future__ import annotations

import re

MAX_TEXT_BYTES = 64 * 1024
"""UTF-8 bytes of one text file."""


def path_problem(path: str) -> str:
    """Why `path` cannot be a path inside a workspace; empty when it can."""
    if any("\ud800" <= char <= "\udfff" for char in path):
        return "must be UTF-8 text without lone surrogates"
    if not path or len(path.encode()) > 200:
        return "must have 1 to 200 bytes"
    if path.startswith("/"):
        return "must be relative to the workspace"
    if any(part in ("", ".", "..") for part in path.split("/")):
        return "must not have empty, . or .. components"
    if any(ord(char) < 32 or ord(char) == 127 for char in path):
        return "must not hold control characters"
    return ""


def text_problems(text: str) -> list[str]:
    """Why `text` cannot be a file's content or a task's words, a sentence each."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return ["must be UTF-8 text, got a lone surrogate"]
    problems = ["must not hold NUL characters"] if "\0" in text else []
    if size > MAX_TEXT_BYTES:
        problems.append(f"must have at most {MAX_TEXT_BYTES} bytes, got {size}")
    return problems


_NOT_IN_RE2 = re.compile(r"(?<!\\)(?:\\\\)*(?:\(\?(?:[=!>(]|<[=!]|P=)|\\[1-9Z]|[*+?}]\+)")
# The grader's engine, which unlike `re` has a time limit, reads these otherwise: x{s} as x with one substitution.
_POSIX = re.compile(r"\[:\^?\w+:\]")
_ESCAPE = re.compile(r"\\.", re.DOTALL)
_CLASS = re.compile(r"\[\^?\]?[^\]]*\]")
_BRACE = re.compile(r"\{(?!(?:\d+(?:,\d*)?|,\d+)\})")


def regex_problem(regex: str) -> str:
    """Why the grader cannot use this pattern; empty when it can."""
    if len(regex) > 8_000:
        return f"must have at most 8000 characters, has {len(regex)}"
    if _POSIX.search(regex):
        return "must not use POSIX classes"
    try:
        re.compile(regex)
    except (re.error, RecursionError, OverflowError) as error:
        return f"must be a regular expression ({error})"
    if _NOT_IN_RE2.search(regex):
        return "must not use look-around, back-references, atomic groups, possessive quantifiers or \\Z"
    if _BRACE.search(_CLASS.sub("", _ESCAPE.sub("", regex))):
        return "must hold { only as a repeat count, or escaped"
    return ""
