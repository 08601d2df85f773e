"""What a sandbox promises, for both backends: files in, results out, a dead workspace for the grader, clear refusals."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from onthejob.envs.claw.sandbox import Limits, SandboxHost, open_host
from onthejob.envs.claw.sandbox.host import BwrapHost
from onthejob.envs.claw.sandbox.sandbox_interface import Item, Kind
from onthejob.errors import ConfigError, ContractError, SandboxError

SLOW_S = 120.0


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(params=["bwrap", "unsafe"])
def backend(request: pytest.FixtureRequest, host: BwrapHost) -> Iterator[SandboxHost]:
    if request.param == "bwrap":
        yield host
        return
    with open_host(unsafe=True) as made:
        yield made


def test_files_go_in_and_come_out(backend: SandboxHost):
    files = {"notes/a.txt": b"hello\n", "bin": bytes(range(256)), "empty/": b"", "deep/er/still/f": b"", "ü": b"x"}
    with backend.open(files) as sandbox:
        result = sandbox.run("cat notes/a.txt; ls -A; echo new > notes/b.txt; rm ü; echo oops >&2; exit 4", timeout_s=SLOW_S)
        assert (result.exit_code, result.stdout) == (4, b"hello\nbin\ndeep\nempty\nnotes\n\xc3\xbc\n")
        assert (result.stderr, result.stderr_size, result.timed_out, result.restarted) == (b"oops\n", 5, False, False)
        assert 0 < result.wall_s < SLOW_S
        root = sandbox.collect()
        assert (root / "notes/b.txt").read_bytes() == b"new\n"
        assert (root / "bin").read_bytes() == bytes(range(256))
        assert sorted(path.name for path in root.iterdir()) == ["bin", "deep", "empty", "notes"]
        os.close(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW))
        assert sandbox.collect() == root
    assert not (root / "bin").exists()
    assert sandbox.backend == backend.report.backend


def test_the_first_command_has_the_usual_umask_and_modes(backend: SandboxHost):
    with backend.open({"d/f": b"x", "e/": b""}) as sandbox:
        result = sandbox.run("stat -c %a d d/f e; touch new; mkdir made; stat -c %a new made", timeout_s=SLOW_S)
        assert result.stdout.split() == [b"755", b"644", b"755", b"644", b"755"]
        assert sandbox.run("echo more >> d/f && rm -r d e && ls", timeout_s=SLOW_S).stdout == b"made\nnew\n"


def test_output_keeps_its_beginning_and_its_end(backend: SandboxHost):
    with backend.open({}, Limits(output_bytes=11)) as sandbox:
        result = sandbox.run("printf 0123456789abcdefghij; printf 0123456789A >&2", timeout_s=SLOW_S)
        assert (result.stdout, result.stdout_size) == (b"01234efghij", 20)
        assert (result.stderr, result.stderr_size) == (b"0123456789A", 11)


def test_a_timeout_is_data(backend: SandboxHost):
    with backend.open({}) as sandbox:
        result = sandbox.run("echo before; sleep 3600", timeout_s=1.0)
        assert (result.timed_out, result.exit_code) == (True, 124)
        assert 1.0 <= result.wall_s < 60
        assert sandbox.run("echo next", timeout_s=SLOW_S).stdout == b"next\n"


@pytest.mark.parametrize(
    "command",
    [
        "kill -STOP $$",
        "kill -STOP -$$; kill -STOP 0",
        "exec 1>&- 2>&-; sleep 600",
        "trap '' TERM INT HUP QUIT; sleep 600 & wait",
        "mkfifo f; cat f",
        "mkfifo f; (exec 9<>f; head -c 100000 /dev/zero >&9); sleep 600",
        "exec 8>&1; while kill -0 $$; do echo x >&8; kill -STOP $$; done",
    ],
)
def test_a_time_limit_holds_for_what_waits(backend: SandboxHost, command: str):
    with backend.open({}) as sandbox:
        result = sandbox.run(command, timeout_s=0.5)
    assert (result.timed_out, result.restarted) == (True, False)
    assert result.wall_s < SLOW_S


@pytest.mark.parametrize(
    "path", ["", "/", "/etc/x", "..", "../x", "a/../b", "a//b", "./a", "a\0b", "x" * 256, "a/./b", "//"], ids=repr
)
def test_paths_that_leave_the_workspace_are_refused(backend: SandboxHost, path: str):
    with pytest.raises(ConfigError, match="workspace path"):
        backend.open({path: b""})


def test_paths_that_cannot_both_exist_are_refused(backend: SandboxHost):
    with pytest.raises(ConfigError, match="is a file"):
        backend.open({"a": b"x", "a/b": b"y"})
    with pytest.raises(ConfigError, match="twice"):
        backend.open({"a": b"x", "a/": b""})
    with pytest.raises(ConfigError, match="empty folder"):
        backend.open({"a/": b"content"})


def test_items_have_modes_times_and_kinds(backend: SandboxHost):
    files = {
        "d": Item(kind=Kind.FOLDER, mode=0o500, mtime_ns=1_000_000_000 * 10**9),
        "d/run.sh": Item(data=b"echo ran", mode=0o750, mtime_ns=1_100_000_000 * 10**9),
        "d/in": Item(kind=Kind.LINK, data=b"run.sh", mtime_ns=1_200_000_000 * 10**9),
        "plain": b"x",
    }
    with backend.open(files) as sandbox:
        result = sandbox.run("stat -c '%n %a %F %Y' d d/run.sh d/in; d/in; stat -c %a plain", timeout_s=SLOW_S)
    assert result.stdout.decode().splitlines() == [
        "d 500 directory 1000000000",
        "d/run.sh 750 regular file 1100000000",
        "d/in 777 symbolic link 1200000000",
        "ran",
        "644",
    ]
    for name, content in (("l", Item(kind=Kind.LINK, data=b"/tmp")), ("l", b"")):
        with pytest.raises(ConfigError, match=r"is a (link|file) and cannot hold 'x'"):
            backend.open({name: content, "l/x": b""})
    with pytest.raises(ConfigError, match="empty folder"):
        backend.open({"a": Item(kind=Kind.FOLDER, data=b"x")})


def test_a_second_folder_lies_beside_the_workspace(backend: SandboxHost):
    with backend.open({"a": b"1"}, beside={"b/c": b"2", "run": Item(data=b"echo 3", mode=0o755)}) as sandbox:
        assert sandbox.beside
        assert sandbox.run(f"cat a {sandbox.beside}/b/c; {sandbox.beside}/run; ls", timeout_s=SLOW_S).stdout == b"123\na\n"
        if sandbox.backend == "bwrap":
            tried = f"cd {sandbox.beside}; echo x > new; echo x >> b/c; rm -f b/c; chmod 777 run; mv run ran; cat b/c run; ls"
            assert sandbox.run(tried, timeout_s=SLOW_S).stdout == b"2echo 3b\nrun\n"
    with backend.open({}) as sandbox:
        assert sandbox.beside == ""
        assert sandbox.run("test -e /beside", timeout_s=SLOW_S).exit_code == 1


def test_python_pytest_and_yaml_are_inside(backend: SandboxHost):
    test = b"import yaml\n\ndef test_one():\n    assert yaml.safe_load('a: 1') == {'a': 1}\n"
    with backend.open({"test_one.py": test}) as sandbox:
        for command in ("python -m pytest -q", "pytest -q test_one.py", "python -c 'import yaml'"):
            result = sandbox.run(command, timeout_s=SLOW_S)
            assert (result.exit_code, result.stderr) == (0, b""), (command, result)


def test_a_user_mask_that_hides_files_changes_nothing():
    before = os.umask(0o077)
    try:
        with BwrapHost() as host, host.open({"d/f": b"1"}, beside={"e/g": b"2"}) as sandbox:
            assert sandbox.run("cat d/f /beside/e/g; pytest --version && whoami", timeout_s=SLOW_S).stdout.endswith(b"agent\n")
    finally:
        os.umask(before)


def test_use_after_the_end_is_refused(backend: SandboxHost):
    sandbox = backend.open({})
    with pytest.raises(ConfigError, match="timeout_s"):
        sandbox.run("true", timeout_s=0)
    with pytest.raises(ConfigError, match="timeout_s"):
        sandbox.run("true", timeout_s=float("nan"))
    sandbox.collect()
    with pytest.raises(ContractError, match="collected"):
        sandbox.run("true")
    sandbox.close()
    sandbox.close()
    with pytest.raises(ContractError, match="closed"):
        sandbox.collect()
    with pytest.raises(ContractError, match="closed"):
        sandbox.run("true")


def test_closing_the_host_closes_its_sandboxes():
    with open_host(unsafe=True) as unsafe, BwrapHost() as safe:
        sandboxes = [unsafe.open({}), safe.open({"f": b"x"})]
    for made in sandboxes:
        with pytest.raises(ContractError):
            made.run("true")
    for closed in (unsafe, safe):
        with pytest.raises(ContractError, match="closed"):
            closed.open({})
        closed.close()


def test_files_that_do_not_fit_are_refused_and_leave_nothing(host: BwrapHost):
    before = descriptors()
    with pytest.raises(ConfigError, match="do not fit"):
        host.open({"big": bytes(100_000)}, Limits(workspace_bytes=50_000))
    with pytest.raises(ConfigError, match="do not fit"):
        host.open({f"f{number}": b"" for number in range(20)}, Limits(workspace_files=10))
    assert descriptors() == before


@pytest.mark.parametrize("name", ["processes", "memory_bytes", "output_bytes", "start_s", "workspace_files"])
def test_limits_too_small_to_live_under_are_refused(name: str):
    with pytest.raises(ConfigError, match=name):
        Limits(**{name: 0})


def test_several_threads_share_a_host(host: BwrapHost):
    results: dict[int, bytes] = {}

    def work(number: int) -> None:
        with host.open({"n": str(number).encode()}) as sandbox:
            sandbox.run("cat n > m; echo -n ! >> m", timeout_s=SLOW_S)
            results[number] = (sandbox.collect() / "m").read_bytes()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SLOW_S)
    assert results == {number: f"{number}!".encode() for number in range(6)}


def test_the_report_names_every_layer(host: BwrapHost):
    assert host.report.backend == "bwrap"
    names = [layer.name for layer in host.report.layers]
    assert {"unprivileged user", "namespaces", "seccomp", "quotas", "rlimits", "pids cgroup", "memory cgroup"} <= set(names)
    always = [layer for layer in host.report.layers if not layer.name.endswith("cgroup")]
    assert all(layer.active for layer in always), always
    assert all(layer.detail for layer in host.report.layers)
    assert not open_host(unsafe=True).report.active("isolation")


def test_a_sandbox_that_cannot_start_is_an_error_and_leaves_nothing(host: BwrapHost):
    # Neither the control group nor the process limit takes this number; `Limits` refuses it before.
    limits = Limits()
    object.__setattr__(limits, "processes", -5)
    before = descriptors()
    with pytest.raises(SandboxError):
        host.open({}, limits)
    assert descriptors() == before
    with host.open({}) as sandbox:
        assert sandbox.run("echo on", timeout_s=SLOW_S).stdout == b"on\n"
