"""Which packages of an image sandboxes have: those that apt or pip would install and that their system has anyway.

Nothing is installed. A package of apt is here when dpkg says so, or when all of its programs are. A package of pip is here when
the Python of the sandboxes can import it, in whatever version. Of a root file system that stands for this machine's nothing is
run to find that out.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from onthejob.envs.claw.sandbox.hidden import hidden_folders
from onthejob.envs.claw.sandbox.inside import PROBE_S, find_python, missing_programs, sources
from onthejob.envs.claw.sandbox.requirements import check_rootfs
from onthejob.envs.claw.sandbox.rootfs import MACHINE, inside
from onthejob.envs.harbor.refusal import words_of

DPKG = "var/lib/dpkg/status"
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "coreutils": ("ls", "sort"), "bash": ("bash",), "grep": ("grep",), "sed": ("sed",), "gawk": ("gawk",), "mawk": ("mawk",),
    "findutils": ("find", "xargs"), "diffutils": ("diff", "cmp"), "tar": ("tar",), "gzip": ("gzip",), "bzip2": ("bzip2",),
    "xz-utils": ("xz",), "zip": ("zip",), "unzip": ("unzip",), "p7zip-full": ("7z",), "jq": ("jq",), "bc": ("bc",),
    "git": ("git",), "curl": ("curl",), "wget": ("wget",), "file": ("file",), "tree": ("tree",), "vim": ("vim",),
    "nano": ("nano",), "less": ("less",), "procps": ("ps",), "psmisc": ("killall",), "perl": ("perl",), "python3": ("python3",),
    "python3-minimal": ("python3",), "python3-pip": ("pip3",), "python3-venv": ("python3",), "python3-pytest": ("pytest",),
    "python-is-python3": ("python",), "build-essential": ("gcc", "g++", "make"), "gcc": ("gcc",), "g++": ("g++",),
    "make": ("make",), "cmake": ("cmake",), "sqlite3": ("sqlite3",), "openssl": ("openssl",), "tmux": ("tmux",),
    "asciinema": ("asciinema",), "sudo": ("sudo",), "util-linux": ("script",), "bsdmainutils": ("column",),
    "hostname": ("hostname",), "rsync": ("rsync",), "dos2unix": ("dos2unix",), "xxd": ("xxd",), "patch": ("patch",),
    "moreutils": ("sponge",), "nodejs": ("node",), "npm": ("npm",), "golang": ("go",), "golang-go": ("go",), "rustc": ("rustc",),
    "cargo": ("cargo",), "default-jdk": ("javac",), "openjdk-17-jdk": ("javac",), "ruby": ("ruby",), "php": ("php",),
    "php-cli": ("php",),
}  # fmt: skip
"""Package of Debian and Ubuntu -> its programs, for machines without dpkg or where a program was installed otherwise."""
NOT_MISSED = words_of(
    "ca-certificates apt-utils locales tzdata gnupg software-properties-common tmux asciinema apt-transport-https "
    "lsb-release man-db curl wget sudo vim nano less"
)
"""Packages of the agent's own harness or of the network, which are of no use here; whether a task needs them shows when its
solution is run."""
COMPILERS = words_of(
    "build-essential gcc g++ clang make cmake golang golang-go rustc cargo default-jdk gfortran nodejs npm ninja-build gdb "
    "llvm nasm autoconf automake libtool"
)
MODULES: Mapping[str, str] = {
    "pyyaml": "yaml", "scikit-learn": "sklearn", "beautifulsoup4": "bs4", "pillow": "PIL", "opencv-python": "cv2",
    "opencv-python-headless": "cv2", "python-dateutil": "dateutil", "python-dotenv": "dotenv", "msgpack-python": "msgpack",
    "pycryptodome": "Crypto", "attrs": "attr", "gitpython": "git", "psycopg2-binary": "psycopg2", "pyjwt": "jwt",
    "protobuf": "google.protobuf", "grpcio": "grpc", "python-docx": "docx", "pymupdf": "fitz", "scikit-image": "skimage",
}  # fmt: skip
"""Package of PyPI -> its module, where the names differ."""
HARNESS = frozenset({"pip", "setuptools", "wheel", "uv", "pytest-json-ctrf", "pytest-ctrf"})
"""Packages of PyPI that only install others or report for other harnesses."""
_LIST = """
import json, os, pkgutil, sys
hidden = tuple(folder + os.sep for folder in json.loads(sys.argv[1]))
sys.path = [path for path in sys.path if not (os.path.realpath(path) + os.sep).startswith(hidden)]
print(*sys.stdlib_module_names, *sorted({module.name for module in pkgutil.iter_modules()}))
"""


def package_name(requirement: str) -> str:
    """Name of what pip is asked for, in lower case with hyphens."""
    return re.split(r"[\s<>=!~;\[@]", requirement.strip(), maxsplit=1)[0].lower().replace("_", "-")


def module_of(package: str) -> str:
    """Top-level module of a package of PyPI."""
    return MODULES.get(package, package.replace("-", "_")).split(".")[0]


@dataclass(frozen=True, slots=True)
class System:
    """What stands for the base of a task's image."""

    root: Path = MACHINE
    """This machine's root, or another root file system (`check_rootfs`)."""

    def lacks_program(self, name: str) -> bool:
        """True when commands inside do not find a program."""
        return _lacks_program(name, self.root)

    def lacks_module(self, name: str) -> bool:
        """True when the Python inside cannot import a top-level module."""
        return name not in _modules(self.root)

    def is_safe(self) -> bool:
        """Whether the Python inside, if any, has a way not to import from the working folder (PYTHONSAFEPATH, since 3.11)."""
        return find_python(self.root) is None or not self.lacks_module("tomllib")

    def missing_apt(self, packages: Iterable[str]) -> list[str]:
        """Packages that sandboxes do not have."""
        found = []
        for package in packages:
            name = re.split(r"[=:/]", package)[0]
            here = name in NOT_MISSED or name in installed(inside(self.root, DPKG))
            if not here and name in PROGRAMS:
                here = not any(map(self.lacks_program, PROGRAMS[name]))
            if not here and name.startswith("python3-"):
                here = not self.lacks_module(module_of(name.removeprefix("python3-")))
            if not here:
                found.append(name)
        return found

    def missing_pip(self, requirements: Iterable[str]) -> list[str]:
        """Packages that the Python inside cannot import."""
        names = map(package_name, requirements)
        return [name for name in names if name and name not in HARNESS and self.lacks_module(module_of(name))]


