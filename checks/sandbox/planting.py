"""Files named like what an interpreter looks for by itself: modules, start-up files, options. None may ever run unasked.

What is planted says that it ran in every way it can: a line in a file inside, a connection to a port outside.
"""

from __future__ import annotations

import os
import re
import shlex

from onthejob.envs.claw.sandbox.faults.bench import Bench, check

RAN = "ran.log"
HOME = "/work"
PLACES = (HOME, "/tmp", "/dev/shm")
"""All that can be written inside."""

PERL = """
for my $folder (qw(PLACES)) { open(LOG, '>>', "$folder/RAN") and print LOG __FILE__ . "\\n"; close LOG }
socket(OUT, 2, 1, 0) and connect(OUT, pack('S n C4 x8', 2, PORT, 127, 0, 0, 1));
1;
"""
PYTHON = """
for folder in "PLACES".split():
    try:
        open(folder + "/RAN", "a").write(__file__ + chr(10))
    except OSError:
        pass
try:
    import _socket
    _socket.socket(2, 1).connect(("127.0.0.1", PORT))
except OSError:
    pass
print('{"a": 1}')
raise SystemExit
"""
SHELL = """
for folder in PLACES; do echo "$BASH_SOURCE" >> $folder/RAN; done
exec 3<> /dev/tcp/127.0.0.1/PORT
"""

# Process 1 uses `strict` alone; the rest is what it might come to use, and what Perl loads for -d, -M and its encodings.
PERL_NAMES = """
strict.pm warnings.pm POSIX.pm Config.pm Config_heavy.pl Socket.pm Errno.pm Fcntl.pm IO/Handle.pm IO/Select.pm lib.pm vars.pm
utf8.pm utf8_heavy.pl overload.pm Carp.pm Exporter.pm XSLoader.pm DynaLoader.pm feature.pm integer.pm bytes.pm Devel/Trace.pm
planted.pm perl5db.pl .perldb sitecustomize.pl lib/strict.pm lib/perl5/strict.pm pid1.pl
"""
# What the process that starts sandboxes, graders, and the programs of graders import; and what Python or pytest load unasked.
PYTHON_NAMES = """
json.py os.py select.py resource.py signal.py socket.py array.py contextlib.py shutil.py subprocess.py dataclasses.py typing.py
pathlib.py encodings/__init__.py _signal.py ctypes/__init__.py hashlib.py stat.py re.py csv.py math.py onthejob/__init__.py
onthejob.py sitecustomize.py usercustomize.py conftest.py check.py __main__.py .pythonrc.py
"""
SHELL_NAMES = ".bashrc .bash_profile .bash_login .bash_logout .profile .bash_env .inputrc bash sh env perl python3 bwrap"
OPTION_NAMES = "-Mplanted -mplanted -d -d:Trace -e -E -I. -S -i -x -- -"
"""Names that are options to a program which is given them without `--`."""

EXPORTS = {
    "PERL5LIB": f"{HOME}:/tmp",
    "PERLLIB": f"{HOME}:/tmp",
    "PERL5OPT": f"-I{HOME} -Mplanted",
    "PERL5DB": f"BEGIN {{ do '{HOME}/.perldb' }}",
    "PERL_USE_UNSAFE_INC": "1",
    "PYTHONPATH": f"{HOME}:/tmp",
    "PYTHONSTARTUP": f"{HOME}/.pythonrc.py",
    "BASH_ENV": f"{HOME}/.bash_env",
    "ENV": f"{HOME}/.bash_env",
    "PATH": f"{HOME}:/tmp:/usr/bin:/bin",
}
"""What a command may set for itself, and must not set for the next one or for process 1."""
SEARCHED = {"PATH", "PYTHONPATH"}
"""Those of `EXPORTS` that every command is given: lists of folders, in none of which anything inside can write."""


def planted(port: int) -> dict[str, bytes]:
    """Path -> content of everything that is planted.

    Args:
        port: of 127.0.0.1, where a connection would show that something ran outside.
    """
    known = {"PLACES": " ".join(PLACES), "RAN": RAN, "PORT": str(port)}
    perl, python, shell = (
        re.sub("PLACES|RAN|PORT", lambda word: known[word[0]], text).encode() for text in (PERL, PYTHON, SHELL)
    )
    kinds = {PERL_NAMES: perl, PYTHON_NAMES: python, SHELL_NAMES: b"#!/bin/bash" + shell, OPTION_NAMES: perl}
    return {name: content for names, content in kinds.items() for name in names.split()}


def is_writable(folder: str) -> bool:
    """True for a folder that a command may write to; one that is no full path begins where the command runs."""
    return not folder.startswith("/") or any(f"{folder}/".startswith(f"{place}/") for place in PLACES)


def shadow_modules(bench: Bench) -> None:
    """65: nothing planted runs: not in process 1, when it starts again, for the next command, or outside."""
    sandbox = bench.open(planted(bench.port))
    exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in EXPORTS.items())
    copies = "; ".join(f"cp -r {HOME}/. {place}" for place in PLACES[1:])
    result = bench.run(sandbox, f"chmod +x {SHELL_NAMES}; {copies}; export {exports}; true")
    check(result.exit_code == 0, f"planting failed: {result}")
    look = f"env; cat {' '.join(f'{place}/{RAN}' for place in PLACES)} 2> /dev/null"
    # A long command goes through a file, which another start of bash reads.
    commands = (look, f": '{'x' * 200_000}'; {look}")

    def unharmed(when: str) -> None:
        for command in commands:
            said = bench.run(sandbox, command).stdout.decode("utf-8", "replace")
            found = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
            ran = sorted({line for line in said.splitlines() if "=" not in line})
            check(not ran, f"planted files ran {when}: {', '.join(ran)}")
            set_too = found.keys() & (EXPORTS.keys() - SEARCHED)
            check(not set_too, f"variables of an earlier command are set {when}: {sorted(set_too)}")
            open_to_all = {name for name in SEARCHED if any(map(is_writable, found.get(name, "").split(":")))}
            check(not open_to_all, f"variables name folders that can be written {when}: {sorted(open_to_all)}")

    unharmed("for the next command")
    os.kill(sandbox.pid, 9)
    check(bench.run(sandbox, "true").restarted, "a killed sandbox was not restarted")
    unharmed("when process 1 started again")
    # Others of the same host, and the end: processes outside that have this workspace in their hands.
    check(bench.run(bench.open(), "echo on").stdout == b"on\n", "another sandbox does not work")
    check(not (sandbox.collect() / RAN).exists(), "planted files ran when the workspace was collected")
    check(not bench.was_reached(), "something planted ran outside, or reached it")
