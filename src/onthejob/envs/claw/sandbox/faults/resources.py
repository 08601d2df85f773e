"""Using up what is limited: processes, memory, files, time, output."""

from __future__ import annotations

import os
import time

from onthejob.envs.claw.sandbox.box import BwrapSandbox
from onthejob.envs.claw.sandbox.faults.bench import PATIENCE_S, SHORT_S, Bench, check

COUNT = "n=0; for d in /proc/[0-9]*; do n=$((n+1)); done; echo $n"
"""Prints how many processes exist; bash alone makes two: process 1 and itself."""
MIB = 1 << 20


def nothing_runs(bench: Bench, sandbox: BwrapSandbox) -> None:
    """Only process 1 and the shell that counts."""
    result = bench.run(sandbox, COUNT)
    check(result.stdout == b"2\n", f"{result.stdout!r} processes, 2 expected")


def fork_bomb(bench: Bench) -> None:
    """1: forks fail at the limit, the rest is killed at the timeout."""
    limit = 32
    sandbox = bench.open(processes=limit)
    bench.limited(sandbox, "pids", "pids.max", limit + 2)
    code = """
import os, time
count = 0
try:
    while count < 200:
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
        count += 1
except OSError as error:
    print(error.errno)
print(count)
"""
    error, count = bench.python_run(sandbox, code).stdout.decode().split()
    check(error == "11" and int(count) < limit, f"{count} forks with a limit of {limit}, then error {error}")
    nothing_runs(bench, sandbox)
    result = sandbox.run("f() { f | f & f; }; f", timeout_s=SHORT_S)
    check(result.timed_out or b"Resource temporarily unavailable" in result.stderr, f"it ended otherwise: {result}")
    nothing_runs(bench, sandbox)


def fill_workspace(bench: Bench) -> None:
    """10: writing more than the workspace holds is ENOSPC."""
    sandbox = bench.open(workspace_bytes=4 * MIB)
    result = bench.run(sandbox, "head -c 40000000 /dev/zero > big; echo $?; stat -c %s big")
    code, size = result.stdout.split()
    check(code != b"0" and 0 < int(size) <= 4 * MIB, f"{size!r} bytes in a workspace of {4 * MIB}")
    check(b"No space left" in result.stderr, f"said: {result.stderr!r}")
    check(bench.run(sandbox, "rm big && echo x > small && cat small").stdout == b"x\n", "no room after removing the file")


def all_full(bench: Bench) -> None:
    """61: with nothing left to write on, commands fail in words; the next command, a restart and collecting work."""
    sandbox = bench.open({"kept": b"kept\n"}, workspace_bytes=MIB, workspace_files=64, tmp_bytes=MIB, tmp_files=64)
    places = "/work /tmp /dev/shm"
    fill = f"for d in {places}; do cat /dev/zero > $d/big; for ((i = 0; i < 100; i++)); do : > $d/f$i || break; done; done"
    said = bench.run(sandbox, f"({fill}) 2>&1; for d in {places}; do echo x >> $d/big || echo full $d; done 2> /dev/null").stdout
    check(b"No space left" in said and all(f"full {place}\n".encode() in said for place in places.split()), f"said: {said!r}")
    pipe = "seq 100000 | sort -n | tail -n 1"
    for command in (pipe, f": '{'x' * 200_000}'; {pipe}", f"cat <<< $({pipe})"):
        check(bench.run(sandbox, command).stdout == b"100000\n", f"the next command fails: {command[:40]!r}")
    # It goes through a file in /tmp; that it ends is what counts.
    bench.run(sandbox, f"cat <<EOF | wc -c\n{'x' * 200_000}\nEOF")
    check("kept" in sandbox.survey(), "the workspace cannot be listed")
    os.kill(sandbox.pid, 9)
    check(bench.run(sandbox, "true").restarted, "a killed sandbox was not restarted")
    check(bench.run(sandbox, "cat kept; echo y > kept").stdout == b"kept\n", "the workspace was lost")
    root = sandbox.collect()
    check(0 < (root / "big").stat().st_size <= MIB and (root / "kept").exists(), "the workspace cannot be read")
    other = bench.open({"f": b"x"})
    check(bench.run(other, "cat f; rm f; echo y > g").exit_code == 0, "another sandbox does not work")


def many_files(bench: Bench) -> None:
    """11: making more files than the quota is ENOSPC."""
    sandbox = bench.open(workspace_files=500, tmp_files=300)
    count = "(for ((i = 0; i < 3000; i++)); do : > f$i || break; done) 2>/dev/null; set -- f*; echo $#"
    made = bench.run(sandbox, f"{count}; cd /tmp; {count}")
    work, tmp = map(int, made.stdout.split())
    check(400 <= work <= 500 and 200 <= tmp <= 300, f"{work} files of 500 in /work, {tmp} of 300 in /tmp")


