"""Independent oracles for our own assembler: the same policy by libseccomp, and what a kernel would answer to a program."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Sequence

from onthejob.envs.claw.sandbox import seccomp
from onthejob.envs.claw.sandbox.syscall_numbers import Processor

LIBRARY = "libseccomp.so.2"
ALLOW, NE, EQ, GE, MASKED_EQ = 0x7FFF0000, 1, 4, 5, 7


class Comparison(ctypes.Structure):
    """libseccomp's `struct scmp_arg_cmp`."""

    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


def load() -> ctypes.CDLL:
    """The library; OSError where it is not installed."""
    library = ctypes.CDLL(LIBRARY)
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_arch_add.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    library.seccomp_arch_remove.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    library.seccomp_arch_native.restype = ctypes.c_uint32
    library.seccomp_syscall_resolve_name.argtypes = [ctypes.c_char_p]
    library.seccomp_syscall_resolve_name_arch.argtypes = [ctypes.c_uint32, ctypes.c_char_p]
    library.seccomp_syscall_resolve_num_arch.argtypes = [ctypes.c_uint32, ctypes.c_int]
    library.seccomp_syscall_resolve_num_arch.restype = ctypes.c_void_p
    rule = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(Comparison)]
    library.seccomp_rule_add_array.argtypes = rule
    library.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.seccomp_release.argtypes = [ctypes.c_void_p]
    return library


def program(library: ctypes.CDLL, processor: Processor) -> bytes:
    """The policy of `onthejob.envs.claw.sandbox.seccomp`, for a processor that need not be this one."""
    context = library.seccomp_init(ALLOW)
    native = library.seccomp_arch_native()

    def refuse(name: str, number: int, *comparisons: Comparison) -> None:
        array = (Comparison * len(comparisons))(*comparisons) if comparisons else None
        call = library.seccomp_syscall_resolve_name(name.encode())
        assert call != -1, f"libseccomp does not know {name}"
        result = library.seccomp_rule_add_array(context, 0x00050000 | number, call, len(comparisons), array)
        assert result == 0, (name, os.strerror(-result))

    try:
        if processor.audit != native:
            assert library.seccomp_arch_add(context, processor.audit) == 0
            assert library.seccomp_arch_remove(context, native) == 0
        for name in " ".join(seccomp.FORBIDDEN).split():
            refuse(name, errno.EPERM)
        for name in seccomp.ABSENT.split():
            refuse(name, errno.ENOSYS)
        for name, wanted in seccomp.OF_OTHERS.items():
            for argument, value in wanted:
                refuse(name, errno.EPERM, Comparison(argument, NE, value, 0))
        changed = Comparison(2, NE, 0, 0)
        refuse("prlimit64", errno.EPERM, Comparison(0, NE, 0, 0), changed)
        refuse("prlimit64", 0, Comparison(0, EQ, 0, 0), Comparison(1, EQ, seccomp.RLIMIT_CORE, 0), changed)
        refuse("setrlimit", 0, Comparison(0, EQ, seccomp.RLIMIT_CORE, 0))
        for flag in seccomp.NEW_SPACES:
            refuse("clone", errno.EPERM, Comparison(0, MASKED_EQ, flag, flag))
        refuse("clone3", errno.ENOSYS)
        for device in seccomp.DEVICES:
            refuse("mknod", errno.EPERM, Comparison(1, MASKED_EQ, seccomp.FILE_TYPE, device))
            refuse("mknodat", errno.EPERM, Comparison(2, MASKED_EQ, seccomp.FILE_TYPE, device))
        for name in seccomp.SYNCING:
            refuse(name, 0)
        for command in seccomp.WATCHING:
            refuse("fcntl", errno.EINVAL, Comparison(1, MASKED_EQ, 0xFFFFFFFF, command))
        for request in seccomp.TERMINAL_INPUT:
            refuse("ioctl", errno.EPERM, Comparison(1, MASKED_EQ, 0xFFFFFFFF, request))
        for family in set(range(max(seccomp.FAMILIES))) - set(seccomp.FAMILIES):
            refuse("socket", errno.EAFNOSUPPORT, Comparison(0, EQ, family, 0))
        refuse("socket", errno.EAFNOSUPPORT, Comparison(0, GE, max(seccomp.FAMILIES) + 1, 0))
        memory = os.memfd_create("filter")
        try:
            assert library.seccomp_export_bpf(context, memory) == 0
            return os.pread(memory, os.fstat(memory).st_size, 0)
        finally:
            os.close(memory)
    finally:
        library.seccomp_release(context)


def kernel_answer(program: bytes, number: int, audit: int, arguments: Sequence[int] = (0,) * 6) -> int:
    """The value that the kernel would get from the program: classic BPF, as much of it as filters use."""
    data = struct.pack("<IIQ6Q", number, audit, 0, *arguments)
    accumulator, at = 0, 0
    while True:
        code, if_true, if_false, value = struct.unpack_from("<HBBI", program, 8 * at)
        at += 1
        match code:
            case 0x20:  # ld [k]
                accumulator = struct.unpack_from("<I", data, value)[0]
            case 0x54:  # and #k
                accumulator &= value
            case 0x05:  # ja
                at += value
            case 0x15 | 0x25 | 0x35 | 0x45:
                holds = {0x15: accumulator == value, 0x25: accumulator > value, 0x35: accumulator >= value}
                at += if_true if holds.get(code, bool(accumulator & value)) else if_false
            case 0x06:  # ret #k
                return value
            case _:
                raise AssertionError(f"instruction {code:#x} at {at - 1}")
