"""What of this process's environment workers get: an allow-list, in which no key is."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

PASSED = {
    "PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TZ", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "XDG_CACHE_HOME", "CC",
    "ONTHEJOB_CACHE", "ONTHEJOB_NATIVE", "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "PYTHONPATH", "VIRTUAL_ENV",
}  # fmt: skip
"""Variables that a worker may see."""
CARRIED = ("ONTHEJOB_NATIVE", "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM")
"""Those of them that are the driver's on every node: they may change numbers or speed, and say nothing about a machine."""
PREFIXES = ("LC_", "RAY_", "CUDA_", "NVIDIA_")
"""Further variables that a worker keeps of what its node gave it."""


def passed(environ: Mapping[str, str]) -> dict[str, str]:
    """What programs that are started on this machine get of `environ`; this process's import path among it."""
    kept = {name: value for name, value in environ.items() if name in PASSED or name.startswith("LC_")}
    return kept | {"PYTHONPATH": os.pathsep.join(import_path())}


def carried(environ: Mapping[str, str]) -> dict[str, str]:
    """What workers on every node get of `environ`."""
    return {name: environ[name] for name in CARRIED if name in environ}


def import_path() -> list[str]:
    """The folders of `sys.path`, absolute."""
    return list(dict.fromkeys(str(Path(entry).absolute()) for entry in sys.path if not entry or Path(entry).exists()))


def confine(environ: MutableMapping[str, str], given: Mapping[str, str]) -> None:
    """In a worker: keep only those variables of `environ` that a worker may see, and take those that are given."""
    for name in [name for name in environ if name not in PASSED and not name.startswith(PREFIXES)]:
        del environ[name]
    environ.update(given)