def fill_tmp(bench: Bench) -> None:
    """12: /tmp and /dev/shm share a quota; nothing else is writable."""
    sandbox = bench.open(tmp_bytes=4 * MIB)
    for place in ("/tmp", "/dev/shm"):
        result = bench.run(sandbox, f"head -c 40000000 /dev/zero > {place}/big; echo $?; stat -c %s {place}/big; rm {place}/big")
        code, size = result.stdout.split()
        check(code != b"0" and int(size) <= 4 * MIB, f"{size!r} bytes in {place}")
    result = bench.run(sandbox, "for d in / /dev /run /etc /usr /dev/pts /var /opt /proc; do touch $d/x && echo $d; done; true")
    check(result.stdout == b"", f"writable: {result.stdout!r}")


def much_memory(bench: Bench) -> None:
    """13: a large allocation fails, many of them together are killed."""
    sandbox = bench.open(address_bytes=300 * MIB, memory_bytes=128 * MIB)
    result = bench.python_run(sandbox, "x = bytearray(900 << 20)")
    check(result.exit_code == 1 and b"MemoryError" in result.stderr, f"900 MB of address space: {result}")
    bench.limited(sandbox, "memory", "memory.max", 128 * MIB)
    # Each below the limit of one process, together above that of the sandbox.
    code = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        x = bytearray(b"x") * (70 << 20)
        time.sleep(600)
        os._exit(0)
print(sorted(os.wait()[1] for _ in range(3)))
"""
    # Which of them the kernel chooses is its business: three children, their parent, or process 1 and with it all.
    result = bench.python_run(sandbox, code)
    died = result.stdout == b"[9, 9, 9]\n" or result.exit_code == 137
    check(died, f"4 x 70 MB in 128 MB: {result}")


def spin(bench: Bench) -> None:
    """14: an endless loop is killed at the timeout."""
    result = bench.open().run("while :; do :; done", timeout_s=SHORT_S)
    check(result.timed_out and result.exit_code == 124 and result.wall_s >= SHORT_S, f"{result}")


def set_clock(bench: Bench) -> None:
    """62: the clock cannot be set inside, and a command that tries all the time is killed when its time is up."""
    code = """
import ctypes, time
libc = ctypes.CDLL(None, use_errno=True)
later = (ctypes.c_long * 2)(int(time.time()) + 7200, 0)
timex = (ctypes.c_char * 256)(1)  # ADJ_OFFSET
for name, arguments in (("settimeofday", (later, None)), ("clock_settime", (0, later)), ("stime", (later,)),
                        ("adjtimex", (timex,)), ("clock_adjtime", (0, timex))):
    call = getattr(libc, name, None)
    print(name, call is None or (call(*arguments), ctypes.get_errno()) in ((-1, 1), (-1, 38)))
try:
    time.clock_settime(time.CLOCK_REALTIME, time.time() + 7200)
    print("set")
except OSError:
    print("done")
"""

    def offset() -> float:
        return time.time() - time.monotonic()

    before = offset()
    sandbox = bench.open()
    said = bench.python_run(sandbox, code).stdout.decode()
    check(said.endswith("done\n") and "False" not in said, f"a clock was set: {said!r}")
    result = sandbox.run("while ! date -s '2 hours' && ! date -s '2 hours ago'; do :; done 2> /dev/null", timeout_s=SHORT_S)
    check(result.timed_out and SHORT_S <= result.wall_s < PATIENCE_S, f"the deadline did not hold: {result}")
    check(abs(offset() - before) < 60, f"the clock was moved by {offset() - before:.0f} s")


def grandchildren(bench: Bench) -> None:
    """15: at the timeout everything dies, not only the shell."""
    sandbox = bench.open()
    result = sandbox.run("(sleep 300 & (setsid sleep 300 &); wait) & trap '' TERM HUP; sleep 300", timeout_s=SHORT_S)
    check(result.timed_out, f"{result}")
    nothing_runs(bench, sandbox)


def daemon(bench: Bench) -> None:
    """16: a daemon does not outlive its command."""
    sandbox = bench.open()
    result = bench.run(sandbox, "setsid nohup bash -c 'while sleep 0.05; do date >> log; done' > /dev/null 2>&1 & echo started")
    check(result.stdout == b"started\n", f"{result}")
    nothing_runs(bench, sandbox)
