"""Tiny fixed runs of office and claw with two sources of onthejob: everything recorded but the configuration must be equal.

    python benchmarks/same_runs.py OTHER/src

OTHER is a checkout of another commit on the same machine, as bits differ between processors. Both sources train the kept adapters
for two iterations: two roles of the office by branches, the claw by episodes. Prints one hash per run and source; ends with 1
when two differ. A guard for changes that must not change numbers.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent / "src"
ADAPTERS = HERE.parent / "adapters"
COMMON = (
    "--iterations", "2", "--learner.lr", "1e-4", "--sampling.max-new-tokens", "32",
    "--collect.episodes", "2", "--branch.group-size", "4", "--name", "tiny", "--quiet",
)  # fmt: skip
RUNS = {
    "office": (
        ("--env", "office", "--roles", "sales", "hr", "--library-tasks", "40", "--scale-states", "4",
         "--branch.turns", "6", "--branch.worlds", "1", "--collect.segment-turns", "6", "--workers", "0"),
        (("scenarios", "baseline"), ("days", "2"), ("seeds", "40")),
    ),
    "claw": (("--env", "claw"), (("count", "64"), ("growth", "0"), ("protocol.max-turns", "2"))),
}  # fmt: skip
"""Run -> words of `train`, and options of the environment, which are `--env.NAME` and were `--NAME` or `--claw.NAME`."""
HASH = """
import sys
from pathlib import Path
from onthejob.record import Run
from onthejob.record.digest import _items
import hashlib
with Run.open(Path(sys.argv[1]), readonly=True) as run:
    total = hashlib.sha256()
    with run._database.frozen():
        for item in _items(run._database, "", clocks=False, through=None):
            total.update(repr(item).encode("utf-8", "surrogatepass"))
    print(total.hexdigest())
"""


def main() -> int:
    """Run both sources and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="folder `src` of the source to compare with")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onthejob-same-") as folder:
        differing = 0
        for name in RUNS:
            found = [digest_of(source, name, Path(folder)) for source in (HERE, arguments.other.resolve())]
            differing += found[0] != found[1]
            print(f"{name}: here {found[0][:16]}, there {found[1][:16]}: {'equal' if found[0] == found[1] else 'DIFFERENT'}")
    return 1 if differing else 0


def digest_of(source: Path, name: str, folder: Path) -> str:
    """Train with one source, and hash what it recorded."""
    words, options = RUNS[name]
    # The first is the name of today, the second that of before.
    files = [source / "onthejob/commands" / name for name in ("env_options.py", "workplaces.py")]
    nested = any(path.is_file() and "def typed" in path.read_text(encoding="utf-8") for path in files)
    prefix = "--env." if nested else "--claw." if name == "claw" else "--"
    flags = [word for option, value in options for word in (prefix + option, value)]
    place = folder / f"{name}-{hashlib.sha256(str(source).encode()).hexdigest()[:8]}"
    env = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [
        sys.executable,
        "-m",
        "onthejob",
        "train",
        *words,
        *flags,
        *COMMON,
        "--init",
        str(ADAPTERS / name),
    ]
    place.mkdir()
    subprocess.run(command, check=True, env=env, cwd=place, timeout=1200)
    hashed = subprocess.run(
        [sys.executable, "-c", HASH, str(place / "runs/tiny")], check=True, env={**env, "PYTHONPATH": str(HERE)}, timeout=60,
        capture_output=True, text=True,
    )  # fmt: skip
    return hashed.stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
