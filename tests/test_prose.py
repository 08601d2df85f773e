"""Prose is plain English: phrases that read as translated, or that make persons of components, are nowhere.

Looked at are pages, docstrings, comments, and texts of programs (help, messages, labels): a text counts as prose when it holds a
space. Code, names and whatever stands in backticks are not looked at.
"""

from __future__ import annotations

import ast
import io
import itertools
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from onthejob.cli import COMMANDS

ROOT = Path(__file__).parent.parent

PHRASES = {
    r"beside": "next to, in addition to, besides, against",
    r"in any case": "always, anyway",
    r"(?:go|goes|going|gone|went) on": "continue",
    r"play(?:s|ed|ing)? on": "continue",
    r"(?:is|are|was|were|be|been|being) told": "receives, is described, is distinguished",
    r"for ever": "forever",
    r"of one's own": "your own, its own",
    r"no failure": "not a failure",
    r"at last": "finally",
    r"our side": "infrastructure error",
    r"mend(?:s|ed|ing)?": "fix",
    r"(?:leave|leaves|leaving|left) out": "omit, skip, exclude",
    r"how far it is": "progress",
    r"how sure": "confidence, temperature",
    r"a day each": "one day each",
    r"as good as": "nearly",
    r"(?:reliability|research) note|design section": "the fact itself: readers do not have that document",
    r"somebody|whoever|anybody|nobody|everybody": "anyone who, no policy, another process, the caller, all",
}
"""What is forbidden (a pattern) -> what to write instead."""

FORBIDDEN = re.compile("|".join(rf"\b(?:{phrase})\b" for phrase in PHRASES), re.IGNORECASE)

LOOKED_AT = (
    *("*.md", "*.toml", "*.py", "Makefile", "docs/**/*.md", "adapters/**/*.md", ".ci/*", "container/*", "spaces/**/*"),
    "checks/**/*.py",
    *(f"src/**/*.{kind}" for kind in ("py", "toml", "c", "h", "sh", "pl")),
    *("recipes/*", "benchmarks/*.py", "examples/*.py", "viewer/*.py", "viewer/*.ts"),
    *("viewer/src/**/*.ts", "viewer/src/**/*.tsx", "tests/**/*.py", "viewer/tests/**/*.ts", "viewer/tests/**/*.mjs"),
)


WORLDS = (
    "src/onthejob/envs/claw/families",
    "src/onthejob/envs/claw/protocol.py",
    "src/onthejob/envs/office/policies/sentences.toml",
    "src/onthejob/envs/office/reflection.py",
    "src/onthejob/envs/office/vaporware",
    "tests",
)
"""Texts that roles read or write, words that parsers look for, data of tests: only docstrings and comments are looked at."""

QUOTED = re.compile(r"`[^`]*`|\"\w+\"|\]\([^)]*\)|https?://\S+|\b[A-Z_]{2,}\b")
"""Code, quoted names, addresses and names in capitals."""


def files() -> list[Path]:
    """Files whose prose is looked at. Pages of experiments keep the words of their day."""
    found = {path for pattern in LOOKED_AT for path in ROOT.glob(pattern) if path.is_file()}
    skipped = ("docs/log/2", "src/onthejob/_viewer")
    return sorted(path for path in found if not path.relative_to(ROOT).as_posix().startswith(skipped))


def of_python(text: str, *, world: bool = False) -> Iterator[tuple[int, str]]:
    """Comments, neighbouring ones joined, docstrings, and unless `world` other texts that hold a space."""
    tree = ast.parse(text)
    nodes = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)) if world else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, re.sub(r"^ +\w+:", " ", node.value, flags=re.MULTILINE)  # names of arguments
    lines: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1 and lines:
                yield last, " ".join(lines)
                lines = []
            lines.append(token.string.lstrip("# "))
            last = token.start[0]
    if lines:
        yield last, " ".join(lines)


def of_page(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs and tables, without blocks of code."""
    fenced = re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    for paragraph in re.finditer(r"(?:[^\n]+\n?)+", fenced):
        number = fenced[: paragraph.start()].count("\n") + 1
        yield number, paragraph[0]


def prose(path: Path) -> Iterable[tuple[int, str]]:
    text = path.read_text(encoding="utf-8")
    world = path.relative_to(ROOT).as_posix().startswith(WORLDS)
    if path.suffix == ".py":
        return of_python(text, world=world)
    if path.suffix == ".md":
        return of_page(text)
    lines = enumerate(text.splitlines(), start=1)
    return [(number, line) for number, line in lines if not world or line.startswith("#")]


def faults(texts: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    """(line, phrase) of every forbidden phrase; the line where its text begins."""
    found = []
    for number, text in texts:
        plain = " ".join(QUOTED.sub(" ", text).split())
        found += [(number, match[0]) for match in FORBIDDEN.finditer(plain)]
    return found


def test_no_phrase_is_forbidden():
    found = [f"{path.relative_to(ROOT)}:{line}: {phrase}" for path in files() for line, phrase in faults(prose(path))]
    assert found == []


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ('def f():\n    """The branches that\n    others play\n    on."""\n', ["play on"]),
        ("x = 1  # Goes on as before,\n", ["Goes on"]),
        ("# which is left\n# out of the loss\n", ["left out"]),
        ('raise ValueError(f"{x} is kept for ever; leave it out")\n', ["for ever"]),
        ("beside = somebody(whoever)\n", []),
        ('call("beside", mode="mend")\n', []),
        ('"""The parameter `beside` of a function.\n\n    Args:\n        beside: a folder.\n"""\n', []),
    ],
)
def test_prose_of_python_is_found(text: str, phrases: list[str]):
    assert [phrase for _, phrase in faults(of_python(text))] == phrases


def test_texts_of_worlds_are_not_looked_at():
    text = 'SAID = "Nobody asked."  # Whoever reads it\n\n\ndef f():\n    """Goes on."""\n'
    assert [phrase for _, phrase in faults(of_python(text, world=True))] == ["Goes on", "Whoever"]


def test_prose_of_pages_is_found():
    page = "A page\nof one's\nown.\n\n```bash\ngo on\n```\n\n| a | at last |\n\n[link](left out) `beside`\n"
    assert faults(of_page(page)) == [(1, "of one's own"), (9, "at last")]


SOURCE, CHECKS = "src/onthejob/commands", "checks/commands"
"""Rooms of commands: those of every installation, and those that measure."""
QUESTION = re.compile(r"(?:What|Who|Whose|How|Where|Of|Whether|Which)\b")


def test_help_of_an_option_names_the_thing():
    """It begins with "Sampling temperature", not with "Of the replies" or "Where files go"."""
    found = []
    for path in sorted({ROOT / (CHECKS if entry.measures else SOURCE) / f"{entry.module}.py" for entry in COMMANDS.values()}):
        kinds = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ClassDef)]
        for field, below in (pair for kind in kinds for pair in itertools.pairwise(kind.body)):
            match below:
                case ast.Expr(value=ast.Constant(value=str(text))) if isinstance(field, ast.AnnAssign) and QUESTION.match(text):
                    found.append(f"{path.name}:{below.lineno}: {text}")
    assert found == []


def test_the_named_rooms_exist():
    assert [name for name in WORLDS if not (ROOT / name).exists()] == []
