"""Prose is plain English: phrases that read as translated, or that make persons of components, are nowhere.

Looked at are pages, docstrings, comments, and texts of programs (help, messages, labels): a text counts as prose when it holds a
space. Code, names and whatever stands in backticks are not looked at.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

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
    r"somebody|whoever|anybody|nobody|everybody": "anyone who, no policy, another process, the caller, all",
}
"""What is forbidden (a pattern) -> what to write instead."""

FORBIDDEN = re.compile("|".join(rf"\b(?:{phrase})\b" for phrase in PHRASES), re.IGNORECASE)

LOOKED_AT = (
    *("*.md", "*.toml", "*.py", "Makefile", "docs/**/*.md", "adapters/**/*.md", ".ci/*", "container/*", "spaces/**/*"),
    *(f"src/**/*.{kind}" for kind in ("py", "toml", "c", "h", "sh", "pl")),
    *("recipes/*", "benchmarks/*.py", "examples/*.py", "viewer/*.py", "viewer/*.ts"),
    *("viewer/src/**/*.ts", "viewer/src/**/*.tsx", "viewer/tests/**/*.ts", "viewer/tests/**/*.mjs"),
)

STILL_TO_DO = (
    # Their sources identify the values that evaluations keep (`evaluate.cache`): with the next change of a rule.
    "src/onthejob/envs/claw",
    "src/onthejob/envs/office",
    "docs/gates.md",
    "docs/harbor.md",
    "tests",
)
"""Rooms and pages whose prose has not been rewritten yet."""

WORLD = ("docs/office.md",)
"""Pages with tables of the texts of `envs/office`. Their tables are not looked at as long as that room is to do."""

QUOTED = re.compile(r"`[^`]*`|\]\([^)]*\)|https?://\S+|\b[A-Z_]{2,}\b")
"""Code, addresses and names in capitals."""


def files() -> list[Path]:
    """Files whose prose is looked at. Pages of experiments keep the words of their day."""
    found = {path for pattern in LOOKED_AT for path in ROOT.glob(pattern) if path.is_file()}
    skipped = ("docs/log/2", "src/onthejob/_viewer", *STILL_TO_DO)
    return sorted(path for path in found if not path.relative_to(ROOT).as_posix().startswith(skipped))


def of_python(text: str) -> Iterator[tuple[int, str]]:
    """Comments, neighbouring ones joined, and texts that hold a space, docstrings included."""
    for node in ast.walk(ast.parse(text)):
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


def of_page(text: str, *, tables: bool) -> Iterator[tuple[int, str]]:
    """Paragraphs without blocks of code; of a table each row."""
    fenced = re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    for paragraph in re.finditer(r"(?:[^\n]+\n?)+", fenced):
        number = fenced[: paragraph.start()].count("\n") + 1
        rows = [row for row in paragraph[0].splitlines() if tables or not row.startswith("|")]
        yield number, " ".join(rows)


def prose(path: Path) -> Iterable[tuple[int, str]]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return of_python(text)
    if path.suffix == ".md":
        return of_page(text, tables=path.relative_to(ROOT).as_posix() not in WORLD)
    return enumerate(text.splitlines(), start=1)


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


def test_prose_of_pages_is_found():
    page = "A page\nof one's\nown.\n\n```bash\ngo on\n```\n\n| a | at last |\n\n[link](left out) `beside`\n"
    assert faults(of_page(page, tables=True)) == [(1, "of one's own"), (9, "at last")]
    assert faults(of_page(page, tables=False)) == [(1, "of one's own")]


def test_rooms_still_to_do_exist():
    assert [name for name in STILL_TO_DO if not (ROOT / name).exists()] == []
