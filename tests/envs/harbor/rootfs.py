"""A small root file system, made of this machine's programs and the libraries that ldd names."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

PROGRAMS = (
    "base64",
    "bash",
    "cat",
    "chmod",
    "cp",
    "dirname",
    "echo",
    "env",
    "grep",
    "id",
    "ls",
    "mkdir",
    "mv",
    "rm",
    "sort",
    "touch",
    "true",
    "wc",
)
PERL = ("strict.pm",)
"""Modules that process 1 of a sandbox loads."""
RELEASE = 'ID=small\nNAME="A small root"\n'


def make_rootfs(root: Path, *, perl: bool = True) -> Path:
    """Make it in a folder that does not exist; the caller may write to it until a sandbox has it."""
    (root / "usr/bin").mkdir(parents=True)
    (root / "etc").mkdir()
    (root / "bin").symlink_to("usr/bin")
    for name in (*PROGRAMS, *(["perl"] if perl else [])):
        found = shutil.which(name, path="/usr/bin:/bin")
        assert found is not None, f"this machine has no {name}"
        copy(Path(found).resolve(), root / "usr/bin" / name)
        for line in subprocess.run(["ldd", found], capture_output=True, text=True, check=True).stdout.splitlines():
            if library := re.search(r"(/\S+) \(0x", line):
                # Where programs look for it: merged or not, it is reached by the path that ldd says.
                copy(Path(library[1]).resolve(), root / library[1].lstrip("/"))
    (root / "bin/sh").symlink_to("bash")
    if perl:
        said = subprocess.run(
            ["/usr/bin/perl", "-e", 'print join "\\n", @INC'], capture_output=True, text=True, check=True
        ).stdout
        for module in PERL:
            (source,) = [Path(folder) / module for folder in said.split("\n") if (Path(folder) / module).is_file()][:1]
            copy(source.resolve(), root / str(source).lstrip("/"))
    files = {"etc/os-release": RELEASE, "etc/passwd": "root:x:0:0:root:/root:/bin/bash\n", "srv/tool/data.txt": "of the root\n"}
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    root.chmod(0o755)
    return root


def copy(source: Path, target: Path) -> None:
    """A file with its mode."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy(source, target)
