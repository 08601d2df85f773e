"""Speed of the office on one core: turns/s with and without prompts, snapshots, branches; and of PettingZoo and Gymnasium.

All times are CPU seconds of this process (other load does not count), the best of --repeat; every repetition plays another seed,
so that nothing is fast because it was seen before. A turn is one decision of one role with all seven rewards; the scripted
customer's turns count as turns. Snapshots and restores are timed after each of 60 turns, not again and again of the same state.
Needs `pip install onthejob[test]` for the peers.

    python benchmarks/office_sim.py [--repeat 3] [--profile 25] [--json]

Ends with 1 when a number misses its target.
"""

from __future__ import annotations

import argparse
import cProfile
import importlib
import itertools
import json
import pstats
import sys
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

from onthejob.envs.office import scenarios
from onthejob.envs.office.actions import render
from onthejob.envs.office.env import SEATS, OfficeConfig, OfficeEnvironment
from onthejob.envs.office.fast_play import run
from onthejob.envs.office.policies import Player, players
from onthejob.envs.office.policies.expert import expert
from onthejob.envs.office.policies.heuristic import heuristic
from onthejob.envs.office.sections import cached
from onthejob.envs.office.simulator import Simulator
from onthejob.types import Split, Task

TURNS = 420
EARLY, LATE = 60, 400
"""Turns between which snapshots are compared."""
BUDGET = 300
"""Tokens of the user message in the pruned run."""


class Row(NamedTuple):
    """One measured number."""

    what: str
    value: float
    unit: str
    target: float | None = None
    at_most: bool = False
    """The target is an upper limit."""

    @property
    def passed(self) -> bool | None:
        if self.target is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target


def best(function: Callable[[], int], repeat: int) -> float:
    """CPU seconds per unit of work; `function` returns how many units it did."""
    times = []
    for _ in range(repeat):
        start = time.process_time()
        units = function()
        times.append((time.process_time() - start) / units)
    return min(times)


def fast_path(name: str) -> Callable[[], int]:
    simulator, player, seeds = Simulator(scenarios.load("baseline")), players()[name], itertools.count(1_000)

    def episode() -> int:
        s = simulator.found(next(seeds))
        run(simulator, s, dict.fromkeys(SEATS, player), turns=TURNS)
        return s.turn

    return episode


def task(scenario: str = "baseline", seed: int = 1_000) -> Task:
    return Task(id="benchmark", env="office", split=Split.DEV, seed=seed, payload={"scenario": scenario})


def through_environment(env: OfficeEnvironment, *, prompts: bool) -> Callable[[], int]:
    """The expert's replies as text: parsed, executed, observed; with `prompts` every prompt is rendered."""
    seeds = itertools.count(1_000)

    def episode() -> int:
        observation = env.reset(task(seed=next(seeds)))
        while observation is not None:
            if prompts:
                _ = observation.messages
            action = expert(observation.view, list, 0.5)
            observation = env.step(render(action) if action is not None else "").observation
        return int(env.state()["turn"])

    return episode


def advance(env: OfficeEnvironment, turn: int, player: Player = heuristic) -> OfficeEnvironment:
    """`env`, continued until it has reached `turn` or its end."""
    observation = env.observe()
    while observation is not None and int(env.state()["turn"]) < turn:
        action = player(observation.view, list, 0.5)
        observation = env.step(render(action) if action is not None else "").observation
    return env


def at_turn(turn: int, scenario: str = "viral", profile: str = "compact", player: Player = heuristic) -> OfficeEnvironment:
    """An episode that has reached `turn`."""
    env = OfficeEnvironment(OfficeConfig(profile=profile))
    env.reset(task(scenario))
    return advance(env, turn, player)


def sizes(profile: str) -> dict[str, tuple[int, int]]:
    """`scenario, player` -> bytes of the snapshots at turns `EARLY` and `LATE`, for every shipped scenario and two players."""
    found = {}
    for scenario in scenarios.SHIPPED:
        for player in (expert, heuristic):
            env = at_turn(EARLY, scenario, profile, player)
            early = len(env.snapshot())
            found[f"{scenario}, {player.__name__}"] = early, len(advance(env, LATE, player).snapshot())
    return found


