"""Build the documentation's site into build/docs/site, strictly, and check every link of the result.

    make docs            # the same, in an environment of its own (.venv-docs)

The pages of `docs/` are written for GitHub: they link to files of the repository, and the index of a folder is its README. Here
they are copied to where a site has them, their links follow, and files that they name come along. The reference is made from
docstrings: one page for the package's public names, and one for each room that states its own (`__all__`). Ends with 1 on any
warning.
"""

from __future__ import annotations

import ast
import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/onthejob"
BUILD = ROOT / "build/docs"
MOVED = {
    "README.md": "index.md",
    "docs/README.md": "pages.md",
    "docs/log/README.md": "log/index.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "AGENTS.md": "project/agents.md",
}
"""Page of the repository -> its place in the site; other pages of `docs/` keep theirs."""
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)


def places() -> dict[str, str]:
    """Every page, by its path in the repository -> its path in the site."""
    found = dict(MOVED)
    for path in sorted((ROOT / "docs").rglob("*.md")):
        name = path.relative_to(ROOT).as_posix()
        found.setdefault(name, name.removeprefix("docs/"))
    for path in sorted((ROOT / "adapters").rglob("README.md")):
        name = path.relative_to(ROOT).as_posix()
        found[name] = f"{posixpath.dirname(name)}.md"
    return found


def rewrite(text: str, page: str, pages: Mapping[str, str], files: set[str]) -> str:
    """Text of a page with links that hold in the site.

    Args:
        text: of the page, with GitHub's links.
        page: its path in the repository.
        pages: of `places`.
        files: receives paths of other files that are linked; a link to a folder becomes plain text.
    """
    here = posixpath.dirname(pages[page])

    def follow(match: re.Match[str]) -> str:
        mark, words, target, anchor = match[1], match[2], match[3], match[4] or ""
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        name = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
        if name in pages:
            return f"{mark}[{words}]({posixpath.relpath(pages[name], here or '.')}{anchor})"
        if not (ROOT / name).is_file():
            return words
        files.add(name)
        there = name.removeprefix("docs/") if name.startswith("docs/") else f"repository/{name}"
        return f"{mark}[{words}]({posixpath.relpath(there, here or '.')}{anchor})"

    parts = FENCE.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(follow, part) for part in parts)


def public(module: Path) -> list[str]:
    """Names of `__all__` of a module, without those that begin with two underscores."""
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            return [name for name in ast.literal_eval(node.value) if not name.startswith("__")]
    return []


def reference(target: Path) -> list[str]:
    """Write the pages of the reference; returns their paths in the site, the package's own first."""
    rooms = [PACKAGE, *sorted(path for path in PACKAGE.iterdir() if (path / "__init__.py").is_file())]
    written = []
    for room in rooms:
        names = public(room / "__init__.py")
        if not names:
            continue
        module = ".".join(room.relative_to(PACKAGE.parent).parts)
        shown = "\n\n".join(f"::: {module}.{name}" for name in names)
        place = f"reference/{module}.md"
        (target / place).parent.mkdir(exist_ok=True)
        opening = f"Here you can look up the public names of `{module}`, with their arguments, units and errors."
        (target / place).write_text(f"# {module}\n\n{opening}\n\n{shown}\n", encoding="utf-8")
        written.append(place)
    return written


class Links(HTMLParser):
    """Addresses that an HTML page names, and the anchors that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag links to, and its names."""
        for name, value in attrs:
            if name in ("href", "src") and value and tag != "base":
                self.targets.add(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def broken(site: Path) -> list[str]:
    """Links of the built pages to files or anchors that do not exist, as `PAGE -> TARGET`."""
    read: dict[Path, Links] = {}
    for path in sorted(site.rglob("*.html")):
        read[path] = Links()
        read[path].feed(path.read_text(encoding="utf-8"))
    found = []
    for path, links in read.items():
        if path.name == "404.html":
            continue  # It is shown at any address, so its links are those of the server's root.
        for target in sorted(links.targets):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            other = path if not parts.path else Path(os.path.normpath(path.parent / unquote(parts.path)))
            other = other / "index.html" if other.is_dir() else other
            anchor = unquote(parts.fragment)
            known = read.get(other)
            if not other.is_file() or (anchor and known is not None and anchor not in known.anchors | {"__comments"}):
                found.append(f"{path.relative_to(site)} -> {target}")
    return found


def prepare() -> None:
    """Copy pages, files and configuration into the folder in which the site is built."""
    shutil.rmtree(BUILD, ignore_errors=True)
    pages, files, target = places(), set[str](), BUILD / "pages"
    for name, place in pages.items():
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        text = rewrite((ROOT / name).read_text(encoding="utf-8"), name, pages, files)
        (target / place).write_text(text, encoding="utf-8")
    models = rewrite(
        (ROOT / "docs/llms.txt").read_text(encoding="utf-8"), "docs/llms.txt", {**pages, "docs/llms.txt": "llms.txt"}, files
    )
    (target / "llms.txt").write_text(models, encoding="utf-8")
    for name in sorted(files):
        place = target / (name.removeprefix("docs/") if name.startswith("docs/") else f"repository/{name}")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, place)
    listed = ", ".join(f'"{place}"' for place in reference(target))
    settings = (ROOT / "docs/scripts/zensical.toml").read_text(encoding="utf-8")
    (BUILD / "zensical.toml").write_text(
        settings.replace('"Reference" = "reference"', f'"Reference" = [{listed}]'), encoding="utf-8"
    )


def main() -> int:
    prepare()
    zensical = Path(sys.executable).with_name("zensical")
    done = subprocess.run([str(zensical), "build", "--strict"], cwd=BUILD, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    print(said, end="", flush=True)
    if done.returncode or "Warning" in said:
        return 1
    # Next to every page its Markdown, to which llms.txt links.
    for path in (BUILD / "pages").rglob("*.md"):
        shutil.copyfile(path, BUILD / "site" / path.relative_to(BUILD / "pages"))
    wrong = broken(BUILD / "site")
    for line in wrong:
        print(f"broken link: {line}")
    print(f"{len(list((BUILD / 'site').rglob('*.html')))} pages in {BUILD / 'site'}, {len(wrong)} broken links")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
