"""A workspace through a descriptor of the tmpfs that holds it: seeding it, and making a dead one readable."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from onthejob.envs.claw.sandbox.contract import Limits
from onthejob.errors import ConfigError, SandboxError

FOLDER = "work"
"""Name of the workspace in its tmpfs: a folder below the mount's root, so that opening it with O_NOFOLLOW works."""
DEEPEST = 64
"""Levels below the workspace that are made readable; what lies deeper stays as the agent left it."""
OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def root(folder: int) -> Path:
    """The workspace's path for this process."""
    return Path(f"/proc/self/fd/{folder}/{FOLDER}")


def seed(folder: int, paths: Mapping[PurePosixPath, bytes | None], limits: Limits) -> None:
    """Write the files before anything runs, owned by the sandbox's user.

    Args:
        folder: Descriptor of the tmpfs.
        paths: What `checked_paths` returned.
        limits: For the message when they do not fit.

    Raises:
        ConfigError: They do not fit into the workspace.
    """
    top = root(folder)
    owner = os.stat(FOLDER, dir_fd=folder)
    foreign = owner.st_uid != os.geteuid()
    made: set[PurePosixPath] = {PurePosixPath(".")}
    try:
        for path, content in paths.items():
            folders = [*reversed(path.parents)] if content is not None else [*reversed(path.parents), path]
            for parent in folders:
                if parent not in made:
                    made.add(parent)
                    (top / parent).mkdir(mode=0o755)
                    if foreign:
                        os.chown(top / parent, owner.st_uid, owner.st_gid)
            if content is not None:
                (top / path).write_bytes(content)
                (top / path).chmod(0o644)
                if foreign:
                    os.chown(top / path, owner.st_uid, owner.st_gid)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.ENAMETOOLONG):
            raise
        size = sum(len(content or b"") for content in paths.values())
        raise ConfigError(
            f"the workspace's {len(paths)} files ({size} bytes) do not fit into {limits.workspace_bytes} bytes and "
            f"{limits.workspace_files} files: {error.strerror}. Raise workspace_bytes or workspace_files."
        ) from error


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
