"""The backend `ray` in real clusters of this machine: the same digests as `local`, under kills too, and nothing left behind.

A driver (`driver.py`) is a process of its own, below the guard that also ends what a test's own cluster would leave.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onthejob.errors import ConfigError
from onthejob.scale.heartbeats import BEAT_S

from .conftest import GONE_S, KINDS, only, running, said, shared_memory

pytestmark = [
    pytest.mark.ray,
    pytest.mark.server,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray (make ray)"),
]

HERE = Path(__file__).parent
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}
"""127.0.0.1 in the kernel's tables, of IPv4 and of IPv6."""
SHORT_S, BUSY_S = 8.0, 10.0
"""Patience of the tests with silent workers, and what a busy machine adds."""


def test_any_number_of_workers_gives_the_same_digests(drive: Any, expected: dict[str, dict[str, str]]):
    before = shared_memory()
    driver = drive(
        *({"of": KINDS, "backend": "local", "workers": workers} for workers in (1, 2)),
        *({"of": KINDS, "backend": "ray", "workers": workers} for workers in (1, 2, 4)),
    )
    lines = driver.lines()
    assert [line["digests"] for line in lines] == [only(expected["short"], KINDS)] * 5
    for line in lines[2:]:
        assert set(line["listening"]) <= LOOPBACK
        assert line["listening"]
    assert driver.left() == ([], [])
    assert shared_memory() == before


def test_a_whole_run_has_the_same_record(drive: Any):
    usual = {"of": ["loop"], "backend": "ray", "workers": 1}
    all_kinds = {"learners": 2, "samplers": 2}
    on_one = drive({**usual, "backend": "local", "workers": 0}, usual, {**usual, "workers": 2, "options": all_kinds})
    first, *others = on_one.lines()
    assert [line["digests"] for line in others] == [first["digests"]] * 2
    # One process can use one token, and a cluster that is given has its own.
    on_three = drive(
        *(
            {**usual, "nodes": 3, "options": {f"{kind}s": 2}, "kill": kind, "seed": seed}
            for seed, kind in enumerate(("learner", "sampler"))
        )
    )
    for line in on_three.lines():
        assert line["digests"] == first["digests"]
        assert line["killed"] > 0
    assert on_one.left() == on_three.left() == ([], [])


def test_a_cluster_with_a_node_that_differs_is_refused(drive: Any, tmp_path: Path):
    """Another version of a package, another base and no sandbox, each named before an actor is started."""
    older = tmp_path / "older"
    (older / "numpy-0.1.dist-info").mkdir(parents=True)
    (older / "numpy-0.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 0.1\n")
    path = os.pathsep.join([str(older), str(HERE), *filter(None, sys.path)])
    odd = {"PYTHONPATH": path, "ONTHEJOB_CACHE": str(tmp_path / "odd")}
    driver = drive({"of": [], "backend": "ray", "workers": 1, "nodes": 3, "odd": odd, "options": {"learners": 3}})
    (line,) = driver.lines()
    assert "1 of 3 nodes cannot be used" in line["refused"]
    assert "numpy 0.1 (here " in line["refused"]
    assert "base of another cache (here of this one)" in line["refused"]
    assert "sandbox without bubblewrap (here usable)" in line["refused"]
    assert line["actors"] == 0
    assert driver.left() == ([], [])


def test_three_nodes_give_the_same_digests(drive: Any, expected: dict[str, dict[str, str]]):
    driver = drive({"of": KINDS, "backend": "ray", "workers": 3, "nodes": 3})
    (line,) = driver.lines()
    assert line["digests"] == only(expected["short"], KINDS)
    assert driver.left() == ([], [])


@pytest.mark.parametrize("kind", ["office", "claw"])
def test_a_killed_worker_changes_no_digest(drive: Any, expected: dict[str, dict[str, str]], kind: str):
    before = shared_memory()
    driver = drive(
        *({"of": [kind], "backend": "ray", "workers": 2, "long": True, "kill": "worker", "seed": seed} for seed in (1, 2))
    )
    for line in driver.lines():
        assert line["digests"] == {kind: expected["long"][kind]}
        assert line["killed"] > 0
        assert line["lost"] == 1
    assert driver.left() == ([], [])
    assert shared_memory() == before


def test_a_stopped_worker_changes_no_digest(drive: Any, expected: dict[str, dict[str, str]]):
    before = shared_memory()
    run = {"of": ["office"], "backend": "ray", "workers": 2, "long": True, "kill": "worker", "signal": "SIGSTOP", "seed": 1}
    driver = drive({**run, "patience_s": SHORT_S})
    (line,) = driver.lines()
    assert line["digests"] == {"office": expected["long"]["office"]}
    ((after_s, said),) = line["losses"]
    assert f"was silent for {SHORT_S:g} s" in said
    assert SHORT_S - BEAT_S - 1.0 < after_s < SHORT_S + BEAT_S + BUSY_S
    assert driver.left() == ([], [])
    assert shared_memory() == before


