"""The bubblewrap command line of one sandbox, in one place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from onthejob.envs.claw.sandbox.programs import Interpreter
from onthejob.envs.claw.sandbox.rootfs import MACHINE, inside

INSIDE_UID = 1000
"""The agent's uid and gid as it sees them."""
INTERPRETER = "interpreter"
"""File that runs as process 1: a copy that may be executed but not read."""
BESIDE = "/beside"
"""The second, read-only folder inside, of sandboxes that have one."""

ACCOUNTS = {
    "passwd": f"root:x:0:0:root:/:/bin/false\nagent:x:{INSIDE_UID}:{INSIDE_UID}:agent:/work:/bin/bash\n",
    "group": f"root:x:0:\nagent:x:{INSIDE_UID}:\n",
    "hosts": "127.0.0.1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
"""What is below /etc inside, next to the system's /etc/alternatives and /etc/ld.so.cache."""


class Folder(NamedTuple):
    """A folder of the system, as sandboxes see it."""

    source: Path
    """Where it lies in the broker's mount namespace."""
    link: str
    """Its text where it is a link there; else empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Folders of one sandbox in the broker's mount namespace."""

    etc: Path
    """Holds `ACCOUNTS`."""
    run: Path
    """Holds `pid1` (`INTERPRETER` and its script) and what `inside.furnish` put there."""
    system: Path
    """The root file system whose `/usr` and the like sandboxes have; `/` for this machine's."""
    preload: Path
    """An empty file: process 1 starts with what that of the system names, so nothing inside may write to it."""
    work: Path
    tmp: Path
    shm: Path
    beside: Path | None = None
    """What becomes the second folder."""
    beside_at: str = BESIDE
    """Where it lies inside."""


def command_line(
    bwrap: Path, places: Places, *, system: Mapping[Path, Folder], filter_fd: int, info_fd: int, root: bool = False
) -> list[str]:
    """Everything up to the command that becomes pid 1.

    The order counts: what is mounted last lies on top, and folders become read-only after their mount points exist.

    Args:
        bwrap: The program.
        places: What is mounted.
        system: What `system_folders` found.
        filter_fd: Holds the filter of system calls.
        info_fd: Takes what bubblewrap says of its first process.
        root: See `Layout` of `sandbox_interface`.
    """
    uid = str(0 if root else INSIDE_UID)
    words = [str(bwrap), "--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL", "--hostname", "sandbox"]
    words += [f"--unshare-{space}" for space in ("user", "ipc", "pid", "net", "uts", "cgroup")]
    words += ["--uid", uid, "--gid", uid, *(["--bind", str(places.work), "/"] if root else [])]
    words += _of_system(places.system, "usr")
    for path, (source, link) in system.items():
        # As a mount where commands may write to `/`: they cannot replace that, and a link they could.
        words += ["--symlink", link, str(path)] if link and not root else ["--ro-bind", str(source), str(path)]
    if root:
        # A mount of its own, so that it cannot be moved away from what is mounted in it.
        words += ["--bind", str(places.work / "etc"), "/etc", "--ro-bind", str(places.preload), "/etc/ld.so.preload"]
    else:
        words += ["--ro-bind", str(places.etc), "/etc"]
    words += [*_of_system(places.system, "etc/alternatives"), *_of_system(places.system, "etc/ld.so.cache")]
    words += ["--proc", "/proc", "--dev", "/dev", "--ro-bind", str(places.run), "/run"]
    if not root:
        words += ["--bind", str(places.work), "/work", "--bind", str(places.tmp), "/tmp"]
    words += ["--bind", str(places.shm), "/dev/shm"]
    if places.beside is not None:
        words += ["--ro-bind", str(places.beside), places.beside_at]
    words += ["--remount-ro", "/proc", "--remount-ro", "/dev"]
    words += ["--chdir", "/"] if root else ["--remount-ro", "/", "--chdir", "/work"]
    return [*words, "--seccomp", str(filter_fd), "--info-fd", str(info_fd), "--"]


def _of_system(system: Path, path: str) -> list[str]:
    """The words that mount a file or folder of the system: links that bubblewrap followed could lead out of another root."""
    source = inside(system, path)
    return [] if source is None else ["--ro-bind", str(source), f"/{path}"]


def system_folders(root: Path = MACHINE) -> dict[Path, Folder]:
    """/bin, /lib and their like: links into /usr on a merged system, or folders of their own on an old one."""
    found: dict[Path, Folder] = {}
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        place, source = root / name, inside(root, name)
        if source is not None and source.is_dir():
            link = os.readlink(place) if place.is_symlink() else ""  # noqa: PTH115 - the link's text, not a path
            found[MACHINE / name] = Folder(source, link)
    return found


def pid1_command(
    interpreter: Interpreter, control: int, script: int, *, keep: int, calls: Mapping[str, int], limits: Mapping[int, int]
) -> list[str]:
    """The command that becomes pid 1.

    Args:
        interpreter: Copied to `INTERPRETER`.
        control: its end of the socket.
        script: file in memory for commands too long for an argument.
        keep: bytes that it keeps of a stream.
        calls: number of each of the interpreter's calls on this processor.
        limits: number of a resource -> its limit.
    """
    words = [
        f"/run/pid1/{INTERPRETER}",
        *interpreter.options,
        f"/run/pid1/{interpreter.script}",
        *map(str, (control, script, keep)),
    ]
    words += [f"call:{name}={number}" for name, number in calls.items()]
    return [*words, *(f"limit:{number}={value}" for number, value in limits.items())]
