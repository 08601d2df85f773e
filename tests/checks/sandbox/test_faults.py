"""The fault list, each fault tried for real, as this user and as an ordinary one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from checks.sandbox import ATTACKS, holding
from onthejob.envs.claw.sandbox.cgroups import candidates, limit
from onthejob.envs.claw.sandbox.faults import FAULTS, Fault, all_faults, try_one
from onthejob.envs.claw.sandbox.host import BwrapHost
from onthejob.envs.claw.sandbox.programs import PYTHONS

from .conftest import Copy, bring_bubblewrap, with_attacks

ORDINARY = 65534
LIST = """
import json, sys
from onthejob.envs.claw.sandbox.faults import all_faults, try_one
from onthejob.envs.claw.sandbox.host import BwrapHost
with BwrapHost() as host:
    chosen = [fault for fault in all_faults() if fault.number in map(int, sys.argv[1:])] or all_faults()
    outcomes = [[one.number, one.verdict, one.detail] for one in (try_one(host, fault) for fault in chosen)]
    print(json.dumps({"layers": host.report.layers, "outcomes": outcomes}))
"""

TAKE_AWAY = """
import json, sys
from onthejob.checkout import from_checks
from onthejob.envs.claw.sandbox.faults.bench import Bench
from onthejob.envs.claw.sandbox.host import BwrapHost
holding = from_checks("sandbox.holding", what="attacks")
with BwrapHost() as host, Bench(host) as bench:
    with bench.open({"steal.py": holding.THIEVES[sys.argv[1]].encode()}, grace_s=int(holding.LATE_S)) as sandbox:
        result = sandbox.run(f"{bench.python} -I steal.py", timeout_s=4)
print(json.dumps([result.timed_out, result.restarted, result.wall_s]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("fault", all_faults(), ids=lambda fault: f"{fault.number}-{fault.title.replace(' ', '-')}")
def test_the_sandbox_holds(host: BwrapHost, fault: Fault):
    outcome = try_one(host, fault)
    if outcome.verdict == "not tried":
        pytest.skip(outcome.detail)
    assert outcome.verdict == "held", outcome.detail


@pytest.mark.slow
@pytest.mark.parametrize("perl", [True, False], ids=["perl", "python"])
@pytest.mark.parametrize("kind", holding.THIEVES)
def test_a_time_limit_holds_while_output_is_taken_away(copy: Copy, kind: str, perl: bool):
    if not perl:
        copy.without_perl()
    done = copy.run(TAKE_AWAY, kind)
    assert done.returncode == 0, done.stderr
    timed_out, restarted, wall_s = json.loads(done.stdout)
    assert (timed_out, restarted) == (True, False)
    assert 4 <= wall_s < 4 + holding.LATE_S


def held_without_perl(copy: Copy, *numbers: int) -> list[str]:
    """Numbers and details of the faults that did not hold with process 1 in Python; of all, or of `numbers`."""
    copy.without_perl()
    done = copy.run(LIST, *map(str, numbers))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert any(layer[0] == "process 1" and layer[2].startswith("pid1.py ") for layer in found["layers"])
    assert len(found["outcomes"]) == (len(numbers) or len(all_faults()))
    return [f"{number}: {detail}" for number, verdict, detail in found["outcomes"] if verdict == "FAILED"]


def test_the_sandbox_holds_without_perl(copy: Copy):
    """What process 1 itself answers for: signals, the timeout, codes, forged answers, its memory, long commands, the shell."""
    assert held_without_perl(copy, 3, 15, 26, 27, 35, 40, 83, 85, 86) == []


@pytest.mark.slow
def test_the_whole_list_holds_without_perl(copy: Copy):
    assert held_without_perl(copy) == []


def test_all_forty_cases_of_the_list_are_there():
    numbers = [fault.number for fault in FAULTS]
    assert set(range(1, 41)) <= set(numbers), "these are in the package"
    every = [fault.number for fault in all_faults()]
    assert every == sorted({*numbers, *(attack.number for attack in ATTACKS)})
    assert len(every) == len(FAULTS) + len(ATTACKS)


@pytest.mark.parametrize("page", ["docs/claw.md", "CHANGELOG.md"])
def test_documents_say_how_many_faults_there_are(page: str, repository: Path):
    text = (repository / page).read_text(encoding="utf-8")
    assert re.findall(r"(\d+) faults", text) == [str(len(all_faults()))]


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
    checkout = Path("/tmp") / f"onthejob-test-{os.getpid()}"
    folder = with_attacks(checkout)
    package = Path(sys.modules["onthejob"].__file__ or "").parent
    shutil.copytree(package, folder / "onthejob", ignore=shutil.ignore_patterns("__pycache__"))
    try:
        for path in (checkout, *checkout.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        bring_bubblewrap(folder)
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
        shutil.rmtree(checkout)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    failed = [outcome for outcome in found["outcomes"] if outcome[1] == "FAILED"]
    assert not failed, failed
    assert len(found["outcomes"]) == len(all_faults())
