"""Every number of workers, samplers and learners, and faults drawn at random: the same digests, and nothing is left.

With ONTHEJOB_COUNTS=full (`make acceptance`) all combinations and 50 faults, else one and three, as `test_ray.py` has a fault of
each kind.
"""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from .conftest import HERE, KINDS, only, running, said, shared_memory

FULL = os.environ.get("ONTHEJOB_COUNTS") == "full"
pytestmark = [
    pytest.mark.ray,
    pytest.mark.server,
    pytest.mark.timeout(7200 if FULL else 1800),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray (make ray)"),
]

NODES, WORKERS, SAMPLERS, LEARNERS = (0, 3), (1, 2, 4), (1, 2, 3), (1, 3, 6)
"""0 nodes: a cluster that is started for the run."""
SHORT_S = 8.0
"""Patience with a stopped process."""
LONG_S = 1200.0
"""Seconds in which a run ends on a busy machine."""


@pytest.mark.parametrize(
    ("nodes", "workers"), [f for f in product(NODES, WORKERS) if FULL or f == (3, 2)], ids=lambda value: str(value)
)
def test_every_topology_gives_the_same_digests(drive: Any, expected: dict[str, dict[str, str]], nodes: int, workers: int):
    before = shared_memory()
    counts = [*product(SAMPLERS, LEARNERS)] if FULL else [(3, 6)]
    driver = drive(
        *(
            {
                "of": [*KINDS, "loop"], "backend": "ray", "workers": workers, "nodes": nodes,
                "options": {"samplers": samplers, "learners": learners},
            }
            for samplers, learners in counts
        )
    )  # fmt: skip
    lines = driver.lines(LONG_S * len(counts))
    assert [line["options"] for line in lines] == [{"samplers": one, "learners": other} for one, other in counts]
    for line in lines:
        assert line["digests"] == expected["short"], line["options"]
        assert line["lost"] == 0
    assert driver.left() == ([], [])
    assert shared_memory() == before


FAULTS = ("swap", "driver", "sampler", "node", "learner", "raylet", "worker", "stop")


def run_with(fault: str, luck: random.Random) -> dict[str, Any]:
    """A run in which a fault happens at a random moment."""
    usual = {"backend": "ray", "kill": fault, "seed": luck.randrange(1_000_000), "long": True}
    whole = {**usual, "of": ["loop"], "workers": 1, "nodes": luck.choice(NODES), "options": {"samplers": 2, "learners": 2}}
    match fault:
        case "sampler" | "learner":
            return whole
        case "worker":
            return {**usual, "of": [luck.choice(KINDS)], "workers": 2, "nodes": luck.choice(NODES)}
        case "stop":
            stopped = {"kill": luck.choice(("worker", "sampler", "learner")), "signal": "SIGSTOP", "patience_s": SHORT_S}
            return {**whole, **stopped} if stopped["kill"] != "worker" else {**usual, **stopped, "of": ["office"], "workers": 2}
    return {**usual, "of": ["office"], "workers": 3, "nodes": 3}


@pytest.mark.parametrize("number", range(50 if FULL else 3))
def test_a_fault_changes_no_digest(drive: Any, expected: dict[str, dict[str, str]], number: int, tmp_path: Path):
    before = shared_memory()
    fault, luck = FAULTS[number % len(FAULTS)], random.Random(f"chaos {number}")
    if fault == "driver":
        survives_its_driver(drive, expected["short"]["loop"], luck, tmp_path)
    else:
        run = run_with(fault, luck)
        driver = drive(run)
        (line,) = driver.lines(LONG_S)
        # A whole run has one form.
        digests = expected["short" if run["of"] == ["loop"] else "long"]
        assert line["digests"] == only(digests, run["of"])
        assert line["killed"] > 0
        assert driver.left() == ([], [])
    assert shared_memory() == before


def survives_its_driver(drive: Any, digest: str, luck: random.Random, folder: Path) -> None:
    """A run whose driver is killed, and what continues it: the same record, and no process of the first is left."""
    whole = {"of": ["loop"], "backend": "ray", "workers": 1, "options": {"samplers": 2, "learners": 2}, "folder": str(folder)}
    killed = drive(whole)
    deadline = time.monotonic() + 300.0
    while not any(said(pid).startswith("ray::SamplerActor.perform") for pid in killed.seen) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(luck.uniform(0.0, 4.0))
    mains = [pid for pid in killed.seen if said(pid).split(" ")[1:2] == [str(HERE / "driver.py")]]
    for pid in mains:
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 20.0
    while any(map(running, killed.seen)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [said(pid) for pid in killed.seen if running(pid)] == []
    driver = drive(whole)
    (line,) = driver.lines(LONG_S)
    assert line["digests"] == {"loop": digest}
    assert driver.left() == ([], [])
