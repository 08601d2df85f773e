"""A driver of tests: makes tiny runs in a runtime while its workers, nodes or links are killed.

    python driver.py JSON

JSON is a list of runs, each with `of`, `backend`, `workers` and, where wanted, `nodes`, `away`, `kill`, `signal`, `patience_s`,
`seed`, `long`, `options`, `folder`. Each one prints a line of JSON: the digests, the workers that were lost, why and after how
long, and what listens where.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiny import OF  # pyright: ignore[reportMissingImports]

from onthejob.errors import ConfigError
from onthejob.scale import ScaleConfig, open_runtime
from onthejob.scale.dispatch import Dispatcher
from onthejob.scale.runtime import Facts
from onthejob.serve.guard import descendants, stat_of


def main(runs: list[dict[str, Any]]) -> None:
    """Make each run, and print its line."""
    usual: Any = Dispatcher.__init__.__kwdefaults__
    patience_s = usual["patience_s"]
    for run in runs:
        usual["patience_s"] = run.get("patience_s", patience_s)
        workers, long = run["workers"], run.get("long", False)
        local, nodes = run["backend"] == "local", run.get("nodes", 0)
        with contextlib.ExitStack() as opened:
            config = ScaleConfig(**run.get("options", {}))
            seats = workers + config.learners + config.samplers
            made = opened.enter_context(cluster(nodes, seats, run.get("odd"))) if nodes else None
            address = "" if made is None else made.address
            if run.get("away"):
                address = opened.enter_context(linked(**run["away"]))
            if not local:
                config = replace(config, backend="ray", workers=workers, address=address)
            if run.get("odd"):
                print(json.dumps({**run, "odd": "", **refused(config)}), flush=True)
                continue
            runtime = opened.enter_context(open_runtime(config, workers=workers))
            line: dict[str, Any] = {**run, "digests": {}, "listening": sorted(listening())}
            if run.get("kill"):
                # So that none is killed before it works.
                runtime._queue.wait_ready(all_of_them=True)  # type: ignore[attr-defined]
            began = time.monotonic()
            losses = opened.enter_context(Losses())
            killer = Killer(run, random.Random(run["seed"]), made) if run.get("kill") else None
            for name in run["of"]:
                # Only a whole run has learners and samplers.
                own = {**run.get("options", {}), "folder": run.get("folder", "")} if name == "loop" else {}
                line["digests"][name] = OF[name](runtime, workers, long=long, **own)
            line["seconds"] = round(time.monotonic() - began, 2)
            if killer is not None:
                line["killed"] = killer.join()
                line["losses"] = losses.since(killer.at)
            line["lost"] = runtime._queue.lost if runtime.workers else 0  # type: ignore[attr-defined]
        print(json.dumps(line), flush=True)


def refused(config: ScaleConfig) -> dict[str, Any]:
    """What is said of a cluster, one of whose nodes differs, and how many actors were started there."""
    asked = Facts(functions=(("jobs:sandbox_of_node", ()),), stated=(("sandbox", "usable"),))
    base = Facts(functions=(("jobs:base_of_node", ()),))
    try:
        open_runtime(config, workers=0, facts=asked, base=base).close()
    except ConfigError as error:
        return {"refused": str(error), "actors": len([pid for pid in descendants(os.getpid()) if "Actor" in said(pid)])}
    return {"refused": "", "actors": -1}


@contextlib.contextmanager
def cluster(nodes: int, seats: int, odd: dict[str, str] | None = None) -> Iterator[Any]:
    """Several nodes on this machine, with CPUs for so many actors; the last one with the variables of `odd`."""
    from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

    usual = {"num_cpus": -(-seats // nodes) + bool(odd), "object_store_memory": 100 << 20}
    made = Cluster(initialize_head=True, head_node_args={**usual, "include_dashboard": False}, shutdown_at_exit=False)
    for number in range(1, nodes):
        own = {"env_vars": odd} if odd and number == nodes - 1 else {}
        made.add_node(**usual, **own)
    yield made
    made.shutdown()


@contextlib.contextmanager
def linked(namespace: str, link: str, here: str, there: str) -> Iterator[str]:
    """A head with two CPUs at the address `here`, and a node with one at `there`, in another network namespace."""
    address, folder = f"{here}:6379", str(Path(tempfile.gettempdir()) / "ray")
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--object-store-memory", str(100 << 20)]
    head = [*ray, "--head", "--port", "6379", "--num-cpus", "2", "--include-dashboard", "false", "--temp-dir", folder]
    node = ["ip", "netns", "exec", namespace, *ray, "--address", address, "--num-cpus", "1"]
    with contextlib.ExitStack() as made:
        for command, own in (([*head], here), ([*node], there)):
            started = subprocess.Popen([*command, "--node-ip-address", own], stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
            made.callback(end, started)
            wait_for_nodes(address, own)
        yield address


def end(process: subprocess.Popen[bytes]) -> None:
    """End a node and what belongs to it."""
    below = descendants(process.pid)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(20.0)
    for pid in [process.pid, *below]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def wait_for_nodes(address: str, wanted: str) -> None:
    """Until a node has joined."""
    import ray  # pyright: ignore[reportMissingImports]

    deadline = time.monotonic() + 120.0
    found: list[str] = []
    while wanted not in found and time.monotonic() < deadline:
        with contextlib.suppress(Exception):
            ray.init(address=address, log_to_driver=False, configure_logging=False)
            found = [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]
        ray.shutdown()
        time.sleep(0.5)
    assert wanted in found, f"only {found} joined"


class Losses(logging.Handler):
    """What the queue says of lost workers."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._found: list[tuple[float, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "is lost" in record.getMessage():
            self._found.append((time.monotonic(), record.getMessage()))

    def since(self, began: float) -> list[tuple[float, str]]:
        return [(round(at - began, 1), said) for at, said in self._found]

    def __enter__(self) -> Losses:
        logging.getLogger("onthejob.scale.job_queue").addHandler(self)
        return self

    def __exit__(self, *exception: object) -> None:
        logging.getLogger("onthejob.scale.job_queue").removeHandler(self)


