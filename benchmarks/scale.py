"""Workers, samplers and publishing: what the runtime costs here, and in simulated time what a larger one would give.

    python benchmarks/scale.py work                  # real branches of the office, `local` and `ray` by turns
    python benchmarks/scale.py train                 # real iterations of training, `local` and `ray` by turns
    python benchmarks/scale.py sleep                 # workers that sleep, as many as fit, against the simulation
    python benchmarks/scale.py publish               # an adapter to 8 samplers and to one; the samplers are simulated
    python benchmarks/scale.py tables                # the tables of docs/scale.md, in simulated time

All but the last one measure wall time and need a machine that does nothing else. Without Ray (`make ray`) they measure `local`
alone. `--json FILE`, before the command's name, keeps what was measured.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from alternating import Ratio, interval
from scale_model import DriverCosts
from scale_tables import TABLES, jobs

from onthejob.commands.named_env import NamedEnv
from onthejob.envs.described import players_of
from onthejob.models.chat import ChatEncoder
from onthejob.office import Office
from onthejob.record import Run
from onthejob.rollout.branch import (
    BranchConfig,
    BranchScorer,
    Scales,
    ScoreRequest,
    distinct,
    forkable,
    group_worlds,
    submit_replies,
)
from onthejob.scale import Job, Runtime, ScaleConfig, open_runtime
from onthejob.scale.base_spec import BaseSpec
from onthejob.scale.crew_sampler import CrewSampler
from onthejob.scale.runtime import Crew
from onthejob.scale.sampler_job import SamplerSpec
from onthejob.testing.tiny import tiny_model
from onthejob.types import Adapter, Environment, Split

BACKENDS = ("local", "ray") if importlib.util.find_spec("ray") else ("local",)
ADAPTERS = Path(__file__).resolve().parent.parent / "adapters" / "office"
Row = dict[str, Any]


@contextmanager
def opened(backend: str, workers: int) -> Iterator[Runtime]:
    """A runtime whose workers are all ready."""
    config = ScaleConfig() if backend == "local" else ScaleConfig(backend="ray", workers=workers)
    with open_runtime(config, workers=workers if backend == "local" else 0) as runtime:
        runtime._queue.wait_ready(all_of_them=True)  # type: ignore[attr-defined]
        # The first job of a worker imports what it needs.
        slept(runtime, [0.05] * 4 * workers)
        yield runtime


def by_turns(runs: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each run, in alternating order."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        for name in list(runs) if number % 2 == 0 else reversed(list(runs)):
            found[name].append(runs[name]())
    return found


def medians(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Of each run."""
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def ratio(found: Mapping[str, Sequence[float]], over: str, under: str) -> Ratio:
    """Of the rounds of two runs."""
    ratios = [one / other for one, other in zip(found[over], found[under], strict=True)]
    return Ratio(statistics.median(ratios), *interval(ratios), len(ratios))


def compared(what: str, workers: int, found: Mapping[str, Sequence[float]]) -> list[Row]:
    """`ray` over `local`, where both were measured."""
    if "ray" not in found:
        return []
    return [said(what=f"{what}, ray over local", workers=workers, **ratio(found, "ray", "local")._asdict())]


def said(**row: Any) -> Row:
    """The row, printed."""
    print(
        "  ".join(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()),
        flush=True,
    )
    return row


# Real branches.


def requests(make_env: Callable[[], Environment], place: NamedEnv, groups: int, replies: int, worlds: int) -> list[ScoreRequest]:
    """Prompts of a company that a scripted team runs, each with replies to be scored."""
    (task,) = place.tasks(Split.TRAIN)[:1]
    player = players_of(place.env, [task])["random"]
    env = forkable(make_env)
    observation, found = env.reset(task), list[ScoreRequest]()
    while len(found) < groups:
        texts = tuple(player(observation, seed) for seed in range(replies))
        found.append(
            ScoreRequest(
                snapshot=env.snapshot(), actor=observation.actor, replies=texts,
                keys=tuple(env.canonical(text) for text in texts), worlds=group_worlds(7, len(found), count=worlds),
            )
        )  # fmt: skip
        step = env.step(texts[0])
        observation = env.reset(task) if step.observation is None else step.observation
    env.close()
    return found


