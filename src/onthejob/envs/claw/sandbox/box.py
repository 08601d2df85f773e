"""One bubblewrap sandbox: talks to its pid 1, kills it by pidfd, restarts it on the same workspace when it dies."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from onthejob.envs.claw.sandbox import tmpfs_workspace
from onthejob.envs.claw.sandbox.arguments import INSIDE_UID
from onthejob.envs.claw.sandbox.sandbox_interface import DIED, NOT_RUN, TIMED_OUT, CommandResult, Entry, Layout, Limits
from onthejob.envs.claw.sandbox.surveying import survey
from onthejob.errors import ConfigError, ContractError, SandboxError

DEATH_S = 60.0
"""Seconds in which killed processes must be gone; milliseconds in practice."""
REPLY_HEAD = 23
WAS_LATE, HAS_ENDED = 1, 2
"""Bits of a reply's first byte."""
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


class NotStartedError(SandboxError):
    """The first process of a sandbox said nothing before it ended or the time was up."""


class Started(NamedTuple):
    """Descriptors of a starting sandbox, in the order in which the broker sends them."""

    control: int
    info: int
    errors: int


class Asks(Protocol):
    """What a sandbox needs of its host."""

    def ask(self, request: dict[str, Any]) -> Any: ...

    def forget(self, number: int) -> None: ...


