"""A bash that stays from one command to the next, as its caller sees it; attacks on it are among the faults (83 to 86)."""

from __future__ import annotations

import ast
import os
import signal
import threading
from pathlib import Path

import pytest

from checks.sandbox import ATTACKS
from onthejob.envs.claw.sandbox import open_host, pid1
from onthejob.envs.claw.sandbox.faults import try_one
from onthejob.envs.claw.sandbox.faults.bench import wait_until
from onthejob.envs.claw.sandbox.host import BwrapHost
from onthejob.envs.claw.sandbox.programs import PERLS, executables
from onthejob.envs.claw.sandbox.sandbox_interface import DIED, NOT_RUN
from onthejob.errors import ConfigError

from .conftest import Copy


@pytest.mark.parametrize("number", [83, 85, 86])
def test_what_lasts_and_what_cannot_be_forged(host: BwrapHost, number: int):
    (fault,) = (fault for fault in ATTACKS if fault.number == number)
    outcome = try_one(host, fault)
    assert outcome.verdict == "held", outcome.detail


def test_its_start_is_run_where_a_shell_begins(host: BwrapHost):
    with host.open({}) as sandbox:

        def said(command: str, *, persistent: bool = True) -> bytes:
            return sandbox.run(command, timeout_s=60.0, start="echo begun; cd /tmp; ", persistent=persistent).stdout

        assert said("pwd", persistent=False) == b"begun\n/tmp\n"
        assert said("pwd; cd /usr") == b"begun\n/tmp\n"
        assert said("pwd") == b"/usr\n"
        assert said("exit") == b""
        assert said("pwd") == b"begun\n/tmp\n"
        assert said("pwd", persistent=False) == b"begun\n/tmp\n"
        assert said("pwd") == b"begun\n/tmp\n"


def test_what_cannot_be_given_to_bash_leaves_it_alone(host: BwrapHost):
    with host.open({}) as sandbox:
        sandbox.run("x=1", timeout_s=60.0, persistent=True)
        result = sandbox.run("echo a\0b", timeout_s=60.0, persistent=True)
        assert (result.exit_code, result.shell_ended) == (NOT_RUN, False)
        assert sandbox.run("echo $x", timeout_s=60.0, persistent=True).stdout == b"1\n"


def test_long_commands_and_floods(host: BwrapHost):
    """A command is larger than the pipe to the shell, which reads it while output waits."""
    with host.open({}) as sandbox:
        lines = "it's one\n" * 30_000
        result = sandbox.run(f"cat <<'E' | tee kept\n{lines}E\nprintf '\\xff\\0' >&2", timeout_s=60.0, persistent=True)
        assert (result.exit_code, result.stdout_size, result.stderr) == (0, len(lines), b"\xff\0")
        assert sandbox.size_of("kept") == len(lines)
        assert result.stdout.startswith(b"it's one\n")


VERBOSE = """
from onthejob.envs.claw.sandbox.host import BwrapHost
with BwrapHost() as host, host.open({}) as sandbox:
    print(next(one.detail for one in host.report.layers if one.name == "process 1").partition(" ")[0])
    for command in ("set -v", "echo hi; false", "set +v", "true"):
        result = sandbox.run(command, timeout_s=60.0, persistent=True)
        print([result.exit_code, re.sub(r"\\d+>&-", "N>&-", result.stderr.decode()), result.stderr_size - len(result.stderr)])
"""


@pytest.mark.parametrize("script", ["pid1.pl", "pid1.py"])
def test_the_line_that_tells_the_end_is_not_shown_by_set_v(copy: Copy, script: str):
    if script == "pid1.py":
        copy.without_perl()
    elif next(executables(PERLS), None) is None:
        pytest.skip("no Perl here")
    done = copy.run(f"import re\n{VERBOSE}")
    assert done.returncode == 0, done.stderr
    name, *said = done.stdout.splitlines()
    assert name == script
    shown = [f"\\eval '{command}' < /dev/null N>&-\n{command}\n" for command in ("echo hi; false", "set +v")]
    assert [ast.literal_eval(line) for line in said] == [[0, "", 0], [1, shown[0], 0], [0, shown[1], 0], [0, "", 0]]


def test_an_exit_code_of_many_digits_tells_nothing():
    """A command that writes to the shell's own descriptor must not end process 1."""
    shell = pid1.Shell(64, persistent=True)
    shell.begin(b"true", 9)
    os.write(shell.tell, b"%s %s\n" % (shell.word, b"9" * 5000))
    assert shell.hear() == -1
    os.write(shell.tell, b"%s 300\n" % shell.word)
    assert shell.hear() == 255
    shell.started(0)
    shell.close()


def test_a_sandbox_that_is_started_again_has_a_new_one(host: BwrapHost):
    with host.open({}) as sandbox:
        sandbox.run("x=1", timeout_s=60.0, persistent=True)

        def kill() -> None:
            wait_until(lambda: sandbox.size_of("there") >= 0)
            os.kill(sandbox.pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        result = sandbox.run("touch there; sleep 300", timeout_s=200.0, persistent=True)
        killer.join()
        assert (result.exit_code, result.restarted, result.timed_out) == (DIED, True, False)
        assert sandbox.run("echo [$x]", timeout_s=60.0, start="echo begun; ", persistent=True).stdout == b"begun\n[]\n"


def test_nothing_of_it_is_left(host: BwrapHost):
    """Processes of this sandbox are those in the pid namespace of its first one."""
    with host.open({}) as sandbox:
        sandbox.run("sleep 3600 & setsid nohup sleep 3600 > /dev/null 2>&1 &", timeout_s=60.0, persistent=True)
        space = Path(f"/proc/{sandbox.pid}/ns/pid").stat()
        assert len(inside(space)) >= 4
        sandbox.collect()
        assert inside(space) == []


def inside(space: os.stat_result) -> list[int]:
    """Pids of what runs in a pid namespace, seen from outside; ended processes that wait to be reaped do not run."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                ended = (folder / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
                if not ended and os.path.samestat((folder / "ns/pid").stat(), space):
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


def test_plain_subprocesses_have_none():
    with open_host(unsafe=True) as plain, plain.open({}) as sandbox:
        assert sandbox.run("pwd", start="cd /; ").stdout == b"/\n"
        with pytest.raises(ConfigError, match="have no persistent shell"):
            sandbox.run("pwd", persistent=True)
