"""Making process 1 late, and keeping what no limit counts: its pipes, its priority, queues and files in memory."""

from __future__ import annotations

from pathlib import Path

from onthejob.envs.claw.sandbox.faults.bench import SHORT_S, Bench, NotTried, check
from onthejob.envs.claw.sandbox.faults.resources import nothing_runs

GRACE_S = 30
"""A sandbox that is restarted only then has not kept the time limit."""
LATE_S = 15.0
"""How late process 1 may be on a loaded machine."""

# A reader looks all the time for what a writer floods; orphans that end keep process 1 busy between the signal of output and
# its reading. After each burst an orphan shows whether process 1 still reaps: once it does not, nothing is written any more.
STEAL = """
import ctypes, fcntl, os, signal, time
libc = ctypes.CDLL(None)
null = os.open("/dev/null", os.O_WRONLY)
def child(work):
    pid = os.fork()
    if pid == 0:
        while True:
            tireless(work)
    return pid
def tireless(work):
    try:
        work()
    except OSError:  # no process left to start, where process 1 reaps late
        time.sleep(0.05)
def take(number, ends={}):
    if number not in ends:
        ends[number] = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)
    end = ends[number]
    try:
        TAKE
    except BlockingIOError:
        pass
def orphan():
    if (parent := os.fork()) == 0:
        try:
            for _ in range(3):
                if os.fork() == 0:
                    os._exit(0)
        finally:
            os._exit(0)
    os.waitpid(parent, 0)
def is_stuck():
    got, put = os.pipe()
    if (parent := os.fork()) == 0:
        try:
            if os.fork() == 0:
                os.write(put, str(os.getpid()).encode())
        finally:
            os._exit(0)
    os.waitpid(parent, 0)
    os.close(put)
    pid = os.read(got, 20).decode()
    os.close(got)
    if not pid:
        return False
    for _ in range(20):
        time.sleep(0.005)
        if not os.path.exists(f"/proc/{pid}"):
            return False
    return True
for number in NUMBERS:
    SETUP
    for _ in range(READERS):
        child(lambda number=number: take(number))
spawners = [child(orphan) for _ in range(2)]
def burst():
    for spawner in spawners:
        os.kill(spawner, signal.SIGCONT)
    until = time.monotonic() + 0.05
    while time.monotonic() < until:
        for number in NUMBERS:
            os.write(number, b"x")
    for spawner in spawners:
        os.kill(spawner, signal.SIGSTOP)
    if is_stuck():
        time.sleep(600)
while True:
    tireless(burst)
"""


def stealing(numbers: str, take: str = "os.read(end, 65536)", *, setup: str = "pass", readers: int = 1) -> str:
    """A command's Python code."""
    code = STEAL
    for name, value in {"NUMBERS": numbers, "TAKE": take, "SETUP": setup, "READERS": str(readers)}.items():
        code = code.replace(name, value)
    return code


THIEVES = {
    "stdout": stealing("(1,)"),
    "stderr": stealing("(2,)"),
    "both": stealing("(1, 2)"),
    "several readers": stealing("(1,)", readers=4),
    "splice": stealing("(1,)", "libc.splice(end, None, null, None, 65536, 2)"),
    "packets": stealing("(1,)", "os.read(end, 1)", setup="fcntl.fcntl(number, fcntl.F_SETFL, os.O_DIRECT)"),
    "small pipe": stealing("(1, 2)", setup="fcntl.fcntl(number, 1031, 4096)"),
}
"""Kind -> code that takes its own output away before process 1 has it, and does not end."""


def steal_output(bench: Bench) -> None:
    """73: a command that reads its own output back does not hold process 1, and dies when its time is up."""
    for kind, code in THIEVES.items():
        sandbox = bench.open({"steal.py": code.encode()}, grace_s=GRACE_S)
        result = sandbox.run(f"{bench.python} -I steal.py", timeout_s=2 * SHORT_S)
        in_time = result.timed_out and not result.restarted and result.wall_s < 2 * SHORT_S + LATE_S
        check(in_time, f"{kind}: {result.wall_s:.1f} s with a limit of {2 * SHORT_S} s: {result}")
    # All that was written arrives where nothing is taken, also from a pipe that says it would wait.
    code = "import os\nos.set_blocking(1, False)\nfor _ in range(2000):\n    try: os.write(1, b'y')\n    except OSError: pass"
    result = bench.python_run(bench.open(), code)
    check(0 < result.stdout_size <= 2_000 and result.stdout == b"y" * result.stdout_size, f"{result}")


