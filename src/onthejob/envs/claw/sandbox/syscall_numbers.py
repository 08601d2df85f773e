"""Numbers of the system calls that sandboxes refuse or use, per processor; the kernel never changes them.

The numbers are those of the kernel's own tables (`arch/x86/entry/syscalls/syscall_64.tbl`, `scripts/syscall.tbl`).
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

NEWEST = 462
"""The last system call that was judged for the filter: `mseal`, Linux 6.10. Later ones are refused until they are judged too."""
X86_64, AARCH64 = "x86_64", "aarch64"

# Name: number on x86_64, number on aarch64; None where that processor lacks the call.
_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_gettime": (228, 113),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "delete_module": (176, 106),
    "exit_group": (231, 94),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fcntl": (72, 25),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "io_setup": (206, 0),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "semget": (64, 190),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "setrlimit": (160, 164),
    "setsid": (112, 157),
    "settimeofday": (164, 170),
    "shmget": (29, 194),
    "signalfd4": (289, 74),
    "socket": (41, 198),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sync": (162, 81),
    "syncfs": (306, 267),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """One kind of processor, as a filter of system calls sees it."""

    name: str
    """As `uname -m` prints it."""
    audit: int
    """The kernel's AUDIT_ARCH number."""
    judged: tuple[tuple[int, int], ...]
    """First and last of each range of numbers whose calls were judged, in order. What lies outside did not exist then."""
    foreign: tuple[int, int] | None
    """First and last number of another calling convention on the same processor."""
    column: int

    def number(self, name: str) -> int | None:
        """Number of a system call; None where this processor lacks it.

        Raises:
            KeyError: The table lacks the name.
        """
        return _NUMBERS[name][self.column]

    def is_judged(self, number: int) -> bool:
        """True when the filter's policy has an opinion on the call."""
        return any(first <= number <= last for first, last in self.judged)


PROCESSORS = {
    # Between 334 and 424 calls are still being added for this processor alone; x32 has its own numbers, -1 is no call.
    X86_64: Processor(
        name=X86_64, audit=0xC000003E, judged=((0, 334), (424, NEWEST)), foreign=(0x40000000, 0xFFFFFFFE), column=0
    ),
    # 244 to 259 are reserved for each processor's own calls, 295 to 423 for those with 64-bit times on 32-bit processors.
    AARCH64: Processor(name=AARCH64, audit=0xC00000B7, judged=((0, 243), (260, 294), (424, NEWEST)), foreign=None, column=1),
}


def this_processor() -> Processor:
    """The processor of this machine.

    Raises:
        LookupError: There is no table for it.
    """
    name = os.uname().machine
    if name not in PROCESSORS or sys.maxsize < 1 << 32:
        raise LookupError(f"{name} with {sys.maxsize.bit_length() + 1}-bit programs")
    return PROCESSORS[name]
