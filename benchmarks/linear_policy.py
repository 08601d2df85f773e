"""Signal without a language model: a linear softmax policy per role learns from the same branch advantages as the LLM.

The policy scores every legal action by hand-made features of the role's view and of the action (linear_features.py), nothing
else. It starts as a clone of the stochastic teacher (expert, 30 % random legal actions), fitted by multinomial logistic
regression to the teacher's probabilities, and is then trained by GRPO as the loop does it: K sampled actions per state, each
branched for H turns in m worlds shared by the group and continued by the heuristic, value = outcome / s_v + 0.25 x role return
/ s_r, advantages = z-score within the group, all six roles at once, states from the team's own episodes on training seeds. Whole
episodes on dev seeds, paired, say what it is worth.

    python benchmarks/linear_policy.py [--minutes 12] [--iterations 150] [--processes 2] [--json]

Ends with 1 when the trained team does not gain 15 % of the clone's company value.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np
from linear_features import DIMENSIONS, candidates, features
from numpy.typing import NDArray

from onthejob.envs.office import scenarios
from onthejob.envs.office.actions import Action, render
from onthejob.envs.office.env import SEATS, OfficeEnvironment
from onthejob.envs.office.fast_play import run
from onthejob.envs.office.luck import Sub, draw, mix
from onthejob.envs.office.market import company_value
from onthejob.envs.office.policies import Player, View
from onthejob.envs.office.policies.expert import expert
from onthejob.envs.office.policies.heuristic import heuristic
from onthejob.envs.office.simulator import Simulator
from onthejob.envs.office.tasks import office_tasks
from onthejob.evaluate.statistics import paired_difference, ratio_interval
from onthejob.types import Split, Task

Vector = NDArray[np.float64]
RANDOM_SHARE = 0.3
MIN_GAIN = 0.15


def probabilities(weights: Vector, rows: Sequence[Sequence[int]]) -> Vector:
    """Softmax over the actions, (A,)."""
    scores = np.array([weights[row].sum() for row in rows])
    scores = np.exp(scores - scores.max())
    return scores / scores.sum()


class LinearPlayer:
    """The policy of all six roles as a player."""

    def __init__(self, weights: dict[str, Vector]) -> None:
        self.weights = weights

    def __call__(self, view: View, legal: Callable[[], list[Action]], luck: float) -> Action | None:
        actions = candidates(view, legal())
        if not actions:
            return None
        return actions[pick(probabilities(self.weights[view["role"]], features(view, actions)), luck)]


def pick(chances: Vector, luck: float) -> int:
    """Index that `luck` in [0, 1) falls into."""
    return min(int(np.searchsorted(np.cumsum(chances), luck, side="right")), len(chances) - 1)


# -- data and gradients ------------------------------------------------------------------------------------------------------


class Decision(NamedTuple):
    """One state of one role."""

    rows: list[list[int]]
    """Active features per action."""
    targets: list[float]
    """Clone: the teacher's probability of each action. GRPO: the sum of the advantages of the samples of each action."""


class Flat:
    """Decisions as arrays, so that a gradient over thousands of them takes milliseconds."""

    def __init__(self, decisions: Sequence[Decision]) -> None:
        rows = [row for decision in decisions for row in decision.rows]
        self.indices = np.concatenate([np.asarray(row, dtype=np.intp) for row in rows])
        self.lengths = np.array([len(row) for row in rows])
        self.row_starts = np.concatenate([[0], np.cumsum(self.lengths)[:-1]])
        counts = np.array([len(decision.rows) for decision in decisions])
        self.starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        self.counts = counts
        self.targets = np.array([x for decision in decisions for x in decision.targets])

    def chances(self, weights: Vector) -> Vector:
        """Softmax within every decision, flat."""
        scores = np.add.reduceat(weights[self.indices], self.row_starts)
        scores = np.exp(scores - np.repeat(np.maximum.reduceat(scores, self.starts), self.counts))
        return scores / np.repeat(np.add.reduceat(scores, self.starts), self.counts)

    def gradient(self, weights: Vector) -> Vector:
        """Of -sum(targets x log p) / decisions."""
        share = np.repeat(np.add.reduceat(self.targets, self.starts), self.counts)
        residual = self.chances(weights) * share - self.targets
        return np.bincount(self.indices, weights=np.repeat(residual, self.lengths), minlength=DIMENSIONS) / len(self.counts)