SLOWING = """
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
ONE, WORST = 1, 19
attr = ctypes.create_string_buffer((48).to_bytes(4, "little") + (5).to_bytes(4, "little"), 48)
param, mask = ctypes.create_string_buffer(4), ctypes.create_string_buffer(b"\\1", 128)
limit = (ctypes.c_uint64 * 2)(0, 0)
numbers = {"x86_64": (314, 251), "aarch64": (274, 30)}[platform.machine()]
attempts = {
    "priority of a process": (libc.setpriority, 0, ONE, WORST),
    "priority of a group": (libc.setpriority, 1, ONE, WORST),
    "priority of a user": (libc.setpriority, 2, 0, WORST),
    "idle": (libc.sched_setscheduler, ONE, 5, param),
    "batch": (libc.sched_setscheduler, ONE, 3, param),
    "parameters": (libc.sched_setparam, ONE, param),
    "attributes": (libc.syscall, numbers[0], ONE, attr, 0),
    "processors": (libc.sched_setaffinity, ONE, 128, mask),
    "disk": (libc.syscall, numbers[1], 1, ONE, 3 << 13),
    "disk of a user": (libc.syscall, numbers[1], 3, os.getuid(), 3 << 13),
    **{f"limit {number}": (libc.prlimit, ONE, number, limit, None) for number in range(16)},
}
for name, (call, *arguments) in attempts.items():
    if call(*arguments) != -1 or ctypes.get_errno() != 1:
        print(name, ctypes.get_errno())
os.nice(1), os.sched_setaffinity(0, os.sched_getaffinity(0))
if libc.prlimit(ONE, 7, None, limit) not in (0, -1) or libc.syscall(numbers[1], 1, 0, 3 << 13):
    print("what reaches only the caller is refused")
print("done")
"""


def slow_pid1(bench: Bench) -> None:
    """74: no priority, processor or limit of process 1 can be changed; it keeps the time while others spin."""
    sandbox = bench.open({"slow.py": SLOWING.encode()}, grace_s=GRACE_S)
    result = bench.run(sandbox, f"{bench.python} -I slow.py")
    check(result.stdout == b"done\n", f"process 1 was reached: {result}")
    spin = "for i in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; wait"
    result = sandbox.run(f"renice -n 19 -p 1; chrt -i -p 0 1; {spin}", timeout_s=SHORT_S)
    check(result.timed_out and not result.restarted and result.wall_s < SHORT_S + LATE_S, f"it was late: {result}")


OBJECTS = """
import ctypes, errno, os, platform
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
attempts = {
    "shmget": (29 if x86 else 194, 0, 1 << 20, 0o1600),
    "semget": (64 if x86 else 190, 0, 1, 0o1600),
    "msgget": (68 if x86 else 186, 0, 0o1600),
    "mq_open": (240 if x86 else 180, b"queue", os.O_CREAT | os.O_RDWR, 0o600, None),
    "memfd_create": (319 if x86 else 279, b"file", 0),
    "memfd_create, sealed": (319 if x86 else 279, b"file", 2),
    "memfd_secret": (447, 0),
    "io_setup": (206 if x86 else 0, 1, ctypes.byref(ctypes.c_ulong(0))),
    "inotify_init1": (294 if x86 else 26, 0),
    **({"inotify_init": (253,)} if x86 else {}),
}
for name, (number, *arguments) in attempts.items():
    if libc.syscall(ctypes.c_long(number), *arguments) != -1 or ctypes.get_errno() != errno.ENOSYS:
        print(name, ctypes.get_errno())
print("done")
"""


