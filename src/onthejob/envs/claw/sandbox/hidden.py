"""What sandboxes may not see although it lies in a folder of the system, which they do see: the package and what goes with it.

Tasks, their gold commands and the checks are in this package or in folders next to it, and packages bring data for their own
tests. A container often has all of that below `/usr`. Empty folders are mounted there, once for all sandboxes of a host.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from onthejob.envs.claw.sandbox.programs import BASH, find_interpreters
from onthejob.envs.claw.sandbox.rootfs import MACHINE, inside
from onthejob.errors import ConfigError

SYSTEM = tuple(Path("/") / name for name in ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"))
"""Folders that every sandbox sees."""
SITES = ("site-packages", "dist-packages")
"""Names of folders into which packages are installed."""
TESTS = frozenset({"test", "tests", "testdata", "test_data", "_tests"})
"""Names of folders that hold what a package is tested with."""
LIBRARIES = ("ld-linux", "ld-musl", "libc.so", "libc-", "libc.musl")
"""How files begin that every program needs, among those that this process has mapped."""


def hidden_folders(data: Iterable[Path] = (), root: Path = MACHINE) -> list[str]:
    """Folders of the system to hide, none of them inside another.

    Hidden are the folder into which this package was installed (or the checkout that it is used from), other copies of it among
    the system's packages, the site-packages folder of this interpreter if it is another one, the working folder, `data`, and
    tests of other packages that this interpreter finds.

    Args:
        data: What the user named: tasks, their checks, runs.
        root: Root file system that sandboxes have; in another one than this machine's only copies of the package are looked for.

    Raises:
        ConfigError: One of `data` holds files that sandboxes need or lies in another root, or this package is in an archive.
    """
    package = Path(__file__).resolve().parents[3]
    if not package.is_dir():
        raise ConfigError(f"sandboxes need the files of onthejob, which is in the archive {package.parent}. Install it with pip.")
    if root != MACHINE:
        return _hidden_in(root, [*map(Path.resolve, data), package])
    needed = {*_needed()}
    found: set[Path] = set()
    for folder in map(Path.resolve, data):
        if not _can_go(folder, needed):
            raise ConfigError(f"{folder} holds tasks, which sandboxes may not see, and files that they need. Move the tasks.")
        found.add(folder)
    for name in (package, Path(__file__).absolute().parents[3]):
        found.update(map(Path.resolve, _homes(name)))
    found.update(_copies(package.name))
    found.update(folder for folder in _of_interpreter() if _can_go(folder, needed))
    found = {folder for folder in found if is_seen(folder)}
    found.update(_tests(found))
    return sorted(str(folder) for folder in found if folder.is_dir() and found.isdisjoint(folder.parents))


def _hidden_in(root: Path, private: Iterable[Path]) -> list[str]:
    """Copies of the package in another root file system, in which nothing of `private` may lie."""
    for folder in private:
        if folder.is_relative_to(root):
            raise ConfigError(f"{folder} lies in the root file system {root}, which sandboxes see. Move one of them.")
    return sorted({str(copy) for copy in _copies(__name__.partition(".")[0], root) if copy.is_dir()})


def is_seen(folder: Path) -> bool:
    """True when sandboxes would see it: it lies in a folder of the system."""
    return any(folder.is_relative_to(place.resolve()) for place in SYSTEM if place.exists())


def _can_go(folder: Path, needed: Iterable[Path]) -> bool:
    """False when something that sandboxes need lies in the folder."""
    return not any(file.is_relative_to(folder) for file in needed)


def _needed() -> Iterator[Path]:
    """Programs, the libraries of all programs, and Python's own library."""
    yield BASH.resolve()
    yield from (one.path.resolve() for one in find_interpreters())
    for place in map(Path, ("/usr", "/usr/local")):
        yield from (file.resolve() for file in place.glob("lib*/python3*/os.py"))
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        file = Path(line.partition("/")[2] and "/" + line.partition("/")[2])
        if file.name.startswith(LIBRARIES):
            yield file.resolve()


def _homes(package: Path) -> Iterator[Path]:
    """Where the package lies: the whole folder of installed packages, the whole checkout, or the package alone."""
    if package.parent.name in SITES:
        yield package.parent
    else:
        yield package
        yield from (parent for parent in package.parents if (parent / "pyproject.toml").is_file())


def _copies(name: str, root: Path = MACHINE) -> Iterator[Path]:
    """The package and what describes it once more, as other interpreters of the system have it."""
    for site in SITES:
        places = ["usr", "usr/local"]
        for pattern in ("lib*", "python3*", site, f"{name}*"):
            places = [f"{place}/{entry}" for place in places for entry in _entries(root, place) if fnmatchcase(entry, pattern)]
        yield from (copy for place in places if (copy := inside(root, place)) is not None)


def _entries(root: Path, path: str) -> list[str]:
    """Names in a folder of a root file system; none where it is no folder that can be read."""
    folder = inside(root, path)
    try:
        return [entry.name for entry in folder.iterdir()] if folder is not None else []
    except OSError:
        return []


def _of_interpreter() -> Iterator[Path]:
    """The folders of this interpreter's packages, to which an editable installation brings the required ones; the working one."""
    # Not of the small processes that start without site-packages, which never call this.
    import sysconfig

    yield from {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    try:
        yield Path.cwd().resolve()
    except FileNotFoundError:
        return


def _tests(hidden: Collection[Path]) -> Iterator[Path]:
    """Folders of tests among packages that this interpreter has from elsewhere, such as those of the distribution."""
    for site in {Path(name).resolve() for name in sys.path if name}:
        if site.name in SITES and is_seen(site) and not any(site.is_relative_to(folder) for folder in hidden):
            for folder, names, _ in os.walk(site):
                yield from (Path(folder) / name for name in names if name in TESTS)
                names[:] = [name for name in names if name not in TESTS]
