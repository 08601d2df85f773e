"""Faults that must be noticed: each check is tried on a copy of the sandbox from which one precaution was taken."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import onthejob
from onthejob.envs.claw.sandbox.arguments import find_perl
from onthejob.envs.claw.sandbox.faults.planting import PLACES, RAN, planted

PACKAGE = Path(onthejob.__file__).parent
TRY = """
import json, sys
from onthejob.envs.claw.sandbox.faults import FAULTS, try_one
from onthejob.envs.claw.sandbox.host import BwrapHost
with BwrapHost() as host:
    outcome = try_one(host, next(fault for fault in FAULTS if fault.number == int(sys.argv[1])))
print(json.dumps([outcome.verdict, outcome.detail]))
"""


class Weakness(NamedTuple):
    """One precaution that a copy lacks, and what the fault's check must name."""

    fault: int
    file: str
    old: str
    new: str
    noticed: str


EMPTY = "os.execve(self._bwrap, words, {})"


def passing_on(environment: str, noticed: str) -> Weakness:
    """A broker that gives process 1 an environment."""
    return Weakness(65, "broker.py", EMPTY, EMPTY.replace("{}", environment), noticed)


WEAKNESSES = {
    "PERL5LIB": passing_on('{"PERL5LIB": "/work"}', "/work/strict.pm"),
    "PERL5OPT": passing_on('{"PERL5OPT": "-I/work"}', "/work/strict.pm"),
    "PERL5DB": passing_on("""{"PERL5OPT": "-d", "PERL5DB": "sub DB::DB {} BEGIN { do '/work/.perldb' }"}""", "/work/.perldb"),
    "BASH_ENV": Weakness(65, "pid1.pl", "TERM => 'dumb',", "TERM => 'dumb', BASH_ENV => '/work/.bash_env',", "/work/.bash_env"),
    "PATH": Weakness(65, "pid1.pl", "PATH => '/usr/local", "PATH => '/work:/usr/local", "/work/env"),
    "reaping": Weakness(71, "pid1.pl", "waitpid(-1, $WNOHANG)", "waitpid($shell, $WNOHANG)", "of 288 orphans"),
    "reaping at the end": Weakness(71, "pid1.pl", "1 while waitpid(-1, 0) > 0;", "", "processes"),
}


def tried(folder: Path, fault: int) -> tuple[str, str]:
    """Verdict and detail of a fault on the copy in `folder`."""
    words = [sys.executable, "-s", "-c", TRY, str(fault)]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode != 0:
        return "FAILED", done.stderr.strip().splitlines()[-1]
    verdict, detail = json.loads(done.stdout)
    return verdict, detail


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package's part that a sandbox needs; returns the folder for PYTHONPATH."""
    for path in (*PACKAGE.glob("*.py"), *(PACKAGE / "envs/claw/sandbox").rglob("*.p[yl]")):
        target = tmp_path / "onthejob" / path.relative_to(PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    for name in ("envs", "envs/claw"):
        shutil.copyfile(PACKAGE / name / "__init__.py", tmp_path / "onthejob" / name / "__init__.py")
    return tmp_path


@pytest.mark.parametrize("name", WEAKNESSES)
def test_a_missing_precaution_is_noticed(copy: Path, name: str):
    weakness = WEAKNESSES[name]
    file = copy / "onthejob/envs/claw/sandbox" / weakness.file
    text = file.read_text(encoding="utf-8")
    assert text.count(weakness.old) == 1, f"{weakness.file} no longer holds {weakness.old!r}"
    file.write_text(text.replace(weakness.old, weakness.new), encoding="utf-8")
    verdict, detail = tried(copy, weakness.fault)
    assert verdict == "FAILED"
    assert weakness.noticed in detail


@pytest.mark.parametrize("fault", sorted({weakness.fault for weakness in WEAKNESSES.values()}))
def test_the_whole_copy_holds(copy: Path, fault: int):
    """So that it is the precaution, not the copy, that makes the difference."""
    assert tried(copy, fault) == ("held", "")


@pytest.mark.parametrize(
    ("interpreter", "name"), [(str(find_perl()), "strict.pm"), (sys.executable, "json.py"), ("/bin/bash", ".bashrc")]
)
def test_what_is_planted_tells_when_it_runs(tmp_path: Path, interpreter: str, name: str):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        content = planted(listener.getsockname()[1])[name]
        # Here it runs outside, where it may write into this folder only.
        assert content.count(" ".join(PLACES).encode()) == 1
        (tmp_path / name).write_bytes(content.replace(" ".join(PLACES).encode(), bytes(tmp_path)))
        subprocess.run([interpreter, str(tmp_path / name)], stdout=subprocess.DEVNULL, timeout=60, check=True)
        listener.accept()[0].close()
    assert (tmp_path / RAN).read_text(encoding="utf-8") == f"{tmp_path / name}\n"
