"""Start to verdict of a trivial Harbor task, over what its own commands cost; and many at once, after which nothing may be left.

    python benchmarks/harbor.py [--repeat 40] [--parallel 100] [--json]

Each round plays one episode in sandboxes (image, command of the agent, tests in a second sandbox, verdict) and runs the same two
commands as plain bash, in turns, so that other load hits both. `--parallel` episodes then run at the same time; processes and
descriptors are counted before and after. Wall-clock time, for an idle machine. Ends with 1 when a number misses its target.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

from onthejob.envs.claw.agent_messages import DONE, block
from onthejob.envs.claw.env import ClawConfig, ClawEnvironment
from onthejob.envs.harbor.folder import read
from onthejob.envs.harbor.harbor_work import Images, harbor_work, open_images, payload_of
from onthejob.envs.harbor.support import support_of
from onthejob.interop.harbor import HarborRules
from onthejob.types import Split, Task

TARGET_MS = 50.0
COMMAND = "echo 42 > answer.txt"
FILES = {
    "task.toml": "[agent]\ntimeout_sec = 60.0\n[verifier]\ntimeout_sec = 60.0\n",
    "instruction.md": "Write 42 to /app/answer.txt.",
    "environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\n",
    "tests/test.sh": 'if [ "$(cat /app/answer.txt)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n',
}
"""The trivial task."""


def trivial(folder: Path) -> Task:
    """Write the task and read it."""
    for path, text in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    found = read(folder)
    return Task(id="trivial", env="harbor", split=Split.TEST, seed=1, payload=payload_of(found, support_of(found).mark))


def episode(task: Task, images: Images) -> dict[str, float]:
    """Seconds of the parts of one episode; raises when its verdict is wrong."""
    rules = HarborRules()
    config = ClawConfig(protocol=rules.protocol, reward=rules.reward, sandbox=rules.sandbox)
    env = ClawEnvironment(config, host=images.host, work=lambda one: harbor_work(one, images=images))
    times = [time.perf_counter()]
    env.reset(task)
    times.append(time.perf_counter())
    env.step(block(COMMAND))
    times.append(time.perf_counter())
    rewards = env.step(DONE).rewards
    times.append(time.perf_counter())
    if rewards != {"agent": 1.0}:
        raise RuntimeError(f"the verdict is {rewards}")
    parts = [after - before for before, after in pairwise(times)]
    return dict(zip(("reset", "command", "verdict"), parts, strict=True)) | {"start to verdict": times[-1] - times[0]}


def plain(folder: Path) -> float:
    """Seconds of the same commands as plain bash in a folder."""
    script = FILES["tests/test.sh"].replace("/app/", "").replace("/logs/verifier/", "")
    (folder / "test.sh").write_text(script, encoding="utf-8")
    start = time.perf_counter()
    for words in (["bash", "-c", COMMAND], ["bash", "test.sh"]):
        subprocess.run(words, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    elapsed = time.perf_counter() - start
    if (folder / "reward.txt").read_text(encoding="utf-8") != "1\n":
        raise RuntimeError("the plain verdict is wrong")
    return elapsed


def left() -> dict[str, int]:
    """Descriptors of this process, and living processes below it."""
    found = {"descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()), "processes": 0}
    parents: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = place.read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            parents[int(place.parent.name)] = int(parent)
    for pid in parents:
        above = pid
        while above in parents and above != os.getpid():
            above = parents[above]
        found["processes"] += above == os.getpid()
    return found


def settled(before: dict[str, int]) -> dict[str, int]:
    """What is there once it is as `before`, or after ten seconds."""
    deadline = time.monotonic() + 10.0
    while (now := left()) != before and time.monotonic() < deadline:
        time.sleep(0.1)
    return now


def side_by_side(run: Callable[[], object], count: int) -> float:
    """Seconds for `count` episodes at the same time."""
    with ThreadPoolExecutor(count) as threads:
        start = time.perf_counter()
        for future in [threads.submit(run) for _ in range(count)]:
            future.result()
        return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=40, help="episodes measured")
    parser.add_argument("--parallel", type=int, default=100, help="episodes at the same time")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    if min(options.repeat, options.parallel) < 1:
        parser.error("all counts must be >= 1")
    with tempfile.TemporaryDirectory() as folder, open_images(HarborRules().sandbox) as images:
        task = trivial(Path(folder) / "trivial")
        beside = Path(folder) / "plain"
        beside.mkdir()
        for _ in range(3):
            episode(task, images)
        rows = [(episode(task, images), plain(beside)) for _ in range(options.repeat)]
        before = left()
        elapsed = side_by_side(lambda: episode(task, images), options.parallel)
        after = settled(before)
    figures = {name: statistics.median(1000 * parts[name] for parts, _ in rows) for name in rows[0][0]}
    figures["plain bash"] = statistics.median(1000 * seconds for _, seconds in rows)
    over = sorted(1000 * (parts["start to verdict"] - seconds) for parts, seconds in rows)
    figures |= {"over its own commands": statistics.median(over), "the same, p90": over[int(0.9 * len(over))]}
    found = {"ms": figures, "parallel": options.parallel, "parallel_s": elapsed, "before": before, "after": after}
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        for name, value in figures.items():
            print(f"{name:24}{value:8.1f} ms")
        print(f"{options.parallel} at the same time: {elapsed:.1f} s; before {before}, after {after}")
    return int(figures["over its own commands"] > TARGET_MS or after != before)


if __name__ == "__main__":
    sys.exit(main())
