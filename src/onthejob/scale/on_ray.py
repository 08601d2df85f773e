"""The backend `ray`: every worker is an actor of a Ray cluster. The only file that imports ray.

Without an address a cluster of one node is started below the guard of `serve.supervisor`, on loopback, with its own token and a
small environment; nothing of it outlives this process. `python -m onthejob.scale.on_ray FOLDER CPUS BYTES` is its head.

Of Ray are used: actors, calls with bytes, and kills. Ray repeats nothing and restarts nothing (`max_restarts=0`): the queue of
`scale.dispatch` does, as it does for the processes of the backend `local`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Self

from onthejob.errors import ConfigError, ScaleError, ServeError
from onthejob.scale.dispatch import Dispatcher
from onthejob.scale.placed import Placement
from onthejob.scale.runtime import Job, Results
from onthejob.scale.scale_config import ScaleConfig
from onthejob.scale.surroundings import carried, confine, passed
from onthejob.scale.worker_bench import WorkerBench, packed, versions
from onthejob.types import Environment

HEAD_S = 120.0
"""Seconds in which a cluster of this machine starts."""
REACH_S = 10.0
"""Seconds in which a given address accepts a connection."""
SOCKET_PATH = 107
"""Longest path of a Unix socket on Linux, of which Ray adds up to 66 characters to its folder."""
STORE_BYTES = 200 << 20
"""Memory for large messages of a cluster of this machine; the usual ones are small and need none of it."""
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""At 0 Ray takes 127.0.0.1 for the address of this machine, as it does on Windows and macOS, and listens nowhere else."""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


class RayRuntime:
    """Jobs in actors; a `Runtime`. One per process at a time."""

    def __init__(self, config: ScaleConfig) -> None:
        """Start or reach the cluster, and wait until a worker with the versions of this process can work.

        Raises:
            ConfigError: other versions there, too few CPUs, no token, or a folder for temporary files with too long a name.
            ScaleError: the cluster does not start or answer.
        """
        self._numbers = count()
        with ExitStack() as opened:
            # Ends before the cluster does.
            if config.address:
                _check_token()
                address = config.address
            else:
                address = opened.enter_context(_Head(config)).address
            ray = _connect(address)
            opened.callback(ray.shutdown)
            cpus = int(ray.cluster_resources().get("CPU", 0))
            self.workers = config.workers or cpus
            if not 1 <= self.workers <= cpus:
                raise ConfigError(
                    f"the Ray cluster has {cpus} CPUs, and {max(1, self.workers)} workers need one each. Set --scale.workers."
                )
            actor = ray.remote(num_cpus=1, num_gpus=0, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD")(Actor)
            given = carried(os.environ)
            self.threads = self.workers
            self._queue = Dispatcher(lambda number: RayHand(ray, actor.remote(given), number), self.workers)
            opened.callback(self._queue.close)
            self._queue.wait_ready()
            self._opened = opened.pop_all()

    def submit(self, jobs: Sequence[Job]) -> Results:
        """As `Runtime.submit`."""
        return self._queue.submit(jobs)

    def environments(self, make_env: Callable[[], Environment]) -> Callable[[], Environment]:
        """Stand-ins for environments of the workers."""
        packed(Job(key=str(make_env), function="", arguments=(make_env,)))
        return Placement(self, make_env, numbers=self._numbers)

    def close(self) -> None:
        """As `Runtime.close`."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Actor:
    """A worker on some node."""

    def __init__(self, given: Mapping[str, str]) -> None:
        confine(os.environ, given)
        self._bench = WorkerBench()

    def versions(self) -> dict[str, str]:
        """As `worker_bench.versions`."""
        return versions()

    def perform(self, jobs: bytes) -> bytes:
        """As `WorkerBench.perform`."""
        return self._bench.perform(jobs)

    def clear(self) -> None:
        """As `WorkerBench.clear`."""
        self._bench.clear()


class RayHand:
    """An actor; a `Hand`."""

    def __init__(self, ray: Any, actor: Any, number: int) -> None:
        self._ray, self._actor = ray, actor
        self.name = f"actor-{number}"

    def ready(self) -> Future[Mapping[str, str]]:
        """As `Hand.ready`."""
        return self._actor.versions.remote().future()

    def do(self, jobs: bytes) -> Future[bytes]:
        """As `Hand.do`."""
        return self._actor.perform.remote(jobs).future()

    def end(self, within_s: float) -> None:
        """As `Hand.end`."""
        # Of a node that is gone neither arrives.
        with suppress(Exception):
            if within_s > 0:
                self._ray.get(self._actor.clear.remote(), timeout=within_s)
                self._ray.wait([self._actor.__ray_terminate__.remote()], timeout=within_s)
        with suppress(Exception):
            self._ray.kill(self._actor, no_restart=True)


class _Head:
    """A cluster of one node on loopback, which ends with this process."""

    def __init__(self, config: ScaleConfig) -> None:
        self._cpus = config.workers or len(os.sched_getaffinity(0))
        self.address = ""

    def __enter__(self) -> Self:
        from onthejob.serve.supervisor import Child, wait_until

        folder = Path(tempfile.mkdtemp(prefix="onthejob-ray-"))
        with ExitStack() as made:
            made.callback(shutil.rmtree, folder, ignore_errors=True)
            if len(str(folder)) + 66 > SOCKET_PATH:
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


def _give_back(before: Mapping[str, str]) -> None:
    """Set Ray's variables of this process to what they were."""
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        del os.environ[name]
    os.environ.update({name: value for name, value in before.items() if name.startswith("RAY_")})


@cache
def _token() -> str:
    """The token of all clusters that this process starts: Ray reads it once per process."""
    return secrets.token_hex(32)


def _check_token() -> None:
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


def _connect(address: str) -> Any:
    """Connect this process to the cluster at `address`, and return the module ray.

    Raises:
        ScaleError: nothing answers there, or it is no cluster of this version of Ray.
    """
    if address != "auto":
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=REACH_S).close()
        except OSError as error:
            raise ScaleError(
                f"no Ray cluster answers at {address}: {error}. `ray status` on its head node shows the address."
            ) from error
    os.environ.update(QUIET)
    import ray  # pyright: ignore[reportMissingImports]

    here = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM) if here else None
    if ray.is_initialized():
        raise ScaleError("this process is connected to a Ray cluster already. Close that runtime first.")
    try:
        ray.init(address=address, namespace="onthejob", log_to_driver=False, configure_logging=False)
    except Exception as error:
        raise ScaleError(f"the Ray cluster at {address} cannot be used: {type(error).__name__}: {error}") from error
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
    return ray


def _be_head(folder: Path, cpus: int, store_bytes: int) -> None:
    """Start a node, write its address to `folder`, and wait to be ended."""
    import ray  # pyright: ignore[reportMissingImports]

    context = ray.init(
        num_cpus=cpus, num_gpus=0, object_store_memory=store_bytes, include_dashboard=False, log_to_driver=False,
        configure_logging=False, _temp_dir=str(folder),
    )  # fmt: skip
    part = folder / "address.part"
    part.write_text(context.address_info["gcs_address"], encoding="ascii")
    part.rename(folder / "address")
    while True:
        signal.pause()


if __name__ == "__main__":
    _be_head(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
