"""What a sandbox shares with others outside although it is isolated: it could hold or exhaust it there, or signal by it.

Whatever the kernel lets us bound is bounded elsewhere; this is the rest, for the report of `onthejob sandbox doctor`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from onthejob.envs.claw.sandbox.lifetime import core_limit


class Shared(NamedTuple):
    """One resource of the machine or the user."""

    resource: str
    among: str
    """Whose it is."""
    effect: str
    """What a hostile command can do with it."""


def shared(proc: Path = Path("/proc")) -> list[Shared]:
    """What is shared by sandboxes that this user starts."""
    root = os.geteuid() == 0
    among = "one sandbox: each has a user of its own" if root else "all sandboxes and programs of this user"
    pages, watches = (_number(proc / "sys/fs" / name) for name in ("pipe-user-pages-soft", "epoll/max_user_watches"))
    pattern = _text(proc / "sys/kernel/core_pattern")
    starts = pattern.startswith("|") and core_limit() == 0
    return [
        Shared("pipe pages", among, f"beyond {pages} pages (fs.pipe-user-pages-soft) new pipes hold one page"),
        Shared("epoll watches", among, f"beyond {watches} (fs.epoll.max_user_watches) epoll_ctl fails"),
        Shared("descriptors sent over sockets", among, "at most as many wait as a sandbox's process may have open"),
        Shared("locks of files below /usr", "this machine", "two sandboxes can signal each other; who locks the same file waits"),
        Shared(
            "memory of sockets",
            "this machine",
            f"net.ipv4.tcp_mem: {' '.join(_text(proc / 'sys/net/ipv4/tcp_mem').split())} pages",
        ),
        Shared("processors, caches, disks", "this machine", "commands can slow others down and signal by it"),
        Shared(
            "core files",
            "this machine" if starts else "nobody",
            f"a crash starts {pattern[1:].split()[0]}: this user's hard limit of core files is 0"
            if starts
            else "none are written",
        ),
    ]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> str:
    return _text(path) or "an unknown number of"
