"""The tables of docs/scale.md: workers, samplers and whole runs in simulated time, with every figure that they assume.

    python benchmarks/scale.py tables

Figures of `docs/log` are measured; those of data sheets are published; what is neither is called assumed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from scale_model import DriverCosts, Program, SamplerSpeed, SimulatedCrew, SimulatedDriver, SimulatedSamplers

RAY = DriverCosts(message_s=0.0015, job_s=0.0001, way_s=0.004)
"""The most that a small task of Ray 2.60 was measured to take; packing a job is assumed; the way is the most measured here."""
LOCAL = DriverCosts(message_s=0.001, job_s=0.0001, way_s=0.001)

CPU_SAMPLER = SamplerSpeed(prefill_s=0.17 / 512, steps=((8, 0.012), (32, 0.027), (128, 0.087)))
"""SmolLM2-135M in bfloat16, compiled code, two cores of an AMD EPYC (log, 2026-11-29)."""

BRANCH_S = 8 * 0.0062 * 1.09
"""A reply of the office in 8 worlds of 140 turns: a branch takes 6.2 ms, and 9 % more in the full profile (log, 2026-11-22)."""
TURN_S = 1 / 4700 + 0.000166
"""A turn of a segment in the driver: the office's full profile with prompts, and a snapshot (log, 2026-11-22 and 11-23)."""

PARAMETERS, LAYERS, KEYS = 14.77e9, 48, 8 * 128
"""Of Qwen2.5-14B; `KEYS` is the width of keys, and of values, in a layer."""
MEMORY_BYTES, MEMORY_BYTES_S, FLOPS = 80e9, 3.35e12, 989e12
"""Of an H100 SXM (data sheet; bfloat16 without sparsity)."""
USED_MEMORY, USED_SPEED, USED_FLOPS, WITH_ADAPTER = 0.9, 0.6, 0.4, 1.2
"""Assumed of vLLM: memory that it may use, shares of both speeds that it reaches, and what an adapter costs."""
KEPT_BYTES = 2 * 2 * LAYERS * KEYS
"""Keys and values of one token in bfloat16."""


def _gpu_sampler() -> SamplerSpeed:
    weights = 2 * PARAMETERS
    read_s = WITH_ADAPTER / (MEMORY_BYTES_S * USED_SPEED)
    computed_s = WITH_ADAPTER * 2 * PARAMETERS / (FLOPS * USED_FLOPS)
    floor_s = weights * read_s
    # Up to so many rows the weights take longer to read than to use.
    rows = int(floor_s / computed_s)
    return SamplerSpeed(
        prefill_s=computed_s,
        steps=((rows, floor_s), (2 * rows, 2 * rows * computed_s)),
        kept_s=KEPT_BYTES * read_s,
        room=(MEMORY_BYTES * USED_MEMORY - weights) / KEPT_BYTES,
    )


GPU_SAMPLER = _gpu_sampler()
"""Qwen2.5-14B with an adapter of rank 32 on one H100, from the limits of the hardware: a decode step reads all weights, keys and
values, and a prompt is computed."""
UPDATE_TOKEN_S = 3.69 / 8040
"""Of an update of 14B, per token forwarded: rank 32, activations computed again, one H100 (log, 2026-11-26)."""
ADAPTER_BYTES, STATE_BYTES = 0.55e9, 1.7e9
"""Rank 32 in float32, and the same with its moments (docs/serving.md)."""
COPY_BYTES_S, NETWORK_BYTES_S, LOAD_S = 1e9, 12.5e9, 1.0
"""Assumed: how fast the driver packs and unpacks, its link (100 Gb/s), and what an engine takes to load and probe an adapter."""
GPUS_OF_NODE, WORKERS_OF_NODE = 8, 16
ROLES, TURNS, REPLIES = 6, 14, 4
PROMPT, SHORTEST, LONGEST, LIMIT = 3072, 100, 500, 1024
"""Tokens of a prompt, of a reply (even between these; assumed), and the most of a reply, as in recipes/office_qwen14b.toml."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What was simulated."""

    seconds: float
    work_s: float
    """Of all workers."""
    messages: int


