"""The simple commands of a shell script, read without running it: which programs it names, with which words.

For decisions that may err on the safe side: what cannot be read is an `UnreadScript`, and a word that the shell would expand is
left as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

OPENERS = frozenset({"if", "then", "else", "elif", "while", "until", "do", "!", "{", "}", "fi", "done", "esac", "time"})
"""Words before a command, which it may follow."""
SILENT = frozenset({"for", "select", "case", "function"})
"""Words whose command names no program."""
WRAPPERS = frozenset({"sudo", "env", "timeout", "nohup", "exec", "command", "nice", "stdbuf", "builtin", "xargs", "time"})
"""Programs that run the program behind their own options."""
_ASSIGNMENT = re.compile(r"\w+(\[[^\]]*\])?\+?=")
_HEREDOC = re.compile(r"(-?)[ \t]*(['\"]?)([\w.-]+)\2")


class UnreadScript(ValueError):
    """A script that this reader does not understand; the message says where."""


@dataclass(slots=True)
class Command:
    """One simple command."""

    words: list[str] = field(default_factory=list)
    """As the shell would split them, without quotes; what it would expand stands as it is written."""
    writes: list[str] = field(default_factory=list)
    """Files to which its output goes."""
    body: str = ""
    """Text of its heredocs."""

    @property
    def program(self) -> str:
        """The program or builtin; empty where there is none, as in an assignment."""
        return self.words[0] if self.words else ""


def commands(script: str) -> list[Command]:
    """The commands of a script in order, those in command substitutions included; without calls of its own functions.

    Raises:
        UnreadScript: a quote or a bracket is not closed.
    """
    reader = _Reader(script)
    reader.read()
    found = [plain for one in reader.found if (plain := _plain(one)).words or plain.writes]
    for one in list(found):
        if one.program == "trap" and len(one.words) > 1 and one.words[1] != "-":
            found += commands(one.words[1])
    return [one for one in found if one.program not in reader.functions]


def _plain(command: Command) -> Command:
    """The command without keywords, assignments and wrappers before its program."""
    words = list(command.words)
    while words:
        if words[0] in OPENERS or _ASSIGNMENT.match(words[0]):
            del words[0]
        elif words[0] in SILENT:
            words = []
        elif words[0] in WRAPPERS:
            wrapper = words.pop(0)
            while words and (words[0].startswith("-") or (wrapper == "timeout" and re.fullmatch(r"[\d.]+[smhd]?", words[0]))):
                option = words.pop(0)
                # Options of which the value stands apart.
                if words and option in ("-n", "-u", "-k", "-s", "-I", "-P", "-L", "-d", "-a", "--signal", "--user"):
                    del words[0]
        else:
            break
    return Command(words=words, writes=command.writes, body=command.body)


class _Reader:
    """One pass over the characters."""

    def __init__(self, script: str) -> None:
        self._text = script.replace("\\\r\n", "").replace("\\\n", "").replace("\r\n", "\n")
        self._at = 0
        self.found: list[Command] = []
        self.functions: set[str] = set()
        self._now = Command()
        self._word: list[str] | None = None
        self._target = False
        """The next word is the file of a redirection of output, or of input where `_input`."""
        self._input = False
        self._waiting: list[tuple[str, bool, Command]] = []
        """Heredocs whose text begins on the next line: delimiter, whether tabs are cut, command."""
        self._cases = 0
        """Open `case` commands."""
        self._pattern = False
        """What follows, up to a bracket, is a pattern of one."""

    def read(self) -> None:
        """Fill `found`."""
        text = self._text
        while self._at < len(text):
            char = text[self._at]
            if char in " \t":
                self._end_word()
                self._at += 1
            elif char == "\n":
                self._end_command()
                self._at += 1
                self._bodies()
            elif char == "#" and self._word is None:
                end = text.find("\n", self._at)
                self._at = len(text) if end < 0 else end
            elif char == "\\":
                self._add(text[self._at + 1 : self._at + 2])
                self._at += 2
            elif char == "'":
                self._add(self._until("'", self._at + 1))
            elif char == '"':
                self._quoted()
            elif char == "`":
                self._inner(self._until("`", self._at + 1))
            elif char == "$":
                self._dollar()
            elif text.startswith("((", self._at) and self._word is None and not self._now.words:
                self._at = self._closing("))", self._at + 2)
            elif text.startswith("[[", self._at) and self._word is None:
                self._now.words.append("[[")
                self._at = self._closing("]]", self._at + 2)
            elif char in "<>":
                self._redirection()
            elif char in ";&|()":
                self._operator(char)
            else:
                self._add(char)
                self._at += 1
        self._end_command()

    def _add(self, text: str) -> None:
        self._word = [*(self._word or []), text]

    def _until(self, end: str, start: int) -> str:
        """The text up to `end`, past which reading continues."""
        found = self._text.find(end, start)
        if found < 0:
            raise UnreadScript(f"{end} is not closed")
        self._at = found + 1
        return self._text[start:found]

    def _closing(self, end: str, start: int) -> int:
        found = self._text.find(end, start)
        if found < 0:
            raise UnreadScript(f"{end} is missing")
        return found + len(end)

    def _quoted(self) -> None:
        """A double-quoted text."""
        self._at += 1
        self._add("")
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == '"':
                self._at += 1
                return
            if char == "\\":
                self._add(self._text[self._at + 1 : self._at + 2])
                self._at += 2
            elif char == "$":
                self._dollar()
            elif char == "`":
                self._inner(self._until("`", self._at + 1))
            else:
                self._add(char)
                self._at += 1
        raise UnreadScript('" is not closed')

    def _dollar(self) -> None:
        """A parameter, an arithmetic expression or a command substitution."""
        text, start = self._text, self._at
        if text.startswith("$((", start):
            self._at = self._closing("))", start + 3)
            self._add(text[start : self._at])
        elif text.startswith("$(", start):
            depth, at, quote = 1, start + 2, ""
            while depth and at < len(text):
                char = text[at]
                if char == "\\":
                    at += 1
                elif quote:
                    quote = "" if char == quote else quote
                elif char in "'\"":
                    quote = char
                else:
                    depth += (char == "(") - (char == ")")
                at += 1
            if depth:
                raise UnreadScript("$( is not closed")
            self._inner(text[start + 2 : at - 1])
            self._at = at
        elif text.startswith("${", start):
            self._at = self._closing("}", start + 2)
            self._add(text[start : self._at])
        else:
            self._add("$")
            self._at += 1

    def _inner(self, script: str) -> None:
        """The commands of a substitution; its text stays in the word."""
        inner = _Reader(script)
        inner.read()
        self.found += inner.found
        self.functions |= inner.functions
        self._add(f"$({script})")

    def _redirection(self) -> None:
        text = self._text
        if self._word is not None and "".join(self._word).isdigit():
            self._word = None
        self._end_word()
        if text.startswith("<<<", self._at):
            self._at += 3
            self._input = self._target = True
        elif text.startswith("<<", self._at):
            found = _HEREDOC.match(text, self._at + 2)
            if found is None:
                raise UnreadScript("a heredoc has no delimiter")
            self._waiting.append((found[3], found[1] == "-", self._now))
            self._at = found.end()
        else:
            self._input = text[self._at] == "<"
            while self._at < len(text) and text[self._at] in "<>&|":
                self._at += 1
            # `2>&1` and `>&-` name no file.
            number = re.match(r"\d+|-", text[self._at :])
            if text[self._at - 1] == "&" and number:
                self._at += number.end()
            else:
                self._target = True

    def _operator(self, char: str) -> None:
        self._end_word()
        if char == "(" and len(self._now.words) == 1 and self._text[self._at + 1 :].lstrip(" \t").startswith(")"):
            self.functions.add(self._now.words.pop())
            self._at = self._text.index(")", self._at) + 1
            return
        if self._text.startswith("&>", self._at):
            self._at += 1
            self._redirection()
            return
        if self._pattern:
            self._now = Command()
            self._pattern = char != ")"
            self._at += 1
            return
        self._end_command()
        if self._cases and self._text.startswith(";;", self._at):
            self._pattern = True
            self._at += 1
        self._at += 1

    def _end_word(self) -> None:
        if self._word is None:
            return
        word, self._word = "".join(self._word), None
        if self._target:
            if not self._input:
                self._now.writes.append(word)
            self._target = self._input = False
            return
        if self._now.words == ["function"]:
            self.functions.add(word)
        if not self._now.words and word in ("case", "esac"):
            self._cases += 1 if word == "case" else -1
            self._pattern = False
        self._now.words.append(word)
        if self._now.words[0] == "case" and word == "in":
            self._end_command()
            self._pattern = True

    def _end_command(self) -> None:
        self._end_word()
        if self._now.words or self._now.writes:
            self.found.append(self._now)
        self._now = Command()

    def _bodies(self) -> None:
        """Heredocs that begin here."""
        for delimiter, cut, command in self._waiting:
            lines: list[str] = []
            while True:
                if self._at >= len(self._text):
                    break
                line, _, _ = self._text[self._at :].partition("\n")
                self._at += len(line) + 1
                if (line.lstrip("\t") if cut else line) == delimiter:
                    break
                lines.append(line)
            command.body += "\n".join(lines) + "\n"
        self._waiting = []


def programs(script: str) -> Iterator[str]:
    """The programs that a script names.

    Raises:
        UnreadScript: as `commands`.
    """
    return (command.program for command in commands(script) if command.program)


def arguments(words: Iterable[str], valued: Collection[str]) -> Iterator[str]:
    """The words that are neither options nor the values of those options in `valued`."""
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word.startswith("-"):
            skip = word in valued
        else:
            yield word
