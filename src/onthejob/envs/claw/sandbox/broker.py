"""A small process that makes the sandboxes of one host, and takes everything with it when it ends.

It is a process of its own because forking a training process is slow and unsafe with threads, and because it lives in a
private mount namespace: every tmpfs it mounts vanishes with it, however it ends. It ends when the host's socket closes or the
host's process dies. It runs without site-packages and imports nothing but the standard library and its neighbours.

One message per packet, JSON with descriptors attached:
    open    {"limits": {...}, "layout": {...}, "ahead": 2, "beside": false}
                                -> {"id", "cgroups"} + workspace folder, pid 1's socket, bubblewrap's info pipe, stderr pipe.
                                Afterwards `ahead` others of this kind are started for the next requests; with 0 those
                                that wait are thrown away first, and this one is new. One with a second folder `beside` is
                                always new where the layout is the usual one, and those that wait stay
    restart {"id": 3}           -> the same without the folder; the previous processes must be dead
    close   {"id": 3}           -> {"left": [...]}: what could not be removed
"""

from __future__ import annotations

import array
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from onthejob.envs.claw.sandbox.ground import UIDS_PER_HOST, Ground, NoSandboxes
from onthejob.envs.claw.sandbox.inside import Source
from onthejob.envs.claw.sandbox.kernel import Kernel
from onthejob.envs.claw.sandbox.lifetime import REAP_S, Sandboxes, close_all

MESSAGE_BYTES = 1 << 16
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Waiting(NamedTuple):
    """What tells sandboxes apart that wait for the next request."""

    limits: dict[str, Any]
    layout: dict[str, Any]
    beside: bool


def kind_of(request: dict[str, Any]) -> Waiting:
    """The kind that a request wants."""
    return Waiting(request["limits"], request["layout"], request["beside"])


def always_new(request: dict[str, Any]) -> bool:
    """Whether none is kept ahead of a kind: only where the files are `/` is a second folder usual."""
    return request["beside"] and not request["layout"]["root"]


class Broker:
    """Answers one host, and has sandboxes ready before it asks."""

    def __init__(self, parent: int, bwrap: Path, packages: Sequence[Source], hidden: Sequence[str], root: Path) -> None:
        kernel = Kernel()
        # What bubblewrap's end orphans would go to this machine's process 1, and that of a container may reap nothing.
        kernel.adopt_orphans()
        # Opened before anything else, and compared afterwards: the pid may be another process's by now.
        self._parent = os.pidfd_open(parent)
        if os.getppid() != parent:
            raise NoSandboxes("the process that asked for sandboxes is gone.")
        self.ground = Ground(kernel, bwrap, packages, hidden, root)
        self._sandboxes = Sandboxes(self.ground)
        self._spare: list[int] = []
        """Numbers of started sandboxes that are still free, all with the same limits and layout."""

    def serve(self, requests: socket.socket) -> None:
        """Answer until the host is gone."""
        poll = select.poll()
        poll.register(requests, select.POLLIN)
        poll.register(self._parent, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._parent:
                    return
                try:
                    packet = requests.recv(MESSAGE_BYTES)
                except ConnectionResetError:
                    return
                if not packet:
                    return
                descriptors: list[int] = []
                request = json.loads(packet)
                try:
                    answer = self._answer(request, descriptors)
                except OSError as error:
                    answer = {"error": str(error)}
                try:
                    send(requests, answer, descriptors if "error" not in answer else [])
                except BrokenPipeError:
                    return
                finally:
                    close_all(descriptors)
                if request["do"] == "open" and not always_new(request):
                    # After the answer: no client waits for it.
                    self._start_ahead(kind_of(request), request["ahead"])

    def close(self) -> None:
        """Kill and remove all sandboxes."""
        for number in list(self._sandboxes.made):
            self._sandboxes.close(number)
        self.ground.cgroups.close()
        deadline = time.monotonic() + REAP_S
        while self._sandboxes.reap_ended() and time.monotonic() < deadline:
            time.sleep(0.001)

    def _answer(self, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Do what was asked; descriptors to send along are appended."""
        match request["do"]:
            case "open":
                return self._open(request, descriptors)
            case "restart":
                made = self._sandboxes.made[request["id"]]
                self._sandboxes.reap(made)
                self._sandboxes.launch(made, descriptors)
                return {"id": request["id"]}
            case "close":
                return {"left": self._sandboxes.close(request["id"])}
            case other:
                return {"error": f"unknown request {other!r}"}

    def _open(self, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Hand over a sandbox: one that was started ahead, or else a new one."""
        kind = kind_of(request)
        number = None if always_new(request) else self._take(kind if request["ahead"] else None)
        if number is None:
            number = self._sandboxes.make(kind.limits, kind.layout, beside=kind.beside)
        if number is None:
            return {"error": f"{UIDS_PER_HOST} sandboxes are open already"}
        made = self._sandboxes.made[number]
        descriptors += made.descriptors
        made.descriptors = []
        return {"id": number, "cgroups": [str(path) for path in made.cgroups]}

    def _take(self, kind: Waiting | None) -> int | None:
        """One of those started ahead, if it is of this kind and lives; those with other limits or another layout go."""
        found = None
        self._sandboxes.reap_ended()
        for number in list(self._spare):
            made = self._sandboxes.made[number]
            if kind is None or not made.monitor or (made.limits, made.layout) != (kind.limits, kind.layout):
                self._spare.remove(number)
                self._sandboxes.close(number)
            elif found is None and made.beside == kind.beside:
                self._spare.remove(number)
                found = number
        return found

    def _start_ahead(self, kind: Waiting, count: int) -> None:
        """Have `count` ready for the next requests: most of a start is waiting for the kernel."""
        while sum(self._sandboxes.made[number].beside == kind.beside for number in self._spare) < count:
            try:
                number = self._sandboxes.make(kind.limits, kind.layout, beside=kind.beside)
            except OSError:
                # The next request tries again, and receives the error.
                return
            if number is None:
                return
            self._spare.append(number)


def send(requests: socket.socket, message: dict[str, Any], descriptors: list[int]) -> None:
    """One packet with descriptors."""
    extra = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    requests.sendmsg([json.dumps(message).encode()], extra)


def main() -> None:
    """Arguments: socket's descriptor, host's pid, bubblewrap; as JSON, packages for the inside and hidden folders; the root."""
    os.umask(0o022)
    for number in IGNORED:
        # The host decides when it ends; a terminal's Ctrl-C must not come first.
        signal.signal(number, signal.SIG_IGN)
    requests = socket.socket(fileno=int(sys.argv[1]))
    requests.set_inheritable(False)
    try:
        packages = [Source(*source) for source in json.loads(sys.argv[4])]
        broker = Broker(int(sys.argv[2]), Path(sys.argv[3]), packages, json.loads(sys.argv[5]), Path(sys.argv[6]))
    except (NoSandboxes, OSError) as error:
        send(requests, {"error": str(error)}, [])
        return
    try:
        send(requests, {"layers": broker.ground.layers, "problems": broker.ground.problems}, [])
        broker.serve(requests)
    finally:
        broker.close()
