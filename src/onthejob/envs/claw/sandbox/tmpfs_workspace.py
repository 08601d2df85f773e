"""A workspace through a descriptor of the tmpfs that holds it: seeding it, and making a dead one readable."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from onthejob.envs.claw.sandbox.sandbox_interface import Item, Kind, Limits
from onthejob.errors import ConfigError, SandboxError

FOLDER = "work"
"""Name of the workspace in its tmpfs: a folder below the mount's root, so that opening it with O_NOFOLLOW works."""
BESIDE = "beside"
"""The same for the second folder of a sandbox that has one."""
DEEPEST = 64
"""Levels below the workspace that are made readable; what lies deeper stays as the agent left it."""
OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def root(folder: int, name: str = FOLDER) -> Path:
    """The path for this process of the workspace, or of another folder of its tmpfs."""
    return Path(f"/proc/self/fd/{folder}/{name}")


def seed(folder: int, items: Mapping[PurePosixPath, Item], limits: Limits, *, name: str = FOLDER) -> None:
    """Write the items before anything runs, owned by the sandbox's user.

    `limits` are for the message when they do not fit.

    Raises:
        ConfigError: They do not fit into the workspace.
    """
    owner = os.stat(name, dir_fd=folder)
    try:
        write_items(root(folder, name), items, owner=None if owner.st_uid == os.geteuid() else (owner.st_uid, owner.st_gid))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.ENAMETOOLONG):
            raise
        size = sum(len(item.data) for item in items.values())
        raise ConfigError(
            f"the workspace's {len(items)} files ({size} bytes) do not fit into {limits.workspace_bytes} bytes and "
            f"{limits.workspace_files} files: {error.strerror}. Raise workspace_bytes or workspace_files."
        ) from error


def write_items(top: Path, items: Mapping[PurePosixPath, Item], *, owner: tuple[int, int] | None = None) -> None:
    """Write the items below `top`, a folder in which nothing runs and which holds nothing but mount points.

    No path leads through a link: `checked_paths` refuses that. `owner` is the uid and gid to give them to; None leaves them to
    this process's user.

    Raises:
        OSError: They do not fit, or cannot be written.
    """
    made: set[PurePosixPath] = {PurePosixPath(".")}
    for path, item in items.items():
        for parent in [*reversed(path.parents), *([path] if item.kind is Kind.FOLDER else [])]:
            if parent not in made:
                made.add(parent)
                # Mount points are there already where the workspace is `/`.
                (top / parent).mkdir(mode=0o755, exist_ok=True)
                if owner is not None:
                    os.chown(top / parent, *owner)
        target = top / path
        if item.kind is Kind.LINK:
            target.symlink_to(os.fsdecode(item.data))
        elif item.kind is Kind.FILE:
            target.write_bytes(item.data)
            target.chmod(item.mode)
        if owner is not None and item.kind is not Kind.FOLDER:
            os.chown(target, *owner, follow_symlinks=False)
        if item.kind is not Kind.FOLDER and item.mtime_ns is not None:
            os.utime(target, ns=(item.mtime_ns, item.mtime_ns), follow_symlinks=False)
    # From the innermost one: writing into a folder changes its time, and a closed folder takes no file of an ordinary user.
    for path, item in reversed(list(items.items())):
        if item.kind is Kind.FOLDER:
            (top / path).chmod(item.mode)
            if item.mtime_ns is not None:
                os.utime(top / path, ns=(item.mtime_ns, item.mtime_ns))


def unlock(folder: int) -> None:
    """Give the workspace's own folder back its permissions, without which bash could not start there."""
    os.chmod(FOLDER, 0o755, dir_fd=folder)


def make_readable(folder: int) -> None:
    """Let us read what the agent made unreadable; only for a workspace in which nothing lives any more.

    Root reads everything anyway; an ordinary user owns the files and gives itself the permission. A workspace may hold more
    folders than a process may open: at most one per level is open at a time.

    Raises:
        SandboxError: The system refuses.
    """
    try:
        unlock(folder)
        if os.geteuid() != 0:
            _unlock_below(os.open(FOLDER, OPEN_FOLDER, dir_fd=folder), 0)
    except OSError as error:
        raise SandboxError(f"the workspace cannot be made readable: {error}. The episode is lost.") from error


def _unlock_below(folder: int, depth: int) -> None:
    """Takes over the descriptor `folder`."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.stat(follow_symlinks=False).st_mode) for entry in entries]
        for name, mode in found:
            is_folder = stat.S_ISDIR(mode)
            wanted = stat.S_IRWXU if is_folder else stat.S_IRUSR
            if (is_folder or stat.S_ISREG(mode)) and mode & wanted != wanted:
                os.chmod(name, stat.S_IMODE(mode) | wanted, dir_fd=folder)
            if is_folder and depth < DEEPEST:
                _unlock_below(os.open(name, OPEN_FOLDER, dir_fd=folder), depth + 1)
    finally:
        os.close(folder)