class Adam:
    """Adam, for the clone. GRPO takes plain gradient steps: normalised ones would let every rare feature jump with its noise."""

    def __init__(self, rate: float) -> None:
        self.rate, self.steps = rate, 0
        self.first, self.second = np.zeros(DIMENSIONS), np.zeros(DIMENSIONS)

    def step(self, weights: Vector, gradient: Vector, *, factor: float = 1.0) -> Vector:
        self.steps += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.99 * self.second + 0.01 * gradient**2
        first, second = self.first / (1.0 - 0.9**self.steps), self.second / (1.0 - 0.99**self.steps)
        return weights - factor * self.rate * first / (np.sqrt(second) + 1e-6)


def teacher_chances(own: Action, actions: Sequence[Action], legal: Sequence[Action]) -> list[float]:
    """Probability of each action under the stochastic teacher."""
    types: dict[str, int] = {}
    for action in legal:
        types[action.action_type] = types.get(action.action_type, 0) + 1
    plain = {render(action) for action in legal}
    wanted = render(own)
    chances = []
    for action in actions:
        text = render(action)
        at_random = 1.0 / len(types) / types[action.action_type] if text in plain else 0.0
        chances.append(RANDOM_SHARE * at_random + (1.0 - RANDOM_SHARE) * (text == wanted))
    return chances


def demonstrate(task: Task) -> dict[str, list[Decision]]:
    """Decisions of the teacher in one episode."""
    env = OfficeEnvironment()
    observation = env.reset(task)
    found: dict[str, list[Decision]] = {role: [] for role in SEATS}
    key, turn = mix(task.seed, Sub.POLICY), 0
    while observation is not None:
        legal = env.legal_actions()
        actions = candidates(observation.view, legal)
        own = expert(observation.view, list, 0.5)
        assert own is not None
        chances = teacher_chances(own, actions, legal)
        found[observation.actor].append(Decision(features(observation.view, actions), chances))
        chosen = actions[pick(np.array(chances), draw(key, Sub.POLICY, 8, turn))]
        observation = env.step(render(chosen)).observation
        turn += 1
    return found


def fit_clone(decisions: Sequence[Decision], *, steps: int = 250, rate: float = 0.05, decay: float = 1e-4) -> Vector:
    """Multinomial logistic regression on the teacher's probabilities."""
    data, weights, adam = Flat(decisions), np.zeros(DIMENSIONS), Adam(rate)
    for step in range(steps):
        weights = adam.step(weights, data.gradient(weights) + decay * weights, factor=1.0 - step / steps)
    return weights


# -- branches ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One training episode, in which some states are branched."""

    task: Task
    weights: dict[str, Vector]
    states: int
    """States per role."""
    samples: int
    worlds: int
    turns: int
    key: int


class Sampled(NamedTuple):
    """One state with its samples."""

    role: str
    rows: list[list[int]]
    chosen: list[int]
    """Index of the action of each sample."""
    outcomes: list[float]
    returns: list[float]


def branch_segment(job: Segment) -> list[Sampled]:
    """Play an episode with the current team and value K samples in some of its states."""
    env = OfficeEnvironment()
    observation = env.reset(job.task)
    found: list[Sampled] = []
    decisions_left = dict.fromkeys(SEATS, 2 * int(job.task.payload["days"]))
    states_left = dict.fromkeys(SEATS, job.states)
    turn = 0
    while observation is not None:
        role = observation.actor
        actions = candidates(observation.view, env.legal_actions())
        rows = features(observation.view, actions)
        chances = probabilities(job.weights[role], rows)
        # Every decision of the episode is taken with the same probability (sampling without replacement).
        if draw(job.key, Sub.POLICY, 9, turn) * decisions_left[role] < states_left[role]:
            states_left[role] -= 1
            chosen = [pick(chances, draw(job.key, Sub.POLICY, 10 + k, turn)) for k in range(job.samples)]
            if len(set(chosen)) > 1:
                worlds = [1 + (mix(job.key, turn, w) >> 8) % 9_000 for w in range(job.worlds)]
                branches = {i: [env.branch(render(actions[i]), world=w, turns=job.turns) for w in worlds] for i in set(chosen)}
                outcomes = {i: fmean(branch.outcome for branch in row) for i, row in branches.items()}
                returns = {i: fmean(branch.returns.get(role, 0.0) for branch in row) for i, row in branches.items()}
                found.append(Sampled(role, rows, chosen, [outcomes[i] for i in chosen], [returns[i] for i in chosen]))
        decisions_left[role] -= 1
        observation = env.step(render(actions[pick(chances, draw(job.key, Sub.POLICY, 1, turn))])).observation
        turn += 1
    return found


