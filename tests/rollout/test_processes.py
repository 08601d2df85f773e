"""Worker processes end when the process that made them is killed: it has no chance to end them itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
from onthejob.commands.gates import Workers
workers = Workers(2)
done = iter(workers.__enter__()(time.sleep, [0.1, 0.1, 600, 600]))
next(done), next(done)
""",
    "sft": """
from onthejob.rollout.processes import message_queue, worker_pool
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


@pytest.mark.slow  # processes that import the package
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("kind", POOLS)
def test_no_worker_outlives_a_parent_that_is_killed(kind: str) -> None:
    program = f"import time\n{POOLS[kind]}\nprint('ready', flush=True)\ntime.sleep(600)"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ
    )
    children: set[int] = set()
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        children = descendants(parent.pid)
        assert len(children) >= 3, "two workers, and what multiprocessing keeps beside them"
        parent.kill()
        parent.wait(30)
        until = time.monotonic() + 30
        while left := {pid for pid in children if alive(pid)}:
            assert time.monotonic() < until, f"{len(left)} of {len(children)} processes live on"
            time.sleep(0.05)
    finally:
        parent.kill()
        for pid in filter(alive, children):
            os.kill(pid, signal.SIGKILL)
        parent.communicate(timeout=30)
