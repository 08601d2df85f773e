"""A workspace that is `/`: root inside without a right, everything writable but the system."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onthejob.envs.claw.sandbox import Limits, SandboxHost, open_host
from onthejob.envs.claw.sandbox.sandbox_interface import Item, Kind, Layout
from onthejob.errors import ConfigError

ROOT = Layout(root=True, beside="/tests")


@pytest.fixture(scope="module")
def host() -> Iterator[SandboxHost]:
    with open_host() as opened:
        yield opened


def test_root_without_a_right(host: SandboxHost):
    with host.open({"app/a.txt": b"a"}, layout=ROOT) as sandbox:
        assert sandbox.run("id -u; pwd; cat /app/a.txt").stdout == b"0\n/\na"
        status = sandbox.run("grep -E '^(Cap...|NoNewPrivs|Seccomp):' /proc/self/status").stdout.decode().split()
        assert status[1::2] == ["0" * 16] * 5 + ["1", "2"]
        for command in (
            "mount -t tmpfs x /app",
            "chown 1000 /app/a.txt",
            "mknod /x c 1 3",
            "chroot /",
            "hostname x",
            "unshare -U true",
        ):
            assert sandbox.run(command).exit_code != 0, command


def test_everything_but_the_system_is_writable(host: SandboxHost):
    with host.open({"tmp": Item(kind=Kind.FOLDER, mode=0o1777)}, layout=ROOT) as sandbox:
        wanted = "mkdir -p /new /etc/x /var/lib && touch /new/a /etc/x/b /d && cd /tmp && touch c"
        assert sandbox.run(wanted).exit_code == 0
        for place in (
            "/usr",
            "/bin",
            "/lib",
            "/proc",
            "/dev",
            "/run",
            "/run/pid1",
            "/usr/bin/env",
            "/etc/ld.so.preload",
            "/etc/ld.so.cache",
        ):
            assert sandbox.run(f"echo x > {place} || touch {place}/x").exit_code != 0, place
        for command in (
            "mv /etc /etc2",
            "rmdir /bin",
            "mv /usr /usr2",
            "mv /etc/alternatives /x",
            "rm -f /etc/ld.so.preload; test ! -e /etc/ld.so.preload",
        ):
            assert sandbox.run(command).exit_code != 0, command
        root = sandbox.collect()
        assert (root / "new/a").is_file()
        assert (root / "etc/x/b").is_file()


def test_the_second_folder_lies_where_it_is_asked_for(host: SandboxHost):
    with host.open({"app/a": b"a"}, beside={"test.sh": b"echo hi"}, layout=ROOT) as sandbox:
        assert sandbox.beside == "/tests"
        assert sandbox.run("bash /tests/test.sh").stdout == b"hi\n"
        assert sandbox.run("echo x > /tests/test.sh || rm -rf /tests/test.sh || mv /tests /t").exit_code != 0


def test_it_starts_again_on_the_same_tree(host: SandboxHost):
    limits = Limits(grace_s=0.5)
    with host.open({"app/a": b"a"}, limits, layout=ROOT) as sandbox:
        sandbox.run("mkdir /kept; touch /etc/mine; rm -rf /proc /dev /run 2>/dev/null")
        result = sandbox.run("kill -STOP 1; kill -9 1; echo alive")
        assert result.stdout == b"alive\n"
        sandbox._restart()  # type: ignore[attr-defined]
        assert sandbox.run("ls -d /kept /etc/mine /app/a; id -u").stdout == b"/app/a\n/etc/mine\n/kept\n0\n"


@pytest.mark.parametrize("path", ["usr/bin/x", "bin/x", "lib/x", "proc/x", "dev/x", "run/x"])
def test_files_may_not_lie_in_the_system(host: SandboxHost, path: str):
    with pytest.raises(ConfigError, match="folder of the system"):
        host.open({path: b"x"}, layout=ROOT)


def test_usual_and_whole_workspaces_side_by_side(host: SandboxHost):
    for _ in range(3):
        with host.open({"a": b"a"}) as usual, host.open({"a": b"b"}, layout=ROOT) as whole:
            assert usual.run("cat a; id -u").stdout == b"a1000\n"
            assert whole.run("cat /a; id -u").stdout == b"b0\n"


def test_plain_subprocesses_have_no_such_layout():
    with open_host(unsafe=True) as opened, pytest.raises(ConfigError, match="Take a host that isolates"):
        opened.open({"a": b"a"}, layout=ROOT)
