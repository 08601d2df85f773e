"""Programs that sandboxes are made with: where they lie on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from onthejob.envs.claw.sandbox.rootfs import MACHINE, inside

SYSTEM_FOLDERS = ("/usr/local/bin", "/usr/bin", "/bin")
"""Folders in which bubblewrap is looked for before the Python package that brings it."""
BASH = Path("/bin/bash")
PERLS = ("/usr/bin/perl", "/usr/local/bin/perl")
PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")
"""Interpreters that sandboxes can see, because they lie below /usr; those of the tests' attacks too."""
PERL_CALLS = ("clock_gettime", "exit_group", "prlimit64", "rt_sigaction", "rt_sigprocmask", "setsid", "signalfd4")
"""System calls that process 1 makes by number when it is written in Perl."""


class Interpreter(NamedTuple):
    """A program that can be process 1 of a sandbox, with the script that it runs."""

    path: Path
    script: str
    options: tuple[str, ...]
    """With which it runs no file of the site or the user first."""
    calls: tuple[str, ...]
    """System calls that it makes by number."""


def find_interpreters(root: Path = MACHINE) -> Iterator[Interpreter]:
    """Those of a root file system, the quickest to start first; Python finds its library inside when it lies below /usr."""
    for path in executables(PERLS, root):
        yield Interpreter(path, "pid1.pl", ("-f",), PERL_CALLS)
    for path in executables((*PYTHONS, *([sys.executable] if root == MACHINE else [])), root):
        if path.is_relative_to(root / "usr"):
            yield Interpreter(path, "pid1.py", ("-I", "-S"), ())


def executables(names: tuple[str, ...], root: Path = MACHINE) -> Iterator[Path]:
    """Those that exist in a root file system and may be executed, without links."""
    for name in names:
        place = inside(root, name)
        if place is not None and place.is_file() and os.access(place, os.X_OK):
            yield place


def is_of_system(bwrap: Path) -> bool:
    """True when bubblewrap is used where it lies; that of the Python package may lie in a folder closed to the sandbox's user."""
    return str(bwrap.parent) in SYSTEM_FOLDERS
