"""Resolve every extra alone, and all of them together, without installing anything.

    python docs/scripts/extras.py [--python 3.12]

Where all resolve together, no pair excludes each other. Prints one line each, with the reason for a failure, and ends with 1 when
there is one. uv is taken from the interpreter that runs this, or from PATH. Needs the configured package index.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]


def extras() -> list[str]:
    """Names of the extras, as pyproject.toml declares them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return list(project["optional-dependencies"])


def resolve(uv: str, chosen: Sequence[str], python: str) -> str:
    """Resolve the package with these extras for Linux; returns an empty text, or uv's reason why it cannot be done."""
    words = [uv, "pip", "compile", "pyproject.toml", "--quiet", "--no-header", "--python-version", python]
    words += ["--python-platform", "x86_64-manylinux_2_28", "--output-file", os.devnull]
    words += [word for extra in chosen for word in ("--extra", extra)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.11", help="version of Python to resolve for")
    arguments = parser.parse_args()
    own = Path(sys.executable).with_name("uv")
    uv = str(own) if own.exists() else shutil.which("uv")
    if uv is None:
        raise SystemExit("uv is not installed. Run: pip install uv")
    names = extras()
    chosen: list[tuple[str, ...]] = [*((name,) for name in names), tuple(names)]
    failed = 0
    with ThreadPoolExecutor(2) as pool:
        for one, reason in zip(chosen, pool.map(lambda one: resolve(uv, one, arguments.python), chosen), strict=True):
            print(f"{one[0] if len(one) == 1 else 'all together'}: {reason or 'resolves'}", flush=True)
            failed += bool(reason)
    print(f"Python {arguments.python}: {len(chosen) - failed} of {len(chosen)} resolve")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
