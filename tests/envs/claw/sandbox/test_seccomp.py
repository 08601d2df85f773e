"""The system-call filter: equal to libseccomp's for every call and argument that matters, complete, and obeyed by this kernel."""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import os
import random
from pathlib import Path

import pytest

from onthejob.envs.claw.sandbox import seccomp, syscall_numbers
from onthejob.envs.claw.sandbox.host import BwrapHost
from onthejob.envs.claw.sandbox.programs import PYTHONS
from onthejob.envs.claw.sandbox.syscall_numbers import NEWEST, PROCESSORS, Processor

from . import libseccomp

SLOW_S = 120.0
ALLOWED = 0x7FFF0000
REFUSED = 0x00050000
every_processor = pytest.mark.parametrize("processor", PROCESSORS.values(), ids=lambda one: one.name)

# Halves of arguments: the values of the policy, their neighbours, and what only the other half may not hide.
_WORDS = {
    0,
    1,
    2,
    3,
    4,
    5,
    9,
    10,
    11,
    12,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    *seccomp.TERMINAL_INPUT,
    *seccomp.WATCHING,
    seccomp.FILE_TYPE,
}
_WORDS |= {value + step for value in seccomp.TERMINAL_INPUT for step in (-1, 1)}
_WORDS |= {kind | mode for kind in (*range(0, 0o200000, 0o10000),) for mode in (0, 0o644, 0o4755)}
_WORDS |= {1 << bit for bit in range(32)} | {sum(seccomp.NEW_SPACES), ~sum(seccomp.NEW_SPACES) & 0xFFFFFFFF}
VALUES = sorted({upper << 32 | lower for upper in (0, 1, 0x80000000, 0xFFFFFFFF) for lower in _WORDS})


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    try:
        return libseccomp.load()
    except OSError as error:
        pytest.skip(f"libseccomp is not installed here: {error}")


WHOLE = {name: wanted[-1][0] for name, wanted in seccomp.OF_OTHERS.items()} | {"prlimit64": 0, "setrlimit": 0}
"""Name -> the argument that decides, of calls whose arguments libseccomp can only compare whole: their upper halves are empty
here, and tried for real in `test_the_kernel_obeys`."""


def looked_at(processor: Processor) -> dict[int, int]:
    """Number of a call -> the argument that decides."""
    named = {"clone": 0, "mknod": 1, "mknodat": 2, "ioctl": 1, "fcntl": 1, "socket": 0, **WHOLE}
    return {number: argument for name, argument in named.items() if (number := processor.number(name)) is not None}


@every_processor
def test_every_answer_equals_that_of_libseccomp(library: ctypes.CDLL, processor: Processor):
    ours, theirs = seccomp.program(processor), libseccomp.program(library, processor)
    deciding, rng, tried = looked_at(processor), random.Random(7), 0
    whole = {processor.number(name) for name in WHOLE}
    for number in itertools.chain(range(600), range(0x40000000, 0x40000000 + 600), (0x7FFFFFFF, 0x80000000, 0xFFFFFFFE)):
        for value in VALUES if number in deciding else VALUES[::150]:
            arguments = [rng.choice(VALUES) for _ in range(6)]
            arguments[deciding.get(number, 0)] = value
            if number in whole:
                arguments = [one & 0xFFFFFFFF for one in arguments]
            expected = libseccomp.kernel_answer(theirs, number, processor.audit, arguments)
            answer = libseccomp.kernel_answer(ours, number, processor.audit, arguments)
            if expected == ALLOWED and not processor.is_judged(number):
                # Stricter: libseccomp lets pass what it does not know.
                expected = REFUSED | errno.ENOSYS
            assert answer == expected, (number, [hex(one) for one in arguments])
            tried += 1
    assert tried > 5_000
    for audit in (0, 0x40000003, *(other.audit for other in PROCESSORS.values() if other != processor)):
        for number in range(600):
            answers = {libseccomp.kernel_answer(code, number, audit) for code in (ours, theirs)}
            assert answers == {0}, f"call {number} of architecture {audit:#x} does not end the program"


@every_processor
def test_the_table_holds_the_numbers_of_libseccomp(library: ctypes.CDLL, processor: Processor):
    for name in syscall_numbers._NUMBERS:
        known = library.seccomp_syscall_resolve_name_arch(processor.audit, name.encode())
        # Negative: a call of other processors.
        assert processor.number(name) == (known if known >= 0 else None), name
    known = [n for n in range(NEWEST + 1) if library.seccomp_syscall_resolve_num_arch(processor.audit, n)]
    assert len(known) > 300
    assert [number for number in known if not processor.is_judged(number)] == []


@every_processor
def test_a_call_that_is_newer_than_the_table_is_refused(processor: Processor):
    program = seccomp.program(processor)
    # open_tree_attr (467) mounts, and is one of those that did not exist when the table was written.
    for number in (NEWEST + 1, 467, 511, 547, 100_000):
        assert libseccomp.kernel_answer(program, number, processor.audit) == REFUSED | errno.ENOSYS
    gaps = [number for number in range(NEWEST) if not processor.is_judged(number)]
    assert len(gaps) > 80
    assert {libseccomp.kernel_answer(program, number, processor.audit) for number in gaps} == {REFUSED | errno.ENOSYS}
    assert libseccomp.kernel_answer(program, NEWEST, processor.audit) == ALLOWED


