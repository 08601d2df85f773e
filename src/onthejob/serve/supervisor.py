"""A server as a child process that cannot outlive us, with its log, its health and the memory it held.

The child runs below `serve.guard`, in a session of its own. Whichever of the processes is killed, nothing remains: the guard
sees this process end by a closed pipe, and all others by being their subreaper; when the guard ends, this process ends its
session.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onthejob.errors import ConfigError, ServeError
from onthejob.serve.guard import stat_of
from onthejob.texts import printable, redacted, secrets_of_environment

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory in use on this machine, bytes."""

    system: int
    """All but what the kernel calls available."""
    gpu: int | None
    """Over all NVIDIA GPUs; None without one, and on unified-memory machines that do not tell (there `system` holds it)."""

    def at_least(self, other: Memory) -> Memory:
        """The larger of both, number by number; one that is not known counts as the other."""
        known = [size for size in (self.gpu, other.gpu) if size is not None]
        return Memory(system=max(self.system, other.system), gpu=max(known) if known else None)


class Child:
    """One supervised process tree."""

    def __init__(self, command: Sequence[str], *, log_file: Path, environ: Mapping[str, str], name: str = "server") -> None:
        """Start it.

        Args:
            command: program and arguments.
            log_file: gets its output; appended to.
            environ: its whole environment.
            name: for messages.

        Raises:
            ServeError: the log cannot be written.
        """
        self.name, self.log_file = name, log_file
        self._lock = threading.Lock()
        reading, self._writing = os.pipe()
        try:
            log_file.parent.mkdir(parents=True, exist_ok=True)
            with log_file.open("ab") as output:
                self._log_start = output.tell()
                # The guard is imported from where we were, whatever PYTHONPATH the server is given.
                source = str(Path(__file__).resolve().parent / "guard.py")
                self._guard = subprocess.Popen(
                    [sys.executable, "-I", source, str(reading), "--", *command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=dict(environ),
                    start_new_session=True,
                    pass_fds=(reading,),
                )
        except OSError as error:
            os.close(self._writing)
            raise ServeError(f"{name} cannot be started: {error}. Check {log_file.parent}.") from error
        finally:
            os.close(reading)
        threading.Thread(target=self._watch, name=f"watch-{name}", daemon=True).start()

    @property
    def pid(self) -> int:
        """Of the guard, which is also the session's id."""
        return self._guard.pid

    @property
    def alive(self) -> bool:
        """True while the server has not ended."""
        return self._guard.poll() is None

    def members(self) -> list[int]:
        """Living processes of its session, the guard included."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                about = stat_of(int(entry.name))
                if about is not None and about[2] == self.pid and about[0] != "Z":
                    found.append(int(entry.name))
        return found

    def tail(self, lines: int = 15) -> str:
        """The end of what it wrote, as a message may show it."""
        with self.log_file.open("rb") as file:
            file.seek(max(self._log_start, self.log_file.stat().st_size - 16_384))
            said = "\n".join(file.read().decode("utf-8", "replace").splitlines()[-lines:])
        return printable(redacted(said, secrets_of_environment(os.environ)))

    def stop(self, *, within_s: float = 15.0) -> None:
        """End it and all its descendants; returns when none is left.

        Raises:
            ServeError: a process survived.
        """
        with self._lock:
            if self._writing >= 0:
                os.close(self._writing)
                self._writing = -1
        try:
            self._guard.wait(within_s)
        except subprocess.TimeoutExpired:
            log.warning("%s does not end; it is killed", self.name)
        self._end_session()

    def _end_session(self, within_s: float = 5.0) -> None:
        deadline = time.monotonic() + within_s
        while members := self.members():
            for pid in members:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if time.monotonic() > deadline:
                raise ServeError(f"{self.name} left the processes {members} behind, which do not end. Stop them by hand.")
            time.sleep(0.02)

    def _watch(self) -> None:
        """End the session when the guard is gone; a guard that was killed could not do it."""
        self._guard.wait()
        try:
            self._end_session()
        except ServeError as error:
            log.error("%s", error)


def wait_until(ready: Callable[[], bool], child: Child, *, within_s: float, every_s: float = 0.25) -> float:
    """Seconds until `ready()`.

    Raises:
        ServeError: the child ended, or is not ready in time (it is stopped then).
    """
    started = time.monotonic()
    while not ready():
        if not child.alive:
            child.stop()
            raise ServeError(f"{child.name} ended while it started. The end of {child.log_file}:\n{child.tail()}")
        if time.monotonic() - started > within_s:
            child.stop()
            raise ServeError(f"{child.name} is not ready after {within_s:g} s. The end of {child.log_file}:\n{child.tail()}")
        time.sleep(every_s)
    return time.monotonic() - started


def free_port() -> int:
    """A free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def check_port(port: int) -> None:
    """Refuse a port of the loopback interface that another program listens on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            owner = port_owner(port)
            who = f" by process {owner}" if owner else ""
            raise ConfigError(f"port {port} is taken{who}. Choose another --server.port, or 0 for a free one.") from error


def port_owner(port: int) -> int | None:
    """Process that listens on a loopback port; None when it cannot be seen."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            rows = Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and not inodes.isdisjoint(_open_files(entry / "fd")):
            return int(entry.name)
    return None


def _open_files(folder: Path) -> set[str]:
    """What a process has open, as far as it can be seen; a file that is closed meanwhile hides no other."""
    found = set()
    try:
        links = list(folder.iterdir())
    except OSError:
        return found
    for link in links:
        try:
            found.add(os.readlink(link))  # noqa: PTH115  # `socket:[1]` is no path
        except OSError:
            continue
    return found


def memory() -> Memory:
    """What is in use now."""
    about = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    kib = {name: int(value.split()[0]) for name, value in about.items()}
    return Memory(system=(kib["MemTotal"] - kib["MemAvailable"]) * 1024, gpu=_gpu())


def _gpu() -> int | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
        return sum(int(line) << 20 for line in done.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
