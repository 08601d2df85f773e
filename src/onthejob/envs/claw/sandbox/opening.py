"""Chooses the backend: bubblewrap, or plain subprocesses when that is asked for in so many words."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from onthejob.envs.claw.sandbox.host import BwrapHost
from onthejob.envs.claw.sandbox.sandbox_interface import SandboxHost
from onthejob.errors import ConfigError

AHEAD = 2
"""Sandboxes that wait, already started, for the next episode."""


def open_host(*, unsafe: bool = False, ahead: int = AHEAD, data: Iterable[Path] = (), rootfs: Path | None = None) -> SandboxHost:
    """A host for sandboxes; close it, or use it as a context manager.

    Args:
        unsafe: Run commands as plain subprocesses of this user, with no isolation at all. Only for a machine that is itself
            disposable.
        ahead: See `BwrapHost`; plain subprocesses are not started ahead.
        data: Folders with tasks, checks or runs, which commands may not see; plain subprocesses see everything.
        rootfs: See `BwrapHost`; plain subprocesses have this machine's.

    Raises:
        ConfigError: `ahead` is out of range, one of `data` cannot be hidden, or `rootfs` is none or given with `unsafe`.
        SandboxError: Commands cannot be isolated here; the message says what is missing. Nothing weaker is used instead.
    """
    if unsafe:
        if rootfs is not None:
            raise ConfigError("plain subprocesses run in this machine's root file system. Leave rootfs or unsafe out.")
        from onthejob.envs.claw.sandbox.unsafe import UnsafeHost

        return UnsafeHost()
    return BwrapHost(ahead=ahead, data=data, rootfs=rootfs)
