"""The parent of a model server: a small process that leaves nothing behind, whichever process dies.

    us ── guard (own session, subreaper) ── API server ── engine ── workers

`python -m onthejob.serve.guard FD -- COMMAND...` runs COMMAND and ends with its exit code. FD is the reading end of a pipe whose
writing end only our process holds: it closes when we end, also by SIGKILL. Then, and on SIGTERM or SIGINT, and when COMMAND has
ended, every descendant is ended: orphans come back to the subreaper, so a worker whose parent was killed is found by kinship and
never by name.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL."""
_SUBREAPER, _DEATH_SIGNAL = 36, 1  # prctl(2)


def main(argv: list[str]) -> int:
    """Run the command of `argv`; see above."""
    pipe, command = int(argv[0]), argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SUBREAPER, 1, 0, 0, 0) != 0:
        print(f"guard: no subreaper: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
        return 1
    wake, wakened = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakened)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    os.set_inheritable(pipe, False)

    def with_guard() -> None:
        # This process has one thread, so its death is the guard's and not a thread's.
        libc.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)

    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=with_guard)
    except OSError as error:
        print(f"guard: {command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    asked = False
    while child.poll() is None and not asked:
        ready, _, _ = select.select([pipe, wake], [], [], 1.0)
        if pipe in ready:
            asked = True
        if wake in ready:
            numbers = os.read(wake, 512)
            asked = asked or any(number in numbers for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    end_all(child)
    code = child.returncode
    return 143 if asked or code is None else 128 - code if code < 0 else code


def end_all(child: subprocess.Popen[bytes]) -> None:
    """End and reap every descendant: SIGTERM to the child, which may end its own cleanly, then SIGKILL to the rest."""
    if child.poll() is None:
        child.terminate()
    deadline = time.monotonic() + GRACE_S
    while child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    while living := descendants(os.getpid()):
        for pid in living:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        reap(child)
        time.sleep(0.01)
    reap(child)


def reap(child: subprocess.Popen[bytes]) -> None:
    """Collect all that have ended; the child's own exit code is kept by Popen."""
    child.poll()
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid == child.pid:
            child.returncode = os.waitstatus_to_exitcode(status)


def descendants(root: int) -> list[int]:
    """Living processes below `root`, by parent id."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (found := stat_of(int(entry.name))) is not None and found[0] != "Z":
            children.setdefault(found[1], []).append(int(entry.name))
    below, queue = [], [root]
    while queue:
        for pid in children.get(queue.pop(), []):
            below.append(pid)
            queue.append(pid)
    return below


def stat_of(pid: int) -> tuple[str, int, int] | None:
    """(state, parent, session) of a process, None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[1]), int(fields[3])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
