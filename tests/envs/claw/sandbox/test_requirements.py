"""What sandboxes need is named where it is missing: by `onthejob doctor`, by `make test`, and by the error."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import onthejob
from onthejob.envs.claw.sandbox.requirements import find_bwrap, find_perl, requirements

SOURCE = Path(onthejob.__file__).parent.parent
LIBRARIES = ("/usr/lib*/libseccomp.so.2*", "/usr/lib/*/libseccomp.so.2*")
FILES = {
    "bubblewrap": [str(find_bwrap())],
    "libseccomp2": [path for pattern in LIBRARIES for path in glob.glob(pattern)],  # noqa: PTH207 - absolute patterns
    "perl": [str(find_perl())],
}
ASK = """
from onthejob.commands.doctor import sandboxes
from onthejob.envs.claw.sandbox.host import BwrapHost
from onthejob.errors import SandboxError
for finding in sandboxes():
    print(finding.name, finding.value)
try:
    with BwrapHost():
        print("opened")
except SandboxError as error:
    print(error)
"""


def without(package: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program where the package's files are empty and cannot be executed; nothing changes outside."""
    hidden = [f"/{Path(path).resolve().relative_to('/')}" for path in FILES.get(package, [])]
    masks = [word for path in sorted(set(hidden)) for word in ("--ro-bind", "/dev/null", path)]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [str(find_bwrap()), "--dev-bind", "/", "/", *masks, "--", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


def test_all_is_found_here():
    assert [(one.package, bool(one.found)) for one in requirements()] == [(name, True) for name in FILES]


@pytest.mark.parametrize("package", FILES)
def test_a_missing_package_is_named_by_the_doctor_and_the_error(package: str):
    done = without(package, sys.executable, "-s", "-c", ASK)
    assert done.returncode == 0, done.stderr
    *findings, said = done.stdout.splitlines()
    missing = [line.split()[0] for line in findings if f"not installed (the claw needs it: apt-get install {package})" in line]
    assert (missing, len(findings)) == ([package], len(FILES))
    assert "apt-get install" in said
    assert package in said


@pytest.mark.parametrize("package", ["nothing", *FILES])
def test_make_test_names_a_missing_package_before_it_starts(package: str, repository: Path):
    make = shutil.which("make")
    if make is None or not (repository / "Makefile").is_file():
        pytest.skip("no make, or no source tree")
    done = without(package, make, "-C", str(repository), "--no-print-directory", f"PYTHON={sys.executable}", "packages")
    if package == "nothing":
        assert (done.returncode, done.stdout) == (0, "")
    else:
        assert done.returncode == 2
        assert done.stdout.endswith(f"\n    sudo apt-get install {package}\n")
    # It comes first: nothing is downloaded in vain.
    plan = subprocess.run([make, "-C", str(repository), "-n", "test"], capture_output=True, text=True, timeout=60, check=True)
    assert plan.stdout.index(".ci/sandbox-packages") < plan.stdout.index("-m pytest")
