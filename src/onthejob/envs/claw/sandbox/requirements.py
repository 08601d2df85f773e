"""What sandboxes need of this machine, and the Debian packages that bring it; `.ci/sandbox-packages` is the same in bash."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PERLS = ("/usr/bin/perl", "/usr/local/bin/perl")
"""Interpreters for pid 1, in the order in which they are looked for."""
BWRAPS = "/usr/local/bin:/usr/bin:/bin"
"""Folders in which bubblewrap is looked for."""
SECCOMP = "libseccomp.so.2"


class Requirement(NamedTuple):
    """One thing that sandboxes need."""

    package: str
    """Of Debian and Ubuntu."""
    found: str | None
    """Where, or None."""


def find_perl() -> Path | None:
    """The interpreter for pid 1, or None."""
    return next((Path(name).resolve() for name in PERLS if Path(name).is_file()), None)


def find_bwrap() -> str | None:
    """The program of bubblewrap, or None."""
    return shutil.which("bwrap", path=BWRAPS)


def find_seccomp() -> str | None:
    """The name under which libseccomp can be loaded, or None."""
    try:
        ctypes.CDLL(SECCOMP)
    except OSError:
        return None
    return SECCOMP


def requirements() -> Iterator[Requirement]:
    """All of them, found or not."""
    perl = find_perl()
    yield Requirement("bubblewrap", find_bwrap())
    yield Requirement("libseccomp2", find_seccomp())
    yield Requirement("perl", None if perl is None else str(perl))
