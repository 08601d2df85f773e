"""Which packages of an image are on this machine: those that apt or pip would install and that sandboxes have anyway.

Nothing is installed. A package of apt is here when dpkg says so, or when all of its programs are. A package of pip is here when
the Python of the sandboxes can import it, in whatever version.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from onthejob.envs.claw.sandbox.hidden import hidden_folders
from onthejob.envs.claw.sandbox.inside import PROBE_S, find_python, missing_programs, sources
from onthejob.envs.harbor.refusal import words_of

DPKG = Path("/var/lib/dpkg/status")
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


@cache
def installed(status: Path = DPKG) -> frozenset[str]:
    """Names of the packages that dpkg has installed here; none on a machine without it."""
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
def lacks_program(name: str) -> bool:
    """True when commands inside do not find a program."""
    return bool(missing_programs([name], provided=provided()))


@cache
def modules_here() -> frozenset[str]:
    """Top-level modules that the Python inside can import; none where there is no Python."""
    python = find_python()
    if python is None:
        return frozenset()
    words = [python, "-I", "-c", _LIST, json.dumps(hidden_folders())]
    done = subprocess.run(words, cwd="/", env={}, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_S, check=True)
    return frozenset(done.stdout.decode().split()) | provided()


def safe_path() -> bool:
    """Whether the Python inside has a setting not to import from the working folder (PYTHONSAFEPATH, since 3.11)."""
    return "tomllib" in modules_here()


def lacks_module(name: str) -> bool:
    """True when the Python inside cannot import a top-level module."""
    return name not in modules_here()


def missing_apt(packages: Iterable[str]) -> list[str]:
    """Those that sandboxes of this machine do not have."""
    found = []
    for package in packages:
        name = re.split(r"[=:/]", package)[0]
        here = name in NOT_MISSED or name in installed()
        if not here and name in PROGRAMS:
            here = not any(map(lacks_program, PROGRAMS[name]))
        if not here and name.startswith("python3-"):
            here = not lacks_module(module_of(name.removeprefix("python3-")))
        if not here:
            found.append(name)
    return found


def missing_pip(requirements: Iterable[str]) -> list[str]:
    """Packages that the Python inside cannot import."""
    names = map(package_name, requirements)
    return [name for name in names if name and name not in HARNESS and lacks_module(module_of(name))]


@cache
def provided() -> frozenset[str]:
    """Modules that sandboxes get from this package's own dependencies."""
    return frozenset(source.name.removesuffix(".py") for source in sources())
