"""Which system calls a sandbox may make, and the BPF program that tells the kernel so.

The program is a binary search by the call's number; its leaves answer, or look at an argument first. The kernel runs classic BPF:
a 32-bit accumulator, jumps forward by at most 255, and `struct seccomp_data` to load from (number, AUDIT_ARCH, instruction
pointer, six 64-bit arguments, little-endian on both processors). Source: Linux, Documentation/userspace-api/seccomp_filter.rst.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from onthejob.envs.claw.sandbox.syscall_numbers import Processor

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
    "settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname",
)
"""Answered with EPERM."""
ABSENT = "shmget msgget semget mq_open memfd_create memfd_secret io_setup inotify_init inotify_init1"
"""Answered with ENOSYS, as by a kernel built without them: memory that counts against no limit of a process or outlives its
command, and what the whole machine or one user has few of."""
OF_OTHERS = {
    "sched_setparam": ((0, 0),),
    "sched_setscheduler": ((0, 0),),
    "sched_setaffinity": ((0, 0),),
    "sched_setattr": ((0, 0),),
    "setpriority": ((0, 0), (1, 0)),
    "ioprio_set": ((0, 1), (1, 0)),
}
"""Calls that slow processes down -> (argument, value) by which they reach the caller alone. Process 1 has the same user as the
agent: made to run when nothing else wants to, it would notice late that a command's time is up."""
RLIMIT_CORE = 4
"""A limit of 1, the broker's, is the only one at which a `core_pattern` that names a program starts none: see core(5)."""
NEW_SPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x00000080)
"""Flags of `clone` that make namespaces."""
FILE_TYPE, DEVICES = 0o170000, (0o020000, 0o060000)
"""Character and block devices may not be made; FIFOs may, with the same calls."""
TERMINAL_INPUT = (0x5412, 0x541C)
"""ioctl requests that put characters into a terminal: TIOCSTI, TIOCLINUX."""
WATCHING = (1024, 1026)
"""fcntl commands that tell a process, or make another one wait, when a file of the system is used: F_SETLEASE, F_NOTIFY."""
SYNCING = ("sync", "syncfs")
"""Calls that wait for the disks of the machine, where no signal ends them; what is written inside lies in memory."""
FAMILIES = (AF_UNIX, AF_INET, AF_INET6)
"""Of sockets; others are answered with EAFNOSUPPORT."""

_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
_FURTHEST = 255


class Instruction(NamedTuple):
    """The kernel's `struct sock_filter`."""

    code: int
    if_true: int
    if_false: int
    value: int


Block = tuple[Instruction, ...]
"""Instructions that always end in an answer."""


def answer(value: int) -> Block:
    """Leave the program."""
    return (Instruction(_RETURN, 0, 0, value),)


def refuse(error: int) -> Block:
    """The call fails with `error` and does nothing."""
    return answer(0x00050000 | error)


ALLOW = answer(0x7FFF0000)
PRETEND = refuse(0)
"""The call succeeds and does nothing."""
KILL = answer(0)


def program(processor: Processor) -> bytes:
    """The filter: all is allowed but `FORBIDDEN`, `ABSENT`, `OF_OTHERS`, namespaces, devices, unusual sockets and new calls.

    A call that is newer than our table does not exist inside (ENOSYS), as on an older kernel; programs have another way then.
    Another calling convention than this processor's own ends the program.
    """
    by_number = decide(spans(processor))
    code = [load(_ARCH), Instruction(_EQUAL, 1, 0, processor.audit), *KILL, load(_NUMBER), *by_number]
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


def load(offset: int) -> Instruction:
    """Put four bytes of the call's description into the accumulator."""
    return Instruction(_LOAD, 0, 0, offset)


def low(argument: int) -> Instruction:
    """Load the lower half of an argument: all that the kernel reads of an `int`."""
    return load(_ARGUMENTS + 8 * argument)


