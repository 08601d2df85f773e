"""A Ray cluster of this machine, and the token that clusters need. Nothing here imports ray.

The cluster is started below the guard of `serve.supervisor`, on loopback, with its own token and a small environment; nothing of
it outlives this process.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Self

from onthejob.errors import ConfigError, ScaleError, ServeError
from onthejob.scale.scale_config import ScaleConfig
from onthejob.scale.surroundings import passed

HEAD_S = 120.0
"""Seconds in which a cluster of this machine starts."""
SOCKET_PATH = 107
"""Longest path of a Unix socket on Linux, of which Ray adds up to 66 characters to its folder."""
STORE_BYTES = 200 << 20
"""Memory for large messages of a cluster of this machine; the usual ones are small and need none of it."""
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""At 0 Ray takes 127.0.0.1 for the address of this machine, as it does on Windows and macOS, and listens nowhere else."""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


class Head:
    """A cluster of one node on loopback, which ends with this process."""

    def __init__(self, config: ScaleConfig) -> None:
        # Of a cluster of this machine the CPUs only count actors: learners and samplers work while workers wait.
        self._cpus = (config.workers or len(os.sched_getaffinity(0))) + config.learners + config.samplers
        self.address = ""

    def __enter__(self) -> Self:
        from onthejob.serve.supervisor import Child, wait_until

        folder = Path(tempfile.mkdtemp(prefix="onthejob-ray-"))
        with ExitStack() as made:
            made.callback(shutil.rmtree, folder, ignore_errors=True)
            if not room_for_sockets(str(folder)):
                raise ConfigError(f"{folder} is too long for the paths of Ray's sockets. Set TMPDIR to a shorter folder.")
            token = folder / "token"
            token.write_text(_token(), encoding="ascii")
            token.chmod(0o600)
            made.callback(_give_back, dict(os.environ))
            ours = {**QUIET, LOOPBACK: "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
            os.environ.pop("RAY_AUTH_TOKEN", None)
            os.environ.update(ours)
            command = [sys.executable, "-m", "onthejob.scale.on_ray", str(folder), str(self._cpus), str(STORE_BYTES)]
            written = folder / "address"
            try:
                child = Child(command, log_file=folder / "head.log", environ=passed(os.environ) | ours, name="the Ray cluster")
                made.callback(child.stop)
                wait_until(written.is_file, child, within_s=HEAD_S, every_s=0.05)
            except ServeError as error:
                raise ScaleError(str(error)) from error
            self.address = written.read_text(encoding="ascii")
            self._made = made.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._made.close()


def room_for_sockets(folder: str) -> bool:
    """Whether the paths of Ray's sockets below a folder are short enough."""
    return len(folder) + 66 <= SOCKET_PATH


def _give_back(before: Mapping[str, str]) -> None:
    """Set Ray's variables of this process to what they were."""
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        del os.environ[name]
    os.environ.update({name: value for name, value in before.items() if name.startswith("RAY_")})


@cache
def _token() -> str:
    """The token of all clusters that this process starts: Ray reads it once per process."""
    return secrets.token_hex(32)


def check_token() -> None:
    """Refuse a given cluster without a token.

    Raises:
        ConfigError: there is none, or authentication is turned off.
    """
    mode = os.environ.get("RAY_AUTH_MODE", "token")
    if mode.lower() != "token":
        raise ConfigError(f"RAY_AUTH_MODE is {mode!r}, and workers run whatever they are sent. Set it to token, on all nodes.")
    os.environ["RAY_AUTH_MODE"] = "token"
    stated = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if not stated and not (Path.home() / ".ray" / "auth_token").is_file():
        raise ConfigError(
            "there is no token for the Ray cluster of --scale.address. Copy the head node's ~/.ray/auth_token here, or set "
            "RAY_AUTH_TOKEN_PATH to its file."
        )
