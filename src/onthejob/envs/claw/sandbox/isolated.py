"""Starts a module of this folder as a program of its own, without the packages around it and without site-packages.

Their imports would make it large and slow to fork, and a planted module could not be distinguished from theirs.
"""

from __future__ import annotations

import sys
from pathlib import Path

BOOT = """
import importlib, os, sys, types
name, folder = sys.argv.pop(1), sys.argv.pop(1)
package = name.rpartition(".")[0]
while package:
    sys.modules[package] = types.ModuleType(package)
    sys.modules[package].__path__ = [folder]
    package, folder = package.rpartition(".")[0], os.path.dirname(folder)
importlib.import_module(name).main()
"""


def command(module: str) -> list[str]:
    """The command line that runs `main` of a module of this folder; the module's own arguments are appended to it."""
    name = f"{__name__.rpartition('.')[0]}.{module}"
    return [sys.executable, "-I", "-S", "-c", BOOT, name, str(Path(__file__).parent)]
