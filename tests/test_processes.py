"""Worker processes end when the process that made them is killed: it has no chance to end them itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from onthejob.processes import worker_pool

POOLS = {
    "branches": """
from onthejob.rollout.branch import BranchJob, BranchScorer
from onthejob.testing import ToyWorkplace, toy_tasks
env = ToyWorkplace()
env.reset(toy_tasks(1)[0])
job = BranchJob(snapshot=env.snapshot(), reply="x", worlds=(1,), turns=2)
scorer = BranchScorer(ToyWorkplace, workers=2)
scorer.run([job] * 4)
""",
    "gates": """
from checks.commands.gates import Workers
workers = Workers(2)
done = iter(workers.__enter__()(time.sleep, [0.1, 0.1, 600, 600]))
next(done), next(done)
""",
    "sft": """
from onthejob.processes import message_queue, worker_pool
queue, pool = message_queue(), worker_pool(2)
said = queue.__enter__()
[pool.submit(said.put, "hello") for _ in range(2)]
said.get(), said.get()
pool.submit(time.sleep, 600)
""",
}
"""Pool -> a program that has it at work, or waiting for work."""


def descendants(pid: int) -> set[int]:
    """Living processes below `pid`."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # It ended meanwhile.
        if state != "Z":
            parents[int(stat.parent.name)] = int(parent)
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= more
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


WITHIN_S = 60.0
"""Generous, because the tests run on all cores: idle machines need some 30 ms. Without a watch a worker stays for `FOREVER_S`."""
FOREVER_S = 600


@contextmanager
def started(program: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A program that says when it is ready; all of its processes are gone afterwards."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(folder)]), "TMPDIR": str(folder / "temporary")}
    (folder / "temporary").mkdir()
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ
    )
    try:
        yield parent
    finally:
        left = descendants(parent.pid)
        for pid in (parent.pid, *left):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        parent.communicate(timeout=30)


def gone_after_kill(parent: subprocess.Popen[str], children: set[int], within_s: float) -> None:
    """Kill the parent; its children must end in time."""
    parent.kill()
    parent.wait(30)
    until = time.monotonic() + within_s
    while left := {pid for pid in children if alive(pid)}:
        if time.monotonic() > until:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            pytest.fail(f"{len(left)} of {len(children)} processes live on after {within_s:g} s")
        time.sleep(0.02)


@pytest.mark.slow  # processes that import the package
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("kind", POOLS)
def test_no_worker_outlives_a_parent_that_is_killed(kind: str, tmp_path: Path) -> None:
    program = f"import time\n{POOLS[kind]}\nprint('ready', flush=True)\ntime.sleep(600)"
    with started(program, tmp_path) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        children = descendants(parent.pid)
        assert len(children) >= 3, "two workers, and what multiprocessing keeps beside them"
        gone_after_kill(parent, children, within_s=WITHIN_S)
        assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.slow  # processes that import the package
def test_a_queue_works_below_a_deep_temporary_folder(tmp_path: Path) -> None:
    """The path of a Unix socket has at most 107 bytes."""
    deep = tmp_path / ("deep" * 40)
    deep.mkdir()
    with started(f"import time\n{POOLS['sft']}\nprint('ready', flush=True)\ntime.sleep(600)", deep) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        assert list((deep / "temporary").iterdir()) == []


BUSY = {
    "waits": "time.sleep({forever})",
    "computes": "while True: pass",
    "holds Python's lock": "ctypes.PyDLL(None).sleep({forever})",
    "ignores signals": "[signal.signal(number, signal.SIG_IGN) for number in (1, 2, 15, 29)], time.sleep({forever})",
    "has threads": "[threading.Thread(target=time.sleep, args=({forever},)).start() for _ in range(3)], time.sleep({forever})",
    "has replaced its output": "os.close(0), os.close(2), time.sleep({forever})",
}
"""What a worker does -> while it imports its work."""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("busy", BUSY)
def test_a_worker_that_is_still_importing_ends_too(busy: str, tmp_path: Path) -> None:
    (tmp_path / "slow_to_import.py").write_text(
        "import ctypes, multiprocessing, os, signal, threading, time\n"
        "if multiprocessing.parent_process():\n"
        "    os.write(1, b'importing\\n')\n"
        f"    {BUSY[busy].format(forever=FOREVER_S)}\n"
        "def work(): pass\n"
    )
    program = (
        "import time, slow_to_import\n"
        "from onthejob.processes import worker_pool\n"
        "pool = worker_pool(2)\n"
        "[pool.submit(slow_to_import.work) for _ in range(2)]\n"
        f"time.sleep({FOREVER_S})"
    )
    with started(program, tmp_path) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "importing\n"
        assert parent.stdout.readline() == "importing\n"
        gone_after_kill(parent, descendants(parent.pid), within_s=WITHIN_S)
        assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.slow
def test_workers_outlive_the_thread_that_made_them() -> None:
    with worker_pool(2) as pool:
        made = threading.Thread(target=lambda: [pool.submit(os.getpid).result(), pool.submit(os.getpid).result()])
        made.start()
        made.join()
        assert pool.submit(abs, -1).result() == 1


def test_watching_begins_before_anything_large_is_imported() -> None:
    program = (
        "import sys, onthejob.processes\n"
        "print(sorted({'numpy', 'torch', 'onthejob.rollout', 'pydantic', 'rich'} & sys.modules.keys()))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert said.stdout == "[]\n"
