"""Gold commands with the part of the request that they do quoted above them, as comments.

A small model that writes `sed -i 's/OLD/NEW/' FILE` for the sixth item of a list has to find that item, its words and their roles
among all the others. Written down first, the item is right above the command: copying a line is what small models do well, and
turning one line into one command is what demonstrations can teach, whatever the lines are combined with.

Which part a command does is not recorded in a task; it is found by the words that both have. So this works for any task with
gold commands, also for those that a model wrote.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from onthejob.envs.claw.families.scene import GREETINGS

_WORD = re.compile(r"[\w@%#/.-]*\w/?")
_COMPOUND = re.compile(
    r"<<|[\\|&{(]$|^\s*(?:for|while|until|if|then|elif|else|fi|case|esac|do|done|function|[{}()])(?!\S)", re.MULTILINE
)
"""What makes a line of a block part of a longer command, above which nothing may be put."""
_CLAUSES = re.compile(r"(?<=[.?!;:])\s+|,\s+(?=(?:and|then|but)\b)")
"""Where one clause of running text ends and the next begins."""
_BACK = 1.0
"""What it costs to go back to an earlier part, in words that are a part's alone."""
_SKIP_ITEM, _SKIP_SENTENCE = 1.0, 0.2
"""What it costs to leave a part out: every item of a list wants something done, of sentences some only tell."""


def quoted(intent: str, gold: Sequence[str]) -> tuple[str, ...]:
    """The same turns; above the first command that does a part of the request, that part as a comment.

    Args:
        intent: the request, a list of items after "- " or running text.
        gold: bash of one turn each. Lines that belong together (loops, heredocs) stay together.
    """
    parts, skip = parts_of(intent)
    turns = [block.split("\n") if not _COMPOUND.search(block) else [block] for block in gold]
    places = iter(_assign(parts, [command for commands in turns for command in commands], skip))
    found, said = [], set()
    for commands in turns:
        lines: list[str] = []
        for command in commands:
            place = next(places)
            if place is not None and place not in said:
                lines.append(f"# {parts[place]}")
                said.add(place)
            lines.append(command)
        found.append("\n".join(lines))
    return tuple(found)


def parts_of(intent: str) -> tuple[list[str], float]:
    """The items of a request that is a list, else its clauses, without what it is greeted with; what it costs to skip one."""
    items = [line[2:].strip() for line in intent.split("\n") if line.startswith("- ")]
    if items:
        return items, _SKIP_ITEM
    text = " ".join(intent.split())
    for greeting in filter(None, GREETINGS):
        text = text.removeprefix(greeting)
    return [part.rstrip(".;,") for part in _CLAUSES.split(text) if part.rstrip(".;,")], _SKIP_SENTENCE


def _assign(parts: Sequence[str], commands: Sequence[str], skip: float) -> list[int | None]:
    """Command -> place of the part that it does; None where no part has a word in common with any command.

    The most words in common, rare ones counting more, and in the order of the request as far as words allow: one pass over
    commands, with the best account for each part that the last of them may do.
    """
    words = [_words(part) for part in parts]
    spread = Counter(word for known in words for word in known)
    common = [[_shared(command, known, spread) for known in words] for command in commands]
    if not any(any(row) for row in common):
        return [None] * len(commands)
    every = range(len(parts))
    cost = [[_BACK if b < a else skip * max(0, b - a - 1) for a in every] for b in every]
    best, before = [common[0][b] - skip * b for b in every], []
    for row in common[1:]:
        reached = [[best[a] - cost[b][a] for a in every] for b in every]
        before.append([max(every, key=scores.__getitem__) for scores in reached])
        best = [row[b] + max(reached[b]) for b in every]
    place = max(every, key=lambda b: best[b] - skip * (len(parts) - 1 - b))
    places = [place]
    for step in reversed(before):
        places.append(step[places[-1]])
    return list(reversed(places))


def _shared(command: str, known: set[str], spread: Mapping[str, int]) -> float:
    """Words in common; where the output goes counts twice."""
    target = command.rpartition(">")[2] if ">" in command else ""
    return sum(1 / spread[word] for words in (_words(command), _words(target)) for word in words & known)


def _words(text: str) -> set[str]:
    """Its words: paths and numbers whole, folders without their slash, and the folders of paths too."""
    found = set()
    for word in _WORD.findall(text):
        path = word.strip("/")
        found |= {path, *(path[:place] for place, letter in enumerate(path) if letter == "/")}
    return found
