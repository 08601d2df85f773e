"""Chooses the backend: bubblewrap, or plain subprocesses when that is asked for in so many words."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from onthejob.envs.claw.sandbox.contract import SandboxHost
from onthejob.envs.claw.sandbox.host import BwrapHost

AHEAD = 2
"""Sandboxes that wait, already started, for the next episode."""


def open_host(*, unsafe: bool = False, ahead: int = AHEAD, data: Iterable[Path] = ()) -> SandboxHost:
    """A host for sandboxes; close it, or use it as a context manager.

    Args:
        unsafe: Run commands as plain subprocesses of this user, with no isolation at all. Only for a machine that is itself
            disposable.
        ahead: See `BwrapHost`; plain subprocesses are not started ahead.
        data: Folders with tasks, checks or runs, which commands may not see; plain subprocesses see everything.

    Raises:
        ConfigError: `ahead` is out of range, or one of `data` cannot be hidden.
        SandboxError: Commands cannot be isolated here; the message says what is missing. Nothing weaker is used instead.
    """
    if unsafe:
        from onthejob.envs.claw.sandbox.unsafe import UnsafeHost

        return UnsafeHost()
    return BwrapHost(ahead=ahead, data=data)
