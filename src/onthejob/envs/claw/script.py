"""Where the commands of a bash script begin: what is a line of its own, and what is inside a heredoc, a quote or a substitution.

A reply's `TASK_COMPLETE` ends an episode as a line of the script and is content inside a heredoc, and three backticks close
a block in one place and are Markdown being written in the other. This is a scanner of bash's quoting, not a parser of bash; it
never raises and its time is linear in the text.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

_CODE = re.compile(r"\$'|\$?\(\(|<<|['\"\\#()]")
"""What matters outside quotes."""
_DOUBLE = re.compile(r"[\"\\]|\$\(\(|\$\(")
_ANSI = re.compile(r"['\\]")
_DELIMITER = re.compile(r"<<(-?)[ \t]*(?:'([^']*)'|\"([^\"]*)\"|\\?([^\s;&|<>()'\"`\\]+))")
_BEFORE_COMMENT = " \t;&|()"


class _Heredoc(NamedTuple):
    end: str
    tabs: bool
    """`<<-`: leading tabs of the end line do not matter."""


class Scanner:
    """Reads a script line by line."""

    def __init__(self) -> None:
        self._stack: list[str] = []  # what is open: ' " $' ( ((
        self._waiting: list[_Heredoc] = []  # bodies begin after this line
        self._bodies: deque[_Heredoc] = deque()
        self._continued = False

    @property
    def in_heredoc(self) -> bool:
        """True when the next line is a heredoc's content or its end."""
        return bool(self._bodies)

    @property
    def at_top(self) -> bool:
        """True when the next line begins a command of the script itself."""
        return not (self._bodies or self._stack or self._continued)

    def feed(self, line: str) -> bool:
        """Read one line (without its end); True when it began at the top."""
        top = self.at_top
        if self._bodies:
            body = self._bodies[0]
            if (line.lstrip("\t") if body.tabs else line) == body.end:
                self._bodies.popleft()
            return False
        self._continued = False
        at = 0
        while 0 <= at < len(line):
            inside = self._stack[-1] if self._stack else ""
            if inside == "'":
                at = self._quote(line, at)
            elif inside == "$'":
                at = self._ansi(line, at)
            elif inside == '"':
                at = self._double(line, at)
            else:
                at = self._code(line, at, arithmetic=inside == "((")
        if self._waiting and not (self._stack and self._stack[-1] in ("'", '"', "$'")):
            self._bodies.extend(self._waiting)
            self._waiting.clear()
        return top

    def _quote(self, line: str, at: int) -> int:
        end = line.find("'", at)
        if end < 0:
            return -1
        self._stack.pop()
        return end + 1

    def _ansi(self, line: str, at: int) -> int:
        found = _ANSI.search(line, at)
        if found is None:
            return -1
        if found[0] == "\\":
            return found.end() + 1
        self._stack.pop()
        return found.end()

    def _double(self, line: str, at: int) -> int:
        found = _DOUBLE.search(line, at)
        if found is None:
            return -1
        if found[0] == "\\":
            return found.end() + 1
        if found[0] == '"':
            self._stack.pop()
        else:
            self._stack.append(found[0].removeprefix("$"))
        return found.end()

    def _code(self, line: str, at: int, *, arithmetic: bool) -> int:
        found = _CODE.search(line, at)
        if found is None:
            return -1
        mark, start, end = found[0], found.start(), found.end()
        if mark == "\\":
            self._continued = end == len(line)
            return end + 1
        if mark == "#":
            comment = not arithmetic and (start == 0 or line[start - 1] in _BEFORE_COMMENT)
            return -1 if comment else end
        if mark == "<<":
            return self._redirect(line, start, arithmetic=arithmetic)
        if mark == ")":
            double = arithmetic and line.startswith("))", start)
            if double or (self._stack and self._stack[-1] == "("):
                self._stack.pop()
            return end + int(double)
        self._stack.append("((" if mark.endswith("((") else mark)
        return end

    def _redirect(self, line: str, start: int, *, arithmetic: bool) -> int:
        if arithmetic:
            return start + 2
        if line.startswith("<<<", start):
            return start + 3
        found = _DELIMITER.match(line, start)
        if found is None:
            return start + 2
        dash, single, double, bare = found.groups()
        self._waiting.append(_Heredoc(next(word for word in (single, double, bare) if word is not None), dash == "-"))
        return found.end()


def top_lines(lines: Iterable[str]) -> list[bool]:
    """For each line of a script whether it begins a command of the script itself."""
    scanner = Scanner()
    return [scanner.feed(line) for line in lines]