def work(options: argparse.Namespace) -> list[Row]:
    """Jobs and groups a second, and the ratio of `ray` over `local`."""
    place = NamedEnv(ref="office", env=Office())
    config = BranchConfig(group_size=options.replies, turns=options.turns, worlds=options.branch_worlds)
    rows: list[Row] = []
    with place.opened() as make_env:
        asked = requests(make_env, place, options.groups, options.replies, options.branch_worlds)
        count = sum(len(distinct(one)) for one in asked)
        scales = dict.fromkeys({one.actor for one in asked}, Scales())

        def scored(runtime: Runtime) -> float:
            with BranchScorer(make_env, runtime=runtime) as scorer:
                started = time.perf_counter()
                submit_replies(scorer, asked, config, scales)()
                return time.perf_counter() - started

        for workers in options.workers:
            with ExitStack() as stack:
                runtimes = {backend: stack.enter_context(opened(backend, workers)) for backend in BACKENDS}
                runs = {backend: partial(scored, runtime) for backend, runtime in runtimes.items()}
                # The queue learns the pace of these jobs.
                by_turns(runs, 1)
                found = by_turns(runs, options.rounds)
            rows += [
                said(what="branches", workers=workers, backend=backend, seconds=middle, jobs_per_s=count / middle,
                     groups_per_s=len(asked) / middle)
                for backend, middle in medians(found).items()
            ]  # fmt: skip
            rows += compared("branches", workers, found)
    return rows


# Real training.


def train(options: argparse.Namespace) -> list[Row]:
    """Seconds of an iteration with real replies and updates, and the ratio of `ray` over `local`."""
    rows: list[Row] = []
    for workers in options.workers:
        runs = {backend: partial(trained, backend, workers, options) for backend in BACKENDS}
        found = by_turns(runs, options.rounds)
        rows += [
            said(what="iteration", workers=workers, backend=backend, seconds=middle) for backend, middle in medians(found).items()
        ]
        rows += compared("iteration", workers, found)
    return rows


def trained(backend: str, workers: int, options: argparse.Namespace) -> float:
    """Median seconds of the iterations of a run but the first, of two roles of the kept team."""
    place = ["--workers", str(workers)] if backend == "local" else ["--scale.backend", "ray", "--scale.workers", str(workers)]
    words = [
        "train", "--env", "office", "--init", str(ADAPTERS), "--roles", "sales", "hr", "--iterations", str(options.iterations),
        "--library-tasks", "40", "--scale-states", "4", "--collect.episodes", "4", "--collect.segment-turns", "14",
        "--branch.group-size", "8", "--branch.worlds", "8", "--sampling.max-new-tokens", "32", "--name", "timed",
        "--quiet", *place,
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="ojt-") as folder:
        subprocess.run([sys.executable, "-m", "onthejob", *words], cwd=folder, check=True, timeout=options.limit)
        with Run.open(Path(folder) / "runs" / "timed", readonly=True) as run:
            seconds = [one.value for one in run.read_metrics(name="iteration_s") if one.iteration > 1]
    return statistics.median(seconds)


# Workers that sleep.


def sleep(options: argparse.Namespace) -> list[Row]:
    """Real queues and workers that only wait, against the simulation with what a message was measured to cost."""
    rows: list[Row] = []
    luck = random.Random(0)
    for backend in BACKENDS:
        costs = None
        for workers in options.sleepers:
            seconds = [luck.uniform(options.shortest, options.longest) for _ in range(options.each * workers)]
            with opened(backend, workers) as runtime:
                costs = costs or measured(runtime, workers)
                took = statistics.median(slept(runtime, seconds) for _ in range(options.rounds))
            done = jobs(workers, seconds, costs)
            rows.append(
                said(
                    what="sleepers", workers=workers, backend=backend, seconds=took, simulated=done.seconds,
                    ratio=took / done.seconds, efficiency=sum(seconds) / workers / took, messages=done.messages,
                    **asdict(costs),
                )
            )  # fmt: skip
    return rows


def slept(runtime: Runtime, seconds: Sequence[float]) -> float:
    """Seconds that jobs take which only sleep."""
    asked = [Job(key=f"sleep-{n}", function="time:sleep", arguments=(one,), work=one) for n, one in enumerate(seconds)]
    started = time.perf_counter()
    runtime.submit(asked)()
    return time.perf_counter() - started


def measured(runtime: Runtime, workers: int) -> DriverCosts:
    """The way of a message as the shortest of many alone, and the driver's processor time per message of many."""
    way = min(slept(runtime, [1e-6]) for _ in range(100))
    messages = 400 * workers
    # Each has a place of its own, so that it travels alone.
    asked = [Job(key=f"{n}", function="scale_jobs:paused", arguments=(0.01,), place=f"{n}") for n in range(messages)]
    began = time.process_time()
    runtime.submit(asked)()
    spent = (time.process_time() - began) / messages
    return DriverCosts(message_s=spent, job_s=0.0, way_s=max(0.0, way - spent))


