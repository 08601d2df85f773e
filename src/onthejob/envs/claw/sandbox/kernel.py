"""The few system calls that Python does not offer."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
LIBRARY_SIGNALS = (32, 33)
"""Signals that the C library keeps for itself and lets no program change."""
SIGACTION_BYTES, SIGNAL_SET_BYTES = 32, 8


class Kernel:
    """mount, umount, unshare and prctl of libc, and one system call by number."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)

    def unshare(self, flags: int) -> None:
        """Leave namespaces of this process.

        Raises:
            OSError: The kernel refuses.
        """
        self._check(self._libc.unshare(flags), f"unshare({flags:#x})")

    def adopt_orphans(self) -> None:
        """From now on processes whose parent ends, anywhere below this one, become its children."""
        self._check(self._libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")

    def default_library_signals(self, rt_sigaction: int) -> None:
        """Give `LIBRARY_SIGNALS` their default effect in what this process starts, though it was started with them ignored."""
        default = ctypes.create_string_buffer(SIGACTION_BYTES)
        for one in LIBRARY_SIGNALS:
            result = self._libc.syscall(ctypes.c_long(rt_sigaction), one, default, None, SIGNAL_SET_BYTES)
            self._check(result, f"rt_sigaction({one})")

    def open_own_files(self) -> None:
        """Let this process write its own files below /proc, which a change of user closes."""
        self._check(self._libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl(PR_SET_DUMPABLE)")

    def mount_tmpfs(self, target: Path, *, size: int, files: int) -> None:
        """Mount an empty tmpfs of `size` bytes and `files` inodes."""
        options = f"size={size},nr_inodes={files},mode=0755".encode()
        flags = MS_NOSUID | MS_NODEV
        self._check(self._libc.mount(b"onthejob", os.fsencode(target), b"tmpfs", flags, options), f"mount tmpfs on {target}")

    def bind(self, source: Path, target: Path, *, recursive: bool = False) -> None:
        """Show the folder `source` in the place of the folder `target`, with `recursive` also what is mounted in it."""
        flags = MS_BIND | (MS_REC if recursive else 0)
        self._check(self._libc.mount(os.fsencode(source), os.fsencode(target), None, flags, None), f"show {source} as {target}")

    def keep_mounts_private(self) -> None:
        """From now on no mount of this namespace appears in another one."""
        self._check(self._libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "make mounts private")

    def unmount(self, target: Path) -> None:
        """Unmount now; what is still open inside stays readable through its descriptors."""
        self._check(self._libc.umount2(os.fsencode(target), MNT_DETACH), f"unmount {target}")

    def _check(self, result: int, what: str) -> None:
        if result != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{what}: {os.strerror(number)}")
