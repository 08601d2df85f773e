"""Execute the tutorials as notebooks and keep them with their outputs.

    .venv-docs/bin/python docs/scripts/notebooks.py --out build/tutorials [NAME...]     # `make tutorials` does all

A tutorial is a page of Markdown whose blocks of Python are the cells (jupytext). The kernel is the interpreter of `.venv`, with
the package from this checkout. ipykernel comes from `.venv-docs`, so that the package's own environment stays as it is locked.
Every tutorial runs in an empty folder. Ends with 1 when a cell fails, and shows the cell.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import jupytext
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs/tutorials"
CELL_TIMEOUT_S = 900


def kernel(folder: Path, python: Path) -> None:
    """Describe a kernel `onthejob` in `folder`, where jupyter_client looks for it.

    Args:
        folder: one of JUPYTER_PATH.
        python: interpreter that has the package's dependencies.
    """
    place = folder / "kernels/onthejob"
    place.mkdir(parents=True)
    described = {
        "argv": [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "onthejob",
        "language": "python",
        "env": {
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), sysconfig.get_path("purelib")]),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2"),
            "TOKENIZERS_PARALLELISM": "false",
            # Plain texts instead of colours and bars.
            "TERM": "dumb",
            "TQDM_DISABLE": "1",
            "PYTHONWARNINGS": "ignore:IProgress not found",
        },
    }
    (place / "kernel.json").write_text(json.dumps(described), encoding="utf-8")


def execute(page: Path, target: Path) -> bool:
    """Run a tutorial in an empty folder and write it as a notebook; returns True when every cell ran."""
    notebook = jupytext.read(page, fmt="md")
    notebook.metadata.pop("jupytext", None)
    good, began = True, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tutorial-") as folder, tempfile.TemporaryDirectory() as sockets:
        # Over sockets of this user, not over ports of the machine; `ip` is the beginning of their paths.
        manager = AsyncKernelManager(kernel_name="onthejob", transport="ipc", ip=f"{sockets}/kernel")
        client = NotebookClient(
            notebook, km=manager, timeout=CELL_TIMEOUT_S, startup_timeout=CELL_TIMEOUT_S, resources={"metadata": {"path": folder}}
        )
        try:
            client.execute()
        except CellExecutionError as error:
            print(error, file=sys.stderr)
            good = False
    target.parent.mkdir(parents=True, exist_ok=True)
    jupytext.write(notebook, target, fmt="ipynb")
    print(f"{page.stem}: {'ran' if good else 'FAILED'} in {time.monotonic() - began:.0f} s, {target}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="tutorials; all without")
    parser.add_argument("--out", type=Path, required=True, help="folder of the notebooks")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv/bin/python", help="interpreter of the kernel")
    arguments = parser.parse_args()
    pages = [TUTORIALS / f"{name}.md" for name in arguments.names] or sorted(TUTORIALS.glob("*.md"))
    with tempfile.TemporaryDirectory() as folder:
        kernel(Path(folder), arguments.python)
        os.environ["JUPYTER_PATH"] = folder
        results = [execute(page, arguments.out / f"{page.stem}.ipynb") for page in pages]
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
