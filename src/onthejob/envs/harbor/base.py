"""What a task's tree begins with besides the system's folders: those of an ordinary base, or those of a root file system."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from onthejob.envs.claw.copying import COPIED_BYTES, COPIED_FILES
from onthejob.envs.claw.sandbox.rootfs import MACHINE
from onthejob.envs.claw.sandbox.sandbox_interface import SYSTEM_NAMES, ItemKind, WorkspaceItem
from onthejob.errors import ConfigError

MOST_BYTES, MOST_FILES = COPIED_BYTES // 2, COPIED_FILES // 2
"""What is taken of a root file system, at most: tests see a copy of the whole tree, of which the other half is the task's."""
OF_SANDBOXES = re.compile(
    r"(sys|tests|logs|solution|lost\+found|\.dockerenv|var/(cache/(apt|debconf|ldconfig)|lib/(apt|dpkg))"
    r"|etc/(ld\.so\.(cache|preload)|alternatives))(/|$)"
)
"""What sandboxes have of their own, and what is large and of no use without a network."""
LEFT_OUT = re.compile(rf"{OF_SANDBOXES.pattern}|(tmp|mnt|media|boot|var/(cache|log|tmp))(/|$)")
"""The same, and what no base of an image has files in."""


def skeleton() -> dict[str, WorkspaceItem]:
    """What an ordinary base has besides the system's folders."""

    def folder(mode: int = 0o755) -> WorkspaceItem:
        return WorkspaceItem(kind=ItemKind.FOLDER, mode=mode)

    names = ("home", "opt", "srv", "mnt", "media", "boot", "var/log", "var/lib", "var/cache", "var/spool", "var/mail", "var/opt")
    made = dict.fromkeys(names, folder())
    made |= {"root": folder(0o700), "tmp": folder(0o1777), "var/tmp": folder(0o1777)}
    accounts = [
        "root:x:0:0:root:/root:/bin/bash",
        "daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin",
        "www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin",
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin",
    ]
    texts = {
        "passwd": "\n".join(accounts),
        "group": "root:x:0:\ndaemon:x:1:\nwww-data:x:33:\nnogroup:x:65534:",
        "hosts": "127.0.0.1 localhost",
        "hostname": "sandbox",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files",
        "shells": "/bin/sh\n/bin/bash",
    }
    return made | {f"etc/{name}": WorkspaceItem(data=f"{text}\n".encode()) for name, text in texts.items()}


@cache
def base_of(root: Path) -> Mapping[str, WorkspaceItem]:
    """The tree before a task's Dockerfile adds to it, by path below `/`.

    Of this machine's own root nothing is taken.

    Raises:
        ConfigError: what would be taken of it is too large.
    """
    return skeleton() if root == MACHINE else tree_of_root(root, named=f"--env.rootfs {root}", left_out=LEFT_OUT)


def tree_of_root(root: Path, *, named: str, left_out: re.Pattern[str]) -> dict[str, WorkspaceItem]:
    """What a root file system has besides the folders of the system, by path below `/`, on top of the `skeleton`.

    Args:
        root: its folder.
        named: as a message names it.
        left_out: paths that are not taken, with all that is below them.

    Raises:
        ConfigError: it is too large.
    """
    found = skeleton()
    room = MOST_BYTES
    for path, status in _listed(root, "", left_out):
        if stat.S_ISREG(status.st_mode) and status.st_size > MOST_BYTES:
            raise ConfigError(f"{named}: /{path} is larger than {MOST_BYTES >> 20} MiB. Move it below /usr.")
        item = _item(root, path, status)
        if item is None:
            continue
        room -= len(item.data)
        if len(found) >= MOST_FILES or room < 0:
            most = f"{MOST_BYTES >> 20} MiB" if room < 0 else f"{MOST_FILES} files"
            raise ConfigError(
                f"{named} has more than {most} besides /usr and the like, which would be copied into every sandbox. "
                f"{_largest(root, left_out, by_bytes=room < 0)}"
            )
        found[path] = item
    return found


def _listed(root: Path, below: str, left_out: re.Pattern[str]) -> Iterator[tuple[str, os.stat_result]]:
    """What is taken of a folder and those in it, in order, unread; folders that cannot be read are empty."""
    try:
        with os.scandir(root / below) as entries:
            listed = sorted((entry.name, entry.stat(follow_symlinks=False)) for entry in entries)
    except OSError:
        return
    for name, status in listed:
        path = f"{below}/{name}" if below else name
        if path in SYSTEM_NAMES or left_out.match(path):
            continue
        yield path, status
        if stat.S_ISDIR(status.st_mode):
            yield from _listed(root, path, left_out)


def _item(root: Path, path: str, status: os.stat_result) -> WorkspaceItem | None:
    """A file, folder or link with its content; None for other kinds and for what cannot be read."""
    kind = stat.S_IFMT(status.st_mode)
    mode, mtime_ns = stat.S_IMODE(status.st_mode) & 0o1777, status.st_mtime_ns
    try:
        if kind == stat.S_IFDIR:
            return WorkspaceItem(kind=ItemKind.FOLDER, mode=mode, mtime_ns=mtime_ns)
        if kind == stat.S_IFLNK:
            return WorkspaceItem(kind=ItemKind.LINK, data=os.fsencode(os.readlink(root / path)), mtime_ns=mtime_ns)  # noqa: PTH115
        if kind == stat.S_IFREG:
            return WorkspaceItem(data=(root / path).read_bytes(), mode=mode, mtime_ns=mtime_ns)
    except OSError:
        return None
    return None


def _largest(root: Path, left_out: re.Pattern[str], *, by_bytes: bool) -> str:
    """The advice to move the folder with most files, or with most bytes."""
    found: Counter[str] = Counter()
    for path, status in _listed(root, "", left_out):
        size = status.st_size if stat.S_ISREG(status.st_mode) else 0
        found["/".join(path.split("/")[:2])] += size if by_bytes else 1
    name, most = found.most_common(1)[0]
    amount = f"{most / (1 << 20):.1f} MiB" if by_bytes else most
    return f"/{name} has {amount} of them: remove it, or move it below /usr."
