"""Builds the viewer's pages into the package, when node is there; without it the package installs and says what is missing.

ONTHEJOB_VIEWER=auto (default) builds if it can, `require` fails if it cannot (releases, continuous integration), `skip` leaves
the pages out. What was built carries a hash of the sources: times do not survive archives, so they cannot tell whether a build is
old.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

OLDEST_NODE = (20, 19)
PATIENCE_S = 900
MODES = ("auto", "require", "skip")
NOT_SOURCES = {"node_modules", "test-results", "tests"}


class ViewerHook(BuildHookInterface):
    """Runs before a wheel, an editable install or a source archive is made."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build unless what is there was made from the same sources."""
        mode = os.environ.get("ONTHEJOB_VIEWER", "auto")
        if mode not in MODES:
            raise ValueError(f"ONTHEJOB_VIEWER must be one of {', '.join(MODES)}, got {mode!r}.")
        source = Path(self.root) / "viewer"
        target = Path(self.root) / "src" / "onthejob" / "_viewer"
        # A wheel that is made from a source archive finds the pages built, and needs no sources of them.
        if mode == "skip" or not (source / "package.json").is_file():
            return
        digest = source_hash(source)
        stamp = target / "SOURCE"
        if stamp.is_file() and stamp.read_text(encoding="utf-8").strip() == digest:
            return
        problem = build(source)
        if problem is None:
            stamp.write_text(digest + "\n", encoding="utf-8")
        elif mode == "require":
            raise RuntimeError(problem)
        else:
            self.app.display_warning(f"{problem} onthejob installs without the viewer's pages; everything else works.")


def source_hash(source: Path) -> str:
    """sha256 over the names and contents of the viewer's sources."""
    found = hashlib.sha256()
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source)
        if path.is_file() and not NOT_SOURCES & set(inside.parts):
            found.update(f"{inside.as_posix()}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def build(source: Path) -> str | None:
    """Build the pages; returns what stands in the way, or None."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        return "The viewer's pages were not built: npm and node >= 20.19 are not on the PATH."
    words = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout.strip().lstrip("v")
    numbers = tuple(int(part) for part in words.split(".")[:2] if part.isdecimal())
    if numbers < OLDEST_NODE:
        return f"The viewer's pages were not built: node is {words or 'broken'}, and they need at least 20.19."
    # Without a network the second try would cost another minute and end the same.
    for command in (["ci", "--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=20000"], ["run", "build"]):
        try:
            done = subprocess.run([npm, *command], cwd=source, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            return f"The viewer's pages were not built: `npm {command[0]}` took more than {PATIENCE_S} s."
        if done.returncode:
            tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
            return f"The viewer's pages were not built: `npm {' '.join(command)}` failed:\n{tail}\n"
    return None
