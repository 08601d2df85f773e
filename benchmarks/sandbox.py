"""Cost of isolation: sandboxes against plain bash in the same run.

create + true + destroy, `true` in an open sandbox, scripted episodes per second at 1 / 2 / 8 parallel (9 files, 5 commands,
5 checks of the result, cleanup), 200 sandboxes alive at once. Isolated and plain rounds alternate, so that other load hits
both. Wall-clock time: processes of sandboxes are not children of this one.

    python benchmarks/sandbox.py [--repeat 200] [--episodes 200] [--rounds 3] [--alive 200] [--json]
    python benchmarks/sandbox.py --before OTHER/src [--rounds 9] [--repeat 200]

Ends with 1 when a number misses its target. With `--before`, one life and one snapshot (a listing of the workspace, and a copy of
it after the sandbox's death) of this source and of another one instead, in turns (`alternating.py`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from alternating import compare

from onthejob.envs.claw.copying import copied
from onthejob.envs.claw.sandbox import Limits, SandboxHost, open_host

FILES = {f"notes/{number}.txt": f"note {number}\n".encode() * 20 for number in range(7)}
FILES |= {"todo.md": b"- a\n- b\n", "log/": b"", "x.bin": bytes(512)}
COMMANDS = (
    "ls -R | head -40",
    "mkdir -p archive && mv notes/1.txt notes/2.txt archive/",
    "grep -rl 'note 3' notes > log/found.txt; sed -i 's/- a/- [x] a/' todo.md",
    "cat notes/*.txt | wc -l > log/lines.txt",
    "rm notes/6.txt && tail -n 2 todo.md",
)
CHECKS: tuple[tuple[str, bytes | None], ...] = (
    ("archive/1.txt", b"note 1\n" * 20),
    ("notes/2.txt", None),
    ("log/found.txt", b"notes/3.txt\n"),
    ("log/lines.txt", b"100\n"),
    ("todo.md", b"- [x] a\n- b\n"),
)
TIMEOUT_S = 120.0
COPIED = {f"folder{number % 8}/{number}.txt": f"line {number}\n".encode() * 200 for number in range(64)}
"""Files of the workspace of which snapshots are taken."""
ALTERNATIONS, BACKEND_ROUNDS = 9, 3


class Row(NamedTuple):
    """One measured number."""

    what: str
    isolated: float
    plain: float | None
    unit: str
    target: float | None = None
    at_most: bool = False
    """The target is an upper limit."""

    @property
    def passed(self) -> bool | None:
        if self.target is None:
            return None
        return self.isolated <= self.target if self.at_most else self.isolated >= self.target


def episode(host: SandboxHost) -> None:
    """One scripted episode; raises when a check of its result fails."""
    with host.open(FILES) as sandbox:
        for command in COMMANDS:
            result = sandbox.run(command, timeout_s=TIMEOUT_S)
            if result.exit_code != 0:
                raise RuntimeError(f"{command!r}: {result}")
        root = sandbox.collect()
        for name, content in CHECKS:
            path = root / name
            found = path.read_bytes() if path.exists() else None
            if found != content:
                raise RuntimeError(f"{name}: {found!r}")


def life(host: SandboxHost) -> None:
    """One whole life: create, `true`, destroy."""
    with host.open({}) as sandbox:
        sandbox.run("true", timeout_s=TIMEOUT_S)


def snapshots(host: SandboxHost, count: int) -> list[float]:
    """Seconds of each snapshot; the lives around it are not counted."""
    found = []
    for _ in range(count):
        with host.open(COPIED) as sandbox:
            sandbox.run("true", timeout_s=TIMEOUT_S)
            start = time.perf_counter()
            listed = sandbox.survey()
            kept = copied(sandbox.collect())
            found.append(time.perf_counter() - start)
            if len(listed) != len(COPIED) or len(kept) < len(COPIED):
                raise RuntimeError(f"{len(listed)} files listed and {len(kept)} copied of {len(COPIED)}")
    return found


def of_this_source(count: int) -> dict[str, list[float]]:
    """Seconds of lives and snapshots with the `onthejob` that is imported here; the first of each are omitted."""
    with open_host(ahead=0) as host:
        return {
            "create + run + destroy": timed(lambda: life(host), count + 3)[3:],
            "snapshot": snapshots(host, count // 2 + 3)[3:],
        }


def timed(function: Callable[[], object], count: int) -> list[float]:
    """Seconds of each call."""
    found = []
    for _ in range(count):
        start = time.perf_counter()
        function()
        found.append(time.perf_counter() - start)
    return found


def rate(host: SandboxHost, parallel: int, count: int) -> float:
    """Episodes per second."""
    with ThreadPoolExecutor(parallel) as pool:
        start = time.perf_counter()
        for future in [pool.submit(episode, host) for _ in range(count)]:
            future.result()
        return count / (time.perf_counter() - start)


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def measure(safe: SandboxHost, plain: SandboxHost, options: argparse.Namespace) -> list[Row]:
    return [*latencies(safe, plain, options), *rates(safe, plain, options), alive(safe, options.alive)]


def latencies(safe: SandboxHost, plain: SandboxHost, options: argparse.Namespace) -> list[Row]:
    """Milliseconds of one life and of one command."""
    count = max(1, options.repeat // options.rounds)
    times: dict[tuple[str, int], list[float]] = {(name, index): [] for name in ("life", "command") for index in (0, 1)}
    for host in (safe, plain):
        life(host)
    for _ in range(options.rounds):
        for index, host in enumerate((safe, plain)):
            times["life", index] += timed(lambda host=host: life(host), count)
            with host.open({}) as sandbox:
                times["command", index] += timed(lambda box=sandbox: box.run("true", timeout_s=TIMEOUT_S), count)
    rows = []
    for name, what in (("life", "create + true + destroy"), ("command", "true in an open sandbox")):
        for share in (0.5, 0.99):
            isolated, without = (1000 * percentile(times[name, index], share) for index in (0, 1))
            rows.append(Row(f"{what}, p{share * 100:.0f}", isolated, without, "ms"))
    overhead = rows[2].isolated - (rows[2].plain or 0.0)
    return [*rows, Row("overhead of a command, p50", overhead, None, "ms", 1.0, at_most=True)]


def rates(safe: SandboxHost, plain: SandboxHost, options: argparse.Namespace) -> list[Row]:
    """Scripted episodes per second, the median of the rounds."""
    rows = []
    for parallel, target in ((1, None), (2, 45.0), (8, None)):
        count = max(parallel, options.episodes // options.rounds)
        found: tuple[list[float], list[float]] = ([], [])
        for _ in range(options.rounds):
            for index, host in enumerate((safe, plain)):
                found[index].append(rate(host, parallel, count))
        isolated, without = (statistics.median(values) for values in found)
        rows.append(Row(f"episodes at {parallel} parallel", isolated, without, "1/s", target))
    rows.append(Row("share of unisolated at 8 parallel", rows[-1].isolated / (rows[-1].plain or 1.0), None, "", 0.6))
    return rows


def alive(host: SandboxHost, count: int) -> Row:
    """Seconds to open `count` sandboxes that live together and each run a command."""
    limits = Limits(workspace_bytes=1 << 20, tmp_bytes=1 << 20, start_s=600, grace_s=600)
    start = time.perf_counter()
    opened = []
    try:
        for _ in range(count):
            opened.append(host.open({"f": b"x"}, limits))
        if any(sandbox.run("cat f", timeout_s=TIMEOUT_S).stdout != b"x" for sandbox in opened):
            raise RuntimeError("a sandbox among many does not work")
        elapsed = time.perf_counter() - start
    finally:
        for sandbox in opened:
            sandbox.close()
    return Row(f"{count} sandboxes alive, opened and used", elapsed, None, "s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=200, help="lives and commands measured, per backend")
    parser.add_argument("--episodes", type=int, default=200, help="episodes per backend and parallelism")
    parser.add_argument("--rounds", type=int, help="alternations, 3 between the backends or 9 with --before")
    parser.add_argument("--alive", type=int, default=200, help="sandboxes alive at once")
    parser.add_argument("--before", type=Path, help="folder `src` of the source to compare with")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    if options.rounds is None:
        options.rounds = BACKEND_ROUNDS if options.before is None else ALTERNATIONS
    if min(options.repeat, options.episodes, options.rounds, options.alive) < 1:
        parser.error("all counts must be >= 1")
    if options.measure:
        print(json.dumps(of_this_source(options.repeat)))
        return 0
    if options.before is not None:
        arguments = ["--measure", "--repeat", str(options.repeat)]
        for quantity, ratio in compare(__file__, options, arguments, parser).items():
            print(f"{quantity}: {ratio}")
        return 0
    with open_host() as safe, open_host(unsafe=True) as plain:
        rows = measure(safe, plain, options)
        layers = [layer._asdict() for layer in safe.report.layers]
    if options.json:
        print(json.dumps({"layers": layers, "rows": [row._asdict() | {"passed": row.passed} for row in rows]}, indent=2))
    else:
        print(f"{'':42}{'isolated':>12}{'plain bash':>12}  unit  target")
        for row in rows:
            without = "" if row.plain is None else f"{row.plain:.3g}"
            sign = "<=" if row.at_most else ">="
            target = "" if row.target is None else f"{sign} {row.target:g} {'ok' if row.passed else 'MISSED'}"
            print(f"{row.what:42}{row.isolated:12.3g}{without:>12}  {row.unit:4}  {target}")
    return 1 if any(row.passed is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