def after_each_turn(profile: str, work: Callable[[OfficeEnvironment, OfficeEnvironment], Callable[[], object]]) -> float:
    """CPU seconds of what `work` gives, after each of `EARLY` turns up to `LATE`.

    Args:
        profile: of the prompts.
        work: is shown the environment, and another one that holds nothing of it, and gives what is timed.
    """
    env = at_turn(LATE - EARLY, profile=profile)
    other, total, count = OfficeEnvironment(env.config), 0.0, 0
    while int(env.state()["turn"]) < LATE:
        timed = work(env, other)
        start = time.process_time()
        timed()
        total, count = total + time.process_time() - start, count + 1
        advance(env, int(env.state()["turn"]) + 1)
    return total / count


def snapshots(profile: str, repeat: int) -> list[Row]:
    """Time and size of snapshots in one profile."""

    def restoring(env: OfficeEnvironment, other: OfficeEnvironment) -> Callable[[], object]:
        taken = env.snapshot()
        return lambda: other.restore(taken)

    def reading(env: OfficeEnvironment, other: OfficeEnvironment) -> Callable[[], object]:
        asked = other.restore(env.snapshot())
        return lambda: asked.messages if asked is not None else None

    def timed(work: Callable[[OfficeEnvironment, OfficeEnvironment], Callable[[], object]]) -> float:
        return 1e6 * min(after_each_turn(profile, work) for _ in range(repeat))

    found = sizes(profile)
    growth = {name: late / early for name, (early, late) in found.items()}
    worst = max(growth, key=lambda name: growth[name])
    early, late = (max(pair[place] for pair in found.values()) / 1_000.0 for place in (0, 1))
    return [
        Row(f"{profile}: snapshot up to turn 400", timed(lambda env, _: env.snapshot), "us", 150.0, True),
        Row(f"{profile}: restore up to turn 400", timed(restoring), "us", 200.0, True),
        Row(f"{profile}: prompt after a restore", timed(reading), "us"),
        Row(f"{profile}: snapshot size at turn 60, the largest", early, "kB"),
        Row(f"{profile}: snapshot size at turn 400, the largest", late, "kB", 32.0, True),
        # Six memories fill up to 200 entries each, as they should: that growth has an end, and the bound in kB holds for it.
        Row(
            f"{profile}: size at turn 400 / at turn 60, most in {worst}",
            growth[worst],
            "ratio",
            1.5 if profile == "compact" else None,
            True,
        ),
    ]


def branches(env: OfficeEnvironment, *, replies: int, turns: int, worlds: int) -> Callable[[], int]:
    texts = (env.legal_replies() * replies)[:replies]

    def group() -> int:
        for text in texts:
            for world in range(worlds):
                env.branch(text, world=1 + world, turns=turns)
        return 1

    return group


def repeated(count: int, function: Callable[[], object]) -> Callable[[], int]:
    def loop() -> int:
        for _ in range(count):
            function()
        return count

    return loop


def token_counter() -> Callable[[str], int]:
    """Counts with the embedded model's tokenizer."""
    from transformers import AutoTokenizer

    from onthejob.models.fetch import fetch

    tokenizer = AutoTokenizer.from_pretrained(fetch()).backend_tokenizer
    return cached(lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids))