class Scale(NamedTuple):
    """Typical spread of one role's samples, frozen after the first iteration."""

    outcome: float
    ret: float


def scales(groups: Sequence[Sampled]) -> dict[str, Scale]:
    """Root mean square, over groups, of the standard deviation between samples."""
    found = {}
    for role in SEATS:
        of_role = [group for group in groups if group.role == role]
        pairs = [(stdev(group.outcomes) ** 2, stdev(group.returns) ** 2) for group in of_role] or [(1.0, 1.0)]
        outcome, ret = (math.sqrt(fmean(values)) for values in zip(*pairs, strict=True))
        found[role] = Scale(outcome or 1.0, ret or 1.0)
    return found


def advantages(group: Sampled, scale: Scale) -> Decision | None:
    """The group's z-scores, summed per action; None when its samples are worth the same."""
    values = [v / scale.outcome + 0.25 * r / scale.ret for v, r in zip(group.outcomes, group.returns, strict=True)]
    spread = stdev(values)
    if spread < 1e-9:
        return None
    mean = fmean(values)
    targets = [0.0] * len(group.rows)
    for index, value in zip(group.chosen, values, strict=True):
        targets[index] += (value - mean) / spread / len(values)
    return Decision(group.rows, targets)


# -- training and evaluation ---------------------------------------------------------------------------------------------------

Mapper = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


def train(
    weights: dict[str, Vector], options: argparse.Namespace, mapper: Mapper, deadline: float
) -> tuple[dict[str, Vector], list[dict]]:
    """GRPO; ends early at `deadline` (monotonic seconds)."""
    weights, frozen, log = dict(weights), None, []
    tasks = office_tasks(Split.TRAIN, seeds=options.iterations * options.episodes // 5 + 1, first=1_000)
    start = time.monotonic()
    for iteration in range(options.iterations):
        passed = time.monotonic()
        if passed > deadline:
            break
        part = tasks[iteration * options.episodes : (iteration + 1) * options.episodes]
        common = {name: getattr(options, name) for name in ("states", "samples", "worlds", "turns")}
        jobs = [Segment(task=task, weights=weights, key=mix(options.seed, iteration, task.seed), **common) for task in part]
        groups = [group for found in mapper(branch_segment, jobs) for group in found]
        frozen = frozen or scales(groups)
        alive = 0
        # The rate falls with whichever ends first, the iterations or the time.
        used = max(iteration / options.iterations, (passed - start) / max(deadline - start, 1.0))
        for role in SEATS:
            decisions = [d for group in groups if group.role == role and (d := advantages(group, frozen[role])) is not None]
            alive += len(decisions)
            if decisions:
                rate = options.rate * (1.0 - 0.9 * used)
                weights[role] = weights[role] - rate * Flat(decisions).gradient(weights[role])
        asked = options.episodes * options.states * len(SEATS)
        spread = fmean(stdev(group.outcomes) for group in groups) if groups else 0.0
        log.append({"iteration": iteration, "alive": alive / asked, "spread": spread, "seconds": time.monotonic() - start})
        if not options.json and iteration % 10 == 0:
            print(
                f"iteration {iteration}: {100 * alive / asked:.0f} % of groups alive, {log[-1]['seconds']:.0f} s", file=sys.stderr
            )
    return weights, log


def play_episode(player: Player, task: Task) -> float:
    """Company value in dollars at the end of one dev episode with the same player in all seats."""
    simulator = Simulator(scenarios.load(task.payload["scenario"]))
    s = simulator.found(task.seed, task.payload["days"])
    run(simulator, s, dict.fromkeys(SEATS, player), turns=s.horizon)
    return company_value(s) / 100.0


def compare(teams: dict[str, Player], tasks: Sequence[Task], mapper: Mapper) -> dict[str, list[float]]:
    """Company value of every team on every task."""
    return {name: list(mapper(partial(play_episode, player), tasks)) for name, player in teams.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=12.0, help="training stops after this time")
    parser.add_argument("--iterations", type=int, default=150)
    parser.add_argument("--demonstrations", type=int, default=8, help="teacher episodes per scenario for the clone")
    parser.add_argument(
        "--episodes", type=int, default=5, help="training episodes per iteration; they rotate through the scenarios"
    )
    parser.add_argument("--states", type=int, default=8, help="branched states per role and episode")
    parser.add_argument("--samples", type=int, default=8, help="K: sampled actions per state")
    parser.add_argument("--worlds", type=int, default=4, help="m: worlds per sample")
    parser.add_argument("--turns", type=int, default=140, help="H: horizon of a branch")
    parser.add_argument("--rate", type=float, default=1.0, help="learning rate of GRPO (plain gradient ascent)")
    parser.add_argument("--seeds", type=int, default=12, help="dev episodes per scenario")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2, help="0 runs everything in this process")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    start = time.monotonic()
    if options.processes == 0:
        result = experiment(options, map, start)
    else:
        with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
            result = experiment(options, pool.map, start)
    print(json.dumps(result, indent=2) if options.json else table(result))
    return 0 if result["passed"] else 1


