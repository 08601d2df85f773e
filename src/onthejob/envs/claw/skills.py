"""The fifteen skills: what a shell agent doing file work is expected to be able to do, and which of them a script uses."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from types import MappingProxyType


class Skill(StrEnum):
    """Six things done to files and nine commands. No network, no packages."""

    FILE_READ = "file.read"
    FILE_WRITE = "file.write"
    FILE_MOVE = "file.move"
    FILE_COPY = "file.copy"
    FILE_DELETE = "file.delete"
    FILE_LIST = "file.list"
    SHELL_MKDIR = "shell.mkdir"
    SHELL_RM = "shell.rm"
    SHELL_FIND = "shell.find"
    SHELL_GREP = "shell.grep"
    SHELL_SED = "shell.sed"
    SHELL_CAT = "shell.cat"
    SHELL_HEAD = "shell.head"
    SHELL_TAIL = "shell.tail"
    SHELL_WC = "shell.wc"


DESCRIPTIONS: MappingProxyType[Skill, str] = MappingProxyType(
    {
        Skill.FILE_READ: "Read a file's contents.",
        Skill.FILE_WRITE: "Create, overwrite or edit a file.",
        Skill.FILE_MOVE: "Move or rename a file or folder.",
        Skill.FILE_COPY: "Copy a file or folder.",
        Skill.FILE_DELETE: "Delete a file or folder.",
        Skill.FILE_LIST: "List what a folder holds.",
        Skill.SHELL_MKDIR: "Create folders.",
        Skill.SHELL_RM: "Remove files and folders.",
        Skill.SHELL_FIND: "Find files by name or kind.",
        Skill.SHELL_GREP: "Select or count lines by a pattern.",
        Skill.SHELL_SED: "Edit text as a stream or in place.",
        Skill.SHELL_CAT: "Print or concatenate files.",
        Skill.SHELL_HEAD: "Take the first lines.",
        Skill.SHELL_TAIL: "Take the last lines.",
        Skill.SHELL_WC: "Count lines, words or bytes.",
    }
)
"""One sentence per skill."""

HANDBOOK: MappingProxyType[str, str] = MappingProxyType(
    {
        "first 5 lines": "head -n 5 FILE > OUT",
        "last 5 lines": "tail -n 5 FILE > OUT",
        "all but the first line, from line 2 on": "tail -n +2 FILE > OUT",
        "lines with a word": "grep 'WORD' FILE > OUT",
        "lines without a word": "grep -v 'WORD' FILE > OUT",
        "how many lines": "wc -l < FILE > OUT",
        "how many lines with a word": "grep -c 'WORD' FILE > OUT",
        "sort, alphabetical order": "sort FILE > OUT",
        "sort by the number in column 2, highest first": "sort -t, -k2 -n -r FILE > OUT",
        "distinct lines, each once, sorted": "sort -u FILE > OUT",
        "only column 2, second word": "cut -d',' -f2 FILE > OUT",
        "rows with a number above 9 in column 2": "awk -F, '$2 > 9' FILE > OUT",
        "sum of column 2": "awk -F, '{s += $2} END {print s}' FILE > OUT",
        "join two files, one after the other": "cat FILE1 FILE2 > OUT",
        "copy, duplicate": "cp FILE OUT",
        "move, rename": "mv FILE OUT",
        "delete a file": "rm FILE",
        "delete the .tmp files below a folder": "find FOLDER -name '*.tmp' -delete",
        "new folder": "mkdir -p FOLDER",
        "list, find files": "find FOLDER -name '*.txt' | sort > OUT",
        "replace, change a text everywhere in a file": "sed -i 's/OLD/NEW/g' FILE",
        "set a key to a value": "sed -i 's/^KEY=.*/KEY=VALUE/' FILE",
        "delete the lines with a word": "sed -i '/WORD/d' FILE",
        "add a line at the end, append": "echo 'LINE' >> FILE",
        "insert as the first line, on top": "sed -i '1i LINE' FILE",
        "new file with one line": "echo 'LINE' > FILE",
    }
)
"""What is wanted -> a command that does it, for agents that know few by heart. Common practice, of no task in particular."""

_USES: MappingProxyType[str, tuple[Skill, ...]] = MappingProxyType(
    {
        "mv": (Skill.FILE_MOVE,),
        "cp": (Skill.FILE_COPY,),
        "ls": (Skill.FILE_LIST,),
        "rm": (Skill.SHELL_RM, Skill.FILE_DELETE),
        "mkdir": (Skill.SHELL_MKDIR,),
        "find": (Skill.SHELL_FIND, Skill.FILE_LIST),
        "grep": (Skill.SHELL_GREP, Skill.FILE_READ),
        "sed": (Skill.SHELL_SED, Skill.FILE_READ),
        "cat": (Skill.SHELL_CAT, Skill.FILE_READ),
        "head": (Skill.SHELL_HEAD, Skill.FILE_READ),
        "tail": (Skill.SHELL_TAIL, Skill.FILE_READ),
        "wc": (Skill.SHELL_WC, Skill.FILE_READ),
        **dict.fromkeys(["awk", "sort", "cut", "comm", "paste", "join", "python3"], (Skill.FILE_READ,)),
    }
)

_COMMAND = re.compile(r"(?:^|[;|&(`\n]|\$\(|\bdo\b|\bthen\b)\s*([a-z0-9]+)")
_WRITES = re.compile(r">>?\s*[^&\s]|\bsed -i\b|\btee\b|\btouch\b|\.write")


def skills_of(script: Iterable[str]) -> tuple[Skill, ...]:
    """Skills that the bash blocks of `script` use, in the order of the enum; a reading of words, not a shell parser."""
    used: set[Skill] = set()
    for block in script:
        for word in _COMMAND.findall(block):
            used.update(_USES.get(word, ()))
        if _WRITES.search(block):
            used.add(Skill.FILE_WRITE)
        if "-delete" in block:
            used.add(Skill.FILE_DELETE)
    return tuple(skill for skill in Skill if skill in used)
