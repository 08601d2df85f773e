"""The rules of the conversation: how many turns, how long a command may take, and what the agent sees of it.

    exit code: 0
    stdout:
    notes.txt
    stderr:
    (only when there is any)

Long output keeps its beginning and its end, with the true size in between.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Interval

from onthejob.envs.claw.sandbox import CommandResult
from onthejob.envs.claw.stops import stop_table
from onthejob.setting_ranges import check_ranges

IGNORED = "Note: only the first bash block was run."
RESTARTED = "Note: the shell died and was started again; files are kept."
ENDED = "Note: the shell ended and a new one begins; files are kept, but not its folder, variables and background jobs."

_CONTROL = re.compile(r"([\x00-\x08\x0b-\x1f\x7f-\x9f])\1*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolConfig:
    """Limits of an episode."""

    max_turns: Annotated[int, Ge(1)] = 12
    """Replies, of all kinds, after which the episode ends."""
    command_s: Annotated[float, Interval(gt=0, le=3_600)] = 10.0
    """Seconds after which a command is killed."""
    output_chars: Annotated[int, Ge(100)] = 4_000
    """Characters shown of stdout and of stderr each."""
    conversation_chars: Annotated[int, Ge(1000)] = 24_000
    """Characters of the whole conversation after which the episode ends (`StopReason.CONTEXT`): bounds what an episode costs,
    also with hosted models. The context of a local model is counted in its own tokens, whatever this says."""
    stops: str = "standard"
    """Table of stop sentinels: `standard`, `seed` or `literal`."""
    persistent_shell: bool = False
    """All commands run in one shell: its folder, variables, functions and background jobs last from one to the next. Without it
    only files do. A new shell begins when a command ends it or is killed at its time limit; the observation says so. Between two
    commands background jobs are stopped, so that only the time of commands counts."""
    handbook: bool = False
    """The system message lists how the usual things are done in a shell (`skills.HANDBOOK`): for small models, which know few
    commands by heart."""

    def __post_init__(self) -> None:
        check_ranges(self, "--env.protocol.")
        stop_table(self.stops)


def observe(result: CommandResult, config: ProtocolConfig, *, ignored: bool = False) -> str:
    """The answer to the agent about one command; `ignored` when its reply held further blocks."""
    lines = [f"exit code: {result.exit_code}"]
    if result.timed_out:
        lines.append(f"TIMED OUT after {config.command_s:g} s")
    for name, data, size in (("stdout", result.stdout, result.stdout_size), ("stderr", result.stderr, result.stderr_size)):
        if size:
            lines += [f"{name}:", shown(data, size, limit=config.output_chars)]
    if not (result.stdout_size or result.stderr_size):
        lines.append("(no output)")
    lines += [RESTARTED] if result.restarted else [ENDED] if result.shell_ended else []
    lines += [IGNORED] if ignored else []
    return "\n".join(lines)


def shown(data: bytes, size: int, *, limit: int) -> str:
    r"""At most about `limit` characters of an output of `size` bytes, of which `data` was kept.

    When `size` is larger than `len(data)`, the first half of `data` is the beginning and the rest the end of the output. Bytes
    that are not UTF-8 are replaced, and control characters are shown as `\x1b`, so that a terminal's commands stay text.
    """
    whole = size <= len(data)
    if whole:
        text = _plain(data)
        if len(text) <= limit:
            return text
        head = tail = text
    else:
        middle = len(data) // 2
        head, tail = _plain(data[:middle]), _plain(data[middle:])
    half = limit // 2
    return f"{head[:half]}\n[... middle left out; {size} bytes in all ...]\n{tail[-half:]}"


def _plain(data: bytes) -> str:
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").removesuffix("\n")
    return _CONTROL.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    """A run of one control character; a long one by its length, as a zero-filled file would cost a token a character."""
    spelled, length = f"\\x{ord(found[1]):02x}", len(found[0])
    return spelled * length if length < 8 else f"[{spelled} {length} times]"