def high(argument: int) -> Instruction:
    """Load the upper half of an argument."""
    return load(_ARGUMENTS + 8 * argument + 4)


def one_of(values: Sequence[int], then: Block, otherwise: Block) -> Block:
    """Compare the accumulator with each of `values`."""
    jumps = (Instruction(_EQUAL, len(values) - index - 1 + len(otherwise), 0, value) for index, value in enumerate(values))
    return (*jumps, *otherwise, *then)


def rules() -> dict[str, Block]:
    """Name of a call -> what happens to it; what is not here is allowed."""
    not_permitted, no_family = refuse(errno.EPERM), refuse(errno.EAFNOSUPPORT)
    found: dict[str, Block] = dict.fromkeys(" ".join(FORBIDDEN).split(), not_permitted)
    found |= dict.fromkeys(ABSENT.split(), refuse(errno.ENOSYS))
    for name, wanted in OF_OTHERS.items():
        found[name] = ALLOW
        for argument, value in wanted:
            found[name] = (low(argument), *one_of((value,), found[name], not_permitted))
    own_limit = (low(1), *one_of((RLIMIT_CORE,), PRETEND, ALLOW))
    set_limit = (low(0), *one_of((0,), own_limit, not_permitted))
    # Without a new limit it only asks.
    found["prlimit64"] = (low(2), *one_of((0,), (high(2), *one_of((0,), ALLOW, set_limit)), set_limit))
    found["setrlimit"] = (low(0), *one_of((RLIMIT_CORE,), PRETEND, ALLOW))
    found["clone"] = (low(0), Instruction(_ANY_BIT, 0, 1, sum(NEW_SPACES)), *not_permitted, *ALLOW)
    # Its flags are in memory, where a filter cannot look; libraries fall back to clone.
    found["clone3"] = refuse(errno.ENOSYS)
    for name, mode in (("mknod", 1), ("mknodat", 2)):
        found[name] = (low(mode), Instruction(_AND, 0, 0, FILE_TYPE), *one_of(DEVICES, not_permitted, ALLOW))
    found |= dict.fromkeys(SYNCING, PRETEND)
    found["fcntl"] = (low(1), *one_of(WATCHING, refuse(errno.EINVAL), ALLOW))
    found["ioctl"] = (low(1), *one_of(TERMINAL_INPUT, not_permitted, ALLOW))
    found["socket"] = (high(0), *one_of((0,), (low(0), *one_of(FAMILIES, ALLOW, no_family)), no_family))
    return found


class Span(NamedTuple):
    """Neighbouring numbers, from `first` to before the next span's, that are treated alike."""

    first: int
    block: Block


def spans(processor: Processor) -> list[Span]:
    """All numbers, in order."""
    named = {number: block for name, block in rules().items() if (number := processor.number(name)) is not None}
    foreign = processor.foreign

    def block_of(number: int) -> Block:
        if foreign and foreign[0] <= number <= foreign[1]:
            return KILL
        return named.get(number, ALLOW) if processor.is_judged(number) else refuse(errno.ENOSYS)

    ranges = [*processor.judged, *((number, number) for number in named), *([foreign] if foreign else [])]
    edges = sorted({0, *(edge for first, last in ranges for edge in (first, last + 1))})
    return [*merged(Span(edge, block_of(edge)) for edge in edges)]


def merged(found: Iterable[Span]) -> Iterable[Span]:
    """Without spans that continue the one before."""
    before: Block | None = None
    for span in found:
        if span.block != before:
            yield span
        before = span.block


def decide(found: Sequence[Span]) -> Block:
    """Search for the span of the number in the accumulator, and do what its block says."""
    if len(found) == 1:
        return found[0].block
    middle = len(found) // 2
    below, above = decide(found[:middle]), decide(found[middle:])
    assert len(below) <= _FURTHEST, "a jump of BPF cannot reach further; split the search with an unconditional one"
    return (Instruction(_AT_LEAST, len(below), 0, found[middle].first), *below, *above)
