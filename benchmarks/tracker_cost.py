"""The cost of a tracker that hangs for the whole run: the same tiny training with and without it, in turns.

    python benchmarks/tracker_cost.py [--pairs 9] [--iterations 120] [--track path/to/file.py:Class]

Each pair is two processes of `onthejob train` in examples/guess.py, in alternating order, so that other load hits both. The
digests of all runs must be equal. The result is the median ratio of wall times, of whole processes and of the loop, with a 95 %
interval (bootstrap over pairs).
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from alternating import interval

ROOT = Path(__file__).resolve().parents[1]
PROCESS_S = 900
"""Seconds one training may take."""
HANGING = '''
"""A tracker that takes nothing and never returns."""

import time

from onthejob.track import Tracker


class Hangs(Tracker):
    def start(self, run, sent):
        while True:
            time.sleep(3600)
'''


class Measured(NamedTuple):
    """One training."""

    seconds: float
    """Of the process."""
    loop_s: float
    """Of its iterations."""
    digest: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=9, help="pairs of a training without and one with the tracker")
    parser.add_argument(
        "--iterations",
        type=int,
        default=120,
        help="of each training; one that is over within 10 s waits up to 5 s for a tracker that hangs",
    )
    parser.add_argument("--track", default="", help="another tracker than one that hangs")
    options = parser.parse_args()
    if options.pairs < 1 or options.iterations < 1:
        parser.error("--pairs and --iterations must be >= 1")
    with tempfile.TemporaryDirectory(prefix="onthejob-tracker-") as name:
        folder = Path(name)
        (folder / "hanging.py").write_text(HANGING, encoding="utf-8")
        write_model(folder / "model")
        track = options.track or f"{folder / 'hanging.py'}:Hangs"
        pairs: list[tuple[Measured, Measured]] = []
        for number in range(options.pairs):
            order = ("", track) if number % 2 == 0 else (track, "")
            found = {
                which: trained(folder, f"{number}-{'with' if which else 'without'}", options.iterations, which) for which in order
            }
            pairs.append((found[""], found[track]))
            without, with_ = pairs[-1]
            print(
                f"pair {number + 1}: without {without.seconds:.2f} s (loop {without.loop_s:.2f} s), with {with_.seconds:.2f} s "
                f"(loop {with_.loop_s:.2f} s), ratio {with_.seconds / without.seconds:.4f}",
                flush=True,
            )
    digests = {one.digest for pair in pairs for one in pair}
    print(f"digests: {'all equal' if len(digests) == 1 else f'{len(digests)} DIFFERENT ones'} ({min(digests)[:16]})")
    for what, ratios in (
        ("process", [with_.seconds / without.seconds for without, with_ in pairs]),
        ("loop", [with_.loop_s / without.loop_s for without, with_ in pairs]),
    ):
        low, high = interval(ratios)
        print(
            f"{what}: median ratio of {len(ratios)} pairs {statistics.median(ratios):.4f}, 95 % interval {low:.4f} to {high:.4f}"
        )
    if len(digests) != 1:
        raise SystemExit(1)


def write_model(folder: Path) -> None:
    """A tiny model that knows digits."""
    from onthejob.testing import teach, tiny_model
    from onthejob.types import Message

    tiny = tiny_model(words=["Guess", "my", "number", "Digits", "only", *"123456789"])
    teach(
        tiny, [((Message("user", "Guess my number: 1 to 9. Digits only."),), digit) for digit in "123456789"], steps=60, batch=9
    )
    tiny.model.save_pretrained(folder)
    tiny.tokenizer.save_pretrained(folder)


def trained(folder: Path, name: str, iterations: int, track: str) -> Measured:
    """Train in a process of its own."""
    from onthejob.record import Run

    words = [
        sys.executable, "-m", "onthejob", "train", "--env", str(ROOT / "examples" / "guess.py"), "--name", name,
        "--model.name", str(folder / "model"), "--model.dtype", "float32", "--iterations", str(iterations),
        "--collect.episodes", "4", "--branch.group-size", "4", "--lora.rank", "2", "--quiet",
        *(["--track", track] if track else []),
    ]  # fmt: skip
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))}
    started = time.perf_counter()
    done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=PROCESS_S, check=False)
    seconds = time.perf_counter() - started
    if done.returncode not in (0, 3):
        raise SystemExit(f"training ended with {done.returncode}: {done.stderr[-2000:]}")
    with Run.open(folder / "runs" / name, readonly=True) as run:
        loop_s = math.fsum(metric.value for metric in run.read_metrics("time", name="iteration_s"))
        return Measured(seconds, loop_s, run.digest())


if __name__ == "__main__":
    main()
