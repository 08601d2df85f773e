"""Puts into the package what is made from other sources: the viewer's pages, and in a wheel the compiled code for CPUs.

Both have a variable: `auto` (default) makes them if it can, and the package installs without them, `require` fails if it cannot
(releases, continuous integration), `skip` leaves them out. ONTHEJOB_VIEWER needs node; what was built carries a hash of the
sources: times do not survive archives, so they cannot tell whether a build is old. ONTHEJOB_NATIVE_WHEEL needs a C compiler, and
makes the wheel one for this kind of processor; an editable installation compiles at its first start instead.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

OLDEST_NODE = (20, 19)
PATIENCE_S = 900
MODES = ("auto", "require", "skip")
NOT_SOURCES = {"node_modules", "test-results", "tests"}


class Hook(BuildHookInterface):
    """Runs before a wheel, an editable install or a source archive is made."""

    PLUGIN_NAME = "custom"
    compiled: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the pages, and for a wheel the libraries."""
        self.build_pages(checked("ONTHEJOB_VIEWER", os.environ.get("ONTHEJOB_VIEWER", "auto")))
        mode = checked("ONTHEJOB_NATIVE_WHEEL", os.environ.get("ONTHEJOB_NATIVE_WHEEL", "auto"))
        if mode != "skip" and self.target_name == "wheel" and version == "standard":
            self.compile_libraries(mode, build_data)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The libraries are in the wheel."""
        if self.compiled is not None:
            self.compiled.cleanup()

    def build_pages(self, mode: str) -> None:
        """Build unless what is there was made from the same sources."""
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

    def compile_libraries(self, mode: str, build_data: dict[str, Any]) -> None:
        """Into the wheel, which then is for one kind of processor: sysconfig's, or that of _PYTHON_HOST_PLATFORM."""
        system, _, machine = sysconfig.get_platform().partition("-")
        path = Path(self.root) / "src" / "onthejob" / "models" / "native" / "compiling.py"
        found = importlib.util.spec_from_file_location("onthejob_compiling", path)
        if found is None or found.loader is None or system != "linux":
            return
        compiling = importlib.util.module_from_spec(found)
        sys.modules[found.name] = compiling  # dataclasses look for it there
        found.loader.exec_module(compiling)
        self.compiled = tempfile.TemporaryDirectory(prefix="onthejob-native-")
        try:
            libraries = compiling.compile_all(machine, Path(self.compiled.name))
        except OSError as error:
            if mode == "require":
                raise
            self.app.display_warning(
                f"The wheel has no compiled code: {error}. It is compiled at the first start, or torch is used."
            )
            return
        if not libraries:
            return
        build_data["force_include"] |= {str(path): f"onthejob/models/native/built/{path.name}" for path in libraries}
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{machine}"


def checked(name: str, mode: str) -> str:
    """A variable's value; ValueError for another one than those."""
    if mode not in MODES:
        raise ValueError(f"{name} must be one of {', '.join(MODES)}, got {mode!r}.")
    return mode


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
