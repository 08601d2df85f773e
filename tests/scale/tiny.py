"""Tiny collections of every kind, as one digest each; and a driver that makes them in a runtime while its workers are killed.

    python tiny.py JSON

JSON is a list of runs, each with `of`, `backend`, `workers` and, where wanted, `nodes`, `away`, `kill`, `signal`, `patience_s`,
`seed`, `long`, `options`. Each one prints a line of JSON: the digests, the workers that were lost, why and after how long, and
what listens where.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from onthejob.claw import Claw
from onthejob.commands.named_env import NamedEnv
from onthejob.envs.claw.agent_messages import DONE
from onthejob.envs.claw.env import ClawConfig
from onthejob.envs.claw.policies import Gold
from onthejob.envs.claw.protocol import ProtocolConfig
from onthejob.envs.described import players_of
from onthejob.errors import ConfigError
from onthejob.keys import keyed_uniform
from onthejob.models.chat import ChatEncoder
from onthejob.office import Office
from onthejob.plugins import resolve
from onthejob.rollout.branch import BranchConfig, BranchScorer, Scales
from onthejob.rollout.collect import CollectConfig, Collection, Collector
from onthejob.rollout.collect_episodes import collect_episodes
from onthejob.rollout.library import SnapshotLibrary
from onthejob.scale import Runtime, ScaleConfig, open_runtime
from onthejob.scale.dispatch import Dispatcher
from onthejob.scale.runtime import Facts
from onthejob.serve.guard import descendants, stat_of
from onthejob.testing import ScriptedTokens, tiny_tokenizer
from onthejob.types import Observation, Sampling, Split

EXAMPLE = Path(__file__).parent.parent.parent / "examples"


def office(runtime: Runtime | None, workers: int, *, long: bool = False) -> str:
    """Branches of two roles of the office, among its partners."""
    place = NamedEnv(ref="office", env=Office(days=12 if long else 2))
    tasks = place.tasks(Split.TRAIN)[:2]
    random = players_of(place.env, tasks)["random"]
    tokenizer, roles = tiny_tokenizer(), ("sales", "hr")
    policies = {role: ScriptedTokens(tokenizer, random, version=f"{role}@0001") for role in roles}
    branch = BranchConfig(group_size=4, turns=140 if long else 12, worlds=4 if long else 2)
    with place.opened() as make_env, BranchScorer(make_env, workers=workers, runtime=runtime) as scorer:
        collector = Collector(
            make_env, scorer, config=CollectConfig(episodes=2, segment_turns=60 if long else 4), branch=branch,
            scales=dict.fromkeys(roles, Scales()), trained=roles, partners=place.partners(), encoder=ChatEncoder(tokenizer),
        )  # fmt: skip
        return digest(collector.collect(tasks, policies, Sampling(), library=SnapshotLibrary(), seed=5, prefix="it0001"))


def claw(runtime: Runtime | None, workers: int, *, long: bool = False) -> str:
    """Episodes of the claw in real sandboxes; some work, some give up."""
    place = NamedEnv(ref="claw", env=Claw(count=64, rules=ClawConfig(protocol=ProtocolConfig(max_turns=4))))
    tasks = place.tasks(Split.TRAIN)[: 8 if long else 3]
    gold = Gold(tasks)

    def reply(observation: Observation, seed: int) -> str:
        return gold(observation, seed) if keyed_uniform(seed, "works") < 0.8 else DONE

    return _episodes(place, tasks, reply, runtime, workers)


def own(runtime: Runtime | None, workers: int, *, long: bool = False) -> str:
    """Episodes of an environment that is named by its file."""
    ref = f"{EXAMPLE / 'guess.py'}:Guess"
    place = NamedEnv(ref=ref, env=resolve(ref)())
    return _episodes(
        place, place.tasks(Split.TRAIN)[: 40 if long else 4], lambda observation, seed: str(1 + seed % 9), runtime, workers
    )


def loop(runtime: Runtime | None, workers: int, *, long: bool = False, learners: int = 0, samplers: int = 0) -> str:
    """A whole run of a tiny real model: collected, scored, trained, published and recorded.

    With learners and samplers of `runtime`, if there are any.
    """
    import torch

    from onthejob.learn.learner import LearnerConfig, LocalLearner
    from onthejob.learn.lora import LoraSpec, attach
    from onthejob.learn.loss import LossConfig
    from onthejob.loop import train
    from onthejob.models.engines import is_batch_invariant
    from onthejob.models.sampler import LocalSampler
    from onthejob.models.scripted import ScriptedPolicy
    from onthejob.record.store import Run
    from onthejob.rollout.pool import TaskPool
    from onthejob.scale.base_spec import BaseSpec
    from onthejob.scale.crew_learner import CrewLearner
    from onthejob.scale.crew_sampler import CrewSampler
    from onthejob.scale.sampler_job import SamplerSpec
    from onthejob.testing import ToyWorkplace, heuristic_reply, teach, tiny_model, toy_examples, toy_tasks
    from onthejob.train import Setup, TrainConfig

    tiny, roles = tiny_model(seed=0), ("maker", "seller")
    teach(tiny, toy_examples(256, expert_share=0.4), steps=60, batch=24)
    lora = LoraSpec(rank=4, alpha=8)
    config = TrainConfig(
        iterations=2, collect=CollectConfig(episodes=2, segment_turns=4), branch=BranchConfig(group_size=4, turns=4, worlds=2),
        sampling=Sampling(max_new_tokens=3), library_tasks=2, library_share=0.5, library_per_day=2, scale_states=6,
        workers=workers,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, Run.create(Path(folder), config={"seed": 0}, name="tiny") as run:
        base = Path(folder) / "base"
        tiny.model.save_pretrained(base)
        tiny.tokenizer.save_pretrained(base)
        model = attach(tiny.model, roles, lora, seed=1)
        sampler: Any = LocalSampler(model, ChatEncoder(tiny.tokenizer))
        # Two epochs with a KL term: everything that an update may need travels.
        learner: Any = LocalLearner(
            model, roles, config=LearnerConfig(lr=3e-3, epochs=2, max_tokens=512, loss=LossConfig(beta=0.01)), seed=0
        )
        spec = BaseSpec(model=str(base), dtype="float32", threads=torch.get_num_threads())
        if samplers:
            assert runtime is not None
            assert is_batch_invariant(model)
            of_sampler = SamplerSpec(base=spec, base_digest="", arguments=())
            sampler = CrewSampler(runtime, samplers, sampler.chat, of_sampler)
        if learners:
            assert runtime is not None
            learner = CrewLearner(learner, runtime.crew("learner", learners, facts=spec.facts), base=spec, lora=lora)
        setup = Setup(
            config=config, make_env=ToyWorkplace, pool=TaskPool(toy_tasks(8), seed=0), sampler=sampler, encoder=sampler.chat,
            learner=learner, run=run, roles=roles, runtime=runtime,
            partners=dict.fromkeys(roles, ScriptedPolicy(heuristic_reply, version="heuristic")),
        )  # fmt: skip
        result = train(setup)
        assert all(adapter.version == 2 for adapter in result.adapters.values()), "both roles were trained twice"
        return run.digest()[:16]


OF: dict[str, Callable[..., str]] = {"office": office, "claw": claw, "own": own, "loop": loop}


def _episodes(place: NamedEnv, tasks: Any, reply: Any, runtime: Runtime | None, workers: int) -> str:
    tokenizer, (actor,) = tiny_tokenizer(), place.roles
    with place.opened() as make_env:
        threads = max(1, workers)
        if runtime is not None:
            make_env, threads = runtime.environments(make_env), max(threads, runtime.threads)
        found = collect_episodes(
            make_env, tasks, {actor: ScriptedTokens(tokenizer, reply, version="agent@0001")}, Sampling(), group_size=3,
            trained=[actor], encoder=ChatEncoder(tokenizer), max_turns=8, seed=3, prefix="it0001", workers=threads,
        )  # fmt: skip
        return digest(found)


def digest(collection: Collection) -> str:
    """Of everything but clocks; refuses a collection in which nothing happened."""
    assert collection.groups, collection.failure
    assert not collection.failure
    assert len({row.ret for group in collection.groups for row in group.trajectories}) > 1, (
        "replies that earn the same say nothing"
    )
    played = replace(collection, episodes=tuple(replace(episode, seconds=0.0) for episode in collection.episodes))
    return hashlib.sha256(repr(played).encode("utf-8", "surrogatepass")).hexdigest()[:16]


# The driver.


def main(runs: list[dict[str, Any]]) -> None:
    """Make each run, and print its line."""
    usual: Any = Dispatcher.__init__.__kwdefaults__
    patience_s = usual["patience_s"]
    for run in runs:
        usual["patience_s"] = run.get("patience_s", patience_s)
        workers, long = run["workers"], run.get("long", False)
        local, nodes = run["backend"] == "local", run.get("nodes", 0)
        with contextlib.ExitStack() as opened:
            address = opened.enter_context(cluster(nodes, run.get("odd"))) if nodes else ""
            if run.get("away"):
                address = opened.enter_context(linked(**run["away"]))
            config = ScaleConfig(**run.get("options", {}))
            if not local:
                config = replace(config, backend="ray", workers=workers, address=address)
            if run.get("odd"):
                print(json.dumps({**run, "odd": "", **refused(config)}), flush=True)
                continue
            runtime = opened.enter_context(open_runtime(config, workers=workers))
            line: dict[str, Any] = {**run, "digests": {}, "listening": sorted(listening())}
            if run.get("kill"):
                # So that none is killed before it works.
                runtime._queue.wait_ready(all_of_them=True)  # type: ignore[attr-defined]
            began = time.monotonic()
            losses = opened.enter_context(Losses())
            killer = Killer(run, random.Random(run["seed"])) if run.get("kill") else None
            for name in run["of"]:
                line["digests"][name] = OF[name](runtime, workers, long=long, **run.get("options", {}))
            line["seconds"] = round(time.monotonic() - began, 2)
            if killer is not None:
                line["killed"] = killer.join()
                line["losses"] = losses.since(killer.at)
            line["lost"] = runtime._queue.lost if runtime.workers else 0  # type: ignore[attr-defined]
        print(json.dumps(line), flush=True)


def refused(config: ScaleConfig) -> dict[str, Any]:
    """What is said of a cluster, one of whose nodes differs, and how many actors were started there."""
    asked = Facts(functions=(("jobs:sandbox_of_node", ()),), stated=(("sandbox", "usable"),))
    base = Facts(functions=(("jobs:base_of_node", ()),))
    try:
        open_runtime(config, workers=0, facts=asked, base=base).close()
    except ConfigError as error:
        return {"refused": str(error), "actors": len([pid for pid in descendants(os.getpid()) if "Actor" in said(pid)])}
    return {"refused": "", "actors": -1}


@contextlib.contextmanager
def cluster(nodes: int, odd: dict[str, str] | None = None) -> Iterator[str]:
    """Several nodes on this machine, with one CPU each; the last one with the variables of `odd`."""
    from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

    usual = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=usual, shutdown_at_exit=False)
    for number in range(1, nodes):
        own = {"env_vars": odd} if odd and number == nodes - 1 else {}
        made.add_node(num_cpus=2 if odd else 1, object_store_memory=100 << 20, **own)
    yield made.address
    made.shutdown()


@contextlib.contextmanager
def linked(namespace: str, link: str, here: str, there: str) -> Iterator[str]:
    """A head with two CPUs at the address `here`, and a node with one at `there`, in another network namespace."""
    address, folder = f"{here}:6379", str(Path(tempfile.gettempdir()) / "ray")
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--object-store-memory", str(100 << 20)]
    head = [*ray, "--head", "--port", "6379", "--num-cpus", "2", "--include-dashboard", "false", "--temp-dir", folder]
    node = ["ip", "netns", "exec", namespace, *ray, "--address", address, "--num-cpus", "1"]
    with contextlib.ExitStack() as made:
        for command, own in (([*head], here), ([*node], there)):
            started = subprocess.Popen([*command, "--node-ip-address", own], stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
            made.callback(end, started)
            wait_for_nodes(address, own)
        yield address


def end(process: subprocess.Popen[bytes]) -> None:
    """End a node and what belongs to it."""
    below = descendants(process.pid)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(20.0)
    for pid in [process.pid, *below]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def wait_for_nodes(address: str, wanted: str) -> None:
    """Until a node has joined."""
    import ray  # pyright: ignore[reportMissingImports]

    deadline = time.monotonic() + 120.0
    found: list[str] = []
    while wanted not in found and time.monotonic() < deadline:
        with contextlib.suppress(Exception):
            ray.init(address=address, log_to_driver=False, configure_logging=False)
            found = [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]
        ray.shutdown()
        time.sleep(0.5)
    assert wanted in found, f"only {found} joined"


class Losses(logging.Handler):
    """What the queue says of lost workers."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._found: list[tuple[float, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "is lost" in record.getMessage():
            self._found.append((time.monotonic(), record.getMessage()))

    def since(self, began: float) -> list[tuple[float, str]]:
        return [(round(at - began, 1), said) for at, said in self._found]

    def __enter__(self) -> Losses:
        logging.getLogger("onthejob.scale.job_queue").addHandler(self)
        return self

    def __exit__(self, *exception: object) -> None:
        logging.getLogger("onthejob.scale.job_queue").removeHandler(self)


