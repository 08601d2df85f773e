"""The backend `ray`: every worker is an actor of a Ray cluster. The only file that imports ray.

Without an address a cluster of one node is started below the guard of `serve.supervisor`, on loopback, with its own token and a
small environment; nothing of it outlives this process. `python -m onthejob.scale.on_ray FOLDER CPUS BYTES` is its head.

Of Ray are used: actors, calls with bytes, and kills. Ray repeats nothing and restarts nothing (`max_restarts=0`): the queue of
`scale.job_queue` does, as it does for the processes of the backend `local`.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Self

from onthejob.errors import ConfigError, ScaleError, ServeError
from onthejob.scale.actor_logs import ActorLogs
from onthejob.scale.dispatch import Dispatcher
from onthejob.scale.heartbeats import beats
from onthejob.scale.job_queue import AHEAD
from onthejob.scale.placed import Placement
from onthejob.scale.plan import ScaleNode, Survey, seated_on, wrong_with
from onthejob.scale.runtime import Crew, Facts, Job, Results, merged
from onthejob.scale.scale_config import ScaleConfig
from onthejob.scale.surroundings import carried, confine, passed
from onthejob.scale.worker_bench import WorkerBench, expected_of, found_here, packed
from onthejob.types import Environment

HEAD_S = 120.0
"""Seconds in which a cluster of this machine starts."""
ASK_S = 300.0
"""Seconds in which every node of a given cluster says what it has; it may have to fetch the base model first."""
REACH_S = 10.0
"""Seconds in which a given address accepts a connection."""
SOCKET_PATH = 107
"""Longest path of a Unix socket on Linux, of which Ray adds up to 66 characters to its folder."""
STORE_BYTES = 200 << 20
"""Memory for large messages of a cluster of this machine; the usual ones are small and need none of it."""
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""At 0 Ray takes 127.0.0.1 for the address of this machine, as it does on Windows and macOS, and listens nowhere else."""
BEATS = "beats"
"""Group of an actor's calls with a thread of its own."""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


class RayRuntime:
    """Jobs in actors; a `Runtime`. One per process at a time."""

    def __init__(self, config: ScaleConfig, *, facts: Facts | None = None, base: Facts | None = None) -> None:
        """Start or reach the cluster, and wait until a worker with the versions of this process can work.

        Args:
            config: the options.
            facts: what every node must have.
            base: what nodes with learners must have besides.

        Raises:
            ConfigError: something else there than here, too few CPUs, no token, or a folder for temporary files with too long a
                name.
            ScaleError: the cluster does not start or answer.
        """
        self._numbers = count()
        self._hired: dict[str, count[int]] = {}
        with ExitStack() as opened:
            # Ends before the cluster does.
            if config.address:
                _check_token()
                address = config.address
            else:
                address = opened.enter_context(_Head(config)).address
            ray = _connect(address)
            opened.callback(ray.shutdown)
            # Its own cluster is this machine with this environment.
            found = survey(ray, config, facts=facts, base=base, asking=bool(config.address))
            found.check()
            self.logs, self._ray, self._seats = ActorLogs(), ray, found.seats
            self.workers = self.threads = len(found.seats["worker"])
            self._queue = self._dispatcher("worker", self.workers, facts=facts)
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

    def crew(self, kind: str, size: int, *, facts: Facts | None = None) -> Crew:
        """As `Runtime.crew`: actors with one CPU each."""
        made = self._dispatcher(kind, size, facts=facts, ahead=1)
        self._opened.callback(made.close)
        return made

    def _dispatcher(self, kind: str, size: int, *, facts: Facts | None = None, ahead: int = AHEAD) -> Dispatcher:
        ray, given, seats = self._ray, carried(os.environ), self._seats.get(kind, ())
        usual = ray.remote(num_cpus=1, num_gpus=0, max_restarts=0, max_task_retries=0, concurrency_groups={BEATS: 1})
        actor = usual({"learner": LearnerActor, "sampler": SamplerActor}.get(kind, Actor))

        # Numbered through all crews of a kind.
        numbers = self._hired.setdefault(kind, count())

        def hire(_: int) -> RayHand:
            number = next(numbers)
            # In the place of one that was lost another one starts wherever there is room.
            where = _on_node(seats[number], soft=True) if number < len(seats) else "SPREAD"
            return RayHand(ray, actor.options(scheduling_strategy=where).remote(given, facts), f"{kind}-{number}")

        return Dispatcher(hire, size, facts=facts, ahead=ahead, logs=self.logs)

    def close(self) -> None:
        """As `Runtime.close`."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def surveyed(config: ScaleConfig, *, facts: Facts | None = None, base: Facts | None = None) -> Survey:
    """What a run with these options would make of the cluster at `config.address`; starts no actor.

    Raises:
        ConfigError: no token, or too few CPUs.
        ScaleError: the cluster does not answer.
    """
    _check_token()
    ray = _connect(config.address)
    try:
        return survey(ray, config, facts=facts, base=base, asking=True)
    finally:
        ray.shutdown()


def survey(ray: Any, config: ScaleConfig, *, facts: Facts | None, base: Facts | None, asking: bool) -> Survey:
    """The nodes of a cluster, who sits where, and with `asking` what is wrong on each of them."""
    listed = sorted((one for one in ray.nodes() if one["Alive"]), key=lambda one: (one["NodeManagerAddress"], one["NodeID"]))
    nodes = [
        ScaleNode(
            id=one["NodeID"],
            name=_named(one, listed),
            cpus=int(one["Resources"].get("CPU", 0)),
            memory_bytes=int(one["Resources"].get("memory", 0)),
        )
        for one in listed
    ]
    seats = seated_on(nodes, config.counts(sum(node.cpus for node in nodes)))
    if not asking:
        return Survey(nodes=tuple(nodes), seats=seats, wrong={})
    needs = {node.id: merged(facts, base if node.id in (*seats["learner"], *seats["sampler"]) else None) for node in nodes}
    ask = ray.remote(num_cpus=0, max_retries=0)(asked_here)
    asked = {
        id: ask.options(scheduling_strategy=_on_node(id, soft=False)).remote(carried(os.environ), need)
        for id, need in needs.items()
    }
    ray.wait(list(asked.values()), num_returns=len(asked), timeout=ASK_S)
    answered = [_answered(ray, node, asked[node.id]) for node in nodes]
    wrong = {node.name: wrong_with(node, expected_of(needs[node.id])) for node in answered}
    return Survey(nodes=tuple(answered), seats=seats, wrong={name: text for name, text in wrong.items() if text})


def _named(node: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> str:
    """A node's address, with the beginning of its id where others have the same one."""
    address, id = node["NodeManagerAddress"], node["NodeID"]
    return address if [one["NodeManagerAddress"] for one in nodes].count(address) == 1 else f"{address} ({id[:6]})"


