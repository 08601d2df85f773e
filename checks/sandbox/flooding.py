"""Work for process 1 of a sandbox: floods of output, odd trees, orphans, and what runs on in the background."""

from __future__ import annotations

import os

from onthejob.envs.claw.sandbox.faults.bench import SHORT_S, Bench, check
from onthejob.envs.claw.sandbox.faults.resources import nothing_runs


def background(bench: Bench) -> None:
    """17: a command in the background does not hold the foreground."""
    result = bench.run(bench.open(), "sleep 3600 & echo at once")
    check(result.stdout == b"at once\n" and result.exit_code == 0, f"{result}")


def much_output(bench: Bench) -> None:
    """18: 200 MB of output are counted; the beginning and the end are kept."""
    sandbox = bench.open(output_bytes=1000)
    result = bench.run(sandbox, "printf begin; head -c 200000000 /dev/zero | tr '\\0' x; printf end; printf err >&2")
    exact = result.stdout_size == 200_000_008 and len(result.stdout) == 1000
    check(exact, f"{result.stdout_size} counted, {len(result.stdout)} kept")
    check(result.stdout.startswith(b"beginxx") and result.stdout.endswith(b"xxend"), f"kept: {result.stdout[:20]!r}")
    check(result.stderr == b"err" and result.stderr_size == 3, f"stderr: {result.stderr!r}")


def endless_output(bench: Bench) -> None:
    """19: endless output is counted, cut, and stopped at the timeout."""
    result = bench.open().run("yes & yes >&2", timeout_s=SHORT_S)
    check(result.timed_out and result.stdout_size > len(result.stdout) == 16_384, f"{result.stdout_size} of stdout")
    check(result.stderr_size > len(result.stderr) == 16_384, f"{result.stderr_size} of stderr")


def deep_tree(bench: Bench) -> None:
    """39: a very deep tree and odd names survive the next command and reading."""
    sandbox = bench.open()
    code = "import os\nfor _ in range(800):\n os.mkdir(chr(100)); os.chdir(chr(100))"
    bench.python_run(sandbox, code)
    bench.run(sandbox, "touch $'new\\nline' $'\\xff\\xfe' -- '-rf' '*' ' '")
    check(bench.run(sandbox, "ls | wc -l").exit_code == 0, "listing fails")
    names = {os.fsencode(path.name) for path in sandbox.collect().iterdir()}
    check(names == {b"d", b"new\nline", b"\xff\xfe", b"-rf", b"*", b" "}, f"names: {names}")


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
