"""The backend `ray`: every worker is an actor of a Ray cluster. The only file that imports ray.

Without an address a cluster of this machine is started (`scale.ray_head`); `python -m onthejob.scale.on_ray FOLDER CPUS BYTES` is
its head.

Of Ray are used: actors, calls with bytes, and kills. Ray repeats nothing and restarts nothing (`max_restarts=0`): the queue of
`scale.job_queue` does, as it does for the processes of the backend `local`.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Self

from onthejob.errors import ScaleError
from onthejob.scale.actor_logs import ActorLogs
from onthejob.scale.dispatch import Dispatcher
from onthejob.scale.heartbeats import beats
from onthejob.scale.job_queue import AHEAD
from onthejob.scale.placed import Placement
from onthejob.scale.plan import ScaleNode, Survey, seated_on, wrong_with
from onthejob.scale.ray_head import QUIET, Head, check_token
from onthejob.scale.runtime import Crew, Facts, Job, Results, merged
from onthejob.scale.scale_config import ScaleConfig
from onthejob.scale.surroundings import carried, confine
from onthejob.scale.worker_bench import WorkerBench, expected_of, found_here, packed, sendable
from onthejob.types import Environment

ASK_S = 300.0
"""Seconds in which every node of a given cluster says what it has; it may have to fetch the base model first."""
REACH_S = 10.0
"""Seconds in which a given address accepts a connection."""
BEATS = "beats"
"""Group of an actor's calls with a thread of its own."""


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
                check_token()
                address = config.address
            else:
                address = opened.enter_context(Head(config)).address
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

    @contextmanager
    def share(self, value: Any) -> Iterator[Any]:
        """As `Runtime.share`: an object of the store, which each node fetches once."""
        yield self._ray.put(sendable(value, "what jobs share"))

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
    check_token()
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

    def perform(self, jobs: bytes, shared: bytes | None) -> bytes:
        """As `WorkerBench.perform`."""
        return self._bench.perform(jobs, shared)

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

    def do(self, jobs: bytes, shared: Any) -> Future[bytes]:
        """As `Hand.do`; the actor receives what the reference `shared` names."""
        return self._actor.perform.remote(jobs, shared).future()

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
