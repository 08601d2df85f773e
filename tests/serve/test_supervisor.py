"""Whichever process dies, nothing is left: real process trees with orphans, killed in every way."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from onthejob.errors import ConfigError, ServeError
from onthejob.serve.guard import stat_of
from onthejob.serve.supervisor import Child, check_port, free_port, memory, port_owner, wait_until

# A server like vLLM's: the API process starts an engine, the engine a worker, which ignore SIGTERM; every pid is written down.
TREE = """
import os, signal, subprocess, sys, time
depth, folder = int(sys.argv[1]), sys.argv[2]
if depth < 2:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if depth:
    subprocess.Popen([sys.executable, "-c", sys.argv[3], str(depth - 1), folder, sys.argv[3]], start_new_session=depth == 1)
partial = os.path.join(folder, f".pid{depth}")
open(partial, "w").write(str(os.getpid()))
os.rename(partial, os.path.join(folder, f"pid{depth}"))
while True:
    time.sleep(60)
"""


def tree(tmp_path: Path) -> Child:
    command = [sys.executable, "-c", TREE, "2", str(tmp_path), TREE]
    return Child(command, log_file=tmp_path / "log", environ=dict(os.environ), name="tree")


def pids(folder: Path) -> list[int]:
    wait_for(lambda: all((folder / f"pid{depth}").exists() for depth in range(3)))
    return [int((folder / f"pid{depth}").read_text()) for depth in (2, 1, 0)]


def wait_for(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def living(processes: list[int]) -> list[int]:
    return [pid for pid in processes if (about := stat_of(pid)) is not None and about[0] != "Z"]


def test_stop_ends_the_whole_tree(tmp_path: Path):
    child = tree(tmp_path)
    processes = pids(tmp_path)
    assert len(living(processes)) == 3
    child.stop()
    assert not living(processes)
    assert not child.members()
    child.stop()  # Again is no error.


@pytest.mark.parametrize("victim", [0, 1, 2], ids=["api", "engine", "worker"])
def test_when_one_is_killed_stop_still_ends_the_others(victim: int, tmp_path: Path):
    child = tree(tmp_path)
    processes = pids(tmp_path)
    os.kill(processes[victim], signal.SIGKILL)
    if victim == 0:
        # The API process is what the guard waits for: its orphans go with it, unasked.
        wait_for(lambda: not living(processes))
        wait_for(lambda: not child.alive)
    child.stop()
    assert not living(processes)


def test_when_the_guard_is_killed_its_session_is_ended(tmp_path: Path):
    child = tree(tmp_path)
    processes = pids(tmp_path)
    os.kill(child.pid, signal.SIGKILL)
    # The worker has left the session (as a daemon would) and its parent was ended: what we can know of ends.
    wait_for(lambda: not living(processes[:1]) and not child.members())
    for pid in living(processes):
        os.kill(pid, signal.SIGKILL)


PARENT = """
import os, signal, sys, time
# A suite that a shell runs in the background passes an ignored SIGINT on.
signal.signal(signal.SIGINT, signal.default_int_handler)
from pathlib import Path
from onthejob.serve.supervisor import Child
folder = Path(sys.argv[1])
command = [sys.executable, "-c", sys.argv[2], "2", str(folder), sys.argv[2]]
child = Child(command, log_file=folder / "log", environ=dict(os.environ))
if sys.argv[3] == "exception":
    while not all((folder / f"pid{depth}").exists() for depth in range(3)):
        time.sleep(0.02)
    raise RuntimeError("ours")
time.sleep(600)
"""


@pytest.mark.parametrize("end", ["SIGKILL", "SIGTERM", "SIGINT", "exception"])
def test_nothing_outlives_us(end: str, tmp_path: Path):
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with (tmp_path / "parent.log").open("wb") as log:
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT, str(tmp_path), TREE, end], stdout=log, stderr=log, env=environ, start_new_session=True
        )
    try:
        processes = pids(tmp_path)
        if end != "exception":
            parent.send_signal(getattr(signal, end))
        parent.wait(60)
        wait_for(lambda: not living(processes))
    finally:
        if parent.poll() is None:
            parent.kill()
            parent.wait()


def test_a_server_that_ends_while_it_starts_says_why(tmp_path: Path):
    program = "import sys; sys.exit('no such model')"
    child = Child([sys.executable, "-c", program], log_file=tmp_path / "log", environ=dict(os.environ), name="server")
    with pytest.raises(ServeError, match="no such model"):
        wait_until(lambda: False, child, within_s=60, every_s=0.02)


@pytest.mark.parametrize("said", ["hf_{}", "Bearer {}", "api_key={}", "\x1b[31m{}", "header 'x-api-key': '{}'"])
def test_keys_and_controls_of_a_servers_log_are_not_quoted(said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    key = "0123456789abcdef0123"
    monkeypatch.setenv("SERVERS_TOKEN", key)
    program = f"import sys; sys.exit({said.format(key)!r})"
    child = Child([sys.executable, "-c", program], log_file=tmp_path / "log", environ=dict(os.environ), name="server")
    with pytest.raises(ServeError, match="redacted") as raised:
        wait_until(lambda: False, child, within_s=60, every_s=0.02)
    assert key not in str(raised.value)
    assert "\x1b" not in str(raised.value)


def test_a_server_that_is_never_ready_is_stopped(tmp_path: Path):
    child = tree(tmp_path)
    processes = pids(tmp_path)
    with pytest.raises(ServeError, match="not ready after"):
        wait_until(lambda: False, child, within_s=0.1, every_s=0.02)
    assert not living(processes)


def test_a_program_that_does_not_exist_ends_at_once(tmp_path: Path):
    child = Child([str(tmp_path / "nothing")], log_file=tmp_path / "log", environ=dict(os.environ))
    wait_for(lambda: not child.alive)
    assert "No such file" in child.tail()


def test_a_taken_port_is_refused_with_its_owner():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert port_owner(port) == os.getpid()
        with pytest.raises(ConfigError, match=f"process {os.getpid()}"):
            check_port(port)
    check_port(free_port())


def test_memory_in_use_is_known():
    used = memory()
    assert 0 < used.system < 1 << 50
    assert used.gpu is None or used.gpu >= 0