HERE = System()
"""This machine's own."""


def system_at(rootfs: Path | None) -> System:
    """What stands for the images of tasks: a root file system, or for None this machine's own.

    Raises:
        ConfigError: as `check_rootfs`.
    """
    return HERE if rootfs is None else System(check_rootfs(rootfs))


@cache
def installed(status: Path | None) -> frozenset[str]:
    """Names of the packages that dpkg has installed, by its own list; none where there is none."""
    if status is None:
        return frozenset()
    try:
        text = status.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    return frozenset(
        found[1]
        for entry in text.split("\n\n")
        if "\nStatus: install ok installed" in entry and (found := re.match(r"Package: (\S+)", entry))
    )


@cache
def _lacks_program(name: str, root: Path) -> bool:
    return bool(missing_programs([name], provided=provided(), root=root))


@cache
def _modules(root: Path) -> frozenset[str]:
    """Top-level modules that the Python inside can import; none where there is no Python."""
    python = find_python(root)
    if python is None:
        return frozenset()
    if root != MACHINE:
        return frozenset(_modules_of(root, python)) | provided()
    words = [python, "-I", "-c", _LIST, json.dumps(hidden_folders())]
    done = subprocess.run(words, cwd="/", env={}, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_S, check=True)
    return frozenset(done.stdout.decode().split()) | provided()


def _modules_of(root: Path, python: str) -> Iterator[str]:
    """Top-level modules of the Python at a path of a root file system, as its folders tell."""
    yield from sys.builtin_module_names
    place = inside(root, python)
    name = place.name if place is not None else ""
    prefix = python.removesuffix("/bin/python3")
    folders = [f"/{prefix}/lib/{name}", f"/{prefix}/lib/{name}/lib-dynload"]
    folders += [f"/{prefix}/lib/{name}/site-packages", f"/usr/local/lib/{name}/dist-packages", "/usr/lib/python3/dist-packages"]
    for folder in folders:
        if (found := inside(root, folder)) is not None and found.is_dir():
            for entry in found.iterdir():
                module, _, rest = entry.name.partition(".")
                package = None if rest else inside(root, f"{folder}/{module}")
                if (package is not None and package.is_dir()) or rest == "py" or rest.endswith("so"):
                    yield module


@cache
def provided() -> frozenset[str]:
    """Modules that sandboxes get from this package's own dependencies."""
    return frozenset(source.name.removesuffix(".py") for source in sources())
