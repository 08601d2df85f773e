"""Regret map: is there something to learn from branches, in every role, without any language model?

Per role: states from the play of the stochastic teacher (expert, 30 % random legal actions) on dev seeds; in each state every
legal reply (and the expert's own, which may carry a message) is valued by branches of H turns in the same worlds, as in training.
The best reply is chosen on half of the worlds and valued on the other half, then the reverse (no winner's curse). Its value less
the expected value of the expert's clone, the teacher itself, is what a policy that imitates the teacher can still gain per
decision. Also reported: the best chosen on all worlds but one and valued on that one, for each world in turn. Standard
errors are clustered by episode.

    python benchmarks/regret_map.py [--states 400] [--worlds 8] [--turns 140] [--processes 2] [--json]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from statistics import fmean, pstdev, variance

from onthejob.envs.office.actions import Action, render
from onthejob.envs.office.env import SEATS, OfficeEnvironment
from onthejob.envs.office.luck import Sub, draw, mix
from onthejob.envs.office.policies import Noisy
from onthejob.envs.office.policies.expert import expert
from onthejob.envs.office.tasks import office_tasks
from onthejob.types import Split, Task

RANDOM_SHARE = 0.3
TEACHER = Noisy(expert, RANDOM_SHARE)
PER_EPISODE = 4
"""States of one role from one episode."""
MIN_RATIO = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One state to value."""

    role: str
    episode: str
    snapshot: bytes
    worlds: int
    turns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """What one state said, in dollars of company value."""

    role: str
    episode: str
    regret: float
    """Best, chosen on the other half of the worlds, less the clone's expectation."""
    regret_ones: float
    """The same, chosen on all worlds but one, valued on that one."""
    over_expert: float
    """Best, chosen on the other half of the worlds, less the expert's own reply."""
    spread: float
    """Standard deviation of the mean values of all replies."""
    noise: float
    """Standard deviation over worlds of one reply's value, after each world's own mean is removed."""
    replies: int
    best: str
    own: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--states", type=int, default=400, help="states per role")
    parser.add_argument("--worlds", type=int, default=8, help="worlds per reply, even")
    parser.add_argument("--turns", type=int, default=140, help="horizon of a branch")
    parser.add_argument("--processes", type=int, default=2, help="0 runs everything in this process")
    parser.add_argument("--roles", nargs="+", default=list(SEATS), choices=SEATS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.worlds < 2 or arguments.worlds % 2 or arguments.states < 1 or arguments.turns < 1:
        parser.error("--worlds must be even and >= 2, --states and --turns >= 1")
    start = time.monotonic()
    rows = measure(arguments)
    result = {"seconds": time.monotonic() - start, "roles": rows}
    print(json.dumps(result, indent=2) if arguments.json else table(rows) + f"\n{result['seconds']:.0f} s")
    return 0 if all(row["ratio"] >= MIN_RATIO for row in rows) else 1


def measure(arguments: argparse.Namespace) -> list[dict]:
    """One row per role."""
    per_scenario = math.ceil(arguments.states / PER_EPISODE / 5)
    tasks = office_tasks(Split.DEV, seeds=per_scenario, first=2_000)
    if arguments.processes == 0:
        jobs = pick(map(states_of, tasks), arguments)
        return [summary(role, regrets) for role, regrets in by_role(map(value, jobs)).items()]
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
        jobs = pick(pool.map(states_of, tasks), arguments)
        return [summary(role, regrets) for role, regrets in by_role(pool.map(value, jobs, chunksize=2)).items()]


def states_of(task: Task) -> list[tuple[str, str, bytes]]:
    """(role, episode, snapshot) of `PER_EPISODE` random turns of every role."""
    env = OfficeEnvironment()
    observation = env.reset(task)
    key = mix(task.seed, Sub.POLICY)
    seen: dict[str, list[tuple[float, bytes]]] = defaultdict(list)
    turn = 0
    while observation is not None:
        lot = draw(key, Sub.POLICY, 7, turn)
        kept = seen[observation.actor]
        if len(kept) < PER_EPISODE or lot < kept[-1][0]:
            kept.append((lot, env.snapshot()))
            kept.sort(key=lambda pair: pair[0])
            del kept[PER_EPISODE:]
        action = TEACHER(observation.view, env.legal_actions, draw(key, Sub.POLICY, 8, turn))
        observation = env.step(render(action) if action is not None else "").observation
        turn += 1
    return [(role, task.id, snapshot) for role, kept in seen.items() for _, snapshot in kept]


def pick(episodes, arguments: argparse.Namespace) -> list[Job]:
    """The first `--states` states of every role, in the order of episodes."""
    chosen: dict[str, list[Job]] = {role: [] for role in arguments.roles}
    for states in episodes:
        for role, episode, snapshot in states:
            if role in chosen and len(chosen[role]) < arguments.states:
                job = Job(role=role, episode=episode, snapshot=snapshot, worlds=arguments.worlds, turns=arguments.turns)
                chosen[role].append(job)
    return [job for jobs in chosen.values() for job in jobs]


def value(job: Job) -> Regret:
    """Branch every legal reply of one state."""
    env = OfficeEnvironment()
    observation = env.restore(job.snapshot)
    assert observation is not None
    own_action = expert(observation.view, list, 0.5)
    assert own_action is not None
    own = env.canonical(render(own_action))
    legal = env.legal_actions()
    chance = random_chances(legal)
    replies = dict.fromkeys([own, *chance])
    values = {
        reply: [env.branch(reply, world=1 + w, turns=job.turns).outcome for w in range(job.worlds)] for reply in replies
    }  # fmt: skip
    worlds = range(job.worlds)
    halves = [[w for w in worlds if (w < job.worlds // 2) == first] for first in (True, False)]
    singles = [[w] for w in worlds]
    regret_ones, _ = cross_fitted(values, own, chance, singles)
    regret, over = cross_fitted(values, own, chance, halves)
    centre = [fmean(world) for world in zip(*values.values(), strict=True)]
    noise = fmean(variance(x - c for x, c in zip(row, centre, strict=True)) for row in values.values())
    overall = max(values, key=lambda reply: sum(values[reply]))
    return Regret(
        role=job.role, episode=job.episode, regret=regret, regret_ones=regret_ones, over_expert=over,
        noise=math.sqrt(noise),
        spread=pstdev(fmean(row) for row in values.values()), replies=len(values), best=kind(overall), own=kind(own),
    )  # fmt: skip


def cross_fitted(
    values: dict[str, list[float]], own: str, chance: dict[str, float], folds: list[list[int]]
) -> tuple[float, float]:
    """(best - clone, best - expert), mean over `folds`: the best of all other worlds, valued on the worlds of the fold."""
    regret, over = [], []
    worlds = range(len(values[own]))
    for fold in folds:
        best = max(values, key=lambda reply: sum(values[reply][w] for w in worlds if w not in fold))
        mean = {reply: fmean(row[w] for w in fold) for reply, row in values.items()}
        clone = (1.0 - RANDOM_SHARE) * mean[own] + RANDOM_SHARE * sum(p * mean[reply] for reply, p in chance.items())
        regret.append(mean[best] - clone)
        over.append(mean[best] - mean[own])
    return fmean(regret), fmean(over)


def random_chances(legal: list[Action]) -> dict[str, float]:
    """Reply -> its probability under the random player: a type at random, then one of its targets."""
    types = Counter(action.action_type for action in legal)
    return {render(action): 1.0 / len(types) / types[action.action_type] for action in legal}


def kind(reply: str) -> str:
    """The action type of a canonical reply."""
    return json.loads(reply)["action_type"]


def by_role(regrets) -> dict[str, list[Regret]]:
    found: dict[str, list[Regret]] = defaultdict(list)
    for regret in regrets:
        found[regret.role].append(regret)
    return found


def clustered(rows: list[Regret], values: list[float]) -> tuple[float, float]:
    """Mean and its standard error, states of one episode being one draw."""
    mean = fmean(values)
    sums: dict[str, float] = defaultdict(float)
    for row, x in zip(rows, values, strict=True):
        sums[row.episode] += x - mean
    clusters = len(sums)
    if clusters < 2:
        return mean, math.inf
    return mean, math.sqrt(clusters / (clusters - 1) * sum(x * x for x in sums.values())) / len(values)


def summary(role: str, rows: list[Regret]) -> dict:
    regret, error = clustered(rows, [row.regret for row in rows])
    ones, ones_error = clustered(rows, [row.regret_ones for row in rows])
    over, over_error = clustered(rows, [row.over_expert for row in rows])
    return {
        "role": role,
        "states": len(rows),
        "episodes": len({row.episode for row in rows}),
        "replies": fmean(row.replies for row in rows),
        "regret": regret,
        "error": error,
        "ratio": regret / error if error > 0 else math.copysign(math.inf, regret) if regret else 0.0,
        "regret_ones": ones,
        "error_ones": ones_error,
        "over_expert": over,
        "over_expert_error": over_error,
        "spread": fmean(row.spread for row in rows),
        "noise": math.sqrt(fmean(row.noise**2 for row in rows)),
        "best": Counter(row.best for row in rows).most_common(4),
        "expert": Counter(row.own for row in rows).most_common(4),
        "rows": [asdict(row) for row in rows],
    }


def table(rows: list[dict]) -> str:
    dollars = {
        "best - clone": "regret", "se": "error", "best - expert": "over_expert", "its se": "over_expert_error",
        "all but one": "regret_ones", "(se)": "error_ones", "spread of replies": "spread", "noise per world": "noise",
    }  # fmt: skip
    columns = ("role", "states", "replies", "ratio", *dollars)
    lines = ["Dollars of company value per decision.", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = (row["role"], str(row["states"]), f"{row['replies']:.1f}", f"{row['ratio']:.1f}")
        lines.append("| " + " | ".join((*cells, *(f"{row[key]:,.0f}" for key in dollars.values()))) + " |")
    for row in rows:
        often = ", ".join(f"{name} {count}" for name, count in row["best"])
        lines.append(f"{row['role']}: best {often}; expert " + ", ".join(f"{name} {count}" for name, count in row["expert"]))
    verdict = "holds" if all(row["ratio"] >= MIN_RATIO for row in rows) else "DOES NOT HOLD"
    return "\n".join([*lines, f"best - clone at least {MIN_RATIO:.0f} standard errors in every role: {verdict}"])


if __name__ == "__main__":
    sys.exit(main())
