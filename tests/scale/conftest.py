"""A driver in a process of its own, below the guard that also ends what a test's own cluster would leave."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from onthejob.serve.guard import descendants
from onthejob.serve.supervisor import Child

HERE = Path(__file__).parent
KINDS = ("office", "claw", "own")
GONE_S = 20.0


class Driver:
    """One run of `driver.py`, with a folder for temporary files of its own."""

    def __init__(self, runs: Sequence[dict[str, Any]], within: Sequence[str] = (), **environ: str) -> None:
        """within: a command that runs another one."""
        self.folder = Path(tempfile.mkdtemp(prefix="ojt-"))
        token = self.folder / "token"
        token.write_text("0123456789abcdef" * 4, encoding="ascii")
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "PYTHONPATH") if name in os.environ}
        own = {
            "TMPDIR": str(self.folder), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "OMP_NUM_THREADS": "1",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0", "TOKENIZERS_PARALLELISM": "false",
            "SOME_API_KEY": "never to be seen",
        }  # fmt: skip
        self.log = self.folder / "driver.log"
        self.child = Child(
            [*within, sys.executable, str(HERE / "driver.py"), json.dumps(list(runs))],
            log_file=self.log,
            environ=kept | own | environ,
            name="driver",
        )
        self.seen: set[int] = set()
        self._over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def lines(self, within_s: float = 600.0) -> list[dict[str, Any]]:
        """What it printed, once it has ended."""
        deadline = time.monotonic() + within_s
        while self.child.alive and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not self.child.alive, f"still running: {self.child.tail()}"
        found = [
            json.loads(line)
            for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines()
            if line.startswith('{"')
        ]
        assert found, self.child.tail(60)
        return found

    def left(self) -> tuple[list[int], list[str]]:
        """Its processes that run still, and files that it left but the log and the token."""
        deadline = time.monotonic() + GONE_S
        while (alive := [pid for pid in self.seen if running(pid)]) and time.monotonic() < deadline:
            time.sleep(0.1)
        # Of a cluster that the driver was given, the logs stay.
        return alive, sorted(
            name
            for name in {path.name for path in self.folder.iterdir()} - {"driver.log", "token", "ray"}
            # torch makes its folder in whatever process imports its compiler.
            if not name.startswith("torchinductor_")
        )

    def close(self) -> None:
        self._over.set()
        self.child.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            self.seen.update(descendants(self.child.pid))


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def drive() -> Iterator[Any]:
    made: list[Driver] = []

    def start(*runs: dict[str, Any], within: Sequence[str] = (), **environ: str) -> Driver:
        made.append(Driver(runs, within, **environ))
        return made[-1]

    yield start
    for driver in made:
        driver.close()


def only(digests: dict[str, str], kinds: Sequence[str]) -> dict[str, str]:
    """The digests of these kinds."""
    return {kind: digests[kind] for kind in kinds}


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


@pytest.fixture(scope="session")
def expected() -> dict[str, dict[str, str]]:
    """What one process gives: kind -> digest, of the short and the long form."""
    usual = {"backend": "local", "workers": 0}
    driver = Driver([{**usual, "of": [*KINDS, "loop"]}, {**usual, "of": KINDS, "long": True}])
    short, long = (line["digests"] for line in driver.lines())
    driver.close()
    return {"short": short, "long": long}


def said(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""
