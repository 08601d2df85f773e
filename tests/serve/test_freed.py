"""Memory that a model server gives back: counted without our own, waited for, and what holds the rest is named."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

import pytest

from onthejob.cli import main
from onthejob.record import Run
from onthejob.record.listing import FREED
from onthejob.serve.freed import Freed, Holder, Meter, account
from onthejob.serve.publish import Slots
from onthejob.serve.server import ModelServer
from onthejob.serve.supervisor import MemoryUse

from .conftest import Workshop
from .test_server import PROTOCOL, OurServer

GIB = 1 << 30
ORPHAN = Holder("VLLM::EngineCore (process 77)", 6 * GIB, "gpu")


class Scripted(Meter):
    """Reads out what was written down, the last reading forever."""

    def __init__(self, *beside: MemoryUse, held: MemoryUse) -> None:
        self._beside, self._held = list(beside), held
        self.asked = 0

    def beside(self) -> MemoryUse:
        self.asked += 1
        return self._beside.pop(0) if len(self._beside) > 1 else self._beside[0]

    def held_by(self, processes: Collection[int]) -> MemoryUse:
        return self._held

    def server(self, processes: Collection[int], idle: MemoryUse) -> MemoryUse:
        return self._held

    def holders(self, since: float) -> tuple[Holder, ...]:
        return (ORPHAN,)


def ended(*after: MemoryUse, held: MemoryUse, before: MemoryUse) -> tuple[Freed, float]:
    waited: list[float] = []
    meter = Scripted(*after, held=held)
    done = account("stop", held=held, before=before, since=0.0, meter=meter, patience_s=2.0, sleep=waited.append)
    return done, sum(waited)


def test_what_comes_back_late_is_waited_for_and_what_does_not_is_named():
    held, before = MemoryUse(system=2 * GIB, gpu=8 * GIB), MemoryUse(system=10 * GIB, gpu=20 * GIB)
    done, waited = ended(MemoryUse(system=8 * GIB, gpu=12 * GIB), held=held, before=before)
    assert (done.complete, done.holders, waited) == (True, (), 0.0)
    assert done.freed == held
    assert done.said().endswith("(stop) and gave back 2,048 of 2,048 MiB of memory and 8,192 of 8,192 MiB of GPU memory")
    late = (
        MemoryUse(system=10 * GIB, gpu=20 * GIB),
        MemoryUse(system=9 * GIB, gpu=20 * GIB),
        MemoryUse(system=8 * GIB, gpu=12 * GIB),
    )
    done, waited = ended(*late, held=held, before=before)
    assert (done.complete, waited) == (True, 1.0)
    done, waited = ended(MemoryUse(system=8 * GIB, gpu=18 * GIB), held=held, before=before)
    assert (done.complete, waited, done.missing) == (False, 2.0, MemoryUse(system=0, gpu=6 * GIB))
    assert "What holds memory now: VLLM::EngineCore (process 77) 6,144 MiB (gpu). End it" in done.warning()
    # A quarter of what was held, and always 512 MiB, may be missing; an unknown GPU says nothing.
    small = MemoryUse(system=600 << 20, gpu=None)
    assert ended(MemoryUse(system=10 * GIB, gpu=None), held=small, before=before)[0].complete is False
    assert ended(MemoryUse(system=before.system - (100 << 20), gpu=None), held=small, before=before)[0].complete
    assert MemoryUse(system=1, gpu=None).at_least(MemoryUse(system=0, gpu=5)) == MemoryUse(system=1, gpu=5)


@pytest.mark.server
def test_every_end_of_a_server_is_told_and_missing_memory_is_a_warning(
    workshop: Workshop, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    kept: list[Freed] = []
    held, full = MemoryUse(system=0, gpu=8 * GIB), MemoryUse(system=0, gpu=20 * GIB)
    empty = MemoryUse(system=0, gpu=12 * GIB)
    # Idle, running, before the restart, after it; idle and running; nothing more is given back.
    meter = Scripted(empty, full, full, empty, empty, full, held=held)
    slots = Slots(max_loras=3, max_cpu_loras=5, max_rank=8)
    server = OurServer(
        workshop.folder, slots=slots, log_file=tmp_path / "log", command=PROTOCOL, on_freed=kept.append, meter=meter
    )
    server.start()
    server.restart()
    assert [(freed.why, freed.complete, freed.freed.gpu) for freed in kept] == [("restart", True, 8 * GIB)]
    assert "VLLM::EngineCore" not in caplog.text
    assert server.child is not None
    (api, *_) = [pid for pid in server.child.members() if pid != server.child.pid]
    os.kill(api, 9)
    deadline = time.monotonic() + 30
    while server.child.alive:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    with caplog.at_level(logging.WARNING):
        server.stop()
    assert [(freed.why, freed.complete) for freed in kept[1:]] == [("killed", False)]
    assert "gave back 0 of 0 MiB of memory and 0 of 8,192 MiB of GPU memory" in caplog.text
    assert "VLLM::EngineCore (process 77) 6,144 MiB" in caplog.text
    server.stop()
    assert len(kept) == 2, "it had ended already"
    never = ModelServer(workshop.folder, slots=slots, log_file=tmp_path / "log", on_freed=kept.append)
    never.stop()
    assert len(kept) == 2


def test_a_process_is_measured_and_named(tmp_path: Path):
    """A real process with 128 MiB of its own, which began after `since`."""
    since = time.time()
    code = "import sys; held = bytearray(128 << 20); held[::4096] = b'x' * 32768; print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        meter = Meter()
        assert 128 << 20 <= meter.held_by([process.pid]).system < 256 << 20
        found = {holder.name.rpartition("(")[2]: holder for holder in meter.holders(since - 1)}
        assert 128 << 20 <= found[f"process {process.pid})"].bytes < 256 << 20
        assert f"process {process.pid})" not in {h.name.rpartition("(")[2] for h in meter.holders(time.time() + 60)}
        assert meter.beside().system > 128 << 20
        process.communicate()
    assert meter.held_by([process.pid]).system == 0


def test_the_record_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    done = Freed(
        why="killed", held=MemoryUse(system=GIB, gpu=8 * GIB), freed=MemoryUse(system=GIB, gpu=2 * GIB), holders=(ORPHAN,)
    )
    with Run.create(tmp_path, config={}, name="served") as run:
        with run.iteration(0):
            pass
        before = run.digest()
        run.live(FREED, done.as_dict())
        assert run.digest() == before, "no part of the result"
    assert main(["runs", "show", str(tmp_path / "served"), "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["freed"]
    assert (shown["why"], shown["complete"], shown["freed"]["gpu"]) == ("killed", False, 2 * GIB)
    assert shown["holders"][0]["name"] == "VLLM::EngineCore (process 77)"
    assert main(["runs", "show", str(tmp_path / "served")]) == 0
    assert "VLLM::EngineCore" in " ".join(capsys.readouterr().out.split())
