"""What commands inside a sandbox find besides the system's own programs: `python`, pytest and PyYAML.

Public tasks ask for `python -m pytest`, and their checks run it, while Debian's `/usr` has neither a `python` nor pytest. So the
named packages, and nothing else of this environment, are copied into a folder that all sandboxes of a host see read-only. They
run under the system's Python: of the version that this environment has, their compiled bytecode is used too.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from onthejob.envs.claw.sandbox.rootfs import MACHINE, find_program

RUN = "/run"
"""The folder inside that holds `bin` and `python`."""
DISTRIBUTIONS = ("pytest", "pluggy", "iniconfig", "packaging", "pygments", "pyyaml")
"""Packages that are copied: pytest with what it needs, and what checks of public tasks import. All run without compiled parts."""
PROBE_S = 60.0
"""Seconds that the system's Python may take to say what it can import."""
_PYTEST = "#!{run}/bin/python\nimport sys\nsys.path.append({packages!r})\nimport pytest\nsys.exit(pytest.main())\n"
_FIND = """
import importlib.util, json, os, sys
hidden = tuple(folder + os.sep for folder in json.loads(sys.argv[1]))
sys.path = [path for path in sys.path if not (os.path.realpath(path) + os.sep).startswith(hidden)]
print(*[name for name in sys.argv[2:] if importlib.util.find_spec(name)])
"""


class Source(NamedTuple):
    """One file or folder of a package on this machine."""

    folder: str
    name: str


def find_python(root: Path = MACHINE) -> str | None:
    """The system's Python as sandboxes see it, or None: one below a home folder is not visible there."""
    return find_program("python3", root)


def sources() -> list[Source]:
    """What is copied of `DISTRIBUTIONS`, as far as they are installed here."""
    # Only the using process has site-packages, and only it reads metadata.
    import importlib.metadata

    found: list[Source] = []
    for name in DISTRIBUTIONS:
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        tops = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
        found += [Source(str(distribution.locate_file("")), top) for top in sorted(tops)]
    return found


def open_folders(wanted: Iterable[Source]) -> dict[str, int]:
    """A descriptor of every folder in `wanted`: what is mounted over it later does not hide it."""
    return {folder: os.open(folder, os.O_RDONLY | os.O_DIRECTORY) for folder in {source.folder for source in wanted}}


def furnish(target: Path, wanted: Iterable[Source], folders: dict[str, int], *, python: str | None, run: str = RUN) -> None:
    """Make `bin` and `python` in `target`, readable by all users.

    Args:
        target: An existing folder.
        wanted: From `sources`.
        folders: From `open_folders`; closed here.
        python: From `find_python`.
        run: The path under which commands see `target`.

    Raises:
        OSError: Something cannot be read or written.
    """
    programs, packages = target / "bin", target / "python"
    try:
        for folder in (programs, packages):
            folder.mkdir(mode=0o755)
        for source in wanted:
            _copy(folders[source.folder], source.name, packages / source.name)
    finally:
        for descriptor in folders.values():
            os.close(descriptor)
    if python is not None:
        (programs / "python").symlink_to(python)
        if (packages / "pytest").is_dir():
            (programs / "pytest").write_text(_PYTEST.format(run=run, packages=f"{run}/python"), encoding="utf-8")
            (programs / "pytest").chmod(0o755)


def missing_programs(names: Iterable[str], *, provided: Collection[str], root: Path = MACHINE) -> set[str]:
    """Which of these programs commands inside do not find. `provided` are the names at the top of the copied packages."""
    own = {"python"} | ({"pytest"} & set(provided)) if find_python(root) else set()
    return {name for name in names if name not in own and find_program(name, root) is None}


def missing_modules(names: Collection[str], *, provided: Collection[str], hidden: Collection[str] = ()) -> set[str]:
    """Which of these top-level modules the Python inside cannot import; all of them where there is none."""
    rest, python = sorted(set(names) - set(provided)), find_python()
    if not rest or python is None:
        return set(rest if python else names)
    words = [python, "-I", "-c", _FIND, json.dumps([*hidden]), *rest]
    done = subprocess.run(words, cwd="/", env={}, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_S, check=True)
    return set(rest) - set(done.stdout.decode().split())


def _copy(folder: int, name: str, target: Path) -> None:
    """A file or a folder with all that is in it; times are kept, as bytecode is valid for a source of one time only."""
    status = os.stat(name, dir_fd=folder)
    if stat.S_ISDIR(status.st_mode):
        target.mkdir()
        target.chmod(0o755)
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
        try:
            with os.scandir(inner) as entries:
                for entry in entries:
                    _copy(inner, entry.name, target / entry.name)
        finally:
            os.close(inner)
    elif stat.S_ISREG(status.st_mode):
        with os.fdopen(os.open(name, os.O_RDONLY, dir_fd=folder), "rb") as file:
            target.write_bytes(file.read())
        target.chmod(0o644)
        os.utime(target, ns=(status.st_mtime_ns, status.st_mtime_ns))
