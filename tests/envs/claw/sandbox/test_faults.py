"""The fault list, each fault tried for real, as this user and as an ordinary one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from onthejob.envs.claw.sandbox.cgroups import candidates, limit
from onthejob.envs.claw.sandbox.faults import FAULTS, Fault, try_one
from onthejob.envs.claw.sandbox.faults.bench import PYTHONS
from onthejob.envs.claw.sandbox.host import BwrapHost

ORDINARY = 65534
LIST = """
import json, sys
from onthejob.envs.claw.sandbox.faults import try_all
from onthejob.envs.claw.sandbox.host import BwrapHost
with BwrapHost() as host:
    outcomes = [[outcome.number, outcome.verdict, outcome.detail] for outcome in try_all(host)]
    print(json.dumps({"layers": host.report.layers, "outcomes": outcomes}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.number}-{fault.title.replace(' ', '-')}")
def test_the_sandbox_holds(host: BwrapHost, fault: Fault):
    outcome = try_one(host, fault)
    if outcome.verdict == "not tried":
        pytest.skip(outcome.detail)
    assert outcome.verdict == "held", outcome.detail


def test_all_forty_cases_of_the_list_are_there():
    numbers = [fault.number for fault in FAULTS]
    assert set(range(1, 41)) <= set(numbers)
    assert len(set(numbers)) == len(numbers)


@pytest.fixture
def protected() -> Iterator[Path]:
    """A process group limit around everything that the ordinary user starts: its own sandboxes may have none."""
    for _, folder in candidates("pids"):
        group = folder / f"onthejob-test-{os.getpid()}"
        try:
            group.mkdir()
            limit(group / "pids.max", 300)
        except OSError:
            continue
        # Delegated, so that the ordinary user's host can make groups of its own inside.
        os.chown(group, ORDINARY, ORDINARY)
        os.chown(group / "cgroup.procs", ORDINARY, ORDINARY)
        yield group
        group.rmdir()
        return
    pytest.skip("no pids cgroup can be made here, and the list holds a fork bomb")


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="the tests run as an ordinary user already")
def test_the_sandbox_holds_for_an_ordinary_user_too(protected: Path):
    python = next(name for name in PYTHONS if Path(name).is_file())
    new = subprocess.run([str(python), "-c", "import sys; sys.exit(sys.version_info < (3, 11))"], check=False, timeout=60)
    if new.returncode:
        pytest.skip(f"{python} is older than Python 3.11, and an ordinary user may not read this one")
    # Root's folders are closed to others: a copy of the package that everyone can read.
    folder = Path("/tmp") / f"onthejob-test-{os.getpid()}"
    package = Path(sys.modules["onthejob"].__file__ or "").parent
    shutil.copytree(package, folder / "onthejob", ignore=shutil.ignore_patterns("__pycache__"))
    try:
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        enter = f"echo 0 > {protected}/cgroup.procs && cd / && exec setpriv --reuid {ORDINARY} --regid {ORDINARY} --clear-groups"
        done = subprocess.run(
            ["bash", "-c", f'{enter} {python} -s -c "$0"', LIST],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=840,
            check=False,
        )
    finally:
        shutil.rmtree(folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    failed = [outcome for outcome in found["outcomes"] if outcome[1] == "FAILED"]
    assert not failed, failed
    assert len(found["outcomes"]) == len(FAULTS)
