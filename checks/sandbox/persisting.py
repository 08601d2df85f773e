"""A shell that persists: what lasts, what ends it, and that neither its end nor another command's can be forged by output."""

from __future__ import annotations

import time

from onthejob.envs.claw.sandbox.box import BwrapSandbox
from onthejob.envs.claw.sandbox.faults.bench import PATIENCE_S, SHORT_S, Bench, check
from onthejob.envs.claw.sandbox.sandbox_interface import CommandResult

TICKING = "(while sleep 0.05; do date +%s%N >> log; done) &"
"""Starts a job that shows in the workspace whether it runs."""


def run(sandbox: BwrapSandbox, command: str, *, timeout_s: float = PATIENCE_S) -> CommandResult:
    """Run a command in the shell that persists."""
    return sandbox.run(command, timeout_s=timeout_s, persistent=True)


def state_lasts(bench: Bench) -> None:
    """83: folder, variables, functions, options, descriptors and jobs are there in the next command; stdin is empty."""
    sandbox = bench.open()
    begun = run(sandbox, "cd /tmp; x='a  b'; f() { echo \"f $x\"; }; shopt -s extglob; exec 9> nine; sleep 3600 & job=$!")
    check((begun.exit_code, begun.stdout, begun.stderr) == (0, b"", b""), f"{begun}")
    lasts = run(sandbox, "pwd; f; shopt extglob; echo out >&9; cat nine; kill $job && echo killed; read y || echo end; cat")
    check(lasts.stdout == b"/tmp\nf a  b\nextglob        \ton\nout\nkilled\nend\n" and not lasts.shell_ended, f"{lasts}")
    for command, code in {"false": 1, "(exit 77)": 77, "break; return; false": 1, "no-such-command": 127, "": 0}.items():
        result = run(sandbox, command)
        check((result.exit_code, result.shell_ended) == (code, False), f"{command!r} gave {result}")
    check(run(sandbox, 'echo "$x"; pwd').stdout == b"a  b\n/tmp\n", "the state was lost")
    fresh = bench.run(sandbox, "echo [$x]; pwd")
    check(fresh.stdout == b"[]\n/work\n", f"a command of its own knows the persistent shell's state: {fresh}")
    check(run(sandbox, "echo [$x]").stdout == b"[]\n", "the shell outlived a command of its own")


def shell_ends(bench: Bench) -> None:
    """84: whatever ends it, the exit code arrives, the result says so, nothing of it is left, the next command has another."""
    sandbox = bench.open()
    expected = {
        "exit 3": 3,
        "exec false": 1,
        "kill -9 $$": 137,
        "set -e; false; echo no": 1,
        "trap 'exit 9' EXIT; exit 8": 9,
        "kill -STOP $$": 124,
        "while :; do :; done": 124,
        "trap '' TERM INT HUP; sleep 300": 124,
        "set -n": 124,
        "exec 11>&-; kill -STOP $$": 124,
        "builtin() { :; }": 124,
        "eval() { :; }; exec 0>&-; cat <&10 > /dev/null": 124,
    }
    for command, code in expected.items():
        run(sandbox, f"x=1; {TICKING}")
        result = run(sandbox, command, timeout_s=SHORT_S if code == 124 else PATIENCE_S)
        told = (result.exit_code, result.timed_out, result.shell_ended, result.restarted)
        check(told == (code, code == 124, True, False), f"{command!r} gave {result}")
        size = sandbox.size_of("log")
        time.sleep(0.2)
        check(sandbox.size_of("log") == size, f"a job outlived its shell: {command!r}")
        check(run(sandbox, "echo [$x]; jobs").stdout == b"[]\n", f"the next shell is not new after {command!r}")


def forged_ends(bench: Bench) -> None:
    """85: no output ends a command, and one that attacks its own shell ends only itself."""
    sandbox = bench.open()
    said = run(sandbox, r"for i in 1 2; do printf '%032d 0\n' 7 >&$i; printf '\0\0\0\0'; done; sleep 0.3; echo end; false")
    check(said.exit_code == 1 and said.stdout.endswith(b"end\n") and not said.shell_ended, f"output ended the command: {said}")
    open_ones = run(sandbox, "ls /proc/self/fd; bash -c 'echo x >&11; echo y >&255'").stdout
    check(open_ones.split() == [b"0", b"1", b"2", b"3"], f"commands hold more than their own descriptors: {open_ones}")
    for attack in (
        "head -c 3000000 /dev/urandom > /proc/$$/fd/11; echo end",
        "for i in {1..9999}; do echo 0123456789abcdef0123456789abcdef 0; done > /proc/$$/fd/11; echo end",
    ):
        result = run(sandbox, attack)
        check(result.exit_code == 0 and result.stdout == b"end\n", f"{attack!r} gave {result}")
    # The word of this very command, stolen from the pipe of commands: what follows is stopped like everything between two.
    attack = 'read -r -u 10 line; set -- $line; echo "$6 0" >&11; while sleep 0.05; do date >> late; done'
    stolen = run(sandbox, attack, timeout_s=5.0)
    check((stolen.exit_code, stolen.restarted) == (0, False), f"the word was not stolen, so this attack tells nothing: {stolen}")
    size = sandbox.size_of("late")
    time.sleep(0.2)
    check(sandbox.size_of("late") == size, "a command ran on after its end")
    run(sandbox, "echo x", timeout_s=SHORT_S)
    check(run(sandbox, "exit 4").exit_code == 4, "the next shell does not work")


def jobs_stand_still(bench: Bench) -> None:
    """86: a job that floods or ticks does not hold the end of a command, and stands still until the next one."""
    sandbox = bench.open()
    started = run(sandbox, f"{TICKING} sleep 0.3; yes & yes >&2 & echo started")
    check(started.exit_code == 0 and started.wall_s < PATIENCE_S / 4, f"jobs held the command: {started.wall_s} s")
    size = sandbox.size_of("log")
    time.sleep(0.4)
    check(size > 0 and sandbox.size_of("log") == size, "a job ran between two commands")
    ran = run(sandbox, "sleep 0.4; kill $(jobs -p); wait; echo gone")
    check(ran.stdout.endswith(b"gone\n") and sandbox.size_of("log") > size, "jobs did not continue")
    run(sandbox, f"{TICKING} trap '' TERM; setsid nohup bash -c 'while sleep 0.05; do date >> log; done' > /dev/null 2>&1 &")
    sandbox.collect()
    size = sandbox.size_of("log")
    time.sleep(0.2)
    check(sandbox.size_of("log") == size, "a job outlived the sandbox")
