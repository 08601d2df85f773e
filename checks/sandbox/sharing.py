"""Using up what sandboxes share, watching what others do, and making system calls that the filter does not know."""

from __future__ import annotations

import os
import threading

from onthejob.envs.claw.sandbox.faults.bench import PATIENCE_S, Bench, check, wait_until
from onthejob.envs.claw.sandbox.syscall_numbers import NEWEST

# Each kind is taken until the kernel refuses more. Four processes do it, because most of these limits are those of one process.
HOLD = """
import array, errno, fcntl, os, select, socket, time
def until_refused(work):
    try:
        for _ in range(5_000):
            work()
    except OSError:
        pass
kept = []
def pipe():
    ends = os.pipe()
    kept.append(ends)
    try:
        fcntl.fcntl(ends[1], 1031, 1 << 20)
    except OSError as error:
        if error.errno != errno.EPERM:
            raise
ours, theirs = socket.socketpair()
def send():
    descriptors = array.array("i", [ours.fileno()] * 100)
    ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)], socket.MSG_DONTWAIT)
watched = [os.eventfd(0) for _ in range(60)]
def watch():
    poll = select.epoll()
    kept.append(poll)
    for one in watched:
        poll.register(one)
for _ in range(3):
    if os.fork() == 0:
        break
ready = open("ready", "a")
for path in ("/bin/bash", "/bin/cat", "/usr/bin/env", "/etc/passwd", "/run", "/run/pid1", "/usr"):
    try:
        fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        pass
for work in (send, watch, pipe):
    until_refused(work)
print(end="x", file=ready, flush=True)
time.sleep(600)
"""


def hold_what_is_shared(bench: Bench) -> None:
    """79: while one sandbox holds all it gets of pipes, watches, sent descriptors and locks, others start, work and restart."""
    holder = bench.open({"hold.py": HOLD.encode()})
    command = f"{bench.python} -I hold.py"
    running = threading.Thread(target=holder.run, args=(command,), kwargs={"timeout_s": PATIENCE_S})
    running.start()
    try:
        check(wait_until(lambda: holder.size_of("ready") == 4), "nothing was held")
        other = bench.open({"f": b"x"})
        sort = "seq 50000 | sort -n | tail -n 1"
        check(bench.run(other, sort).stdout == b"50000\n", "another sandbox does not work")
        os.kill(other.pid, 9)
        check(bench.run(other, "true").restarted, "another sandbox was not restarted")
        check(bench.run(other, f"{sort}; head -c 200000 /dev/zero").stdout_size == 200_006, "a restarted sandbox does not work")
    finally:
        os.kill(holder.pid, 9)
        running.join()


WATCH = """
import errno, fcntl, os
for path in ("/usr", "/usr/bin", "/etc", "/run", "/work"):
    folder = os.open(path, os.O_RDONLY)
    for value in (1, 0x80000001 - (1 << 32)):
        try:
            fcntl.fcntl(folder, 1026, value)
            print("watches", path)
        except OSError as error:
            if error.errno != errno.EINVAL:
                print(path, error)
for path in ("/bin/bash", "/etc/passwd", "look.py"):
    try:
        fcntl.fcntl(os.open(path, os.O_RDONLY), 1024, fcntl.F_RDLCK)
        print("leased", path)
    except OSError as error:
        if error.errno != errno.EINVAL:
            print(path, error)
os.sync()
print("done")
"""


def watch_others(bench: Bench) -> None:
    """80: a command cannot watch others use system files, keep them waiting, or flush the disks of the machine."""
    result = bench.run(bench.open({"look.py": WATCH.encode()}), f"{bench.python} -I look.py; sync; sync -f /usr; echo synced")
    check(result.stdout == b"done\nsynced\n", f"a file was watched: {result}")


NEWER = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
for number in NUMBERS:
    if libc.syscall(ctypes.c_long(number), 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != errno.ENOSYS:
        print(number, ctypes.get_errno())
print("done")
"""


def newer_calls(bench: Bench) -> None:
    """81: system calls that are newer than the filter do not exist inside, whatever this kernel has."""
    # 335 and 336 end a program that is not being traced, and no filter sees them.
    numbers = [*range(337, 424), *range(NEWEST + 1, NEWEST + 60), 1_000, 100_000]
    result = bench.python_run(bench.open(), NEWER.replace("NUMBERS", repr(numbers)))
    check(result.stdout == b"done\n", f"a call was let pass: {result}")


URGENT = """
import os, resource
for name in ("RLIMIT_RTPRIO", "RLIMIT_NICE"):
    if resource.getrlimit(getattr(resource, name)) != (0, 0):
        print(name, resource.getrlimit(getattr(resource, name)))
for policy in (os.SCHED_FIFO, os.SCHED_RR):
    try:
        os.sched_setscheduler(0, policy, os.sched_param(1))
        print("policy", policy)
    except PermissionError:
        pass
try:
    os.nice(-1)
    print("nice")
except PermissionError:
    pass
print("done")
"""


def run_first(bench: Bench) -> None:
    """82: no process inside runs before process 1, also where this user may have such."""
    result = bench.run(bench.open({"urgent.py": URGENT.encode()}), f"{bench.python} -I urgent.py")
    check(result.stdout == b"done\n", f"a process is more urgent than process 1: {result}")
