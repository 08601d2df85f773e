"""Commands that confuse a harness: odd bytes, no terminal, unfinished syntax, a destroyed workspace."""

from __future__ import annotations

import os
import stat
import threading

from onthejob.envs.claw.sandbox.faults.bench import PATIENCE_S, SHORT_S, Bench, check, wait_until
from onthejob.envs.claw.sandbox.sandbox_interface import NOT_RUN


def invalid_utf8(bench: Bench) -> None:
    """20: bytes that are no text arrive as they are."""
    result = bench.run(bench.open(), r"printf '\xff\xfe\xc3\x28'; printf '\x80' >&2")
    check(result.stdout == b"\xff\xfe\xc3\x28" and result.stderr == b"\x80", f"{result}")


def nul_output(bench: Bench) -> None:
    """21: NUL bytes in the output arrive."""
    result = bench.run(bench.open(), r"printf 'a\0b'")
    check(result.stdout == b"a\0b", f"{result}")


def nul_command(bench: Bench) -> None:
    """22: a command with a NUL byte is refused in words."""
    result = bench.run(bench.open(), "echo a\0b")
    check(result.exit_code == NOT_RUN and b"NUL" in result.stderr and result.stdout == b"", f"{result}")


def surrogate_command(bench: Bench) -> None:
    """23: a command with half a character is refused in words."""
    result = bench.run(bench.open(), "echo \ud800")
    check(result.exit_code == NOT_RUN and b"not valid text" in result.stderr and result.stdout == b"", f"{result}")


def read_stdin(bench: Bench) -> None:
    """24: a reader gets the end of file."""
    sandbox = bench.open()
    result = bench.run(sandbox, "cat; read x; echo $?; wc -c; head -n 1 -; sed p; grep x; sort")
    check(result.stdout == b"1\n0\n", f"{result}")
    check(b"EOFError" in bench.python_run(sandbox, "input()").stderr, "input() did not meet the end of file")


def want_terminal(bench: Bench) -> None:
    """25: programs that want a terminal return, or are killed like any other (vim waits for a key, also in plain bash)."""
    sandbox = bench.open({"f": b"text\n"})
    for command in ("less f", "more f", "top -b -n 1", "sudo ls", "ssh localhost", "su", "passwd", "man ls"):
        bench.run(sandbox, command)
    for command in ("vi f", "nano f", "emacs -nw f"):
        sandbox.run(command, timeout_s=SHORT_S)
    check(bench.run(sandbox, "echo x > /dev/tty").exit_code != 0, "there is a terminal")


def ends(bench: Bench) -> None:
    """26: whatever a shell does to itself, its exit code arrives."""
    sandbox = bench.open()
    expected = {
        "exit 3": 3,
        "exec true": 0,
        "exec false": 1,
        "exec /no/such/program": 127,
        "kill -9 $$": 137,
        "kill $$": 143,
        "kill -HUP $$": 129,
        "kill -PIPE $$": 141,
        "kill -XFSZ $$": 153,
        "set -e; false; echo no": 1,
        "trap '' TERM INT HUP; kill -TERM $$; exit 7": 7,
        "trap 'exit 9' EXIT; exit 8": 9,
        "exec 0>&- 1>&- 2>&-; echo x; exit 5": 5,
        "exec 1>&- 2>&-; sleep 0.2; exit 6": 6,
        "no-such-command": 127,
        "exit 256": 0,
        "": 0,
        "# only a comment": 0,
    }
    for command, code in expected.items():
        result = bench.run(sandbox, command)
        check(result.exit_code == code, f"{command!r} gave {result.exit_code}, not {code}")


def forge_frames(bench: Bench) -> None:
    """27 and 66: a forged answer is output like any other."""
    forged = r"\0\0\0\27\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\1F"
    command = f"""
for fd in 3 4 5 6 7 8 9; do
  printf '{forged}' >&$fd; printf '{forged}' > /proc/1/fd/$fd; printf '{forged}' > /dev/fd/$fd
done 2>/dev/null
printf '{forged}'; printf '{forged}' >&2; exit 4"""
    sandbox = bench.open()
    result = bench.run(sandbox, command)
    check(result.exit_code == 4 and result.stdout_size == 28 and result.stderr_size == 28, f"{result}")
    # What bash itself has open: the three standard streams and the folder that is being listed.
    descriptors = bench.run(sandbox, "ls /proc/self/fd").stdout.split()
    check(len(descriptors) <= 4, f"descriptors were inherited: {descriptors}")


def unfinished(bench: Bench) -> None:
    """28: several lines and heredocs run; unfinished syntax is an error, not a wait."""
    sandbox = bench.open()
    result = bench.run(sandbox, "cat > f <<'EOF'\n$x `y`\nEOF\nfor i in 1 2; do\n  echo $i\ndone\ncat f")
    check(result.stdout == b"1\n2\n$x `y`\n", f"{result}")
    for command in ("echo 'a", 'echo "a', "if true; then", "for x in 1 2", "(echo", "case x in", "echo $(", "while :; do"):
        result = bench.run(sandbox, command)
        check(result.exit_code in (1, 2) and b"unexpected" in result.stderr, f"{command!r} gave {result}")
    check(bench.run(sandbox, "cat <<EOF\nopen end").stdout == b"open end\n", "an open heredoc was not read to its end")


def stateless(bench: Bench) -> None:
    """29: folder, variables, functions, options and PATH do not persist; files do."""
    sandbox = bench.open()
    change = "cd /tmp; export X=1; f() { echo f; }; set -e; alias ls=false; PATH=; umask 077; ulimit -n 20"
    bench.run(sandbox, f"echo kept > file; {change}")
    result = bench.run(sandbox, 'pwd; echo "[$X]"; type f >/dev/null 2>&1; echo $?; umask; ulimit -n; cat file')
    check(result.stdout == b"/work\n[]\n1\n0022\n256\nkept\n", f"{result}")


def remove_root(bench: Bench) -> None:
    """30: the workspace's root cannot be removed; what is in it can."""
    sandbox = bench.open({"a/b": b"x"})
    bench.run(sandbox, "rm -rf /work; cd ..; rm -rf work; rmdir work; mv work gone; ln -sT /usr work; true")
    result = bench.run(sandbox, "pwd; ls -A; echo new > f; cat f")
    check(result.stdout == b"/work\nnew\n", f"{result}")
    check([path.name for path in sandbox.collect().iterdir()] == ["f"], "the collected workspace is not the one that was written")


def lock_root(bench: Bench) -> None:
    """31: a workspace without permissions still works for the next command, and can be read afterwards."""
    sandbox = bench.open({"a/b": b"deep", "c": b"flat"})
    bench.run(sandbox, "chmod 000 c a/b a . ; true")
    check(bench.run(sandbox, "echo on").stdout == b"on\n", "the next command does not run")
    root = sandbox.collect()
    check((root / "c").read_bytes() == b"flat" and (root / "a/b").read_bytes() == b"deep", "unreadable")


def long_command(bench: Bench) -> None:
    """40: a command of a megabyte runs; a longer one is refused in words."""
    sandbox = bench.open()
    for size in (90_000, 110_000, 140_000, 1_000_000):
        result = bench.run(sandbox, f": '{'x' * size}'; echo ran; exit 3")
        check(result.stdout == b"ran\n" and result.exit_code == 3, f"{size} characters: {result}")
    result = bench.run(sandbox, f": '{'x' * 2_000_000}'")
    check(result.exit_code == NOT_RUN and b"bytes" in result.stderr, f"{result}")


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