@pytest.fixture
def link() -> Iterator[dict[str, str]]:
    """Two network namespaces with a link between them."""
    one, other = (f"ojt{os.getpid()}{end}" for end in "ab")
    ends = {one: ("ojt0", "10.77.0.1"), other: ("ojt1", "10.77.0.2")}
    if os.geteuid() or shutil.which("ip") is None or ip("netns", "add", one):
        pytest.skip("needs root, iproute2 and network namespaces")
    try:
        assert ip("netns", "add", other) == 0
        assert ip("link", "add", "ojt0", "netns", one, "type", "veth", "peer", "name", "ojt1", "netns", other) == 0
        for name, (device, address) in ends.items():
            assert ip("-n", name, "address", "add", f"{address}/24", "dev", device) == 0
            assert ip("-n", name, "link", "set", device, "up") == ip("-n", name, "link", "set", "lo", "up") == 0
        yield {"head": one, "namespace": other, "link": "ojt0", "here": "10.77.0.1", "there": "10.77.0.2"}
    finally:
        for name in ends:
            ip("netns", "delete", name)


def ip(*arguments: str) -> int:
    return subprocess.run(["ip", *arguments], check=False, capture_output=True).returncode


def test_a_cut_link_changes_no_digest(drive: Any, link: dict[str, str], expected: dict[str, dict[str, str]]):
    """A node that cannot be reached any more, while its worker works."""
    within = ("ip", "netns", "exec", link.pop("head"))
    run = {"of": ["office"], "backend": "ray", "workers": 2, "long": True, "kill": "link", "seed": 1}
    driver = drive({**run, "away": link, "patience_s": SHORT_S}, within=within, RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="1")
    (line,) = driver.lines()
    assert line["digests"] == {"office": expected["long"]["office"]}
    assert line["killed"] > 0
    (after_s, said), *_ = line["losses"]
    assert f"was silent for {SHORT_S:g} s" in said
    assert SHORT_S - BEAT_S - 1.0 < after_s < SHORT_S + BEAT_S + BUSY_S
    assert driver.left() == ([], [])


def test_a_killed_node_changes_no_digest(drive: Any, expected: dict[str, dict[str, str]]):
    before = shared_memory()
    run = {"of": ["office"], "backend": "ray", "workers": 3, "nodes": 3, "long": True, "seed": 1}
    driver = drive({**run, "kill": "node"}, {**run, "kill": "raylet"})
    node, raylet = driver.lines()
    for line in (node, raylet):
        assert line["digests"] == {"office": expected["long"]["office"]}
        assert line["killed"] > 0
    # The workers of a killed raylet may answer until the others have done the rest; those of a killed node do not.
    assert node["lost"] >= 1
    assert driver.left() == ([], [])
    assert shared_memory() == before


def test_nothing_outlives_a_killed_driver(drive: Any):
    before = shared_memory()
    driver = drive({"of": ["office"], "backend": "ray", "workers": 2, "long": True})
    deadline = time.monotonic() + 300.0
    while (
        not (pids := [pid for pid in driver.seen if said(pid).startswith("ray::Actor.perform")]) and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    assert pids
    # The guard's only child is the driver; with its own cluster's guard below it.
    (main,) = [pid for pid in driver.seen if said(pid).split(" ")[1:2] == [str(HERE / "driver.py")]]
    os.kill(main, signal.SIGKILL)
    deadline = time.monotonic() + GONE_S
    while any(map(running, driver.seen)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [said(pid) for pid in driver.seen if running(pid)] == []
    assert shared_memory() == before


def test_workers_see_no_key_and_a_hanging_one_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from onthejob.scale import Job, ScaleConfig, open_runtime

    monkeypatch.setenv("SOME_API_KEY", "never to be seen")
    monkeypatch.setenv("ONTHEJOB_NATIVE", "off")
    monkeypatch.syspath_prepend(str(HERE))
    with open_runtime(ScaleConfig(backend="ray", workers=1), workers=0) as runtime:
        seen = runtime.submit([Job(key="env", function="jobs:environment", arguments=())])()["env"]
        assert "never to be seen" not in str(seen)
        assert seen["ONTHEJOB_NATIVE"] == "off"
        assert seen["RAY_AUTH_MODE"] == "token"
        with runtime.share([b"abc", bytes(3 << 20)]) as shared:
            weighed = [Job(key=f"w{n}", function="jobs:weigh", arguments=(n,), shared=shared) for n in range(3)]
            assert runtime.submit(weighed)() == {f"w{n}": n * (3 + (3 << 20)) for n in range(3)}
        hanging = Job(key="hang", function="jobs:stop_once", arguments=(str(tmp_path / "mark"), 7), limit_s=5.0)
        assert runtime.submit([hanging])() == {"hang": 49}
        with pytest.raises(ValueError, match="as it was raised there"):
            runtime.submit([Job(key="bad", function="jobs:fail", arguments=("as it was raised there",))])()


def test_an_address_needs_its_token(drive: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from onthejob.scale import ScaleConfig, open_runtime

    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"no token.*RAY_AUTH_TOKEN_PATH"):
        open_runtime(ScaleConfig(backend="ray", address="127.0.0.1:6379"), workers=0)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(ConfigError, match=r"RAY_AUTH_MODE is 'disabled'"):
        open_runtime(ScaleConfig(backend="ray", address="127.0.0.1:6379"), workers=0)