# Publishing.


class TimedSampler(CrewSampler):
    """Samplers of which each takes so many seconds to load an adapter, and scores nothing."""

    load_s = 0.0

    def _published(self, crew: Crew, shared: Any) -> Any:
        self._calls += 1
        arguments = (self.load_s, len(self._probe))
        job = Job(key=f"{self._calls}", function="scale_jobs:loaded", arguments=arguments, shelf="sampler", shared=shared)
        results = crew.submit([job])
        return lambda: results()[job.key]


def publish(options: argparse.Namespace) -> list[Row]:
    """An adapter to many samplers and to one."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="ojt-") as folder:
        tiny, base = tiny_model(seed=0), Path(folder) / "base"
        tiny.model.save_pretrained(base)
        tiny.tokenizer.save_pretrained(base)
        chat = ChatEncoder(tiny.tokenizer)
        spec = SamplerSpec(base=BaseSpec(model=str(base), dtype="float32", threads=1), base_digest="", arguments=())
        for backend in BACKENDS:
            config = ScaleConfig(samplers=options.samplers + 1)
            if backend == "ray":
                config = replace(config, backend="ray", workers=1)
            with open_runtime(config, workers=0) as runtime:
                crews = {f"{size}": TimedSampler(runtime, size, chat, spec) for size in (1, options.samplers)}
                for megabytes in options.megabytes:
                    adapter = Path(folder) / f"adapter-{backend}-{megabytes}"
                    adapter.mkdir()
                    (adapter / "adapter_model.safetensors").write_bytes(os.urandom(1 << 20) * megabytes)
                    rows.append(said(what="publish", backend=backend, megabytes=megabytes, **published(crews, adapter, options)))
    return rows


def published(crews: Mapping[str, TimedSampler], adapter: Path, options: argparse.Namespace) -> Row:
    """What it takes to publish one adapter to many samplers and to one, and the ratio."""
    TimedSampler.load_s, numbers = options.load, count(len(crews["1"].published))

    def to(crew: TimedSampler) -> float:
        version = Adapter(role=adapter.name, version=next(numbers), path=adapter, digest="")
        started = time.perf_counter()
        crew.publish(version)
        return time.perf_counter() - started

    runs = {size: partial(to, crew) for size, crew in crews.items()}
    by_turns(runs, 1)
    found = by_turns(runs, options.rounds)
    few, many = medians(found).values()
    return {"samplers": options.samplers, "load": options.load, "one": few, "many": many} | ratio(
        found, f"{options.samplers}", "1"
    )._asdict()


def shown(options: argparse.Namespace) -> list[Row]:
    """The simulated tables."""
    rows: list[Row] = []
    for name, written in TABLES.items():
        rows.append({"what": name, "table": written()})
        print(f"{name}\n\n{rows[-1]['table']}\n", flush=True)
    return rows


def main() -> None:
    """Measure, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    commands = parser.add_subparsers(dest="command", required=True)
    made = {name: commands.add_parser(name) for name in ("work", "train", "sleep", "publish", "tables")}
    for name in ("work", "train", "sleep", "publish"):
        made[name].add_argument("--rounds", type=int, default=3 if name in ("train", "sleep") else 9)
    for name in ("work", "train"):
        made[name].add_argument("--workers", type=int, nargs="+", default=[1, 2])
    made["work"].add_argument("--groups", type=int, default=40)
    made["work"].add_argument("--replies", type=int, default=8)
    made["work"].add_argument("--branch-worlds", type=int, default=8)
    made["work"].add_argument("--turns", type=int, default=140)
    made["train"].add_argument("--iterations", type=int, default=4)
    made["train"].add_argument("--limit", type=float, default=1800, help="seconds of a run")
    made["sleep"].add_argument("--sleepers", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    made["sleep"].add_argument("--each", type=int, default=40, help="jobs a worker")
    made["sleep"].add_argument("--shortest", type=float, default=0.05, help="of a job, seconds")
    made["sleep"].add_argument("--longest", type=float, default=0.25, help="of a job, seconds")
    made["publish"].add_argument("--samplers", type=int, default=8)
    made["publish"].add_argument("--megabytes", type=int, nargs="+", default=[1, 20, 200])
    made["publish"].add_argument("--load", type=float, default=1.0, help="seconds in which a sampler loads an adapter")
    options = parser.parse_args()
    rows = {"work": work, "train": train, "sleep": sleep, "publish": publish, "tables": shown}[options.command](options)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