def measure(repeat: int) -> list[Row]:
    rows = [
        Row(
            f"fast path, {name}",
            1.0 / best(fast_path(name), repeat),
            "turns/s",
            12_000.0 if name in ("expert", "heuristic") else None,
        )
        for name in ("expert", "heuristic", "random")
    ]
    rows.append(
        Row("environment, text replies", 1.0 / best(through_environment(OfficeEnvironment(), prompts=False), repeat), "turns/s")
    )
    rows.append(
        Row(
            "environment, prompts", 1.0 / best(through_environment(OfficeEnvironment(), prompts=True), repeat), "turns/s", 3_500.0
        )
    )
    env = OfficeEnvironment(OfficeConfig(budget=BUDGET), count_tokens=token_counter())
    rows.append(
        Row(
            "environment, prompts pruned by tokens",
            1.0 / best(through_environment(env, prompts=True), repeat),
            "turns/s",
            3_500.0,
        )
    )
    full = OfficeEnvironment(OfficeConfig(profile="full"))
    rows.append(
        Row("environment, full profile with memories", 1.0 / best(through_environment(full, prompts=True), repeat), "turns/s")
    )
    early, late = at_turn(EARLY), at_turn(LATE)
    rows += snapshots("compact", repeat) + snapshots("full", repeat)
    rows += [
        Row("fork at turn 400", 1e6 * best(repeated(300, late.fork), repeat), "us"),
        Row(
            "branches K=8 H=42 m=2 at turn 60",
            1e3 * best(branches(early, replies=8, turns=42, worlds=2), repeat),
            "ms",
            60.0,
            True,
        ),
        Row("one branch H=140 at turn 60", 1e3 * best(branches(early, replies=1, turns=140, worlds=1), 3 * repeat), "ms"),
    ]
    return rows + others(repeat)


def others(repeat: int) -> list[Row]:
    """Random play in well-known environments."""
    import gymnasium

    def cartpole() -> int:
        env = gymnasium.make("CartPole-v1")
        env.reset(seed=0)
        for _ in range(5_000):
            *_, ended, cut, _ = env.step(env.action_space.sample())
            if ended or cut:
                env.reset()
        return 5_000

    rows = [Row("Gymnasium CartPole-v1", 1.0 / best(cartpole, repeat), "steps/s")]
    for name in ("rps_v2", "tictactoe_v3", "connect_four_v3"):
        found = importlib.import_module(f"pettingzoo.classic.{name}")
        rows.append(Row(f"PettingZoo {name}", 1.0 / best(pettingzoo_turns(found), repeat), "turns/s"))
    return rows


def pettingzoo_turns(module) -> Callable[[], int]:
    def play() -> int:
        env, turns = module.env(), 0
        while turns < 3_000:
            env.reset(seed=turns)
            for agent in env.agent_iter():
                observation, _, ended, cut, _ = env.last()
                mask = observation.get("action_mask") if isinstance(observation, dict) else None
                env.step(None if ended or cut else env.action_space(agent).sample(mask))
                turns += 1
        return turns

    return play


def profile(lines: int) -> str:
    """Where the fast path spends its time, by own time."""
    import io

    episode, profiler = fast_path("expert"), cProfile.Profile()
    profiler.enable()
    for _ in range(5):
        episode()
    profiler.disable()
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).strip_dirs().sort_stats("tottime").print_stats(lines)
    return text.getvalue()


def table(rows: list[Row]) -> str:
    lines = ["| what | value | unit | target | met |", "|---|---:|---|---:|---|"]
    for row in rows:
        value = f"{row.value:,.0f}" if row.value >= 100 else f"{row.value:.3g}"
        target = "" if row.target is None else f"{'<=' if row.at_most else '>='} {row.target:,g}"
        lines.append(
            f"| {row.what} | {value} | {row.unit} | {target} | {'' if row.passed is None else 'yes' if row.passed else 'NO'} |"
        )
    return "\n".join(lines)


def verdict(rows: list[Row]) -> int:
    """1 when a number misses its target."""
    return int(any(row.passed is False for row in rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3, help="the best of so many runs counts")
    parser.add_argument(
        "--profile", type=int, default=0, metavar="LINES", help="also print the costliest functions of the fast path"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = measure(arguments.repeat)
    if arguments.json:
        print(json.dumps([{**row._asdict(), "passed": row.passed} for row in rows], indent=2))
    else:
        print(table(rows))
    if arguments.profile:
        print(profile(arguments.profile), file=sys.stderr)
    return verdict(rows)


if __name__ == "__main__":
    sys.exit(main())
