"""docs/glossary.md: in order, one meaning a word, and whatever it points to exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/glossary.md"
CODE = re.compile(r"`([^`]+)`")


def rows() -> list[tuple[str, str, str]]:
    """Word, meaning and places of every row."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and not line.startswith("| word "):
            word, meaning, places = (cell.strip() for cell in line.strip("|").split("|"))
            found.append((word, meaning, places))
    return found


def defined(file: Path) -> set[str]:
    """Names that a module binds at its top level; of imports only those by which a package offers what is in its modules."""
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and file.name == "__init__.py":
            found |= {alias.asname or alias.name for alias in node.names}
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found.add(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        found |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return found


def missing(place: str) -> str:
    """What is wrong with a place; empty when it exists."""
    if "/" in place:
        return "" if (ROOT / place).exists() else "no such file"
    module, _, name = place.partition(":")
    path = ROOT / "src" / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file():
        return f"no module {module}"
    return "" if not name or name in defined(file) else f"{file.name} has no {name}"


@pytest.mark.parametrize(("word", "places"), [(word, places) for word, _, places in rows()])
def test_a_term_names_code_that_exists(word: str, places: str):
    named = CODE.findall(places)
    assert named, f"{word}: say where the code has it"
    assert {place: missing(place) for place in named if missing(place)} == {}


def test_missing_code_is_noticed():
    assert missing("onthejob.types:Group") == missing("onthejob.learn.sft") == missing("checks/office/gates/") == ""
    assert missing("onthejob.keys:key_of_none") == "keys.py has no key_of_none"
    assert missing("onthejob.again") == "no module onthejob.again"
    assert missing("checks/nothing.py") == "no such file"


def test_words_are_in_order_and_occur_once():
    words = [word for word, _, _ in rows()]
    assert len(words) > 30
    assert words == sorted(set(words), key=str.casefold)
