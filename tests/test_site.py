"""The documentation's site: links follow their pages, broken ones are found, and the tutorials run."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import onthejob

from .test_readme import script

ROOT = Path(__file__).parent.parent
TUTORIALS = sorted(path.stem for path in (ROOT / "docs/tutorials").glob("*.md"))
BRIEF = ("hosted_model", "reading_a_run")
"""Tutorials that train nothing for minutes: continuous integration runs them."""
DOCS_PYTHON = ROOT / ".venv-docs/bin/python"


def test_links_follow_the_pages_into_the_site():
    site, files = script("site"), set[str]()
    pages = {"README.md": "index.md", "docs/training.md": "training.md", "docs/log/README.md": "log/index.md"}
    text = "[a](../../README.md#limits) [b](../training.md) ![c](../images/group.png) [d](../../recipes) [e](https://x.y)\n"
    told = site.rewrite(text + "```\n[a](../../README.md)\n```\n", "docs/log/README.md", pages, files)
    assert told == (
        "[a](../index.md#limits) [b](../training.md) ![c](../images/group.png) d [e](https://x.y)\n```\n[a](../../README.md)\n```\n"
    )
    assert files == {"docs/images/group.png"}
    files.clear()
    assert site.rewrite("[x](../Makefile)", "docs/training.md", pages, files) == "[x](repository/Makefile)"
    assert files == {"Makefile"}


def test_broken_links_of_built_pages_are_found(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "index.html").write_text(
        '<h2 id="here"></h2><a href="sub/a.html#there">a</a><img src="none.png">', encoding="utf-8"
    )
    (tmp_path / "sub/a.html").write_text(
        '<h2 id="there"></h2><a href="../index.html#here">b</a><a href="../index.html#gone">c</a><a href="https://x.y">d</a>',
        encoding="utf-8",
    )
    assert script("site").broken(tmp_path) == ["index.html -> none.png", "sub/a.html -> ../index.html#gone"]


def test_the_reference_has_every_public_name(tmp_path: Path):
    places = script("site").reference(tmp_path)
    assert places[0] == "reference/onthejob.md"
    assert len(places) == len(set(places)) >= 5
    shown = re.findall(r"^::: onthejob\.(\w+)$", (tmp_path / places[0]).read_text(encoding="utf-8"), re.MULTILINE)
    assert shown == [name for name in onthejob.__all__ if not name.startswith("__")]


def test_the_packages_that_build_the_documentation_are_locked():
    asked = re.findall(r"^([a-z-]+)>=", (ROOT / "requirements-docs.in").read_text(encoding="utf-8"), re.MULTILINE)
    locked = (ROOT / "requirements-docs.lock").read_text(encoding="utf-8")
    assert asked
    assert [name for name in asked if not re.search(rf"^{name}==\S+ \\$", locked, re.MULTILINE)] == []
    assert "://" not in locked


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_runs_as_a_notebook(name: str, tmp_path: Path, counts: Callable[[int, int], int]):
    """In an empty folder, by an interpreter that has the package's dependencies; its outputs are kept."""
    if name not in BRIEF and not counts(0, 1):
        pytest.skip("trains for minutes: `make acceptance` and `make tutorials` run it")
    if not DOCS_PYTHON.exists():
        pytest.skip("needs .venv-docs; `make docs` makes it")
    words = [str(DOCS_PYTHON), str(ROOT / "docs/scripts/notebooks.py"), name, "--out", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1150, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    cells = json.loads((tmp_path / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) >= 4
    assert all(cell["execution_count"] for cell in code)
    assert any(cell["outputs"] for cell in code)
