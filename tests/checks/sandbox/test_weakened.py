"""Faults that must be noticed: each check is tried on a copy of the sandbox from which one precaution was taken."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from checks.sandbox.planting import HOME, PLACES, RAN, planted
from onthejob.envs.claw.sandbox.programs import PERLS, executables

from .conftest import Copy

TRY = """
import json, sys
from onthejob.envs.claw.sandbox.faults import all_faults, try_one
from onthejob.envs.claw.sandbox.host import BwrapHost
with BwrapHost() as host:
    outcome = try_one(host, next(fault for fault in all_faults() if fault.number == int(sys.argv[1])))
print(json.dumps([outcome.verdict, outcome.detail]))
"""


class Weakness(NamedTuple):
    """One precaution that a copy lacks, and what the fault's check must name."""

    fault: int
    file: str
    old: str
    new: str
    noticed: str
    perl: bool = True
    """False: process 1 is written in Python."""


EMPTY = "os.execve(self._ground.bwrap, words, {})"


def passing_on(environment: str, noticed: str) -> Weakness:
    """A broker that gives process 1 an environment."""
    return Weakness(65, "lifetime.py", EMPTY, EMPTY.replace("{}", environment), noticed)


DEBUGGER = f"""{{"PERL5OPT": "-d", "PERL5DB": "sub DB::DB {{}} BEGIN {{ do '{HOME}/.perldb' }}"}}"""
VARIABLE, SETTING = "TERM => 'dumb',", '"TERM": "dumb",'
# Whether process 1 meets what is planted at its first start or at a later one is a race with the files being written.
WEAKNESSES = {
    "PERL5LIB": passing_on(f'{{"PERL5LIB": "{HOME}"}}', f"{HOME}/strict.pm"),
    "PERL5OPT": passing_on(f'{{"PERL5OPT": "-I{HOME}"}}', f"{HOME}/strict.pm"),
    "PERL5DB": passing_on(DEBUGGER, f"{HOME}/.perldb"),
    "BASH_ENV": Weakness(65, "pid1.pl", VARIABLE, f"{VARIABLE} BASH_ENV => '{HOME}/.bash_env',", f"{HOME}/.bash_env"),
    "PATH": Weakness(65, "pid1.pl", "PATH => '/run/bin", f"PATH => '{HOME}:/run/bin", f"{HOME}/env"),
    "PYTHONPATH": Weakness(65, "pid1.pl", "PYTHONPATH => '/run", f"PYTHONPATH => '{HOME}:/run", "['PYTHONPATH']"),
    "reaping": Weakness(71, "pid1.pl", "waitpid(-1, $WNOHANG)", "waitpid($shell->{pid}, $WNOHANG)", "of 288 orphans"),
    "readable": Weakness(35, "ground.py", "copy.chmod(0o111)", "copy.chmod(0o555)", "opened"),
    "priorities": Weakness(74, "seccomp.py", "in OF_OTHERS.items():", "in ():", "process 1 was reached"),
    "limits of others": Weakness(
        74, "seccomp.py", "own_limit, not_permitted))", "own_limit, own_limit))", "process 1 was reached"
    ),
    "segments": Weakness(75, "seccomp.py", "found |= dict.fromkeys(ABSENT", "dict.fromkeys(ABSENT", "made: "),
    "core files": Weakness(
        76, "seccomp.py", "((RLIMIT_CORE,), PRETEND, ALLOW))\n    set", "((), PRETEND, ALLOW))\n    set", "limits of"
    ),
    "watching": Weakness(80, "seccomp.py", "one_of(WATCHING, refuse(errno.EINVAL), ALLOW)", "ALLOW", "was watched"),
    "newer calls": Weakness(
        81, "seccomp.py", "if processor.is_judged(number) else refuse(errno.ENOSYS)", "if True else KILL", "was let pass"
    ),
    "standing still": Weakness(86, "pid1.pl", "kill $SIGSTOP, -1;", "", "ran between two commands"),
    "words": Weakness(85, "pid1.pl", "\\Q$shell->{word}\\E", "\\w+", "gave CommandResult"),
    "signals": Weakness(77, "lifetime.py", "SIGNALS = 1_024", "SIGNALS = 5_000", "queued"),
    "python BASH_ENV": Weakness(
        65, "pid1.py", SETTING, f'{SETTING} "BASH_ENV": "{HOME}/.bash_env",', f"{HOME}/.bash_env", perl=False
    ),
    "python PATH": Weakness(65, "pid1.py", '"PATH": "/run/bin', f'"PATH": "{HOME}:/run/bin', f"{HOME}/env", perl=False),
    "python PYTHONPATH": Weakness(
        65, "pid1.py", '"PYTHONPATH": "/run', f'"PYTHONPATH": "{HOME}:/run', "['PYTHONPATH']", perl=False
    ),
    "python reaping": Weakness(
        71, "pid1.py", "os.waitpid(-1, os.WNOHANG)", "os.waitpid(shell.pid, os.WNOHANG)", "of 288 orphans", perl=False
    ),
    "python readable": Weakness(35, "ground.py", "copy.chmod(0o111)", "copy.chmod(0o555)", "opened", perl=False),
    "python interrupts": Weakness(3, "pid1.py", "        default_signals()", "        pass", "the sandbox died", perl=False),
}


def tried(copy: Copy, fault: int) -> tuple[str, str]:
    """Verdict and detail of a fault on the copy."""
    done = copy.run(TRY, str(fault))
    if done.returncode != 0:
        return "FAILED", done.stderr.strip().splitlines()[-1]
    verdict, detail = json.loads(done.stdout)
    return verdict, detail


@pytest.mark.parametrize("name", WEAKNESSES)
def test_a_missing_precaution_is_noticed(copy: Copy, name: str):
    weakness = WEAKNESSES[name]
    if not weakness.perl:
        copy.without_perl()
    copy.change(weakness.file, weakness.old, weakness.new)
    verdict, detail = tried(copy, weakness.fault)
    assert verdict == "FAILED"
    assert weakness.noticed in detail


@pytest.mark.parametrize("fault", sorted({weakness.fault for weakness in WEAKNESSES.values()}))
def test_the_whole_copy_holds(copy: Copy, fault: int):
    """So that it is the precaution, not the copy, that makes the difference."""
    assert tried(copy, fault) == ("held", "")


@pytest.mark.parametrize(
    ("interpreter", "name"),
    [*((str(perl), "strict.pm") for perl in executables(PERLS[:1])), (sys.executable, "json.py"), ("/bin/bash", ".bashrc")],
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
