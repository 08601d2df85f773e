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
from onthejob.envs.claw.sandbox.contract import SYSTEM_NAMES, Item, Kind
from onthejob.envs.claw.sandbox.rootfs import MACHINE
from onthejob.errors import ConfigError

MOST_BYTES, MOST_FILES = COPIED_BYTES // 2, COPIED_FILES // 2
"""What is taken of a root file system, at most: tests see a copy of the whole tree, of which the other half is the task's."""
LEFT_OUT = re.compile(
    r"(tmp|mnt|media|boot|sys|tests|logs|solution|lost\+found|\.dockerenv|var/(cache|log|tmp|lib/(apt|dpkg))"
    r"|etc/(ld\.so\.(cache|preload)|alternatives))(/|$)"
)
"""What sandboxes have of their own, and what is large and of no use without a network."""


def skeleton() -> dict[str, Item]:
    """What an ordinary base has besides the system's folders."""

    def folder(mode: int = 0o755) -> Item:
        return Item(kind=Kind.FOLDER, mode=mode)

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
    return made | {f"etc/{name}": Item(data=f"{text}\n".encode()) for name, text in texts.items()}


@cache
def base_of(root: Path) -> Mapping[str, Item]:
    """The tree before a task's Dockerfile adds to it, by path below `/`.

    Args:
        root: root file system, from `check_rootfs`; of this machine's nothing is taken.

    Raises:
        ConfigError: what would be taken of it is too large.
    """
    found = skeleton()
    room = MOST_BYTES
    for path, item in _items(root, "") if root != MACHINE else ():
        room -= len(item.data)
        if len(found) >= MOST_FILES or room < 0:
            raise ConfigError(
                f"--env.rootfs {root} has more than {MOST_FILES} files or {MOST_BYTES >> 20} MiB besides /usr and the like, "
                f"which would be copied into every sandbox. {_largest(root)}"
            )
        found[path] = item
    return found


def _items(root: Path, below: str) -> Iterator[tuple[str, Item]]:
    """Files, folders and links below a folder, in order; what cannot be read is left out."""
    try:
        with os.scandir(root / below) as entries:
            listed = sorted((entry.name, entry.stat(follow_symlinks=False)) for entry in entries)
    except OSError:
        return
    for name, status in listed:
        path = f"{below}/{name}" if below else name
        if path in SYSTEM_NAMES or LEFT_OUT.match(path):
            continue
        kind = stat.S_IFMT(status.st_mode)
        mode, mtime_ns = stat.S_IMODE(status.st_mode) & 0o1777, status.st_mtime_ns
        try:
            if kind == stat.S_IFDIR:
                yield path, Item(kind=Kind.FOLDER, mode=mode, mtime_ns=mtime_ns)
                yield from _items(root, path)
            elif kind == stat.S_IFLNK:
                yield path, Item(kind=Kind.LINK, data=os.fsencode(os.readlink(root / path)), mtime_ns=mtime_ns)  # noqa: PTH115
            elif kind == stat.S_IFREG:
                if status.st_size > MOST_BYTES:
                    raise ConfigError(f"--env.rootfs {root}: /{path} is larger than {MOST_BYTES >> 20} MiB. Move it below /usr.")
                yield path, Item(data=(root / path).read_bytes(), mode=mode, mtime_ns=mtime_ns)
        except OSError:
            continue


def _largest(root: Path) -> str:
    """The advice to move the folder with most files or bytes."""
    files: Counter[str] = Counter()
    for path, _ in _items(root, ""):
        files["/".join(path.split("/")[:2])] += 1
    name, count = files.most_common(1)[0]
    return f"/{name} has {count} of them: remove it, or move it below /usr."
