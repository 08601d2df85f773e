"""The same measurement with two sources of onthejob in turns, for benchmarks that take `--before OTHER/src`.

Each round starts one process per source, in alternating order, so that other load hits both. The ratio of the two medians is
taken per round; the result is the median ratio with a 95 % interval (bootstrap over rounds).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

PROCESS_S = 600
"""Seconds one process may take."""


class Ratio(NamedTuple):
    """Time now by time before, of one quantity."""

    median: float
    low: float
    high: float
    rounds: int

    def __str__(self) -> str:
        return f"median ratio of {self.rounds} rounds: {self.median:.3f}, 95 % interval {self.low:.3f} to {self.high:.3f}"


def add_options(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """`--before` and `--rounds`."""
    parser.add_argument("--before", type=Path, required=required, help="folder `src` of the source to compare with")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of one process per source")


def compare(
    script: str, options: argparse.Namespace, arguments: Sequence[str], parser: argparse.ArgumentParser
) -> dict[str, Ratio]:
    """Measure both sources in turns and print each round.

    Args:
        script: The benchmark; with `arguments` it prints one JSON object, name of a quantity -> its seconds.
        options: With those of `add_options`.
        arguments: Of the script.
        parser: Says what is wrong with the options.
    """
    if not (options.before / "onthejob").is_dir():
        parser.error("--before must name a folder that holds `onthejob`, e.g. ../before/src")
    if options.rounds < 1:
        parser.error("--rounds must be >= 1")
    sources = {"before": options.before, "now": Path(__file__).resolve().parents[1] / "src"}
    ratios: dict[str, list[float]] = {}
    for number in range(options.rounds):
        order = list(sources) if number % 2 == 0 else list(reversed(sources))
        found = {name: in_process(script, sources[name], arguments) for name in order}
        for quantity, now in found["now"].items():
            before = found["before"][quantity]
            ratios.setdefault(quantity, []).append(now / before)
            print(f"{quantity}: before {1e3 * before:.2f} ms, now {1e3 * now:.2f} ms, ratio {now / before:.3f}", flush=True)
    return {quantity: Ratio(statistics.median(values), *interval(values), len(values)) for quantity, values in ratios.items()}


def in_process(script: str, source: Path, arguments: Sequence[str]) -> dict[str, float]:
    """Quantity -> median seconds of one process that imports from `source`."""
    environ = {**os.environ, "PYTHONPATH": str(source.resolve())}
    words = [sys.executable, script, *arguments]
    done = subprocess.run(words, env=environ, stdout=subprocess.PIPE, text=True, check=True, timeout=PROCESS_S)
    return {quantity: statistics.median(seconds) for quantity, seconds in json.loads(done.stdout).items()}


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """95 % of the medians of resampled rounds."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(10_000))
    return medians[249], medians[9749]
