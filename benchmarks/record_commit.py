"""Time to commit an iteration, of this source and of another one side by side.

    python benchmarks/record_commit.py --before OTHER/src [--rounds 9]

Each process records iterations of 16 groups with 8 trajectories and commits them to a new run; `alternating.py` says how the two
sources are compared. It compares encoding, checksums, SQLite and the disk together; `--folder` chooses the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from alternating import add_options, compare

ITERATIONS = 12
GROUPS, SIZE, TURNS, PROMPT, REPLY = 16, 8, 2, 250, 40


def measured(folder: Path) -> list[float]:
    """Seconds per iteration with the `onthejob` that is imported here; the first is omitted."""
    from onthejob.record import Run
    from onthejob.types import Completion, Group, StopReason, Trajectory, Turn

    def turn(rng: random.Random, index: int) -> Turn:
        prompt = tuple(range(index, index + PROMPT))
        ids = tuple(rng.randrange(49_000) for _ in range(REPLY))
        logprobs = tuple(-rng.random() for _ in ids)
        completion = Completion(text=f"reply {rng.random()} " * 8, token_ids=ids, logprobs=logprobs)
        return Turn(prompt_ids=prompt, completion=completion, policy_version="sales@0001")

    def group(rng: random.Random, key: str, index: int) -> Group:
        members = tuple(
            Trajectory(
                task_id="baseline-1",
                actor="sales",
                turns=tuple(turn(rng, index * TURNS + number) for number in range(TURNS)),
                rewards=tuple(rng.random() for _ in range(TURNS)),
                stop=StopReason.BRANCH,
                metrics={"outcome": rng.random()},
            )
            for _ in range(SIZE)
        )
        return Group(key=key, actor="sales", trajectories=members, facts={"day": 3, "worlds": [1, 2, 3, 4]})

    rng, seconds = random.Random(1), []
    with Run.create(folder, config={}, name=f"run-{os.getpid()}") as run:
        for n in range(ITERATIONS):
            groups = [group(rng, f"{n}/{index}", n * GROUPS + index) for index in range(GROUPS)]
            values = [[rng.random() for _ in range(SIZE)] for _ in groups]
            start = time.perf_counter()
            with run.iteration(n) as it:
                it.groups(groups, values)
                it.metrics("train/sales", {f"metric{number}": rng.random() for number in range(40)})
            seconds.append(time.perf_counter() - start)
    return seconds[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=None, help="where the runs are written; by default a temporary folder")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    add_options(parser, required="--measure" not in sys.argv)
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps({"commit": measured(options.measure)}))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for ratio in compare(__file__, options, ["--measure", folder], parser).values():
            print(ratio)


if __name__ == "__main__":
    main()
