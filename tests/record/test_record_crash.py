"""A writer killed at any moment leaves whole iterations, and resuming it gives the record of a run that was never killed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import record_program
from record_program import LAST, check, resume

from onthejob.record import Run

PROGRAM = Path(record_program.__file__)


def program(*arguments: object, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, str(PROGRAM), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, env={**os.environ, "OMP_NUM_THREADS": "1"})


def test_killed_at_random_moments_and_resumed_equals_uninterrupted(memory_dir, counts):
    count = counts(20, 200)
    done = program("random", memory_dir, count)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["kills"] == count
    assert result["with_progress"] >= count // 10  # the kills fell among the commits, not before them


def test_killed_at_every_kind_of_disk_call(memory_dir, counts):
    done = program("grid", memory_dir, counts(29, 1))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["kills"] >= 25
    assert result["prefixes"] >= LAST + 1  # after nearly every number of iterations


STRACE = shutil.which("strace")


def injected(memory_dir: Path, call: str, action: str, when: int) -> subprocess.CompletedProcess[str]:
    """The writer with `action` injected at its `when`-th system call `call` below the run's folder."""
    trace = ("-P", str(memory_dir / "case"), "-P", str(memory_dir / "case" / "r" / "run.sqlite-wal"),
             "-P", str(memory_dir / "case" / "r" / "run.sqlite"))  # fmt: skip
    prefix = (
        str(STRACE),
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        *trace,
        "-e",
        f"trace={call}",
        "-e",
        f"inject={call}:{action}:when={when}",
    )
    return program("write", memory_dir / "case", LAST, prefix=prefix)


@pytest.mark.slow
@pytest.mark.skipif(STRACE is None, reason="needs strace")
@pytest.mark.parametrize("action", ["signal=SIGKILL", "error=ENOSPC", "error=EIO"])
@pytest.mark.parametrize("call", ["pwrite64", "fdatasync"])
def test_system_calls_of_the_database_killed_or_failing(memory_dir, call, action, counts):
    resume(memory_dir / "reference", LAST)
    fired = 0
    with Run.open(memory_dir / "reference" / "r", readonly=True) as reference:
        for when in range(1, 1000, counts(23 if call == "pwrite64" else 5, 1)):
            shutil.rmtree(memory_dir / "case", ignore_errors=True)
            done = injected(memory_dir, call, action, when)
            if done.returncode == 0:
                break
            fired += 1
            # Our own error with exit code 3, or the kill; never a traceback.
            assert done.returncode == 3 or (action.endswith("KILL") and done.returncode < 0), done.stderr
            if done.returncode == 3:
                assert "cannot" in done.stderr
            check(memory_dir / "case", reference)
            resume(memory_dir / "case", LAST)
            assert check(memory_dir / "case", reference) == LAST + 1
    assert fired >= 2
