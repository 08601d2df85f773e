"""A root file system that stands for this machine's in sandboxes: where its files are. Its links are followed inside it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

MACHINE = Path("/")
"""This machine's own."""
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
"""The system's programs inside, in the order of search; `inside.RUN/bin` comes before them. `pid1.pl` has the same."""
MOST_LINKS = 40
"""Links on the way of one path; the kernel's own limit."""


def inside(root: Path, path: str) -> Path | None:
    """Where on this machine a path of a root file system is, without links; None where there is nothing."""
    found: list[str] = []
    rest = path.split("/")[::-1]
    links = 0
    while rest:
        part = rest.pop()
        if part in ("", "."):
            continue
        if part == "..":
            del found[-1:]
            continue
        place = root.joinpath(*found, part)
        try:
            is_link = stat.S_ISLNK(place.lstat().st_mode)
            target = os.readlink(place) if is_link else ""  # noqa: PTH115 - the link's text, not a path
        except OSError:
            return None
        if not is_link:
            found.append(part)
            continue
        links += 1
        if links > MOST_LINKS:
            return None
        if target.startswith("/"):
            found.clear()
        rest += target.split("/")[::-1]
    return root.joinpath(*found)


def find_program(name: str, root: Path = MACHINE) -> str | None:
    """Path under which commands inside find a program, named as one types it or by an absolute path; None where they do not."""
    candidates = [name] if "/" in name else [f"{folder}/{name}" for folder in SYSTEM_PATH.split(":")]
    return next((path for path in candidates if path.startswith("/") and _is_executable(inside(root, path))), None)


def _is_executable(place: Path | None) -> bool:
    return place is not None and place.is_file() and os.access(place, os.X_OK)
