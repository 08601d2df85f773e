"""The few system calls that Python does not offer, and the system-call filter made with libseccomp."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from pathlib import Path

from onthejob.envs.claw.sandbox.requirements import SECCOMP

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 2, 4, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_CHILD_SUBREAPER = 36

ALLOW, EQ, GE, MASKED_EQ = 0x7FFF0000, 4, 5, 7
OPTIMIZE, BINARY_TREE = 8, 2
AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10

FORBIDDEN = (
    # other processes
    "ptrace process_vm_readv process_vm_writev process_madvise pidfd_getfd kcmp perf_event_open",
    # mounts, roots and namespaces
    "mount umount2 pivot_root chroot unshare setns move_mount open_tree fsopen fsconfig fsmount fspick mount_setattr",
    "name_to_handle_at open_by_handle_at fanotify_init quotactl quotactl_fd swapon swapoff",
    # large, rarely needed parts of the kernel
    "bpf userfaultfd io_uring_setup io_uring_enter io_uring_register keyctl add_key request_key",
    "modify_ldt personality vhangup uselib lookup_dcookie nfsservctl acct syslog",
    # the machine
    "init_module finit_module delete_module kexec_load kexec_file_load reboot iopl ioperm",
    "settimeofday clock_settime clock_adjtime adjtimex stime sethostname setdomainname",
)
"""Answered with EPERM."""
NEW_SPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x00000080)
"""Flags of `clone` that make namespaces."""
FILE_TYPE, DEVICES = 0o170000, (0o020000, 0o060000)
"""Character and block devices may not be made; FIFOs may, with the same calls."""
TERMINAL_INPUT = (0x5412, 0x541C)
"""ioctl requests that put characters into a terminal: TIOCSTI, TIOCLINUX."""


class Comparison(ctypes.Structure):
    """libseccomp's `struct scmp_arg_cmp`."""

    _fields_ = [
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    ]


class Kernel:
    """mount, umount, unshare and prctl of libc."""

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

    def mount_tmpfs(self, target: Path, *, size: int, files: int) -> None:
        """Mount an empty tmpfs of `size` bytes and `files` inodes."""
        options = f"size={size},nr_inodes={files},mode=0755".encode()
        flags = MS_NOSUID | MS_NODEV
        self._check(self._libc.mount(b"onthejob", os.fsencode(target), b"tmpfs", flags, options), f"mount tmpfs on {target}")

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


def system_call_filter() -> bytes:
    """The BPF program for bubblewrap: everything but `FORBIDDEN`, namespaces, and unusual sockets is allowed.

    Raises:
        OSError: libseccomp is not installed or refuses.
    """
    library = ctypes.CDLL(SECCOMP)
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_syscall_resolve_name.argtypes = [ctypes.c_char_p]
    library.seccomp_rule_add_array.argtypes = [
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.POINTER(Comparison),
    ]
    library.seccomp_attr_set.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32]
    library.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.seccomp_release.argtypes = [ctypes.c_void_p]
    context = library.seccomp_init(ALLOW)
    if not context:
        raise OSError(errno.EINVAL, "seccomp_init failed")

    def refuse(name: str, number: int, *comparisons: Comparison) -> None:
        call = library.seccomp_syscall_resolve_name(name.encode())
        if call == -1:
            return  # this library or architecture has no such call
        array = (Comparison * len(comparisons))(*comparisons) if comparisons else None
        result = library.seccomp_rule_add_array(context, 0x00050000 | number, call, len(comparisons), array)
        if result != 0:
            raise OSError(-result, f"seccomp rule for {name}: {os.strerror(-result)}")

    try:
        # Older libraries do not know the attribute; their filter is only slower.
        library.seccomp_attr_set(context, OPTIMIZE, BINARY_TREE)
        for name in " ".join(FORBIDDEN).split():
            refuse(name, errno.EPERM)
        for flag in NEW_SPACES:
            refuse("clone", errno.EPERM, Comparison(0, MASKED_EQ, flag, flag))
        # Its flags are in memory, where a filter cannot look; libraries fall back to clone.
        refuse("clone3", errno.ENOSYS)
        for device in DEVICES:
            refuse("mknod", errno.EPERM, Comparison(1, MASKED_EQ, FILE_TYPE, device))
            refuse("mknodat", errno.EPERM, Comparison(2, MASKED_EQ, FILE_TYPE, device))
        for request in TERMINAL_INPUT:
            refuse("ioctl", errno.EPERM, Comparison(1, MASKED_EQ, 0xFFFFFFFF, request))
        for family in set(range(AF_INET6)) - {AF_UNIX, AF_INET}:
            refuse("socket", errno.EAFNOSUPPORT, Comparison(0, EQ, family, 0))
        refuse("socket", errno.EAFNOSUPPORT, Comparison(0, GE, AF_INET6 + 1, 0))
        memory = os.memfd_create("filter")
        try:
            result = library.seccomp_export_bpf(context, memory)
            if result != 0:
                raise OSError(-result, f"seccomp_export_bpf: {os.strerror(-result)}")
            return os.pread(memory, os.fstat(memory).st_size, 0)
        finally:
            os.close(memory)
    finally:
        library.seccomp_release(context)


def system_call_numbers(names: Sequence[str]) -> dict[str, int]:
    """Name -> number of the system call on this processor.

    Raises:
        OSError: libseccomp is not installed or does not know one.
    """
    library = ctypes.CDLL(SECCOMP)
    library.seccomp_syscall_resolve_name.argtypes = [ctypes.c_char_p]
    numbers = {name: library.seccomp_syscall_resolve_name(name.encode()) for name in names}
    if unknown := [name for name, number in numbers.items() if number < 0]:
        raise OSError(errno.ENOSYS, f"this libseccomp does not know {', '.join(unknown)}")
    return numbers