class Killer(threading.Thread):
    """Kills a random worker, learner or sampler that works, the raylet above one, or its node, some moments after a beginning.

    With `signal` it sends another one; with `kill` at `link` it sets the link down to a node that works.
    """

    def __init__(self, run: dict[str, Any], luck: random.Random) -> None:
        super().__init__(daemon=True)
        self._what, self._luck, self._killed = run["kill"], luck, 0
        self._signal = signal.Signals[run.get("signal", "SIGKILL")]
        self._link = run.get("away", {}).get("link", "")
        self.at = 0.0
        self.start()

    def join(self, timeout: float | None = None) -> int:  # type: ignore[override]
        super().join(timeout)
        return self._killed

    def run(self) -> None:
        until = time.monotonic() + 300.0
        begun_s = self._luck.uniform(0.0, 0.3)
        seen = 0.0
        while time.monotonic() < until:
            found = self._working()
            seen = seen or (time.monotonic() if found else 0.0)
            if found and time.monotonic() - seen >= begun_s:
                self._killed = self._luck.choice(sorted(found))
                self.at = time.monotonic()
                if self._what == "link":
                    subprocess.run(["ip", "link", "set", self._link, "down"], check=True)
                    return
                below = descendants(self._killed) if self._what == "node" else []
                for pid in [self._killed, *below]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, self._signal)
                return
            time.sleep(0.005)

    def _working(self) -> list[int]:
        """Workers that do jobs at this moment, or the raylets above them."""
        below = descendants(os.getpid())
        actor = {"learner": "LearnerActor", "sampler": "SamplerActor"}.get(self._what, "Actor")
        working = [pid for pid in below if said(pid).startswith(f"ray::{actor}.perform")]
        if self._what in ("worker", "learner", "sampler"):
            return working
        # Not the head's, which is the driver's own node.
        above = {found[1] for pid in working if (found := stat_of(pid)) is not None}
        first = min((pid for pid in below if said(pid).split(" ")[0].endswith("/raylet")), key=started, default=0)
        return [pid for pid in above if pid != first]


def started(pid: int) -> int:
    """When a process began, in the kernel's ticks; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    except OSError:
        return 0


def said(pid: int) -> str:
    """The command line of a process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def listening() -> set[str]:
    """Addresses, in the kernel's notation, at which this process or one below it listens."""
    inodes = {}
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            fields = row.split()
            if fields[3] == "0A":
                inodes[f"socket:[{fields[9]}]"] = fields[1].partition(":")[0]
    found = set()
    for pid in [os.getpid(), *descendants(os.getpid())]:
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    found.add(inodes.get(os.readlink(link), ""))  # noqa: PTH115
    return found - {""}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