def jobs(workers: int, seconds: Sequence[float], costs: DriverCosts) -> Done:
    """All jobs at once, in a queue that knows the pace of such jobs."""
    driver = SimulatedDriver(costs)
    crew = SimulatedCrew(driver, workers)
    driver.play(wait_for(crew, seconds[:1]))
    before = Done(seconds=max(driver.time.now, driver.free_at), work_s=crew.busy_s, messages=crew.messages)
    ended = driver.play(wait_for(crew, seconds))
    return Done(
        seconds=ended - before.seconds, work_s=crew.busy_s - before.work_s, messages=crew.messages - before.messages
    )  # fmt: skip


def wait_for(crew: SimulatedCrew, seconds: Sequence[float]) -> Program:
    """Submit jobs, and wait for them."""
    yield [crew.submit(seconds)]


def calls(samplers: int, groups: int, speed: SamplerSpeed, costs: DriverCosts, *, rounds: int = 4) -> float:
    """Seconds of so many calls, each of `groups` prompts of about 512 tokens with 8 replies of 8 to 32 tokens."""
    driver, luck = SimulatedDriver(costs), random.Random(0)
    crews = SimulatedSamplers(driver, samplers, speed)

    def program() -> Program:
        for _ in range(rounds):
            asked = [(luck.randint(384, 640), [luck.randint(8, 32) for _ in range(8)]) for _ in range(groups)]
            yield crews.generate(asked, limit=32)

    return driver.play(program())


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """GPUs and what they do."""

    samplers: int
    learners: int
    parts: int = 1
    """Learners that share a role's update; more than one is not built."""

    @property
    def gpus(self) -> int:
        return self.samplers + self.learners

    @property
    def nodes(self) -> int:
        return -(-self.gpus // GPUS_OF_NODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """Seconds of an iteration."""

    play: float
    score: float
    """Waiting for branches after the last reply."""
    update: float
    publish: float
    gpu_work: float
    """Of all samplers and learners."""

    @property
    def seconds(self) -> float:
        return self.play + self.score + self.update + self.publish


def iteration(topology: Topology, segments: int, *, seed: int = 0) -> Iteration:
    """One iteration of six roles of 14B: as the loop does it, one part after the other."""
    driver, luck = SimulatedDriver(RAY), random.Random(seed)
    samplers = SimulatedSamplers(driver, topology.samplers, GPU_SAMPLER)
    workers = SimulatedCrew(driver, topology.nodes * WORKERS_OF_NODE)
    learners = SimulatedCrew(driver, topology.learners, ahead=1)
    # The driver's link brings it to one node after the other.
    load_s = topology.nodes * ADAPTER_BYTES / NETWORK_BYTES_S + LOAD_S
    ends: list[float] = []
    tokens = 0

    def note() -> None:
        ends.append(max(driver.time.now, driver.free_at))

    def program() -> Program:
        nonlocal tokens
        scoring = []
        for _ in range(TURNS):
            driver.spend(segments * TURN_S)
            asked = [(PROMPT, [luck.randint(SHORTEST, LONGEST) for _ in range(REPLIES)]) for _ in range(segments)]
            tokens += sum(prompt + sum(replies) for prompt, replies in asked)
            yield samplers.generate(asked, limit=LIMIT)
            scoring.append(workers.submit([BRANCH_S * luck.uniform(0.5, 1.5) for _ in range(segments * REPLIES)]))
        note()
        yield scoring
        note()
        # A role's state goes to its learner, and comes back with new moments.
        driver.spend(ROLES * STATE_BYTES / COPY_BYTES_S)
        share = tokens / ROLES * UPDATE_TOKEN_S / topology.parts
        yield [learners.submit([share] * ROLES * topology.parts)]
        driver.spend(ROLES * STATE_BYTES / COPY_BYTES_S)
        note()
        for _ in range(ROLES):
            driver.spend(ADAPTER_BYTES / COPY_BYTES_S)
            yield [crew.submit([load_s]) for crew in samplers.crews]
        note()

    driver.play(program())
    played, scored, updated, published = ends
    loading = ROLES * topology.samplers * load_s
    work = learners.busy_s + sum(crew.busy_s for crew in samplers.crews) - loading
    return Iteration(play=played, score=scored - played, update=updated - scored, publish=published - updated, gpu_work=work)


def best(gpus: int, segments: int) -> tuple[Topology, Iteration]:
    """The fastest division of GPUs into samplers and learners, of which more than roles are refused."""
    # With many GPUs fewer learners than roles only make updates longer.
    counts = (1, 2, 3, ROLES) if gpus <= GPUS_OF_NODE else (ROLES,)
    options = [Topology(samplers=gpus - learners, learners=learners) for learners in counts]
    found = [(option, iteration(option, segments)) for option in options]
    return min(found, key=lambda one: one[1].seconds)


def split(gpus: int, segments: int) -> tuple[Topology, Iteration] | None:
    """The same if a role's update could be divided evenly, at no cost; None where there are too few GPUs for two parts."""
    parts = [parts for parts in (2, 4, 8, 16, 32, 64) if gpus / 8 < ROLES * parts < gpus]
    options = [Topology(samplers=gpus - ROLES * part, learners=ROLES * part, parts=part) for part in parts]
    found = [(option, iteration(option, segments)) for option in options]
    return min(found, key=lambda one: one[1].seconds, default=None)


SIZES_OF_WORKERS, SIZES_OF_SAMPLERS, SIZES_OF_GPUS = (1, 4, 16, 64, 256, 1000), (1, 2, 4, 16, 64), (8, 64, 512)
SEGMENTS, ITERATIONS = 128, 50


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = [head, ["---:" if index else "---" for index in range(len(head))], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def workers_table(sizes: Sequence[int] = SIZES_OF_WORKERS, count: int = SEGMENTS * TURNS * REPLIES) -> str:
    """An iteration's branches on more and more workers."""
    luck = random.Random(0)
    works = {name: [mean * luck.uniform(0.5, 1.5) for _ in range(count)] for name, mean in (("office", BRANCH_S), ("slow", 0.5))}
    rows = []
    for size in sizes:
        cells = [f"{size:,}"]
        for seconds in works.values():
            done = jobs(size, seconds, RAY)
            cells += [f"{done.seconds:,.1f}", f"{count / done.seconds:,.0f}", f"{done.work_s / size / done.seconds:.0%}"]
        rows.append(cells)
    head = ["workers", "54 ms: s", "jobs/s", "efficiency", "500 ms: s", "jobs/s", "efficiency"]
    return table(head, rows)


def samplers_table(sizes: Sequence[int] = SIZES_OF_SAMPLERS) -> str:
    """So many prompts for each of more and more samplers."""
    run = partial(calls, speed=CPU_SAMPLER, costs=RAY)
    one = run(1, 8)
    rows = [[f"{size}", f"{run(size, 8 * size) / 4:.2f}", f"{one / run(size, 8 * size):.0%}"] for size in sizes]
    return table(["samplers", "seconds a call", "efficiency"], rows)


def runs_table(sizes: Sequence[int] = SIZES_OF_GPUS, segments: int = SEGMENTS) -> str:
    """A run of six roles of 14B."""
    rows = []
    for gpus in sizes:
        for what, made in (("", best(gpus, segments)), (" (not built)", split(gpus, segments))):
            if made is None:
                continue
            topology, found = made
            seconds = found.seconds
            rows.append(
                [
                    f"{gpus}{what}", f"{topology.samplers}", f"{topology.learners}", f"{found.play:,.0f}", f"{found.score:,.1f}",
                    f"{found.update:,.0f}", f"{found.publish:,.0f}", f"{seconds:,.0f}", f"{ITERATIONS * seconds / 3600:,.1f}",
                    f"{found.gpu_work / gpus / seconds:.0%}",
                ]
            )  # fmt: skip
    head = [
        "GPUs", "samplers", "learners", "play, s", "score, s", "update, s", "publish, s", "iteration, s",
        f"{ITERATIONS} iterations, h", "GPUs busy",
    ]  # fmt: skip
    return table(head, rows)


TABLES = {"samplers": samplers_table, "runs": runs_table, "workers": workers_table}
"""Name -> what writes the table, of all of docs/scale.md."""