class Killer(threading.Thread):
    """Kills a random worker, learner or sampler that works, the raylet above one, or its node, some moments after a beginning.

    With `signal` it sends another one; with `kill` at `link` it sets the link down to a node that works, and at `swap` it kills a
    node and adds another one.
    """

    def __init__(self, run: dict[str, Any], luck: random.Random, made: Any = None) -> None:
        super().__init__(daemon=True)
        self._what, self._luck, self._killed = run["kill"], luck, 0
        self._signal = signal.Signals[run.get("signal", "SIGKILL")]
        self._link, self._cluster = run.get("away", {}).get("link", ""), made
        self.at = 0.0
        self.start()

    def join(self, timeout: float | None = None) -> int:  # type: ignore[override]
        super().join(timeout)
        return self._killed

    def run(self) -> None:
        until = time.monotonic() + 300.0
        begun_s = self._luck.uniform(0.0, 0.3)
        seen = 0.0
        while time.monotonic() < until:
            found = self._working()
            seen = seen or (time.monotonic() if found else 0.0)
            if found and time.monotonic() - seen >= begun_s:
                self._killed = self._luck.choice(sorted(found))
                self.at = time.monotonic()
                if self._what == "link":
                    subprocess.run(["ip", "link", "set", self._link, "down"], check=True)
                    return
                below = descendants(self._killed) if self._what in ("node", "swap") else []
                for pid in [self._killed, *below]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, self._signal)
                if self._what == "swap":
                    self._cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
                return
            time.sleep(0.005)

    def _working(self) -> list[int]:
        """Workers that do jobs at this moment, or the raylets above them."""
        below = descendants(os.getpid())
        actor = {"learner": "LearnerActor", "sampler": "SamplerActor"}.get(self._what, "Actor")
        working = [pid for pid in below if said(pid).startswith(f"ray::{actor}.perform")]
        if self._what in ("worker", "learner", "sampler"):
            return working
        # Not the head's, which is the driver's own node.
        above = {found[1] for pid in working if (found := stat_of(pid)) is not None}
        first = min((pid for pid in below if said(pid).split(" ")[0].endswith("/raylet")), key=started, default=0)
        return [pid for pid in above if pid != first]


def started(pid: int) -> int:
    """When a process began, in the kernel's ticks; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    except OSError:
        return 0


def said(pid: int) -> str:
    """The command line of a process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def listening() -> set[str]:
    """Addresses, in the kernel's notation, at which this process or one below it listens."""
    inodes = {}
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            fields = row.split()
            if fields[3] == "0A":
                inodes[f"socket:[{fields[9]}]"] = fields[1].partition(":")[0]
    found = set()
    for pid in [os.getpid(), *descendants(os.getpid())]:
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    found.add(inodes.get(os.readlink(link), ""))  # noqa: PTH115
    return found - {""}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