@every_processor
def test_every_rule_is_for_a_call_of_the_table_and_has_its_answer(processor: Processor):
    rules = seccomp.rules()
    assert len(rules) > 55
    for name, block in rules.items():
        number = processor.number(name)
        if number is not None and number not in looked_at(processor):
            assert libseccomp.kernel_answer(seccomp.program(processor), number, processor.audit) == block[0].value != ALLOWED


def test_programs_fit_into_the_kernel():
    for processor in PROCESSORS.values():
        assert len(seccomp.program(processor)) // 8 <= 4096


# Each call in a child: some would end or stop it. What the filter refuses never reaches the kernel's code,
# so that even a call that would do harm can be tried.
CALLS = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
found = {}
for number, *arguments in json.loads(sys.argv[1]):
    got, put = os.pipe()
    child = os.fork()
    if child == 0:
        ctypes.set_errno(0)
        result = libc.syscall(ctypes.c_long(number), *(ctypes.c_ulong(one) for one in arguments))
        os.write(put, str(ctypes.get_errno() if result == -1 else 0).encode())
        os._exit(0)
    os.close(put)
    said = os.read(got, 100).decode()
    status = os.waitpid(child, 0)[1]
    found[" ".join(map(str, (number, *arguments)))] = said or f"signal {status & 127}"
    os.close(got)
print(json.dumps(found))
"""


def test_the_kernel_obeys(host: BwrapHost):
    """Real calls inside a sandbox, for this machine's processor: every refusal, and the neighbours of each refused argument."""
    processor = syscall_numbers.this_processor()
    zeros = [0] * 6
    attempts: dict[tuple[int, ...], str] = {}
    for name, block in seccomp.rules().items():
        number = processor.number(name)
        if number is not None and len(block) == 1:
            attempts[number, *zeros] = str(block[0].value & 0xFFFF)
    for number in (NEWEST + 1, 467, 400, 100_000):
        attempts[number, *zeros] = str(errno.ENOSYS)
    if processor.foreign:
        attempts[processor.foreign[0], *zeros] = f"signal {31}"
    socket, clone, ioctl, node = (processor.number(name) or 0 for name in ("socket", "clone", "ioctl", "mknodat"))
    for family in range(46):
        attempts[socket, family, 1, 0] = "0" if family in seccomp.FAMILIES else str(errno.EAFNOSUPPORT)
    attempts[socket, 1 << 32 | 1, 1, 0] = str(errno.EAFNOSUPPORT)
    for flag in seccomp.NEW_SPACES:
        attempts[clone, flag | 17, 0, 0, 0, 0] = str(errno.EPERM)
    for request in seccomp.TERMINAL_INPUT:
        for value in (request, 1 << 32 | request):
            attempts[ioctl, 0, value, 0] = str(errno.EPERM)
    attempts[ioctl, 0, seccomp.TERMINAL_INPUT[0] + 1, 0] = str(errno.ENOTTY)
    for command in seccomp.WATCHING:
        for value in (command, 1 << 32 | command):
            attempts[processor.number("fcntl") or 0, 0, value, 0] = str(errno.EINVAL)
    for device in seccomp.DEVICES:
        # Without a path the kernel itself would say EFAULT.
        attempts[node, 0, 0, device | 0o644, 0] = str(errno.EPERM)
    attempts[node, 0, 0, 0o010644, 0] = str(errno.EFAULT)
    for name, wanted in seccomp.OF_OTHERS.items():
        number, own = processor.number(name) or 0, [value for _, value in wanted] + zeros
        for argument, value in wanted:
            # 42 is no process: the kernel itself would say ESRCH.
            for other in {1, 42, value ^ 1, value | 2, 1 << 31} - {value}:
                attempts[number, *own[:argument], other, *own[argument + 1 : 6]] = str(errno.EPERM)
    limits = processor.number("prlimit64") or 0
    for resource in range(16):
        # Without a new limit it asks; the kernel finds none at the addresses 1 and 4 GiB.
        attempts[limits, 0, resource, 0, 0] = "0"
        for pid in (1, 42, 1 << 31):
            attempts[limits, pid, resource, 1, 0] = attempts[limits, pid, resource, 1 << 32, 0] = str(errno.EPERM)
        attempts[limits, 0, resource, 1, 0] = "0" if resource == seccomp.RLIMIT_CORE else str(errno.EFAULT)
        attempts[processor.number("setrlimit") or 0, resource, 1] = attempts[limits, 0, resource, 1, 0]
    python = next(name for name in PYTHONS if Path(name).is_file())
    with host.open({"calls.py": CALLS.encode()}) as sandbox:
        result = sandbox.run(f"{python} -I calls.py '{json.dumps(list(attempts))}'", timeout_s=SLOW_S)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    expected = {" ".join(map(str, attempt)): said for attempt, said in attempts.items()}
    assert {key: (said, found[key]) for key, said in expected.items() if said != found[key]} == {}
    assert len(expected) > 110


def test_a_processor_without_a_table_is_refused(monkeypatch: pytest.MonkeyPatch):
    real = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((*real[:4], "riscv64")))
    with pytest.raises(LookupError, match="riscv64"):
        syscall_numbers.this_processor()
