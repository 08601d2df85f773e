"""The bubblewrap backend, seen from the process that uses it: starts the broker, asks it for sandboxes, seeds workspaces."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Self

from onthejob.envs.claw.sandbox.box import BwrapSandbox, NotStartedError, Started
from onthejob.envs.claw.sandbox.contract import HostReport, Layer, Limits, checked_paths
from onthejob.envs.claw.sandbox.workspace import seed
from onthejob.errors import ConfigError, ContractError, SandboxError

BACKEND = "bwrap"
MESSAGE_BYTES = 1 << 16
MOST_AHEAD = 64
BROKER_S = 300.0
"""Seconds the broker may take for one answer; it needs milliseconds on an idle machine."""
BOOT = """
import sys, types
# The broker needs its neighbours but none of the packages around them, whose imports would make it large and slow to fork.
for name, path in zip(sys.argv[3::2], sys.argv[4::2]):
    package = types.ModuleType(name)
    package.__path__ = [path]
    sys.modules[name] = package
from onthejob.envs.claw.sandbox.broker import main
main()
"""


class Answer(NamedTuple):
    """What the broker said, and the descriptors it handed over."""

    message: dict[str, Any]
    descriptors: list[int]


class BwrapHost:
    """A `SandboxHost` that isolates with bubblewrap.

    Args:
        ahead: Sandboxes that are kept started for the next `open`, with the limits of the last one, 0 to 64. Each is a process
            of 10 MB and no file.

    Raises:
        ConfigError: `ahead` is out of range.
        SandboxError: Sandboxes cannot be made here, or the first one is not isolated as it should be.
    """

    def __init__(self, *, ahead: int = 0) -> None:
        if not 0 <= ahead <= MOST_AHEAD:
            raise ConfigError(f"ahead must be in 0..{MOST_AHEAD} sandboxes, got {ahead}. 2 is usual.")
        self._ahead = 0
        self._lock = threading.Lock()
        self._open: dict[int, BwrapSandbox] = {}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            words = [sys.executable, "-I", "-S", "-c", BOOT, str(theirs.fileno()), str(os.getpid())]
            self._broker = subprocess.Popen(
                [*words, *parent_packages()],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                env={},
            )
        self._requests: socket.socket | None = ours
        ours.settimeout(BROKER_S)
        try:
            layers = self._receive().message["layers"]
            self._report = HostReport(backend=BACKEND, layers=tuple(Layer(*layer) for layer in layers))
            # Fail closed now rather than in the middle of a run: a real sandbox, its credentials checked, runs a command.
            with self.open({"probe": b"1"}) as sandbox:
                result = sandbox.run("cat probe && echo 2 > two", timeout_s=BROKER_S)
                if result.stdout != b"1" or result.exit_code != 0:
                    raise SandboxError(f"a first sandbox does not work: exit code {result.exit_code}, {result.stderr!r}.")
            self._ahead = ahead
        except BaseException:
            self.close()
            raise

    @property
    def report(self) -> HostReport:
        return self._report

    def open(self, files: Mapping[str, bytes], limits: Limits | None = None) -> BwrapSandbox:
        limits = Limits() if limits is None else limits
        paths = checked_paths(files)
        try:
            return self._start(paths, limits, self._ahead)
        except NotStartedError:
            if not self._ahead:
                raise
        # One that waited may have died meanwhile (out of memory, say).
        return self._start(paths, limits, 0)

    def _start(self, paths: Mapping[PurePosixPath, bytes | None], limits: Limits, ahead: int) -> BwrapSandbox:
        """A sandbox with its files; with `ahead` 0 certainly a new one."""
        answer = self.ask({"do": "open", "limits": asdict(limits), "ahead": ahead})
        number = answer.message["id"]
        folder, *rest = answer.descriptors
        started = Started(*rest)
        sandbox = BwrapSandbox(self, number, folder, limits, tuple(map(Path, answer.message["cgroups"])))
        with self._lock:
            self._open[number] = sandbox
        try:
            seed(folder, paths, limits)
        except BaseException:
            for descriptor in started:
                os.close(descriptor)
            sandbox.close()
            raise
        try:
            sandbox.attach(started)
        except BaseException:
            sandbox.close()
            raise
        return sandbox

    def ask(self, request: dict[str, Any]) -> Answer:
        """One request to the broker.

        Raises:
            ContractError: The host was closed.
            SandboxError: The broker refuses or is gone.
        """
        with self._lock:
            if self._requests is None:
                raise ContractError("the sandbox host is closed. Open another one.")
            try:
                self._requests.send(json.dumps(request).encode())
            except OSError as error:
                raise SandboxError(f"the process that makes sandboxes is gone: {error}. Open another host.") from error
            return self._receive()

    def forget(self, number: int) -> None:
        """Remove a sandbox outside; its processes must be dead.

        Raises:
            SandboxError: Something would not go.
        """
        with self._lock:
            self._open.pop(number, None)
            if self._requests is None:
                return
        left = self.ask({"do": "close", "id": number}).message["left"]
        if left:
            raise SandboxError(f"a closed sandbox left something behind: {', '.join(left)}.")

    def close(self) -> None:
        for sandbox in list(self._open.values()):
            with contextlib.suppress(SandboxError):
                sandbox.close()
        with self._lock:
            if self._requests is not None:
                self._requests.close()
                self._requests = None
        try:
            self._broker.wait(BROKER_S)
        except subprocess.TimeoutExpired:
            self._broker.kill()
            self._broker.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _receive(self) -> Answer:
        """The next answer of the broker."""
        assert self._requests is not None
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._requests, MESSAGE_BYTES, 8)
        except OSError as error:
            # A late answer would be taken for that to the next question; its end is the end of all its sandboxes.
            self._broker.kill()
            raise SandboxError(f"the process that makes sandboxes does not answer: {error}. Open another host.") from error
        if not packet:
            raise SandboxError("the process that makes sandboxes ended unexpectedly. Open another host.")
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        message = json.loads(packet)
        if "error" in message:
            raise SandboxError(f"no sandbox: {message['error']}")
        return Answer(message, list(descriptors))


def parent_packages() -> list[str]:
    """Names and folders of the packages around this module, alternating."""
    package = __name__.rpartition(".")[0].split(".")
    folder = Path(__file__).parent
    found: list[str] = []
    for depth in range(len(package), 0, -1):
        found = [".".join(package[:depth]), str(folder), *found]
        folder = folder.parent
    return found
