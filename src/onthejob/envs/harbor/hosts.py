"""Hosts of sandboxes for the root file systems of several images, each opened when a task first needs it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from onthejob.envs.claw.sandbox.host import BwrapHost
from onthejob.envs.claw.sandbox.opening import AHEAD
from onthejob.envs.claw.sandbox.sandbox_interface import Content, HostReport, Limits, Sandbox, SandboxHost, SandboxLayout
from onthejob.errors import ContractError

OPEN = 8
"""Hosts that stay open without a sandbox; each is a broker and the sandboxes that wait in it."""


@dataclass(slots=True)
class _Entry:
    host: BwrapHost
    asked: int = 0
    """Threads that are about to open a sandbox."""


class RootHosts:
    """One host for each root file system in use; those that were not used for longest are closed. Close it at the end.

    Args:
        data: As for `open_host`.
    """

    def __init__(self, data: Iterable[Path] = ()) -> None:
        self._data = list(data)
        self._lock = threading.Lock()
        self._entries: OrderedDict[Path, _Entry] = OrderedDict()
        """The last used ones at the end."""
        self._closed = False

    def of(self, root: Path) -> SandboxHost:
        """The host of a root file system (`check_rootfs`); its real one may be closed and opened again between two sandboxes."""
        return _RootHost(self, root)

    @contextmanager
    def leased(self, root: Path) -> Iterator[BwrapHost]:
        """The real host of a root file system, which is not closed within the block.

        Raises:
            ContractError: all were closed.
            SandboxError: sandboxes cannot be made with it.
        """
        with self._lock:
            if self._closed:
                raise ContractError("the hosts of images are closed. Open others.")
            entry = self._entries.get(root) or _Entry(BwrapHost(ahead=AHEAD, data=self._data, rootfs=root))
            self._entries[root] = entry
            self._entries.move_to_end(root)
            entry.asked += 1
            self._close_idle()
        try:
            yield entry.host
        finally:
            with self._lock:
                entry.asked -= 1

    def _close_idle(self) -> None:
        """Close hosts that nothing uses until `OPEN` are left."""
        idle = [root for root, entry in self._entries.items() if entry.asked == 0 and entry.host.is_idle]
        for root in idle[: max(0, len(self._entries) - OPEN)]:
            self._entries.pop(root).host.close()

    def close(self) -> None:
        """Close all hosts and their sandboxes. May be called again."""
        with self._lock:
            self._closed = True
            while self._entries:
                self._entries.popitem()[1].host.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _RootHost:
    """A `SandboxHost` of one root file system, as long as its `RootHosts` is open."""

    def __init__(self, hosts: RootHosts, root: Path) -> None:
        self._hosts, self._root = hosts, root

    @property
    def report(self) -> HostReport:
        with self._hosts.leased(self._root) as host:
            return host.report

    def open(
        self,
        files: Mapping[str, Content],
        limits: Limits | None = None,
        *,
        beside: Mapping[str, Content] | None = None,
        layout: SandboxLayout | None = None,
    ) -> Sandbox:
        with self._hosts.leased(self._root) as host:
            return host.open(files, limits, beside=beside, layout=layout)

    def close(self) -> None:
        """Nothing: the host is closed with all others."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
