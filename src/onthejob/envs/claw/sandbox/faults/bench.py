"""What a fault needs to be tried out: sandboxes, things on the host worth attacking, and plain checks."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from onthejob.envs.claw.sandbox.box import BwrapSandbox
from onthejob.envs.claw.sandbox.host import BwrapHost
from onthejob.envs.claw.sandbox.programs import PYTHONS
from onthejob.envs.claw.sandbox.sandbox_interface import CommandResult, Limits

SECRET = "TOP-SECRET-7f3a91"
PATIENCE_S = 120.0
"""For what must end by itself, also on a loaded machine."""
SHORT_S = 1.5
"""For what must be stopped by its timeout."""


class NotHeld(Exception):
    """The sandbox did not hold; the message says what happened."""


class NotTried(Exception):
    """The attack would endanger this machine, or needs what is not here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One attack or mishap, and what must come of it."""

    number: int
    title: str
    attack: Callable[[Bench], None]
    """Returns when the sandbox held; raises `NotHeld` or `NotTried`."""


class Bench:
    """The surroundings of one attack; everything it made is gone after the `with` block."""

    def __init__(self, host: BwrapHost) -> None:
        self.host = host
        self.python = next((name for name in PYTHONS if Path(name).is_file()), PYTHONS[0])
        self._sandboxes: list[BwrapSandbox] = []

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="onthejob-fault-")
        self.secret = Path(self._folder.name) / "secret.txt"
        """A file outside, readable for everyone."""
        self.secret.write_text(SECRET, encoding="utf-8")
        self.secret.parent.chmod(0o755)
        self._canary = subprocess.Popen(["/bin/sleep", "3600"], stdin=subprocess.DEVNULL)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        """A TCP port that listens outside."""
        return self

    def __exit__(self, *_: object) -> None:
        for sandbox in self._sandboxes:
            sandbox.close()
        self._canary.kill()
        self._canary.wait()
        self._listener.close()
        self._folder.cleanup()

    @property
    def canary(self) -> int:
        """Pid of a process outside."""
        return self._canary.pid

    def was_reached(self) -> bool:
        """True when someone connected to `port`."""
        return bool(select.select([self._listener], [], [], 0)[0])

    def open(self, files: Mapping[str, bytes] | None = None, **limits: int) -> BwrapSandbox:
        """A sandbox, closed after the attack."""
        chosen = {"start_s": PATIENCE_S, "grace_s": PATIENCE_S} | limits
        sandbox = self.host.open({} if files is None else files, Limits(**chosen))  # pyright: ignore[reportArgumentType]
        assert isinstance(sandbox, BwrapSandbox)
        self._sandboxes.append(sandbox)
        return sandbox

    def run(self, sandbox: BwrapSandbox, command: str) -> CommandResult:
        """Run something that must end by itself."""
        result = sandbox.run(command, timeout_s=PATIENCE_S)
        check(not result.timed_out, f"it hung: {command[:80]!r}")
        return result

    def python_run(self, sandbox: BwrapSandbox, code: str) -> CommandResult:
        """Run Python code inside."""
        quoted = code.replace("'", "'\\''")
        return self.run(sandbox, f"{self.python} -I -c '{quoted}'")

    def after(self) -> None:
        """What must hold after every attack: what is outside lives and is unchanged, the next command works."""
        check(self._canary.poll() is None, "a process outside was killed")
        check(self.secret.read_text(encoding="utf-8") == SECRET, "a file outside was changed")
        for sandbox in self._sandboxes:
            if sandbox.state == "open":
                result = self.run(sandbox, "echo next")
                check(result.stdout == b"next\n" and result.exit_code == 0, f"the next command does not work: {result}")

    def limited(self, sandbox: BwrapSandbox, controller: str, file: str, most: int) -> Path:
        """The sandbox's group, proven to hold its processes under a limit.

        Raises:
            NotTried: It is not proven; what needs the limit must not be tried.
        """
        for group in sandbox.cgroups:
            for name in (file, {"memory.max": "memory.limit_in_bytes"}.get(file, file)):
                if not (group / name).is_file():
                    continue
                value = (group / name).read_text().strip()
                inside = str(sandbox.pid) in (group / "cgroup.procs").read_text().split()
                if value.isdigit() and 0 < int(value) <= most and inside:
                    return group
        raise NotTried(f"no {controller} cgroup limits the sandbox here ({self.host_detail(controller)})")

    def host_detail(self, controller: str) -> str:
        """Why there is no such group."""
        return next((layer.detail for layer in self.host.report.layers if layer.name == f"{controller} cgroup"), "unknown")


def check(holds: bool, otherwise: str) -> None:
    """Raise `NotHeld` unless `holds`."""
    if not holds:
        raise NotHeld(otherwise)


def wait_until(holds: Callable[[], bool], *, seconds: float = PATIENCE_S) -> bool:
    """True as soon as `holds()`; False when it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def alive(pid: int) -> bool:
    """True while the process exists and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def own_pid() -> int:
    """Pid of this process, a worthwhile target."""
    return os.getpid()
