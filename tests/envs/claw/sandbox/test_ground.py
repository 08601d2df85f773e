"""What sandboxes of one host stand on: their users' numbers, the interpreter of process 1, limits that a host inherited."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from checks.sandbox.sharing import URGENT
from onthejob.envs.claw.sandbox.ground import LOCKS, NoSandboxes, lock_folder
from onthejob.envs.claw.sandbox.host import BwrapHost
from onthejob.envs.claw.sandbox.programs import PERLS, executables

from .conftest import PACKAGE, Copy

ORDINARY = 65534
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root's sandboxes have users of their own")
LAYERS = """
import json, logging, sys
from onthejob.envs.claw.sandbox.host import BwrapHost
logging.basicConfig(stream=sys.stderr)
with BwrapHost() as host, host.open({}) as sandbox:
    print(json.dumps([dict((layer.name, layer.detail) for layer in host.report.layers), sandbox.run("echo 1").stdout.decode()]))
"""
NAMES = """
import contextlib, os, resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1100, 1100))
os.setresuid(*[int(sys.argv[1])] * 3)
held = []
for number in range(1_900_000_000, 1_901_000_000, 1_000):
    held.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    with contextlib.suppress(OSError):
        held[-1].bind(f"\\0onthejob-sandbox-uids-{number}")
print("held", flush=True)
sys.stdin.read()
"""


def users(host: BwrapHost) -> str:
    return next(layer.detail for layer in host.report.layers if layer.name == "unprivileged user")


@only_root
def test_names_that_another_user_took_keep_no_host_from_starting():
    words = [sys.executable, "-S", "-c", NAMES, str(ORDINARY)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            with BwrapHost() as host, host.open({}) as sandbox:
                assert sandbox.run("echo 1", timeout_s=120).stdout == b"1\n"
        finally:
            other.kill()


@only_root
def test_hosts_that_live_together_have_different_users():
    with BwrapHost() as first, BwrapHost() as second, BwrapHost() as third:
        assert len({users(host) for host in (first, second, third)}) == 3
        taken = users(second)
    assert LOCKS.stat().st_mode & 0o777 == 0o700
    with BwrapHost() as again:
        assert users(again) <= taken


@only_root
@pytest.mark.parametrize("kind", ["link", "file", "folder of another user", "folder that others write to", "missing parent"])
def test_locks_lie_where_only_root_can_put_them(tmp_path: Path, kind: str):
    folder, elsewhere = tmp_path / "locks", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if kind == "link":
        folder.symlink_to(elsewhere)
    elif kind == "file":
        folder.touch()
    elif kind == "missing parent":
        folder = folder / "below"
    else:
        folder.mkdir()
        folder.chmod(0o777 if "write" in kind else 0o700)
        os.chown(folder, ORDINARY if "another" in kind else 0, 0)
    with pytest.raises(NoSandboxes, match="locks"):
        lock_folder(folder)
    assert lock_folder(elsewhere) == elsewhere


@pytest.mark.parametrize(
    "fault", ["my $unfinished = ;", "use strict; $undeclared = 1;", "use No::Such::Module;", "}", "use v99;"]
)
def test_a_process_1_that_does_not_compile_is_named(copy: Copy, fault: str):
    if next(executables(PERLS), None) is None:
        pytest.skip("no Perl here")
    copy.change("pid1.pl", "use strict;\n", f"use strict;\n{fault}\n")
    done = copy.run(LAYERS)
    assert done.returncode == 0, done.stderr
    layers, said = json.loads(done.stdout)
    assert said == "1\n"
    assert layers["process 1"].startswith("pid1.py ")
    assert "pid1.pl does not run in " in layers["process 1"]
    assert "sandboxes start more slowly than they could: pid1.pl does not run in " in done.stderr


def test_the_preferred_process_1_is_the_one_that_runs(copy: Copy):
    done = copy.run(LAYERS)
    assert done.returncode == 0, done.stderr
    layers, _ = json.loads(done.stdout)
    wanted = "pid1.pl" if next(executables(PERLS), None) else "pid1.py"
    assert layers["process 1"].startswith(f"{wanted} ")
    assert "does not run" not in layers["process 1"] + done.stderr


@only_root
def test_a_user_who_may_run_first_gives_that_to_no_sandbox():
    run = """
from onthejob.envs.claw.sandbox.host import BwrapHost
import sys
with BwrapHost() as host, host.open({"urgent.py": sys.argv[1].encode()}) as sandbox:
    print(sandbox.run("python3 -I urgent.py", timeout_s=120).stdout.decode())
"""
    raised = ["prlimit", "--rtprio=50:50", "--nice=40:40"]
    if subprocess.run([*raised, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this root may not raise limits")
    words = [*raised, sys.executable, "-c", run, URGENT]
    environ = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False, timeout=240)
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done