class BwrapSandbox:
    """A `Sandbox`; made by `BwrapHost.open`."""

    backend = "bwrap"

    def __init__(
        self,
        host: Asks,
        number: int,
        folder: int,
        limits: Limits,
        cgroups: tuple[Path, ...],
        *,
        beside: bool = False,
        layout: Layout | None = None,
    ) -> None:
        self._layout = layout or Layout()
        self.beside = self._layout.beside if beside else ""
        self.cgroups = cgroups
        """Control groups that hold all its processes; empty when this host may not make any."""
        self._host, self._number, self._folder, self._limits = host, number, folder, limits
        self._control: socket.socket | None = None
        self._pidfd = -1
        self._pid = 0
        self._state = "open"
        self._dead = False
        """Proven: no process of this sandbox exists."""
        self._has_shell = False
        """A persistent shell runs."""
        self._lock = threading.RLock()

    @property
    def state(self) -> str:
        """`open`, `collected` or `closed`."""
        return self._state

    @property
    def pid(self) -> int:
        """Pid of the sandbox's process 1 outside; for checks, not for signals."""
        return self._pid

    def size_of(self, name: str) -> int:
        """Size of a file in the workspace while the sandbox lives, bytes; -1 when there is none. For checks."""
        try:
            return (tmpfs_workspace.root(self._folder) / name).lstat().st_size
        except OSError:
            return -1

    def attach(self, started: Started) -> None:
        """Wait until pid 1 has reported, and believe only what proves the isolation.

        Raises:
            NotStartedError: It did not start.
            SandboxError: It is less isolated than it should be.
        """
        deadline = time.monotonic() + self._limits.start_s
        self._dead = False
        self._control = socket.socket(fileno=started.control)
        with os.fdopen(started.info, "rb", buffering=0) as info, os.fdopen(started.errors, "rb", buffering=0) as errors:
            try:
                hello = self._frame(deadline)
            except (OSError, EOFError) as error:
                os.set_blocking(errors.fileno(), False)
                said = (errors.read(4096) or b"").decode("utf-8", "replace").strip()
                raise NotStartedError(f"a sandbox did not start: {said or type(error).__name__}.") from error
            # Written before the first process started.
            os.set_blocking(info.fileno(), False)
            said = info.read(4096)
            if not said:
                raise NotStartedError("a sandbox did not start: bubblewrap does not say which process is its first.")
            self._pid = json.loads(said)["child-pid"]
        try:
            self._pidfd = os.pidfd_open(self._pid)
        except ProcessLookupError as error:
            raise NotStartedError("a sandbox did not start: its first process is gone.") from error
        check_isolation(hello.decode("utf-8", "replace"), self._layout.uid)

    def run(self, command: str, *, timeout_s: float = 10.0, start: str = "", persistent: bool = False) -> CommandResult:
        if not (timeout_s > 0 and math.isfinite(timeout_s)):
            raise ConfigError(f"timeout_s must be a positive number of seconds, got {timeout_s}.")
        with self._lock:
            if self._state != "open":
                raise ContractError(f"the sandbox is {self._state}. Open another one.")
            if self._control is None:
                raise SandboxError("the sandbox died and could not be started again. Collect or close it.")
            begun = time.monotonic()
            text = command if persistent and self._has_shell else start + command
            problem = unusable(text, self._limits)
            if problem:
                return failed(NOT_RUN, problem)
            data = bytes([persistent]) + max(1, round(timeout_s * 1000)).to_bytes(8, "big") + text.encode()
            try:
                deadline = begun + timeout_s + self._limits.grace_s
                self._send(len(data).to_bytes(4, "big") + data, deadline)
                reply = self._frame(deadline)
            except (OSError, EOFError):
                late = time.monotonic() - begun >= timeout_s
                self._restart()
                problem = b"the sandbox died while the command ran, and was restarted\n"
                code = TIMED_OUT if late else DIED
                return failed(code, problem, timed_out=late, wall_s=time.monotonic() - begun, restarted=True)
            result = parse_reply(reply, time.monotonic() - begun)
            self._has_shell = persistent and not result.shell_ended
            return result

    def survey(self) -> dict[str, Entry]:
        with self._lock:
            if self._state == "closed":
                raise ContractError("the sandbox is closed, its workspace is gone.")
            return survey(tmpfs_workspace.root(self._folder))

    def collect(self) -> Path:
        with self._lock:
            if self._state == "closed":
                raise ContractError("the sandbox is closed, its workspace is gone.")
            if self._state == "open":
                self._kill()
                tmpfs_workspace.make_readable(self._folder)
                self._state = "collected"
            return tmpfs_workspace.root(self._folder)

    def close(self) -> None:
        with self._lock:
            if self._state == "closed":
                return
            self._state = "closed"
            try:
                # Not proven dead is no reason to keep the rest: the broker kills its group and says what is left.
                with contextlib.suppress(SandboxError):
                    self._kill()
                os.close(self._folder)
            finally:
                self._host.forget(self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _restart(self) -> None:
        """New processes on the same workspace."""
        self._kill()
        self._has_shell = False
        tmpfs_workspace.unlock(self._folder)
        self.attach(Started(*self._host.ask({"do": "restart", "id": self._number}).descriptors))

    def _kill(self) -> None:
        """End pid 1, and with it, by the kernel's rule, every process inside; returns when they are gone.

        Raises:
            SandboxError: They are not.
        """
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._dead:
            return
        if self._pidfd < 0:
            raise SandboxError("a sandbox that did not start cannot be proven dead.")
        try:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            # A pid namespace's first process ends after all others in it have been reaped.
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            if not poll.poll(DEATH_S * 1000):
                raise SandboxError(f"process {self._pid} and what runs with it would not die in {DEATH_S:.0f} s.")
            self._dead = True
        finally:
            os.close(self._pidfd)
            self._pidfd = -1

    def _send(self, data: bytes, deadline: float) -> None:
        """Hand over a request, watching the clock."""
        assert self._control is not None
        view = memoryview(data)
        while view:
            self._control.settimeout(max(0.001, deadline - time.monotonic()))
            view = view[self._control.send(view) :]

    def _frame(self, deadline: float) -> bytes:
        """One length-prefixed answer of pid 1."""
        size = int.from_bytes(self._receive(4, deadline), "big")
        if size > 4 * self._limits.output_bytes + 65_536:
            raise EOFError("an answer of impossible length")
        return self._receive(size, deadline)

    def _receive(self, count: int, deadline: float) -> bytes:
        assert self._control is not None
        data = bytearray()
        while len(data) < count:
            self._control.settimeout(max(0.001, deadline - time.monotonic()))
            chunk = self._control.recv(count - len(data))
            if not chunk:
                raise EOFError("pid 1 is gone")
            data += chunk
        return bytes(data)


def failed(code: int, problem: bytes, *, timed_out: bool = False, wall_s: float = 0.0, restarted: bool = False) -> CommandResult:
    """The result of a command of which only `problem` is known."""
    return CommandResult(
        exit_code=code,
        stdout=b"",
        stderr=problem,
        stdout_size=0,
        stderr_size=len(problem),
        timed_out=timed_out,
        wall_s=wall_s,
        restarted=restarted,
    )


def unusable(command: str, limits: Limits) -> bytes:
    """Why bash cannot be given this text; empty when it can."""
    try:
        size = len(command.encode())
    except UnicodeEncodeError as error:
        return f"the command is not valid text: {command[error.start : error.start + 1]!r} at {error.start}; not run\n".encode()
    if "\0" in command:
        return f"the command contains a NUL byte at {command.index(chr(0))}; not run\n".encode()
    if size > limits.command_bytes:
        return f"the command has {size} bytes, at most {limits.command_bytes} are allowed; not run\n".encode()
    return b""


def parse_reply(reply: bytes, wall_s: float) -> CommandResult:
    """The result in a frame of pid 1."""
    kept = int.from_bytes(reply[19:REPLY_HEAD], "big")
    return CommandResult(
        timed_out=bool(reply[0] & WAS_LATE),
        shell_ended=bool(reply[0] & HAS_ENDED),
        exit_code=int.from_bytes(reply[1:3], "big"),
        stdout_size=int.from_bytes(reply[3:11], "big"),
        stderr_size=int.from_bytes(reply[11:19], "big"),
        stdout=reply[REPLY_HEAD : REPLY_HEAD + kept],
        stderr=reply[REPLY_HEAD + kept :],
        wall_s=wall_s,
    )


def check_isolation(hello: str, uid: int = INSIDE_UID) -> None:
    """Refuse a sandbox whose first process has privileges, or shares a namespace with us.

    Raises:
        SandboxError: Says what is not as it should be.
    """
    found: dict[str, str] = {}
    for line in hello.splitlines():
        name, _, value = line.partition(" ")
        found[name] = value
    wanted = {"CapPrm": "0" * 16, "CapEff": "0" * 16, "CapAmb": "0" * 16, "CapBnd": "0" * 16}
    wanted |= {"NoNewPrivs": "1", "Seccomp": "2", "pid": "1", "Uid": "\t".join([str(uid)] * 4)}
    wrong = [f"{name} is {found.get(name)!r}" for name, value in wanted.items() if found.get(name) != value]
    for space in NAMESPACES:
        own = os.readlink(f"/proc/self/ns/{space}")  # noqa: PTH115 - the link's text, not a path
        if found.get(f"ns:{space}", own) == own:
            wrong.append(f"the {space} namespace is shared with this process")
    if wrong:
        raise SandboxError(f"a sandbox is not isolated: {'; '.join(wrong)}.")
