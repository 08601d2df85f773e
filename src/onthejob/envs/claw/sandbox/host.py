"""The bubblewrap backend, seen from the process that uses it: starts the broker, asks it for sandboxes, seeds workspaces."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import socket
import subprocess
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Self

from onthejob.envs.claw.sandbox import isolated
from onthejob.envs.claw.sandbox.box import BwrapSandbox, NotStartedError, Started
from onthejob.envs.claw.sandbox.hidden import hidden_folders
from onthejob.envs.claw.sandbox.inside import sources
from onthejob.envs.claw.sandbox.namespaces import forbidden
from onthejob.envs.claw.sandbox.requirements import bwrap_remedy, check_rootfs, find_bwrap
from onthejob.envs.claw.sandbox.rootfs import MACHINE
from onthejob.envs.claw.sandbox.sandbox_interface import (
    Content,
    HostReport,
    Layer,
    Limits,
    SandboxLayout,
    WorkspaceItem,
    checked_paths,
)
from onthejob.envs.claw.sandbox.tmpfs_workspace import BESIDE, seed
from onthejob.errors import ConfigError, ContractError, SandboxError

log = logging.getLogger(__name__)

BACKEND = "bwrap"
MESSAGE_BYTES = 1 << 16
MOST_AHEAD = 64
BROKER_S = 300.0
"""Seconds the broker may take for one answer; it needs milliseconds on an idle machine."""


class BrokerAnswer(NamedTuple):
    """What the broker said, and the descriptors it handed over."""

    message: dict[str, Any]
    descriptors: list[int]


class BwrapHost:
    """A `SandboxHost` that isolates with bubblewrap.

    Args:
        data: Folders with tasks, checks or runs, which no sandbox may see; they matter where they lie in a folder of the system.
        rootfs: Root file system whose `/usr` and the like sandboxes have instead of this machine's (`check_rootfs`).
        ahead: Sandboxes that are kept started for the next `open`, with the limits of the last one, 0 to 64. Each is a process
            of 10 MB and no file.

    Raises:
        ConfigError: `ahead` is out of range, one of `data` cannot be hidden, or `rootfs` is none.
        SandboxError: Sandboxes cannot be made here, or the first one is not isolated as it should be.
    """

    def __init__(self, *, ahead: int = 0, data: Iterable[Path] = (), rootfs: Path | None = None) -> None:
        if not 0 <= ahead <= MOST_AHEAD:
            raise ConfigError(f"ahead must be in 0..{MOST_AHEAD} sandboxes, got {ahead}. 2 is usual.")
        bwrap = find_bwrap()
        if bwrap is None:
            remedy = bwrap_remedy(os.uname().machine, platform.libc_ver())
            raise SandboxError(f"no sandbox: bubblewrap is not installed. {remedy}")
        self._root = MACHINE if rootfs is None else check_rootfs(rootfs)
        given = json.dumps(sources()), json.dumps(hidden_folders(data, self._root)), str(self._root)
        self._ahead = 0
        self._lock = threading.Lock()
        self._open: dict[int, BwrapSandbox] = {}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._broker = subprocess.Popen(
                [*isolated.command("broker"), str(theirs.fileno()), str(os.getpid()), str(bwrap), *given],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                env={},
            )
        self._requests: socket.socket | None = ours
        ours.settimeout(BROKER_S)
        try:
            laid = self._receive().message
            self._report = HostReport(backend=BACKEND, layers=tuple(Layer(*layer) for layer in laid["layers"]))
            for problem in laid["problems"]:
                log.warning("sandboxes start more slowly than they could: %s", problem)
            # Fail closed now rather than in the middle of a run: a real sandbox, its credentials checked, runs a command.
            self._probe()
            self._ahead = ahead
        except BaseException:
            self.close()
            raise

    @property
    def report(self) -> HostReport:
        return self._report

    @property
    def is_idle(self) -> bool:
        """Whether none of its sandboxes is open."""
        return not self._open

    def open(
        self,
        files: Mapping[str, Content],
        limits: Limits | None = None,
        *,
        beside: Mapping[str, Content] | None = None,
        layout: SandboxLayout | None = None,
    ) -> BwrapSandbox:
        limits, layout = limits or Limits(), layout or SandboxLayout()
        items, second = checked_paths(files, layout), None if beside is None else checked_paths(beside)
        try:
            return self._start(items, second, limits, layout, self._ahead)
        except NotStartedError:
            if not self._ahead:
                raise
        # One that waited may have died meanwhile (out of memory, say).
        return self._start(items, second, limits, layout, 0)

    def _probe(self) -> None:
        """Have a first sandbox run a command.

        Raises:
            SandboxError: It does not.
        """
        try:
            sandbox = self.open({"probe": b"1"})
        except NotStartedError as error:
            more = forbidden() if self._root == MACHINE else f"{self._root} may be made for another processor, or lack libraries."
            raise SandboxError(f"{error} {more}".strip()) from error
        with sandbox:
            result = sandbox.run("cat probe && echo 2 > two", timeout_s=BROKER_S)
            if result.stdout != b"1" or result.exit_code != 0:
                raise SandboxError(f"a first sandbox does not work: exit code {result.exit_code}, {result.stderr!r}.")

    def _start(
        self,
        items: Mapping[PurePosixPath, WorkspaceItem],
        beside: Mapping[PurePosixPath, WorkspaceItem] | None,
        limits: Limits,
        layout: SandboxLayout,
        ahead: int,
    ) -> BwrapSandbox:
        """A sandbox with its files; with `ahead` 0 certainly a new one."""
        kind = {"limits": asdict(limits), "layout": asdict(layout), "beside": beside is not None}
        answer = self.ask({"do": "open", "ahead": ahead, **kind})
        number = answer.message["id"]
        folder, *rest = answer.descriptors
        started = Started(*rest)
        cgroups = tuple(map(Path, answer.message["cgroups"]))
        sandbox = BwrapSandbox(self, number, folder, limits, cgroups, beside=beside is not None, layout=layout)
        with self._lock:
            self._open[number] = sandbox
        try:
            seed(folder, items, limits)
            if beside is not None:
                seed(folder, beside, limits, name=BESIDE)
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

    def ask(self, request: dict[str, Any]) -> BrokerAnswer:
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

    def _receive(self) -> BrokerAnswer:
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
        return BrokerAnswer(message, list(descriptors))
