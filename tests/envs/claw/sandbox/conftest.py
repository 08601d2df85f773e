"""One host of sandboxes for all tests here. Without bubblewrap they fail rather than being skipped: the sandbox is a must."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import onthejob
from onthejob.envs.claw.sandbox.ground import files_of_wheel
from onthejob.envs.claw.sandbox.host import BwrapHost
from onthejob.envs.claw.sandbox.programs import is_of_system
from onthejob.envs.claw.sandbox.requirements import find_bwrap

PACKAGE = Path(onthejob.__file__).parent
SANDBOX = Path("envs/claw/sandbox")


@pytest.fixture(scope="session")
def host() -> Iterator[BwrapHost]:
    with BwrapHost() as made:
        yield made


class Copy:
    """The part of the package that sandboxes need, in a folder where a test may change it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = [*PACKAGE.glob("*.py"), *(PACKAGE / "types").glob("*.py"), *(PACKAGE / SANDBOX).rglob("*.p[yl]")]
        kept += [PACKAGE / "envs/env.py", PACKAGE / "envs/exchange.py"]
        for path in (*kept, *(PACKAGE / parent / "__init__.py" for parent in list(SANDBOX.parents)[:-1])):
            target = folder / "onthejob" / path.relative_to(PACKAGE)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)

    def change(self, file: str, old: str, new: str) -> None:
        """Replace what a file of the sandbox holds exactly once."""
        path = self.folder / "onthejob" / SANDBOX / file
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{file} no longer holds {old!r} once"
        path.write_text(text.replace(old, new), encoding="utf-8")

    def without_perl(self) -> None:
        """As on a machine that has none: process 1 is written in Python."""
        self.change("programs.py", "in executables(PERLS, root)", "in executables(())")

    def run(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python code with this copy."""
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        words = [sys.executable, "-s", "-c", code, *arguments]
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=240, check=False)


def bring_bubblewrap(folder: Path) -> None:
    """Where bubblewrap is that of the Python package, copy it to a folder of `sys.path` of another Python."""
    bwrap = find_bwrap()
    assert bwrap is not None
    for path, content in ({} if is_of_system(bwrap) else files_of_wheel(bwrap)).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
        (folder / path).chmod(0o755)


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)
