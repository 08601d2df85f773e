"""Fault 70: how much a hostile sandbox slows down its neighbours."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from onthejob.envs.claw.sandbox import Limits
from onthejob.envs.claw.sandbox.box import BwrapSandbox
from onthejob.envs.claw.sandbox.faults.bench import Bench, NotTried
from onthejob.envs.claw.sandbox.host import BwrapHost
from onthejob.envs.claw.sandbox.sandbox_interface import CommandResult

SLOW_S = 120.0
QUIET = 7
LIMITS = Limits(processes=16, memory_bytes=192 << 20, address_bytes=512 << 20)
# Each in a session of its own: kernels that share processor time among sessions must not take them for one.
ATTACKERS = """
import os, time
def spin():
    while True:
        pass
def flood():
    while True:
        os.write(1, b"x" * 65536)
def eat():
    while True:
        bytearray(b"x") * (96 << 20)
def bomb():
    while True:
        try:
            while True:
                if os.fork() == 0:
                    time.sleep(0.002)
                    os._exit(0)
        except OSError:
            os.write(2, b"!")
        try:
            while True:
                os.wait()
        except OSError:
            pass
for attack in (spin, flood, eat, bomb):
    if os.fork() == 0:
        os.setsid()
        attack()
time.sleep(600)
"""


def p99(sandboxes: list[BwrapSandbox], goes_on: Callable[[], bool]) -> float:
    """Of `true`, seconds, in all sandboxes at once and again and again while `goes_on()`."""

    def work(sandbox: BwrapSandbox) -> list[float]:
        times = []
        while goes_on():
            times.append(sandbox.run("true", timeout_s=SLOW_S).wall_s)
        return times

    with ThreadPoolExecutor(len(sandboxes)) as threads:
        times = sorted(wall_s for found in threads.map(work, sandboxes) for wall_s in found)
    assert len(times) >= 100, "too few for a p99"
    return times[int(0.99 * len(times))]


@pytest.mark.slow
def test_a_hostile_neighbour_slows_the_others_less_than_twofold(host: BwrapHost, counts: Callable[[int, int], int]):
    """Seven busy sandboxes next to one that spins, floods, fills its memory and forks up to its limit; p99 of their commands.

    Processor time is shared by the kernel's scheduler among processes, not among sandboxes. The attackers want up to six
    processors at once (four, process 1 which counts the flood, and a child of the fork bomb) besides the seven: at worst
    (7 + 6) / 7 = 1.9 times as long, on any number of cores. One with more processes would take more, until its timeout.
    Each round is judged by itself, and the best counts, because other load on the machine comes and goes.
    """
    quiet = [host.open({}) for _ in range(QUIET)]
    hostile = host.open({"attack.py": ATTACKERS.encode()}, LIMITS)
    alone, beside, results = [], [], list[CommandResult]()
    seconds = counts(4, 20)
    try:
        with Bench(host) as bench:
            try:
                bench.limited(hostile, "pids", "pids.max", LIMITS.processes + 2)
                bench.limited(hostile, "memory", "memory.max", LIMITS.memory_bytes)
            except NotTried as reason:
                pytest.skip(str(reason))
            command = f"exec {bench.python} -I attack.py"
        for _ in range(3):
            deadline = time.monotonic() + seconds
            alone.append(p99(quiet, lambda deadline=deadline: time.monotonic() < deadline))
            attack = threading.Thread(target=lambda: results.append(hostile.run(command, timeout_s=seconds + 1)))
            attack.start()
            time.sleep(1)
            beside.append(p99(quiet, attack.is_alive))
            attack.join(SLOW_S)
    finally:
        for box in (*quiet, hostile):
            box.close()
    for result in results:
        assert result.timed_out
        assert not result.restarted
        assert result.stdout_size > 10_000_000, "there was no flood"
        assert result.stderr_size > 20, "forks did not meet their limit"
    assert min(late / early for early, late in zip(alone, beside, strict=True)) < 2, (alone, beside)