def experiment(options: argparse.Namespace, mapper: Mapper, start: float) -> dict:
    """Clone, train, compare."""
    demonstrations = list(mapper(demonstrate, office_tasks(Split.TRAIN, seeds=options.demonstrations)))
    clone = {role: fit_clone([d for found in demonstrations for d in found[role]]) for role in SEATS}
    trained, log = train(clone, options, mapper, time.monotonic() + 60.0 * options.minutes)
    tasks = office_tasks(Split.DEV, seeds=options.seeds, first=3_000)
    teams: dict[str, Player] = {
        "clone": LinearPlayer(clone), "trained": LinearPlayer(trained), "expert": expert, "heuristic": heuristic,
    }  # fmt: skip
    values = compare(teams, tasks, mapper)
    strata = [task.payload["scenario"] for task in tasks]
    difference = paired_difference(values["trained"], values["clone"], strata=strata, seed=0)
    gains = [x - y for x, y in zip(values["trained"], values["clone"], strict=True)]
    share = ratio_interval(gains, values["clone"], strata=strata, seed=0)
    return {
        "passed": share.mean >= MIN_GAIN,
        "gain": share.as_dict(),
        "difference": difference.as_dict(),
        "values": {name: fmean(row) for name, row in values.items()},
        "scenarios": {
            scenario: {name: fmean(x for x, s in zip(row, strata, strict=True) if s == scenario) for name, row in values.items()}
            for scenario in dict.fromkeys(strata)
        },
        "iterations": len(log),
        "alive": fmean(row["alive"] for row in log) if log else 0.0,
        "seconds": time.monotonic() - start,
        "options": {key: value for key, value in vars(options).items() if key != "json"},
        "log": log,
    }


def table(result: dict) -> str:
    names = list(result["values"])
    lines = ["Company value in dollars.", "| scenario | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for scenario, row in [*result["scenarios"].items(), ("all", result["values"])]:
        lines.append(f"| {scenario} | " + " | ".join(f"{row[name]:,.0f}" for name in names) + " |")
    gain, verdict = result["gain"], "holds" if result["passed"] else "DOES NOT HOLD"
    low, high = (100.0 * gain[end] if gain[end] is not None else math.nan for end in ("low", "high"))
    lines.append(
        f"gain of the trained team over its clone start: {100 * gain['mean']:.1f} % ({low:.1f} to {high:.1f}); >= 15 %: {verdict}"
    )
    lines.append(f"{result['iterations']} iterations, {100 * result['alive']:.0f} % of groups alive, {result['seconds']:.0f} s")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
