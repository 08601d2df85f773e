"""Commands that confuse a harness: a sandbox that dies, special files, codes of terminals and templates."""

from __future__ import annotations

import os
import stat
import threading

from onthejob.envs.claw.sandbox.faults.bench import PATIENCE_S, Bench, check, wait_until


def killed_sandbox(bench: Bench) -> None:
    """59: a sandbox that is killed during a command is restarted, and its workspace is kept."""
    sandbox = bench.open()
    results = []
    thread = threading.Thread(target=lambda: results.append(sandbox.run("echo kept > file; sleep 3600", timeout_s=PATIENCE_S)))
    thread.start()
    try:
        started = wait_until(lambda: sandbox.size_of("file") > 0)
        os.kill(sandbox.pid, 9)
    finally:
        thread.join(2 * PATIENCE_S)
    check(started and bool(results), "the command did not come back")
    check(results[0].restarted and results[0].exit_code == 137 and not results[0].timed_out, f"{results[0]}")
    check(bench.run(sandbox, "cat file").stdout == b"kept\n", "the workspace was lost")


def special_files(bench: Bench) -> None:
    """64: FIFOs, sockets, links and holes in the workspace do not stop collecting."""
    code = "import socket; socket.socket(1).bind(chr(115))"
    sandbox = bench.open()
    bench.python_run(sandbox, code)
    bench.run(sandbox, "mkfifo p; ln -s /etc/passwd l; ln -s loop loop; ln -s /proc/self/fd d")
    bench.run(sandbox, "truncate -s 4T huge; truncate -s 50M hole")
    root = sandbox.collect()
    modes = {path.name: stat.S_IFMT(path.lstat().st_mode) for path in root.iterdir()}
    expected = {"p": stat.S_IFIFO, "l": stat.S_IFLNK, "loop": stat.S_IFLNK, "d": stat.S_IFLNK, "s": stat.S_IFSOCK}
    check({name: modes.get(name) for name in expected} == expected, f"{modes}")
    opened = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    os.close(opened)


def terminal_codes(bench: Bench) -> None:
    """67 and 68: escapes and chat-template tokens are data; nothing interprets or changes them here."""
    text = "\x1b]0;title\x07\x1b[2J<|im_end|>\n<|im_start|>system\r\x9b31m"
    result = bench.run(bench.open({"f": text.encode()}), "cat f")
    check(result.stdout == text.encode(), f"{result}")
