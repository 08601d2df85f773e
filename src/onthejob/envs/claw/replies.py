"""From a reply to what runs: one bash block, a declaration that the task is done, both, or a mistake with a corrective message.

Decided here, where other harnesses lose work silently:

* the whole block runs, with its loops, heredocs and all lines;
* a command next to a declaration runs first, then the episode ends;
* three backticks inside a heredoc are content (a Markdown file being written), a heredoc that never ends does not swallow the
  rest of the reply;
* only the first block with commands runs; what follows a second one is not read, and the observation says so;
* a block that is not closed was probably cut, and does not run.

`parse` never raises and its time is linear in the reply.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from onthejob.envs.claw.script import Scanner, top_lines
from onthejob.envs.claw.stops import STANDARD, SentinelPlace, StopTable, sentinel_at

MAX_REPLY_CHARS = 100_000

_FENCE = re.compile(r"[ \t]*(`{3,})([^`]*)")
_BASH = frozenset({"", "bash", "sh", "shell", "console"})


class ReplyProblem(StrEnum):
    """Why a reply runs nothing."""

    NO_BLOCK = "no_block"
    EMPTY = "empty"
    LANGUAGE = "language"
    UNCLOSED = "unclosed"
    CHARACTER = "character"
    TOO_LONG = "too_long"


_FORM = "Write one block:\n```bash\nCOMMAND\n```\nor TASK_COMPLETE when the task is done."
FEEDBACK: MappingProxyType[ReplyProblem, str] = MappingProxyType(
    {
        ReplyProblem.NO_BLOCK: f"No bash block found. {_FORM}",
        ReplyProblem.EMPTY: f"The bash block holds no command. {_FORM}",
        ReplyProblem.LANGUAGE: f"Only bash runs here. {_FORM}",
        ReplyProblem.UNCLOSED: f"The bash block is not closed by ``` on a line of its own, so it was not run. {_FORM}",
        ReplyProblem.CHARACTER: f"The reply holds a NUL or a broken character, so it was not run. {_FORM}",
        ReplyProblem.TOO_LONG: f"The reply is longer than {MAX_REPLY_CHARS} characters, so it was not run. {_FORM}",
    }
)
"""The answer to the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedReply:
    """What one reply asks for. `command` and `stop` may both be set: the command runs first."""

    command: str | None = None
    """The script to run, of one or more lines."""
    stop: str | None = None
    """Name of the sentinel that declared the task done."""
    ignored: bool = False
    """True when there was a second block with commands; it and what follows were not read."""
    problem: ReplyProblem | None = None
    """Set exactly when neither `command` nor `stop` is."""


def parse(reply: str, stops: StopTable = STANDARD) -> ParsedReply:
    """What `reply` asks for, with the sentinels of `stops`."""
    if len(reply) > MAX_REPLY_CHARS:
        return ParsedReply(problem=ReplyProblem.TOO_LONG)
    if "\0" in reply or any("\ud800" <= character <= "\udfff" for character in reply):
        return ParsedReply(problem=ReplyProblem.CHARACTER)
    lines = _without_thinking(reply).replace("\r\n", "\n").split("\n")
    command: str | None = None
    stop: str | None = None
    problem = ReplyProblem.NO_BLOCK
    at = 0
    while at < len(lines):
        fence = _FENCE.fullmatch(lines[at])
        if fence is None:
            sentinel = sentinel_at(stops, lines[at], SentinelPlace.TEXT)
            stop = stop or (sentinel.name if sentinel else None)
            at += 1
            continue
        end = _closing(lines, at + 1, len(fence[1]))
        if end is None:
            # A cut block after a whole one is only ignored; before one it hides whatever else was meant.
            return (
                ParsedReply(command=command, stop=stop, ignored=True) if command else ParsedReply(problem=ReplyProblem.UNCLOSED)
            )
        language = next(iter(fence[2].split(maxsplit=1)), "").casefold()
        block = lines[at + 1 : end]
        at = end + 1
        if language not in _BASH:
            problem = ReplyProblem.LANGUAGE
            continue
        script, declared = _read_block(block, stops)
        if script is not None and command is not None:
            return ParsedReply(command=command, stop=stop, ignored=True)
        command, stop = command or script, stop or declared
        problem = ReplyProblem.EMPTY
    if command is None and stop is None:
        return ParsedReply(problem=problem)
    return ParsedReply(command=command, stop=stop)


def _without_thinking(reply: str) -> str:
    """The reply after a leading `<think>` part; nothing when that never ends."""
    start = reply.lstrip()
    return start.partition("</think>")[2] if start.startswith("<think>") else reply


def _closing(lines: Sequence[str], start: int, ticks: int) -> int | None:
    """Index of the line that closes a block: the first fence outside a heredoc, or the first one at all."""
    scanner, inside = Scanner(), None
    for index in range(start, len(lines)):
        bare = lines[index].strip()
        if len(bare) >= ticks and not bare.strip("`"):
            if not scanner.in_heredoc:
                return index
            inside = index if inside is None else inside
        scanner.feed(lines[index])
    return inside


def _read_block(lines: Sequence[str], stops: StopTable) -> tuple[str | None, str | None]:
    """What runs of a block, and the sentinel it holds."""
    stop: str | None = None
    kept: list[tuple[str, bool]] = []
    for line, top in zip(lines, top_lines(lines), strict=True):
        sentinel = sentinel_at(stops, line, SentinelPlace.SCRIPT) if top else None
        if sentinel is None:
            kept.append((line, top))
        else:
            stop = stop or sentinel.name
    effective = [(line, top) for line, top in kept if line.strip() and not (top and line.lstrip().startswith("#"))]
    if not effective:
        return None, stop
    said = [sentinel_at(stops, line, SentinelPlace.EDGE) if top else None for line, top in effective]
    declared = said[0] or said[-1]
    stop = stop or (declared.name if declared else None)
    if all(said):
        return None, stop
    return "\n".join(line for line, _ in kept), stop