def kernel_objects(bench: Bench) -> None:
    """75: nothing can be made that no limit counts, that outlives its command, or that the machine has few of."""
    sandbox = bench.open({"objects.py": OBJECTS.encode()})
    result = bench.run(sandbox, f"{bench.python} -I objects.py")
    check(result.stdout == b"done\n", f"made: {result}")
    bench.run(sandbox, "ipcmk -M 1048576; ipcmk -Q; ipcmk -S 1")
    left = bench.run(
        sandbox, "cat /proc/sysvipc/shm /proc/sysvipc/msg /proc/sysvipc/sem | wc -l; cat /proc/self/fdinfo/* | grep -c inotify"
    )
    check(left.stdout == b"3\n0\n", f"left behind: {left}")


CORE = """
import ctypes, os, resource
libc = ctypes.CDLL(None)
for value in (0, 2, resource.RLIM_INFINITY):
    for call in (lambda pair: resource.setrlimit(4, pair), lambda pair: resource.prlimit(0, 4, pair)):
        try:
            call((min(value, 1), value if value else 0))
        except (OSError, ValueError):
            pass
libc.syscall(160 if os.uname().machine == "x86_64" else 164, 4, (ctypes.c_ulong * 2)(0, 0))
print(*resource.getrlimit(4))
"""


def core_dumps(bench: Bench) -> None:
    """76: the limit at which no crash starts a program of the machine cannot be changed."""
    sandbox = bench.open({"core.py": CORE.encode()})
    found = bench.run(sandbox, "ulimit -c; grep core /proc/self/limits").stdout.partition(b"\n")[2].split()[4:6]
    result = bench.run(
        sandbox, f"{bench.python} -I core.py; ulimit -c 0; ulimit -Hc 0; ulimit -c unlimited; {bench.python} -I core.py"
    )
    check(len(found) == 2 and result.stdout.split() == found * 2, f"limits of core files were {found}: {result}")
    killed = bench.run(sandbox, "kill -SEGV $$")
    check(killed.exit_code == 139 and b"core dumped" not in killed.stderr, f"{killed}")
    pattern = Path("/proc/sys/kernel/core_pattern").read_text(encoding="utf-8", errors="replace")
    if pattern.startswith("|") and found != [b"1", b"1"]:
        raise NotTried("this user may have no core files, so that a crash starts the machine's core_pattern program")


QUEUED = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
count = 0
while count < 20_000 and libc.sigqueue(os.getpid(), 40, None) == 0:
    count += 1
print(count)
"""


def queued_signals(bench: Bench) -> None:
    """77: queued signals and timers end at a limit, and are gone with their command."""
    sandbox = bench.open({"queue.py": QUEUED.encode()})
    for _ in range(2):
        result = bench.run(sandbox, f"{bench.python} -I queue.py")
        check(result.exit_code == 0 and int(result.stdout) <= 1_024, f"queued: {result}")


def orphans(bench: Bench) -> None:
    """71: grandchildren whose parents ended are reaped as they end, and do not use up the processes of the sandbox."""
    sandbox = bench.open(processes=24)
    counters = [group / "pids.current" for group in sandbox.cgroups if (group / "pids.current").is_file()]
    bench.run(sandbox, "true")
    before = [int(counter.read_text()) for counter in counters]
    # Twelve times as many as there may be. A fork that fails is tried again: process 1 may be a moment late on a loaded machine.
    code = """
import os, time
from glob import glob
patience, left = 500, 288
while left and patience:
    failed = True
    try:
        if os.fork() == 0:
            try:
                os.fork()
            except OSError:
                os._exit(1)
            os._exit(0)
        failed = os.wait()[1] != 0
    except OSError:
        pass
    if failed:
        patience -= 1
        time.sleep(0.01)
    else:
        left -= 1
def zombies():
    states = []
    for name in glob("/proc/[0-9]*/stat"):
        try:
            states.append(open(name).read().rpartition(")")[2].split()[0])
        except OSError:
            pass
    return states.count("Z")
while zombies() and patience:
    patience -= 1
    time.sleep(0.01)
print(left, zombies())
"""
    result = bench.python_run(sandbox, code)
    check(result.stdout == b"0 0\n", f"of 288 orphans so many could not be made, so many are still there: {result}")
    for _ in range(20):
        bench.run(sandbox, "for i in 1 2 3 4 5 6 7 8; do (true & sleep 60 &); done")
    nothing_runs(bench, sandbox)
    after = [int(counter.read_text()) for counter in counters]
    check(after == before, f"{before} processes are counted at first, {after} after 20 commands with orphans")
