"""No sandbox at all: commands run as plain processes of this user in a temporary folder.

For machines that are themselves disposable, and as the baseline of benchmarks. A command can do whatever this user can: read
its files, use the network, kill this process, leave daemons behind. Only the timeout and the output limit hold.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from onthejob.envs.claw.sandbox.box import failed, unusable
from onthejob.envs.claw.sandbox.inside import find_python, furnish, open_folders, sources
from onthejob.envs.claw.sandbox.rootfs import SYSTEM_PATH
from onthejob.envs.claw.sandbox.sandbox_interface import (
    NOT_RUN,
    TIMED_OUT,
    CommandResult,
    Content,
    Entry,
    HostReport,
    Layer,
    Layout,
    Limits,
    Sandbox,
    checked_paths,
)
from onthejob.envs.claw.sandbox.surveying import survey
from onthejob.envs.claw.sandbox.tmpfs_workspace import write_items
from onthejob.errors import ConfigError, ContractError, SandboxError

BACKEND = "unsafe"
CHUNK = 65_536
INLINE_BYTES = 100_000


class Kept:
    """The beginning and the end of one output, and its size."""

    def __init__(self, keep: int) -> None:
        self.size = 0
        self._head, self._tail = bytearray(), bytearray()
        self._head_keep, self._tail_keep = keep // 2, keep - keep // 2

    def take(self, chunk: bytes) -> None:
        """Count and keep one piece."""
        self.size += len(chunk)
        room = self._head_keep - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        del self._tail[: -self._tail_keep]

    def data(self) -> bytes:
        """What was kept."""
        return bytes(self._head + self._tail)


class UnsafeHost:
    """A `SandboxHost` without isolation.

    Raises:
        SandboxError: There is no room for what commands are given.
    """

    def __init__(self) -> None:
        self._open: list[UnsafeSandbox] = []
        self._closed = False
        with writing():
            self._run = Path(tempfile.mkdtemp(prefix="onthejob-unsafe-run-"))
            try:
                wanted = sources()
                furnish(self._run, wanted, open_folders(wanted), python=find_python(), run=str(self._run))
            except BaseException:
                shutil.rmtree(self._run)
                raise

    @property
    def report(self) -> HostReport:
        layers = (Layer("wall clock", True, "the process group is killed at the timeout"), Layer("isolation", False, "asked for"))
        return HostReport(backend=BACKEND, layers=layers)

    def open(
        self,
        files: Mapping[str, Content],
        limits: Limits | None = None,
        *,
        beside: Mapping[str, Content] | None = None,
        layout: Layout | None = None,
    ) -> Sandbox:
        if layout is not None and layout.root:
            raise ConfigError("plain subprocesses cannot have `/` as their workspace. Take a host that isolates.")
        if self._closed:
            raise ContractError("the sandbox host is closed. Open another one.")
        folders = {"work": checked_paths(files)} | ({} if beside is None else {"beside": checked_paths(beside)})
        with writing():
            folder = Path(tempfile.mkdtemp(prefix="onthejob-unsafe-"))
            try:
                for name, items in folders.items():
                    (folder / name).mkdir()
                    write_items(folder / name, items)
            except BaseException:
                shutil.rmtree(folder)
                raise
        sandbox = UnsafeSandbox(folder, self._run, Limits() if limits is None else limits)
        self._open.append(sandbox)
        return sandbox

    def close(self) -> None:
        self._closed = True
        for sandbox in self._open:
            sandbox.close()
        self._open.clear()
        shutil.rmtree(self._run, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class UnsafeSandbox:
    """A `Sandbox` that is only a folder."""

    backend = BACKEND

    def __init__(self, folder: Path, run: Path, limits: Limits) -> None:
        self.work = folder / "work"
        self.beside = str(folder / "beside") if (folder / "beside").is_dir() else ""
        self._folder, self._run, self._limits = folder, run, limits
        self._state = "open"
        self._lock = threading.Lock()

    def run(self, command: str, *, timeout_s: float = 10.0, start: str = "", persistent: bool = False) -> CommandResult:
        if persistent:
            raise ConfigError("plain subprocesses have no persistent shell. Take a host that isolates.")
        if not (timeout_s > 0 and math.isfinite(timeout_s)):
            raise ConfigError(f"timeout_s must be a positive number of seconds, got {timeout_s}.")
        if self._state != "open":
            raise ContractError(f"the sandbox is {self._state}. Open another one.")
        command = start + command
        problem = unusable(command, self._limits)
        if problem:
            return failed(NOT_RUN, problem)
        with self._lock:
            begun = time.monotonic()
            long = len(command.encode()) > INLINE_BYTES
            script = self._folder / "command"
            with writing():
                # What an agent did to its own folder must not keep the next command from starting.
                self.work.mkdir(exist_ok=True)
                self.work.chmod(0o755)
                if long:
                    script.write_text(command, encoding="utf-8")
            child = subprocess.Popen(
                ["/bin/bash", str(script)] if long else ["/bin/bash", "-c", command],
                cwd=self.work,
                env={
                    "PATH": f"{self._run}/bin:{SYSTEM_PATH}",
                    "PYTHONPATH": f"{self._run}/python",
                    "HOME": str(self.work),
                    "LANG": "C.UTF-8",
                    "TERM": "dumb",
                    "TZ": "UTC",
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                umask=0o022,
            )
            out, err = Kept(self._limits.output_bytes), Kept(self._limits.output_bytes)
            timed_out = watch(child, out, err, begun + timeout_s)
            code = child.returncode
            return CommandResult(
                exit_code=TIMED_OUT if timed_out else 128 - code if code < 0 else code,
                stdout=out.data(),
                stderr=err.data(),
                stdout_size=out.size,
                stderr_size=err.size,
                timed_out=timed_out,
                wall_s=time.monotonic() - begun,
            )

    def survey(self) -> dict[str, Entry]:
        if self._state == "closed":
            raise ContractError("the sandbox is closed, its workspace is gone.")
        return survey(self.work)

    def collect(self) -> Path:
        if self._state == "closed":
            raise ContractError("the sandbox is closed, its workspace is gone.")
        if self._state == "open":
            self._state = "collected"
            self.work.mkdir(exist_ok=True)
            unlock(self._folder)
        return self.work

    def close(self) -> None:
        if self._state != "closed":
            self._state = "closed"
            unlock(self._folder)
            shutil.rmtree(self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Around what writes to this machine's disk outside of a command.

    Raises:
        SandboxError: it is full, or cannot be written.
    """
    try:
        yield
    except OSError as error:
        # None: there is no folder that Python could choose.
        folder = tempfile.tempdir or "any temporary folder"
        raise SandboxError(
            f"no workspace in {folder}: {error.strerror}. Make room there, or set TMPDIR to another folder."
        ) from error