def asked_here(given: Mapping[str, str], facts: Facts | None) -> dict[str, str]:
    """On a node: what it has."""
    confine(os.environ, given)
    return found_here(facts)


def _answered(ray: Any, node: ScaleNode, answer: Any) -> ScaleNode:
    try:
        return replace(node, found=ray.get(answer, timeout=0))
    except Exception as error:
        ray.cancel(answer, force=True)
        late = f"no answer within {ASK_S:g} s" if type(error).__name__ == "GetTimeoutError" else ""
        return replace(node, problem=late or f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}")


def _on_node(id: str, *, soft: bool) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # pyright: ignore[reportMissingImports]

    return NodeAffinitySchedulingStrategy(node_id=id, soft=soft)


class Actor:
    """A worker on some node: one thread does its jobs, and one reports that it is alive."""

    def __init__(self, given: Mapping[str, str], facts: Facts | None) -> None:
        confine(os.environ, given)
        self._bench, self._facts = WorkerBench(hears=True), facts
        self._over = threading.Event()

    def beats(self) -> Iterator[None]:
        """As `heartbeats.beats`, until `clear`."""
        yield from beats(self._over)

    def found(self) -> dict[str, str]:
        """As `worker_bench.found_here`."""
        return found_here(self._facts)

    def perform(self, jobs: bytes) -> bytes:
        """As `WorkerBench.perform`."""
        return self._bench.perform(jobs)

    def clear(self) -> None:
        """As `WorkerBench.clear`."""
        self._over.set()
        self._bench.clear()


class LearnerActor(Actor):
    """The same for updates: processes show the name."""


class SamplerActor(Actor):
    """The same for replies."""


class RayHand:
    """An actor; a `Hand`."""

    def __init__(self, ray: Any, actor: Any, name: str) -> None:
        self._ray, self._actor, self.name = ray, actor, name
        self._reports = actor.beats.options(num_returns="streaming", concurrency_group=BEATS).remote()
        self._beats = 0

    def ready(self) -> Future[Mapping[str, str]]:
        """As `Hand.ready`."""
        return self._actor.found.remote().future()

    def do(self, jobs: bytes) -> Future[bytes]:
        """As `Hand.do`."""
        return self._actor.perform.remote(jobs).future()

    def beats(self) -> int:
        """As `Hand.beats`."""
        # Of an actor that is gone the rest is an error.
        with suppress(Exception):
            while self._ray.wait([self._reports], timeout=0)[0]:
                next(self._reports)
                self._beats += 1
        return self._beats

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