def watch(child: subprocess.Popen[bytes], out: Kept, err: Kept, deadline: float) -> bool:
    """Collect output until the shell ends or the time is up; then the process group is killed. True when it was up."""
    assert child.stdout is not None
    assert child.stderr is not None
    pidfd = os.pidfd_open(child.pid)
    timed_out = ended = False
    pipes = {child.stdout.fileno(): out, child.stderr.fileno(): err}
    with selectors.PollSelector() as selector, child.stdout, child.stderr:
        for descriptor in pipes:
            # A command may take away from its own pipe what was there a moment ago.
            os.set_blocking(descriptor, False)
        for descriptor in (*pipes, pidfd):
            selector.register(descriptor, selectors.EVENT_READ)
        while not (timed_out or ended):
            left = deadline - time.monotonic()
            timed_out = left <= 0
            for key, _ in [] if timed_out else selector.select(left):
                if key.fd == pidfd:
                    ended = True
                    continue
                chunk = read_once(key.fd)
                pipes[key.fd].take(chunk or b"")
                if chunk == b"":
                    selector.unregister(key.fd)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        os.close(pidfd)
        for descriptor, kept in pipes.items():
            # Never longer than what a pipe holds: a daemon that left the group could write forever.
            for _ in range(16):
                chunk = read_once(descriptor)
                if not chunk:
                    break
                kept.take(chunk)
    return timed_out


def read_once(descriptor: int) -> bytes | None:
    """What is there, at most `CHUNK` bytes; nothing at the end, None when there is nothing yet."""
    try:
        return os.read(descriptor, CHUNK)
    except BlockingIOError:
        return None


def unlock(folder: Path) -> None:
    """Make folders readable and writable again, so that they can be read and removed."""
    for current, folders, _ in os.walk(folder):
        for name in folders:
            path = Path(current) / name
            if not stat.S_ISLNK(path.lstat().st_mode):
                path.chmod(0o755)
